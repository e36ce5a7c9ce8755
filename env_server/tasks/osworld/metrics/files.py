"""Opening files for metrics: whatever is wrong with a file is one error, `BrokenFile`, that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from computerrl.env_server.tasks.osworld.metrics.texts import decoded, lines_of, table_rows
from computerrl.env_server.tasks.reading import limits
from computerrl.env_server.tasks.reading.limits import LimitPassed, within
from computerrl.env_server.tasks.reading.packages import Package, unpacked, xml_of
from computerrl.env_server.tasks.reading.texts import json_of

__all__ = [
    "BrokenFile",
    "archive_members",
    "load",
    "opening",
    "read_json",
    "read_lines",
    "read_package",
    "read_table",
    "read_text",
    "read_xml",
    "without_comments",
    "xml_of",
]

T = TypeVar("T")


class BrokenFile(ValueError):
    """A file is missing, is not of the kind that the metric reads, or passes a limit of `env_server.tasks.reading`."""

    def __init__(self, path: str | Path, reason: object) -> None:
        self.path = Path(path)
        super().__init__(f"{self.path.name}: {reason}")


@contextmanager
def opening(path: str | Path) -> Iterator[Path]:
    """Errors raised inside mean that the file at ``path`` is broken. Wrap nothing but the opening and parsing.

    Memory may be used up by another file than the one that is opened, so that its end says nothing of the file.
    """
    place = Path(path)
    if not place.is_file():
        raise BrokenFile(place, "there is no such file")
    try:
        yield place
    except (BrokenFile, MemoryError):
        raise
    except LimitPassed as error:
        raise BrokenFile(place, error) from error
    except Exception as error:
        raise BrokenFile(place, f"{type(error).__name__}: {error}") from error


def load(path: str | Path, parse: Callable[[Path], T]) -> T:
    """``parse(path)``, or `BrokenFile`."""
    with opening(path) as place:
        return parse(place)


def read_text(path: str | Path) -> str:
    """A text file in any encoding that `texts.decoded` knows."""
    return load(path, _text)


def _text(place: Path) -> str:
    within("bytes of text", place.stat().st_size, limits.MAX_TEXT_BYTES)
    return decoded(place.read_bytes())


def read_lines(path: str | Path) -> list[str]:
    """A text file's lines."""
    return lines_of(read_text(path))


def read_table(path: str | Path) -> list[list[str]]:
    """The rows of a CSV file."""

    def parse(place: Path) -> list[list[str]]:
        text = _text(place)
        within("cells of the table", text.count(",") + text.count("\n"), limits.MAX_TABLE_CELLS)
        return table_rows(text)

    return load(path, parse)


def read_json(path: str | Path) -> Any:
    """A JSON file; comments and commas before a closing bracket are allowed, as editors write them into their settings."""

    def parse(place: Path) -> Any:
        text = _text(place)
        try:
            return json_of(text)
        except LimitPassed:
            raise
        except ValueError:
            return json_of(without_comments(text))

    return load(path, parse)


def without_comments(text: str) -> str:
    """JSON text without ``//`` and ``/* */`` comments and trailing commas; strings stay as they are."""
    kept: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        if char == '"':
            end = position + 1
            while end < len(text) and text[end] != '"':
                end += 2 if text[end] == "\\" else 1
            kept.append(text[position : end + 1])
            position = end + 1
        elif text.startswith("//", position):
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
        elif text.startswith("/*", position):
            end = text.find("*/", position)
            position = len(text) if end < 0 else end + 2
        else:
            if char in "]}":
                _drop_comma(kept)
            kept.append(char)
            position += 1
    return "".join(kept)


def _drop_comma(kept: list[str]) -> None:
    index = len(kept) - 1
    while index >= 0 and kept[index].isspace():
        index -= 1
    if index >= 0 and kept[index] == ",":
        del kept[index]


def read_xml(path: str | Path) -> Any:
    """An XML file, parsed."""
    return load(path, lambda place: xml_of(place.read_bytes()))


def read_package(path: str | Path) -> Package:
    """An office file, unpacked within the limits."""
    return load(path, lambda place: Package(place.read_bytes()))


def archive_members(path: str | Path) -> dict[str, bytes]:
    """Name -> content of a zip or tar archive's files."""
    return load(path, lambda place: unpacked(place.read_bytes()))
