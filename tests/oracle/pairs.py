"""What a comparison of evaluators is made of."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Pair:
    """One call of a metric, in a form that JSON can hold."""

    metric: str
    kind: str
    """What is special about the first argument, and what about the second."""
    args: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judge:
    """A metric with options, and a word for them."""

    metric: str
    options: Mapping[str, Any] = field(default_factory=dict)
    rules: Any = None
    """Second argument of metrics over one file."""
    word: str = ""
    about: str = ""
    """Pattern of the files that this is about."""

    def wants(self, number: int, name: str, every: int) -> bool:
        """Is this file one for the judge: the first, one of no kind, one it is about, or each so many-th of the others?"""
        if number == 0 or name in BROKEN or (self.about and re.search(self.about, name)):
            return True
        return (number + sum(map(ord, self.metric + self.word))) % every == 0


BROKEN = ("empty", "no such kind", "cut off")


def each_with_base(judges: Iterable[Judge], files: Mapping[str, str], *, every: int = 1) -> Iterator[Pair]:
    """Every file that the judge wants against the first one, the first one against it, and (a quarter of them) against itself."""
    base = next(iter(files))
    for judge in judges:
        for number, name in enumerate(files):
            if judge.wants(number, name, every):
                itself = [(name, name)] if every == 1 or number % 4 == 0 else []
                for one, other in dict.fromkeys([(name, base), (base, name), *itself]):
                    yield Pair(judge.metric, _words(judge, one, "=", other), (files[one], files[other]), judge.options)


def each_alone(judges: Iterable[Judge], files: Mapping[str, str], *, every: int = 1) -> Iterator[Pair]:
    """Every file that the judge wants by itself, with the judge's rules where it has some."""
    for judge in judges:
        for number, (name, path) in enumerate(files.items()):
            if judge.wants(number, name, every):
                args = (path,) if judge.rules is None else (path, judge.rules)
                yield Pair(judge.metric, _words(judge, name), args, judge.options)


def _words(judge: Judge, *words: str) -> str:
    return " ".join((*words, *([f"({judge.word})"] if judge.word else [])))


def write(folder: Path, ending: str, contents: Mapping[str, bytes | str | Callable[[Path], Any]]) -> dict[str, str]:
    """Files by their names: of bytes, of text, or written by a function."""
    folder.mkdir(parents=True)
    found = {}
    for number, (name, content) in enumerate(contents.items()):
        place = folder / f"{number:03}{ending}"
        if callable(content):
            content(place)
        else:
            place.write_bytes(content.encode() if isinstance(content, str) else content)
        found[name] = str(place)
    return found


def broken(whole: bytes) -> dict[str, bytes]:
    """Files that are of no kind."""
    return dict(zip(BROKEN, (b"", b"\x00\x01nothing\xff", whole[: len(whole) * 2 // 3]), strict=True))
