"""The asset folder: files that tasks would download, looked up on disk. Never opens a connection.

A URL's file lies below the folder at the URL's path, so that a plain mirror of the host works::

    https://HOST/a/b/c/table.xlsx   ->   ASSETS/a/b/c/table.xlsx

Also found: ``ASSETS/HOST/a/b/c/table.xlsx`` (what mirroring tools write), and the path with leading parts left out as long as the
file's own folder remains (``ASSETS/b/c/table.xlsx``, ``ASSETS/c/table.xlsx``: a checkout of the data set). The longest wins.
An address that names no file was replaced by a place below the folder when the task file was read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

MAX_ASSET_BYTES = 45 * 1024 * 1024
"""A file travels to the desktop in one frame of at most 64 MiB, as base64 text."""


@dataclass(frozen=True, slots=True)
class Assets:
    """One asset folder; `None` when the person has none."""

    folder: Path | None = None

    def find(self, url: str) -> Path | None:
        """The file of ``url``, or None."""
        if self.folder is None:
            return None
        for candidate in candidates(url):
            place = self.folder / candidate
            if place.is_file():
                return place
        return None

    def digest(self, url: str) -> str:
        """Hash of the file of ``url``; empty when there is none."""
        place = self.find(url)
        if place is None:
            return ""
        with place.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def missing(self, url: str) -> str:
        """Why `find` gave None, with where the file belongs; empty when it is there and can be used."""
        place = self.find(url)
        if place is not None:
            num_bytes = place.stat().st_size
            return f"{place} has {num_bytes} bytes; at most {MAX_ASSET_BYTES} fit" if num_bytes > MAX_ASSET_BYTES else ""
        wanted = next(candidates(url), None)
        if wanted is None:
            return f"{url!r} names no file"
        if self.folder is None:
            return f"needs the file {wanted}, and no asset folder was given"
        return f"the asset folder lacks {wanted}"


def candidates(url: str) -> Iterator[Path]:
    """Where the file of ``url`` may lie below the asset folder, best first."""
    parts = urlsplit(url)
    path = [part for part in PurePosixPath(unquote(parts.path)).parts if part != "/"]
    if not path or ".." in path or "\0" in url:
        return
    yield Path(*path)
    if parts.hostname:
        yield Path(parts.hostname, *path)
    for start in range(1, len(path) - 1):
        yield Path(*path[start:])
