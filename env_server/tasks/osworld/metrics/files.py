"""Opening files for metrics: whatever is wrong with a file is one error, `BrokenFile`, that names it."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from env_server.tasks.osworld.metrics.texts import decoded, lines_of, table_rows

T = TypeVar("T")
MAX_UNPACKED_BYTES = 200_000_000
"""An archive that unpacks to more is refused: a result file must not fill the host's memory."""


class BrokenFile(ValueError):
    """A file is missing or is not of the kind that the metric reads."""

    def __init__(self, path: str | Path, reason: object) -> None:
        self.path = Path(path)
        super().__init__(f"{self.path.name}: {reason}")


@contextmanager
def opening(path: str | Path) -> Iterator[Path]:
    """Errors raised inside mean that the file at ``path`` is broken. Wrap nothing but the opening and parsing."""
    place = Path(path)
    if not place.is_file():
        raise BrokenFile(place, "there is no such file")
    try:
        yield place
    except BrokenFile:
        raise
    except Exception as error:
        raise BrokenFile(place, f"{type(error).__name__}: {error}") from error


def load(path: str | Path, parse: Callable[[Path], T]) -> T:
    """``parse(path)``, or `BrokenFile`."""
    with opening(path) as place:
        return parse(place)


def read_text(path: str | Path) -> str:
    """A text file in any encoding that `texts.decoded` knows."""
    return load(path, lambda place: decoded(place.read_bytes()))


def read_lines(path: str | Path) -> list[str]:
    """A text file's lines."""
    return lines_of(read_text(path))


def read_table(path: str | Path) -> list[list[str]]:
    """The rows of a CSV file."""
    return load(path, lambda place: table_rows(decoded(place.read_bytes())))


def read_json(path: str | Path) -> Any:
    """A JSON file; comments and commas before a closing bracket are allowed, as editors write them into their settings."""

    def parse(place: Path) -> Any:
        text = decoded(place.read_bytes())
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return json.loads(without_comments(text))

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


def xml_of(data: bytes) -> Any:
    """Parsed XML; `ValueError` when it is none. No entities are expanded and nothing is fetched: it may come from anybody."""
    from lxml import etree

    try:
        return etree.fromstring(data, etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=False))
    except etree.XMLSyntaxError as error:
        raise ValueError(str(error)) from error


def archive_members(path: str | Path) -> dict[str, bytes]:
    """Name -> content of a zip or tar archive's files."""
    import tarfile

    def parse(place: Path) -> dict[str, bytes]:
        if zipfile.is_zipfile(place):
            with zipfile.ZipFile(place) as archive:
                infos = [info for info in archive.infolist() if not info.is_dir()]
                _limit(sum(info.file_size for info in infos))
                return {info.filename: archive.read(info) for info in infos}
        with tarfile.open(place) as tar:
            members = [member for member in tar if member.isfile()]
            _limit(sum(member.size for member in members))
            return {member.name.removeprefix("./"): _content(tar.extractfile(member)) for member in members}

    return load(path, parse)


def _content(file: Any) -> bytes:
    return bytes(file.read()) if file is not None else b""


def _limit(num_bytes: int) -> None:
    if num_bytes > MAX_UNPACKED_BYTES:
        raise ValueError(f"unpacks to {num_bytes} bytes; at most {MAX_UNPACKED_BYTES} are read")
