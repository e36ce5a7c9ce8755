"""The agent's API of files, one public method per action of `common.actions.tables.system`; arguments the same.

Methods give the text that the agent sees and raise `FileActionError`. Everything stays inside the agent's folder
(`files.folder`). ``files.open`` is not here: it needs applications (`guest.api`).
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from . import archives
from .folder import MAX_FILE_BYTES, MAX_READ_BYTES, AgentFolder, FileActionError

_MAX_FOUND = 200
_MAX_SEARCHED_BYTES = 50_000_000
"""Of all files of one search, which takes a second or two."""
_MAX_LINE_CHARS = 200
_SYMBOLIC_MODE = re.compile(r"^[ugoa]*[+=-][rwx]*$")
_WHO = {"u": 0o700, "g": 0o070, "o": 0o007, "a": 0o777}
_WHAT = {"r": 0o444, "w": 0o222, "x": 0o111}


class FileTools:
    """One method per action."""

    def __init__(self, folder: AgentFolder) -> None:
        self._folder = folder
        self.rename, self.move, self.copy, self.delete = folder.rename, folder.move, folder.copy, folder.delete
        self.make_folder, self.read, self.write = folder.make_folder, folder.read, folder.write

    def list(self, folder: str) -> str:
        """Names in a folder, one a line."""
        return "\n".join(self._folder.list(folder))

    def append(self, path: str, text: str) -> None:
        """Add to the end of a text file, which is made where it is not there."""
        place = self._folder.resolve(path)
        if not place.is_file():
            self._folder.write(path, text)
            return
        if place.stat().st_size + len(text) > MAX_FILE_BYTES:
            raise FileActionError(f"{path} would be longer than {MAX_FILE_BYTES} bytes")
        with place.open("a", encoding="utf-8") as file:
            file.write(text)

    def find(self, pattern: str, folder: str) -> str:
        """Paths below ``folder`` whose name matches, relative to the agent's folder."""
        if not pattern.strip():
            raise FileActionError("give a pattern, like *.txt")
        base = self._shown(self._folder.existing(folder))
        found = [
            f"{base}{path}"
            for path in self._folder.listing(folder)
            if fnmatch.fnmatchcase(path.rstrip("/").rpartition("/")[2].lower(), pattern.strip().lower())
        ]
        return _cut(found, "paths") or f"nothing is called {pattern}"

    def search(self, words: str, folder: str) -> str:
        """Lines that contain the words, capitals and small letters alike, as ``path:line number: line``."""
        if not words.strip():
            raise FileActionError("give the words to look for")
        wanted, found = words.casefold(), []
        for name, text in self._texts(folder):
            for number, line in enumerate(text.splitlines(), start=1):
                if wanted in line.casefold():
                    found.append(f"{name}:{number}: {line.strip()[:_MAX_LINE_CHARS]}")
        return _cut(found, "lines") or f"no line contains {words!r}"

    def info(self, path: str) -> str:
        """Kind, size, time of change and permissions."""
        place = self._folder.existing(path)
        facts = place.lstat()
        kind = "link" if place.is_symlink() else "folder" if place.is_dir() else "file"
        size = f"{len(os.listdir(place))} entries" if kind == "folder" else f"{facts.st_size} bytes"
        changed = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(facts.st_mtime))
        return (
            f"{path}: {kind}, {size}, changed {changed} UTC, permissions {stat.filemode(facts.st_mode)} "
            f"({stat.S_IMODE(facts.st_mode):03o})"
        )

    def set_permissions(self, path: str, mode: str) -> str:
        """Octal, or symbolic changes such as ``u+x,go-w``."""
        place = self._folder.existing(path)
        if place == self._folder.root:
            raise FileActionError("the folder itself keeps its permissions")
        if place.is_symlink():
            raise FileActionError(f"{path} is a link: set the permissions of what it points to")
        new = changed_mode(stat.S_IMODE(place.stat().st_mode), mode)
        place.chmod(new)
        return f"{path}: {stat.filemode(place.stat().st_mode)} ({new:03o})"

    def compress(self, path: str, archive: str) -> str:
        """Pack a file or folder."""
        source, target = self._folder.existing(path), self._folder.resolve(archive)
        archives.kind_of(target.name)
        if source == self._folder.root:
            raise FileActionError("name one file or folder to pack")
        if os.path.lexists(target):
            raise FileActionError(f"{archive} is there already")
        if not target.parent.is_dir():
            raise FileActionError(f"there is no folder {Path(archive).parent}")
        return f"{archive}: {archives.pack(source, target)} packed"

    def extract(self, archive: str, folder: str) -> str:
        """Unpack into a folder, which is made where it is not there."""
        source, target = self._folder.existing(archive), self._folder.resolve(folder)
        if not source.is_file():
            raise FileActionError(f"{archive} is not a file")
        if target.exists() and not target.is_dir():
            raise FileActionError(f"{folder} is not a folder")
        target.mkdir(parents=True, exist_ok=True)
        return f"{archives.unpack(source, target)} files unpacked into {folder}"

    def _texts(self, folder: str) -> Iterator[tuple[str, str]]:
        base, num_left = self._folder.existing(folder), _MAX_SEARCHED_BYTES
        for path in self._folder.listing(folder):
            place = base / path
            if path.endswith("/") or place.is_symlink() or not place.is_file() or place.stat().st_size > MAX_READ_BYTES:
                continue
            data = place.read_bytes()
            num_left -= len(data)
            if num_left < 0:
                raise FileActionError(f"more than {_MAX_SEARCHED_BYTES} bytes to search: name a folder below {folder}")
            if b"\0" not in data:
                yield f"{self._shown(base)}{path}", data.decode("utf-8", "replace")

    def _shown(self, folder: Path) -> str:
        """A folder as prefix of the paths in it."""
        return "" if folder == self._folder.root else f"{folder.relative_to(self._folder.root)}/"


def changed_mode(old: int, mode: str) -> int:
    """``old`` after ``mode``: octal such as ``644``, or symbolic such as ``u+x,go-w``. Raises `FileActionError`."""
    text = mode.strip()
    if re.fullmatch(r"0?[0-7]{3}", text):
        return int(text, 8)
    new = old
    for clause in text.split(","):
        if not _SYMBOLIC_MODE.match(clause):
            raise FileActionError(f'{mode!r} is no mode: write it like "644" or "u+x"')
        who, sign, what = re.split(r"([+=-])", clause, maxsplit=1)
        mask = 0
        for letter in who or "a":
            mask |= _WHO[letter]
        bits = sum(_WHAT[letter] for letter in set(what)) & mask
        new = new | bits if sign == "+" else new & ~bits if sign == "-" else new & ~mask | bits
    return new


def _cut(found: list[str], what: str) -> str:
    more = len(found) - _MAX_FOUND
    return "\n".join([*found[:_MAX_FOUND], *([f"... {more} more {what}"] if more > 0 else [])])
