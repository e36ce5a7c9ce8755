"""Packing and unpacking .zip and .tar.gz inside the agent's folder. Nothing an archive says leads outside its target folder.

Links and devices in an archive are refused, not followed; sizes are checked while unpacking, since headers may lie.
"""

from __future__ import annotations

import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from .folder import FileActionError, below

MAX_MEMBERS = 5000
MAX_UNPACKED_BYTES = 200_000_000
"""The desktop's files share a memory of a gigabyte."""
_CHUNK_BYTES = 1 << 16
_ZIP = (".zip",)
_TAR = (".tar.gz", ".tgz")

_DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    LookupError,
    ArithmeticError,
)
"""What the standard library raises for damaged archives, whose numbers and names it takes for granted."""

Member = tuple[str, bool, int, "IO[bytes] | None"]
"""Name, is it a folder, permissions, content."""


def kind_of(name: str) -> str:
    """``zip`` or ``tar``, by the name's ending. Raises `FileActionError`."""
    lower = name.lower()
    if lower.endswith(_ZIP):
        return "zip"
    if lower.endswith(_TAR):
        return "tar"
    raise FileActionError(f"{name} is no archive's name: it ends with .zip or .tar.gz")


def pack(source: Path, archive: Path) -> int:
    """Pack a file, or a folder under its own name; gives the number of members. Links, pipes and sockets are left out.

    Raises `FileActionError` for more than `unpack` takes."""
    names = [(place, str(place.relative_to(source.parent))) for place in _to_pack(source, archive)]
    if kind_of(archive.name) == "zip":
        try:
            with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as target:
                for place, name in names:
                    target.write(place, name)
        except UnicodeEncodeError as error:
            raise FileActionError("a file's name is no text, and a .zip takes no other names") from error
    else:
        with tarfile.open(archive, "w:gz") as tar:
            for place, name in names:
                tar.add(place, name, recursive=False)
    return len(names)


def _to_pack(source: Path, archive: Path) -> list[Path]:
    """The files and folders that go into ``archive``."""
    found, num_bytes = [], 0
    for place in (source, *(Path(entry.path) for entry in below(source))):
        mode = place.lstat()
        if place == archive or not (stat.S_ISREG(mode.st_mode) or stat.S_ISDIR(mode.st_mode)):
            continue
        found.append(place)
        num_bytes += mode.st_size
        if len(found) > MAX_MEMBERS or num_bytes > MAX_UNPACKED_BYTES:
            raise FileActionError(f"too much to pack: more than {MAX_MEMBERS} members or {MAX_UNPACKED_BYTES} bytes")
    return sorted(found)


def unpack(archive: Path, folder: Path) -> int:
    """Unpack into ``folder``; gives the number of files. Raises `FileActionError` before the first file when a member's name
    leads outside or its place is taken, and at the first content that is damaged or too long."""
    members = _zip_members if kind_of(archive.name) == "zip" else _tar_members
    try:
        for number, (name, *_) in enumerate(members(archive, with_content=False), start=1):
            if number > MAX_MEMBERS:
                raise FileActionError(f"{archive.name} has more than {MAX_MEMBERS} members, which is as many as are unpacked")
            _check_place(folder, name)
        return _write_all(members(archive, with_content=True), folder)
    except FileActionError:
        raise
    except _DAMAGED as error:
        raise FileActionError(f"{archive.name} is damaged or of a kind that cannot be read: {error}") from error


def _check_place(folder: Path, name: str) -> None:
    pure = PurePosixPath(name.replace("\\", "/"))
    if pure.is_absolute() or ".." in pure.parts or "\0" in name:
        raise FileActionError(f"{name!r} in the archive leads outside the folder")
    place = folder
    for part in pure.parts:
        place = place / part
        if place.is_symlink():
            raise FileActionError(f"{name!r} in the archive would be written through a link")
    if place.exists() and not (place.is_dir() and name.endswith("/")) and place != folder:
        raise FileActionError(f"{name} is there already")


def _write_all(members: Iterator[Member], folder: Path) -> int:
    num_files = num_bytes = 0
    for name, is_folder, mode, content in members:
        place = folder.joinpath(*PurePosixPath(name.replace("\\", "/")).parts)
        if is_folder:
            place.mkdir(parents=True, exist_ok=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        assert content is not None
        # Exclusive: a name that comes twice, or that is a link by now, is an error and not a way out.
        with content, os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as target:
            while chunk := content.read(_CHUNK_BYTES):
                num_bytes += len(chunk)
                _check_bytes(num_bytes)
                target.write(chunk)
        num_files += 1
    return num_files


def _zip_members(archive: Path, *, with_content: bool) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as source:
        _check_bytes(sum(info.file_size for info in source.infolist()))
        for info in source.infolist():
            mode = info.external_attr >> 16
            if stat.S_ISLNK(mode):
                raise FileActionError(f"{info.filename!r} in the archive is a link")
            content = source.open(info) if with_content and not info.is_dir() else None
            yield info.filename, info.is_dir(), mode & 0o755 | 0o600 if mode else 0o644, content


def _tar_members(archive: Path, *, with_content: bool) -> Iterator[Member]:
    num_bytes = 0
    with tarfile.open(archive, "r:gz") as source:
        for info in source:
            if not (info.isfile() or info.isdir()):
                raise FileActionError(f"{info.name!r} in the archive is a link or a device")
            num_bytes += info.size
            _check_bytes(num_bytes)
            name = f"{info.name.rstrip('/')}/" if info.isdir() else info.name
            content = source.extractfile(info) if with_content and info.isfile() else None
            yield name, info.isdir(), info.mode & 0o755 | 0o600, content


def _check_bytes(num_bytes: int) -> None:
    if num_bytes > MAX_UNPACKED_BYTES:
        raise FileActionError(f"the archive unpacks to more than {MAX_UNPACKED_BYTES} bytes")
