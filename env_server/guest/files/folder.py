"""The agent's folder and the file actions: everything stays inside it, whatever paths and links say."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

MAX_READ_BYTES = 1_000_000
MAX_FILE_BYTES = 50_000_000
"""Larger files are not carried between guest and host."""
MAX_TEXT_BYTES = 10_000_000
"""The same of files that are read as text: each byte may take six in a message."""
_MAX_LISTED_CHARS = 2_000_000
"""Characters of all paths in one listing: an agent's program may have made many files at the end of long paths."""

_MAX_NAME_BYTES = 255
"""Of all Linux file systems."""


class FileActionError(ValueError):
    """The action cannot be done; the message is for the agent."""


class AgentFolder:
    """One folder; all paths are relative to it."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def wipe(self, *, keep: Collection[Path] = ()) -> None:
        """Delete everything in it but the files and folders ``keep``, and not the folder itself: a file manager may show it."""
        self.root.mkdir(parents=True, exist_ok=True)
        if stat.S_IMODE(self.root.stat().st_mode) != 0o700:  # a file manager that shows it would list it at each change
            self.root.chmod(0o700)
        empty(self.root, folders=keep, files=keep)

    def list(self, folder: str = ".") -> list[str]:
        """Sorted names in one folder, folders end with ``/``; without applications' own (`_is_own`)."""
        place = self.existing(folder)
        if not place.is_dir():
            raise FileActionError(f"{folder} is not a folder")
        entries = (entry for entry in os.scandir(place) if place != self.root or not _is_own(entry.name))
        return sorted(f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name for entry in entries)

    def listing(self, folder: str = ".") -> Sequence[str]:
        """Sorted paths of everything below, relative to ``folder``, folders end with ``/``; links are not followed.

        Without applications' own (`_is_own`), and cut where it is very long."""
        place = self.existing(folder)
        found, num_chars = [], 0
        for entry in below(place, leave_out=self._own() if place == self.root else ()):
            path = os.path.relpath(entry.path, place)
            found.append(f"{path}/" if entry.is_dir(follow_symlinks=False) else path)
            num_chars += len(path)
            if num_chars > _MAX_LISTED_CHARS:
                break
        return sorted(found)

    def marks(self) -> frozenset[tuple[str, int, int]]:
        """Path, inode number and time of the last change of everything but applications' own. No operation on files leaves them
        as they are."""
        found = set()
        for entry in below(self.root, leave_out=self._own()):
            with contextlib.suppress(FileNotFoundError):  # an operation that is under way
                facts = entry.stat(follow_symlinks=False)
                found.add((entry.path, facts.st_ino, facts.st_ctime_ns))
        return frozenset(found)

    def _own(self) -> Sequence[Path]:
        try:
            return [path for path in self.root.iterdir() if _is_own(path.name)]
        except OSError:  # an agent has closed the folder: nothing in it is listed anyway
            return ()

    def read(self, path: str) -> str:
        """A text file."""
        place = self.existing(path)
        if not place.is_file():
            raise FileActionError(f"{path} is not a file")
        if place.stat().st_size > MAX_READ_BYTES:
            raise FileActionError(f"{path} is longer than {MAX_READ_BYTES} bytes")
        return place.read_text(encoding="utf-8", errors="replace")

    def text_or_none(self, path: str) -> str | None:
        """The text, or None when there is no such file that can be read."""
        data = self.bytes_or_none(path)
        if data is None or len(data) > MAX_TEXT_BYTES:
            return None
        return data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")

    def bytes_or_none(self, path: str) -> bytes | None:
        """A file as it is; None as `read_regular` gives it, and where an agent's link leads outside. Raises `FileActionError` for
        a path that leads there by itself."""
        try:
            return read_regular(self.resolve(path))
        except FileActionError:
            plain = Path(os.path.normpath(self.root / path.strip()))
            if "\0" in path or self.root not in (plain, *plain.parents):
                raise
            return None

    def put(self, path: str, data: bytes) -> None:
        """Write a file as it is; its folder must be there."""
        self.resolve(path).write_bytes(data)

    def write(self, path: str, text: str) -> None:
        """Write a text file; its folder must be there."""
        place = self.resolve(path)
        if place.is_dir():
            raise FileActionError(f"{path} is a folder")
        if place.exists() and not place.is_file():
            raise FileActionError(f"{path} is not a file")
        if not place.parent.is_dir():
            raise FileActionError(f"there is no folder {Path(path).parent}")
        place.write_text(text, encoding="utf-8")

    def make_parents(self, path: str) -> None:
        """Make the folders above ``path``."""
        self.resolve(path).parent.mkdir(parents=True, exist_ok=True)

    def rename(self, path: str, new_name: str) -> None:
        """Rename within its folder."""
        place = self.existing(path)
        if "/" in new_name or new_name in ("", ".", ".."):
            raise FileActionError(f"{new_name!r} is no file name")
        self._move(place, place.parent / new_name)

    def move(self, path: str, folder: str) -> None:
        """Move into a folder."""
        place, target = self.existing(path), self.existing(folder)
        if not target.is_dir():
            raise FileActionError(f"{folder} is not a folder")
        if target == place or place in target.parents:
            raise FileActionError(f"{path} cannot be moved into itself")
        self._move(place, target / place.name)

    def copy(self, path: str, target: str) -> None:
        """Copy to a new path, or into a folder that is there."""
        place, new = self.existing(path), self.resolve(target)
        if new.is_dir():
            new = new / place.name
        if os.path.lexists(new):
            raise FileActionError(f"{target} is there already")
        if not new.parent.is_dir():
            raise FileActionError(f"there is no folder {Path(target).parent}")
        if place.is_dir():
            if place in new.parents:
                raise FileActionError(f"{path} cannot be copied into itself")
            _copy_tree(place, new)
        else:
            shutil.copy2(place, new, follow_symlinks=False)

    def delete(self, path: str) -> None:
        """Delete a file or a folder with all in it."""
        place = self.existing(path)
        if place == self.root:
            raise FileActionError("the folder itself stays where it is")
        if place.is_dir() and not place.is_symlink():
            remove_tree(place)
        else:
            place.unlink()

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it."""
        place = self.resolve(path)
        if os.path.lexists(place):
            raise FileActionError(f"{path} is there already")
        place.mkdir(parents=True)

    def resolve(self, path: str) -> Path:
        """The absolute place of ``path``; raises `FileActionError` when it or a link on the way leads outside."""
        if "\0" in path or len(path) > 1000:
            raise FileActionError("no such path")
        if any(len(os.fsencode(part)) > _MAX_NAME_BYTES for part in path.split("/")):
            raise FileActionError(f"a name of more than {_MAX_NAME_BYTES} bytes")
        text = path.strip()
        if text in ("", "/"):
            text = "."
        wanted = self.root / text
        # The last part itself may be a link (to be renamed or deleted); what it points to must still lie inside.
        real = Path(os.path.realpath(wanted))
        if real != self.root and self.root not in real.parents:
            raise FileActionError(f"{path} lies outside the folder")
        parent = Path(os.path.realpath(wanted.parent)) if text != "." else self.root.parent
        return self.root if real == self.root else parent / wanted.name if wanted.name not in ("..", "") else real

    def existing(self, path: str) -> Path:
        """The place of ``path``, which is there. Raises `FileActionError`."""
        place = self.resolve(path)
        if not os.path.lexists(place):
            raise FileActionError(f"there is no {path}")
        return place

    def _move(self, place: Path, target: Path) -> None:
        if place == self.root:
            raise FileActionError("the folder itself stays where it is")
        if os.path.lexists(target):
            raise FileActionError(f"{target.relative_to(self.root)} is there already")
        os.rename(place, target)


def _is_own(name: str) -> bool:
    """Is this a name in the home that belongs to an application, as all that begin with a dot do? Tasks are not about them."""
    return name.startswith(".")


def read_regular(place: Path) -> bytes | None:
    """A file's content; None when there is none, or none that can be read: without permission, no regular file, larger than
    `MAX_FILE_BYTES`, with a name that no file can have. What an agent has made of its file is as good as deleted to a judge."""
    try:
        # A pipe would be waited for.
        with open(place, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
            data = file.read(MAX_FILE_BYTES + 1) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    except OSError:
        return None
    return None if data is None or len(data) > MAX_FILE_BYTES else data


def below(top: Path, *, leave_out: Collection[Path] = ()) -> Iterator[os.DirEntry[str]]:
    """Everything below a folder but ``leave_out`` with all below them, each folder before what is in it; links are not followed.

    Folders that cannot be looked into count as empty: without permission, or with paths that are longer than any call takes.
    However deep an agent's folders are: `os.walk`, `Path.rglob` and `shutil` call themselves for each level, and give up at
    a thousand.
    """
    without = {str(path) for path in leave_out}
    pending = [str(top)]
    while pending:
        try:
            entries = os.scandir(pending.pop())
        except OSError:
            continue
        with entries:
            for entry in entries:
                if entry.path in without:
                    continue
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)


def _copy_tree(source: Path, target: Path) -> None:
    """Copy a folder with all in it, links as links. Raises `FileActionError` for a folder in it that cannot be looked into, and
    `OSError`."""
    made = [(str(source), str(target))]
    target.mkdir()
    for entry in below(source):
        new = f"{target}{entry.path.removeprefix(str(source))}"
        if not entry.is_dir(follow_symlinks=False):
            shutil.copy2(entry.path, new, follow_symlinks=False)
        elif os.access(entry.path, os.R_OK | os.X_OK):
            os.mkdir(new)
            made.append((entry.path, new))
        else:
            raise FileActionError(f"{entry.path.removeprefix(str(source.parent))[1:]:.200} cannot be looked into")
    for old, new in reversed(made):
        shutil.copystat(old, new)


def make_way(place: Path, *, root: Path) -> None:
    """Make the folders above ``place`` and clear it, so that a new file can be made there.

    Below ``root``, what stands in a folder's place or leads outside is removed, and folders are opened up: an agent may have left
    anything.
    """
    for folder in reversed(place.parents):
        if root in folder.parents:
            real = Path(os.path.realpath(folder))
            if root in real.parents and not os.path.lexists(real):
                real.mkdir(parents=True)  # a link may name a folder that is still to come, as that of the browser's settings does
            elif root not in real.parents or not real.is_dir():
                remove(folder)
                folder.mkdir()
            folder.chmod(0o700)
        else:
            folder.mkdir(exist_ok=True)
    remove(place)


def empty(root: Path, *, folders: Collection[Path], files: Collection[Path], sockets: Collection[Path] = ()) -> None:
    """Delete everything in a folder but ``folders`` with all below them, ``files`` and ``sockets``.

    Links are removed and never followed, also where one took the place of something that stays.
    """
    kept_folders, kept_files, kept_sockets = (set(map(str, kind)) for kind in (folders, files, sockets))
    above = _above(kept_folders | kept_files | kept_sockets) - kept_folders
    pending = [str(root)]
    while pending:
        place = pending.pop()
        if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
            os.chmod(place, 0o700)
        with os.scandir(place) as entries:
            listed = list(entries)
        for entry in listed:
            if entry.is_dir(follow_symlinks=False):
                if entry.path in above:
                    pending.append(entry.path)
                elif entry.path not in kept_folders:
                    remove_tree(entry.path)
                continue
            mode = entry.stat(follow_symlinks=False).st_mode
            if not ((stat.S_ISREG(mode) and entry.path in kept_files) or (stat.S_ISSOCK(mode) and entry.path in kept_sockets)):
                os.unlink(entry.path)


def _above(places: Iterable[str]) -> set[str]:
    """All folders above these absolute paths. Hundreds of paths at each reset: `Path.parents` would take ten times as long."""
    found: set[str] = set()
    for place in places:
        while (place := os.path.dirname(place)) not in found:
            found.add(place)
    return found


def remove(place: str | Path) -> None:
    """Delete whatever is there: a file, a link (not what it leads to), or a folder with all in it."""
    if os.path.isdir(place) and not os.path.islink(place):
        remove_tree(place)
    elif os.path.lexists(place):
        os.unlink(place)


def remove_tree(folder: str | Path) -> None:
    """Delete a folder with all in it, whatever permissions an agent has taken from its parts and however deep it is.

    Folders below are moved to the top one before they are emptied: paths of deep ones are longer than any call takes.
    """
    top, num_moved = os.fspath(folder), 0
    pending = [top]
    while pending:
        place = pending.pop()
        os.chmod(place, 0o700)  # before it is looked into
        with os.scandir(place) as entries:
            listed = list(entries)
        for entry in listed:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
            elif place == top:
                pending.append(entry.path)
            else:
                os.chmod(entry.path, 0o700)  # without, it may not be moved
                while os.path.lexists(shallow := f"{top}/{num_moved}"):
                    num_moved += 1
                os.rename(entry.path, shallow)
                pending.append(shallow)
        if place != top:
            os.rmdir(place)
    os.rmdir(top)
