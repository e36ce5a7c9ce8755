"""What is said of a file, as one flat dictionary, and how two of them are compared.

A checker compares the facts of the saved file with those of the wanted one. All facts count, wanted change and rest alike: so
whatever else was altered costs the reward too. Facts are made so that the office's own rewriting of a file leaves them equal.
Nothing here looks at how a file came about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import groupby

from computerrl.env_server.tasks.reading.limits import LimitPassed

Facts = dict[str, object]

Check = Callable[[object], bool]
"""Stands for a wanted fact with more than one right value."""

_TOLERANCE = 1e-6


class UnreadableFile(ValueError):
    """A file is not of the kind that its name says, or passes a limit of `env_server.tasks.reading`."""


@contextmanager
def reading(kind: str) -> Iterator[None]:
    """Errors raised inside mean that the file is no ``kind``: an agent can write anything into it. The end of memory says nothing
    of one file."""
    try:
        yield
    except (UnreadableFile, MemoryError):
        raise
    except LimitPassed as error:
        raise UnreadableFile(str(error)) from error
    except Exception as error:
        raise UnreadableFile(f"no {kind}: {type(error).__name__}: {error}") from error


Look = tuple[tuple[str, object], ...]
"""Names and values of what stands out in a piece of text."""


def joined(pieces: Iterable[tuple[str, Look]]) -> list[tuple[str, Look]]:
    """Pieces of text, those in a row that look alike as one, empty ones left out."""
    shown = (piece for piece in pieces if piece[0])
    return [("".join(text for text, _ in alike), look) for look, alike in groupby(shown, key=lambda piece: piece[1])]


def differences(wanted: Facts, found: Facts, *, checks: Mapping[str, Check] | None = None) -> list[str]:
    """What differs, in words for people; ``checks`` maps patterns of fact names to what is asked of those instead."""
    checks = checks or {}
    texts = []
    for name in sorted({*wanted, *found}):
        expected, actual = wanted.get(name), found.get(name)
        check = next((check for pattern, check in checks.items() if fnmatchcase(name, pattern)), None)
        if not (check(actual) if check is not None else same(expected, actual)):
            texts.append(f"{name}: {'must differ' if check is not None else f'expected {expected!r}'}, found {actual!r}")
    return texts


def same(expected: object, actual: object) -> bool:
    """Equal; numbers within rounding, lists and tuples member by member.

    A truth value equals nothing but itself: TRUE in a cell is neither the number nor the text that belongs there.
    """
    if isinstance(expected, bool) or isinstance(actual, bool):
        return expected is actual
    if isinstance(expected, int | float) and isinstance(actual, int | float):
        return abs(expected - actual) <= _TOLERANCE * max(1.0, abs(expected))
    if isinstance(expected, list | tuple) and isinstance(actual, list | tuple):
        return len(expected) == len(actual) and all(map(same, expected, actual))
    if isinstance(expected, Near):
        return expected.holds(actual)
    return expected == actual


class Near:
    """A length that may be rounded: equal within ``tolerance``; compares with another `Near` of the same unit."""

    def __init__(self, value: float, tolerance: float) -> None:
        self.value, self._tolerance = value, tolerance

    def holds(self, other: object) -> bool:
        """Is ``other`` as long?"""
        return isinstance(other, Near) and abs(self.value - other.value) <= self._tolerance

    def __repr__(self) -> str:
        return f"about {self.value:g}"


def anything(value: object) -> bool:
    """A check for what may be or not be, as the agent likes."""
    return True
