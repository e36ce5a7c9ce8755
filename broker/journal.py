"""The durable log: an append-only file of records, synced in batches, rewritten when most of it is forgotten.

File: 8 bytes of magic, then records ``magic(4) length(4) batch_start(8) crc32(4) payload``. ``batch_start`` is the offset at
which the record's batch began; all before it had been synced when the record was written. A damaged stretch is therefore a torn
tail (never acknowledged, cut off) exactly when no readable record of a later batch follows; otherwise acknowledged data
is damaged, and `ResumeError` says where.

`rewrite` puts a shorter history into a new file under the next number and renames it into place, so a crash leaves the old one
or the new one. Knows nothing of what a payload means; see `broker.records`.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from common import log
from common.errors import DiskFull, ResumeError

FILE_MAGIC = b"CRLJRNL1"
_RECORD_MAGIC = b"\xc7RL\x1e"
_HEADER = struct.Struct("<4sIQI")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PIECES_PER_WRITE = 512
"""Linux takes 1,024 pieces in one system call."""


class Journal(Protocol):
    """Where records go; one thread."""

    def append(self, payload: bytes) -> None:
        """Take a record into the current batch."""
        ...

    def flush(self) -> None:
        """Make the batch durable. Raises `DiskFull`; then no record of the batch is in the journal."""
        ...

    def replay(self) -> Iterator[bytes]:
        """All durable records."""
        ...

    def rewrite(self, payloads: Iterable[bytes]) -> None:
        """Replace all records. Raises `DiskFull`; then nothing has changed."""
        ...

    @property
    def num_bytes(self) -> int:
        """Size of the durable records."""
        ...

    def close(self) -> None: ...


class MemoryJournal:
    """Records in memory, for serial mode."""

    def __init__(self) -> None:
        self._records: list[bytes] = []
        self._batch: list[bytes] = []
        self.num_bytes = 0

    def append(self, payload: bytes) -> None:
        self._batch.append(payload)

    def flush(self) -> None:
        self._records += self._batch
        self.num_bytes += sum(map(len, self._batch))
        self._batch = []

    def replay(self) -> Iterator[bytes]:
        yield from self._records

    def rewrite(self, payloads: Iterable[bytes]) -> None:
        self._records = list(payloads)
        self.num_bytes = sum(map(len, self._records))

    def close(self) -> None:
        pass


class FileJournal:
    """Records in ``folder/journal-<n>.log``; the highest number counts."""

    def __init__(self, folder: Path, *, fsync: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._fsync = fsync
        self._batch: list[bytes] = []
        self._batch_bytes = 0
        paths = sorted(folder.glob("journal-*.log"))
        for leftover in [*folder.glob("*.new"), *paths[:-1]]:
            leftover.unlink()
        if paths:
            self._path = paths[-1]
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            self._end = _find_end(self._path)
            os.ftruncate(self._descriptor, self._end)
        else:
            self._path = folder / "journal-000001.log"
            self._descriptor, self._end = self._write_file(self._path, ())
        self._dirty = False

    @property
    def num_bytes(self) -> int:
        return self._end

    @property
    def path(self) -> Path:
        """The file in use."""
        return self._path

    def append(self, payload: bytes) -> None:
        self._batch += _record(payload, batch_start=self._end)
        self._batch_bytes += _HEADER.size + len(payload)

    def flush(self) -> None:
        if not self._batch:
            return
        batch, num_bytes = self._batch, self._batch_bytes
        self._batch, self._batch_bytes = [], 0
        try:
            if self._dirty:
                os.ftruncate(self._descriptor, self._end)
            self._dirty = True
            _write_all(self._descriptor, batch, offset=self._end)
            self._sync(self._descriptor)
        except OSError as error:
            raise self._failure(error, num_bytes) from None
        self._dirty = False
        self._end += num_bytes

    def replay(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            file.seek(len(FILE_MAGIC))
            while file.tell() < self._end:
                _, length, _, _ = _HEADER.unpack(file.read(_HEADER.size))
                yield file.read(length)

    def rewrite(self, payloads: Iterable[bytes]) -> None:
        number = int(self._path.stem.removeprefix("journal-")) + 1
        path = self._folder / f"journal-{number:06d}.log"
        try:
            descriptor, end = self._write_file(path, payloads)
        except OSError as error:
            path.with_suffix(".new").unlink(missing_ok=True)
            raise self._failure(error, 0) from None
        old, old_descriptor = self._path, self._descriptor
        self._path, self._descriptor, self._end, self._dirty = path, descriptor, end, False
        os.close(old_descriptor)
        old.unlink()

    def close(self) -> None:
        os.close(self._descriptor)

    def _write_file(self, path: Path, payloads: Iterable[bytes]) -> tuple[int, int]:
        temporary = path.with_suffix(".new")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            end = _write_all(descriptor, [FILE_MAGIC], offset=0)
            start = end
            for payload in payloads:
                end = _write_all(descriptor, _record(payload, batch_start=start), offset=end)
            self._sync(descriptor)
            temporary.rename(path)
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                self._sync(folder, all_metadata=True)
            finally:
                os.close(folder)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor, end

    def _sync(self, descriptor: int, *, all_metadata: bool = False) -> None:
        if self._fsync:
            (os.fsync if all_metadata else os.fdatasync)(descriptor)

    def _failure(self, error: OSError, num_bytes: int) -> Exception:
        if error.errno in _NO_SPACE:
            return DiskFull(f"{self._folder}: {error.strerror} (writing {num_bytes} bytes); free space and it goes on")
        return error


def _record(payload: bytes, *, batch_start: int) -> tuple[bytes, bytes]:
    return _HEADER.pack(_RECORD_MAGIC, len(payload), batch_start, _checksum(payload, batch_start)), payload


def _checksum(payload: bytes | memoryview, batch_start: int) -> int:
    return zlib.crc32(payload, zlib.crc32(struct.pack("<QI", batch_start, len(payload))))


def _write_all(descriptor: int, pieces: Sequence[bytes], *, offset: int) -> int:
    """Write ``pieces`` one after the other from ``offset``; returns where they end."""
    for first in range(0, len(pieces), _PIECES_PER_WRITE):
        some = pieces[first : first + _PIECES_PER_WRITE]
        num_bytes = sum(map(len, some))
        written = os.pwritev(descriptor, some, offset)
        if written < num_bytes:
            rest = memoryview(b"".join(some))[written:]
            while rest:
                rest = rest[os.pwrite(descriptor, rest, offset + num_bytes - len(rest)) :]
        offset += num_bytes
    return offset


def _find_end(path: Path) -> int:
    """Where the last good record ends. Raises `ResumeError` when what follows was once acknowledged."""
    data = memoryview(path.read_bytes())
    if bytes(data[: len(FILE_MAGIC)]) != FILE_MAGIC:
        raise ResumeError(f"{path} is no journal of this release: it starts with {bytes(data[:8])!r}")
    offset = len(FILE_MAGIC)
    while offset < len(data):
        record = _read_record(data, offset)
        if record is None:
            later = _next_batch_start(data, offset + 1)
            if later is not None and later > offset:
                step = "restore the file, or start a new run"
                raise ResumeError(f"{path} is damaged at byte {offset}, before data that was acknowledged; {step}")
            num_bytes = len(data) - offset
            log.get_logger().warning("journal.torn_tail", file=str(path), offset=offset, num_bytes=num_bytes)
            return offset
        offset += _HEADER.size + len(record[1])
    return offset


def _read_record(data: memoryview, offset: int) -> tuple[int, memoryview] | None:
    """(batch_start, payload) of the record at ``offset``, None when there is no whole one."""
    if len(data) - offset < _HEADER.size:
        return None
    magic, length, batch_start, checksum = _HEADER.unpack_from(data, offset)
    payload = data[offset + _HEADER.size : offset + _HEADER.size + length]
    if magic != _RECORD_MAGIC or len(payload) != length or checksum != _checksum(payload, batch_start):
        return None
    return batch_start, payload


def _next_batch_start(data: memoryview, offset: int) -> int | None:
    """Largest ``batch_start`` of the readable records after ``offset``."""
    whole, found = bytes(data), None
    while (offset := whole.find(_RECORD_MAGIC, offset)) >= 0:
        record = _read_record(data, offset)
        if record is None:
            offset += 1
            continue
        found = record[0] if found is None else max(found, record[0])
        offset += _HEADER.size + len(record[1])
    return found
