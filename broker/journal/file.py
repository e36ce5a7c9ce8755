"""The durable log: append-only segments of checksummed records, synced in batches.

    journal-000007.log   [magic] [snapshot of all before] [record] [record] ... [record]    <- the newest: replayed
    journal-000005.log   [magic] [snapshot of all before] [record] ...                      <- kept while records in it are needed

A new segment begins with a snapshot of everything before it, and is renamed into place when it is on disk: a crash leaves
the one before as the newest, or this one. So a start reads the newest segment, and of older ones only the records that the
snapshot points at (`Position`). Segments that nobody points at become the files of later ones: a file system syncs what
overwrites several times faster than what appends, and deleting can take it long. Nothing that counts is ever rewritten.

A record is ``magic(4) length(4) batch_start(8) crc32(4) payload``. ``batch_start`` is the offset at which the record's batch
began; all before it had been synced when the record was written. The checksum covers the segment's number, too: what is left
of the segment that a file was before is not readable. A damaged stretch of the newest segment is therefore a torn tail
(never acknowledged, cut off) exactly when no readable record of a later batch follows; otherwise acknowledged data is
damaged, and `ResumeError` says where. Knows nothing of what a payload means; see `broker.journal.records`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from computerrl.common import log
from computerrl.common.errors import DiskFull, ResumeError
from computerrl.common.wire.codec import Buffer

FILE_MAGIC = b"CRLJRNL6"
_RECORD_MAGIC = b"\xc7RL\x1e"
_HEADER = struct.Struct("<4sIQI")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PIECES_PER_WRITE = 512
"""Linux takes 1,024 pieces in one system call."""
_MAX_SPARE = 4
"""Files kept for later segments."""


class Position(NamedTuple):
    """Where a record, or a part of it, lies."""

    segment: int
    offset: int
    part: int = 0
    """Which trajectory of a record that holds several."""


class Journal(Protocol):
    """Where records go; one thread writes, any thread reads."""

    def append(self, *pieces: Buffer) -> None:
        """Take a record, given in pieces, into the current batch."""
        ...

    def flush(self) -> list[Position]:
        """Make the batch durable; where each of its records lies. Raises `DiskFull`; then none of them is in the journal."""
        ...

    def begin_segment(self, snapshot: bytes) -> None:
        """Go on in a new segment whose first record is ``snapshot``. Raises `DiskFull`; then nothing has changed."""
        ...

    def drop_segments(self, needed: Collection[int]) -> None:
        """Forget all segments but the newest and those ``needed``."""
        ...

    def replay(self) -> Iterator[tuple[Position, bytes]]:
        """The durable records of the newest segment."""
        ...

    def read(self, position: Position) -> bytes:
        """One durable record. Raises `ResumeError` when it is damaged or missing."""
        ...

    @property
    def num_bytes(self) -> int:
        """Size of all segments."""
        ...

    @property
    def newest_bytes(self) -> int:
        """Size of the newest segment."""
        ...

    def close(self) -> None: ...


class MemoryJournal:
    """Records in memory, for serial mode."""

    def __init__(self) -> None:
        self._segments: dict[int, list[bytes]] = {1: []}
        self._batch: list[bytes] = []

    @property
    def _newest(self) -> int:
        return max(self._segments)

    @property
    def num_bytes(self) -> int:
        return sum(len(record) for records in self._segments.values() for record in records)

    @property
    def newest_bytes(self) -> int:
        return sum(map(len, self._segments[self._newest]))

    def append(self, *pieces: Buffer) -> None:
        self._batch.append(b"".join(pieces))

    def flush(self) -> list[Position]:
        records = self._segments[self._newest]
        positions = [Position(self._newest, len(records) + number) for number in range(len(self._batch))]
        records += self._batch
        self._batch = []
        return positions

    def begin_segment(self, snapshot: bytes) -> None:
        self._segments[self._newest + 1] = [snapshot]

    def drop_segments(self, needed: Collection[int]) -> None:
        newest = self._newest
        self._segments = {number: kept for number, kept in self._segments.items() if number == newest or number in needed}

    def replay(self) -> Iterator[tuple[Position, bytes]]:
        for number, record in enumerate(list(self._segments[self._newest])):
            yield Position(self._newest, number), record

    def read(self, position: Position) -> bytes:
        return self._segments[position.segment][position.offset]

    def close(self) -> None:
        pass


class FileJournal:
    """Segments ``folder/journal-<n>.log``."""

    def __init__(self, folder: Path, *, fsync: bool = True) -> None:
        """Opens the newest segment and cuts off its torn tail. Raises `ResumeError` when acknowledged data is damaged."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._fsync = fsync
        self._batch: list[Buffer] = []
        self._sizes: list[int] = []
        for leftover in folder.glob("*.new"):
            leftover.unlink()
        self._older = {number: path.stat().st_size for number, path in segments(folder).items()}
        if self._older:
            self._number = max(self._older)
            del self._older[self._number]
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            self._end = find_end(self.path)
            if self._number > 1 and self._end == len(FILE_MAGIC):
                raise ResumeError(f"{self.path} is damaged at byte {self._end}: the snapshot that it begins with is not readable")
            self._cut_off_tail()
        else:
            self._number = 1
            self._descriptor, self._end = self._write_file(1, [])
        for spare in sorted(folder.glob("*.spare"))[_MAX_SPARE:]:
            spare.unlink()
        self._dirty = False

    @property
    def path(self) -> Path:
        """The newest segment."""
        return segment_path(self._folder, self._number)

    @property
    def num_bytes(self) -> int:
        return self._end + sum(self._older.values())

    @property
    def newest_bytes(self) -> int:
        return self._end

    def append(self, *pieces: Buffer) -> None:
        length = sum(map(len, pieces))
        self._batch.append(_header(pieces, length=length, batch_start=self._end, segment=self._number))
        self._batch += pieces
        self._sizes.append(_HEADER.size + length)

    def flush(self) -> list[Position]:
        if not self._batch:
            return []
        batch, sizes = self._batch, self._sizes
        self._batch, self._sizes = [], []
        try:
            self._cut_off_failed_batch()
            self._dirty = True
            _write_all(self._descriptor, batch, offset=self._end)
            self._sync(self._descriptor)
        except OSError as error:
            raise self._failure(error, sum(sizes)) from None
        self._dirty = False
        positions = []
        for size in sizes:
            positions.append(Position(self._number, self._end))
            self._end += size
        return positions

    def begin_segment(self, snapshot: bytes) -> None:
        assert not self._batch, "a segment ends between two batches"
        try:
            self._cut_off_failed_batch()
            os.ftruncate(self._descriptor, self._end)
            descriptor, end = self._write_file(self._number + 1, [snapshot])
        except OSError as error:
            segment_path(self._folder, self._number + 1).with_suffix(".new").unlink(missing_ok=True)
            raise self._failure(error, len(snapshot)) from None
        os.close(self._descriptor)
        self._older[self._number] = self._end
        self._number, self._descriptor, self._end = self._number + 1, descriptor, end

    def drop_segments(self, needed: Collection[int]) -> None:
        for number in [number for number in self._older if number not in needed]:
            path = segment_path(self._folder, number)
            with contextlib.suppress(FileNotFoundError):  # Somebody took away what nobody needs.
                if len(list(self._folder.glob("*.spare"))) < _MAX_SPARE:
                    path.rename(path.with_suffix(".spare"))
                else:
                    path.unlink()
            del self._older[number]

    def replay(self) -> Iterator[tuple[Position, bytes]]:
        for offset, payload in read_records(self.path, end=self._end):
            yield Position(self._number, offset), payload

    def read(self, position: Position) -> bytes:
        return read_record(self._folder, position)

    def close(self) -> None:
        os.close(self._descriptor)

    def _cut_off_tail(self) -> None:
        num_bytes = os.fstat(self._descriptor).st_size - self._end
        if num_bytes:
            # Torn by whatever killed the last broker, or left from the segment that the file was before.
            log.get_logger().info("journal.tail_cut_off", file=str(self.path), offset=self._end, num_bytes=num_bytes)
            os.ftruncate(self._descriptor, self._end)

    def _cut_off_failed_batch(self) -> None:
        if self._dirty:
            os.ftruncate(self._descriptor, self._end)
            self._dirty = False

    def _write_file(self, number: int, payloads: Sequence[Buffer]) -> tuple[int, int]:
        path = segment_path(self._folder, number)
        temporary = path.with_suffix(".new")
        spare = next(iter(self._folder.glob("*.spare")), None)
        if spare is not None:
            spare.rename(temporary)
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            end = start = _write_all(descriptor, [FILE_MAGIC], offset=0)
            for payload in payloads:
                header = _header([payload], length=len(payload), batch_start=start, segment=number)
                end = _write_all(descriptor, [header, payload], offset=end)
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


# --- reading files, also of a broker that runs -----------------------------------------------------------------------


def segment_path(folder: Path, number: int) -> Path:
    """File of a segment."""
    return folder / f"journal-{number:06d}.log"


def segments(folder: Path) -> dict[int, Path]:
    """The segments in ``folder`` by number, oldest first."""
    return {_number_of(path): path for path in sorted(folder.glob("journal-*.log"))}


def read_records(path: Path, *, end: int) -> Iterator[tuple[int, bytes]]:
    """(offset, payload) of all records before byte ``end``, which `find_end` found."""
    with path.open("rb") as file:
        file.seek(offset := len(FILE_MAGIC))
        while offset < end:
            _, length, _, _ = _HEADER.unpack(file.read(_HEADER.size))
            yield offset, file.read(length)
            offset += _HEADER.size + length


def read_record(folder: Path, position: Position) -> bytes:
    """The payload of one record. Raises `ResumeError` when it is damaged or missing."""
    path = segment_path(folder, position.segment)
    try:
        with path.open("rb") as file:
            file.seek(position.offset)
            header = file.read(_HEADER.size)
            length = _HEADER.unpack(header)[1] if len(header) == _HEADER.size else 0
            record = _read_record(memoryview(header + file.read(length)), 0, segment=position.segment)
    except FileNotFoundError:
        raise ResumeError(f"{path} is missing, and records in it are still needed: restore it, or start a new run") from None
    if record is None:
        step = "restore the file, or start a new run"
        raise ResumeError(f"{path} is damaged at byte {position.offset}, in data that was acknowledged; {step}")
    return bytes(record[1])


def find_end(path: Path) -> int:
    """Where the last good record ends. Raises `ResumeError` when what follows was once acknowledged."""
    data = memoryview(path.read_bytes())
    if bytes(data[: len(FILE_MAGIC)]) != FILE_MAGIC:
        raise ResumeError(f"{path} is no journal of this release: it starts with {bytes(data[:8])!r}")
    offset, segment = len(FILE_MAGIC), _number_of(path)
    while offset < len(data):
        record = _read_record(data, offset, segment=segment)
        if record is None:
            later = _next_batch_start(data, offset + 1, segment=segment)
            if later is not None and later > offset:
                step = "restore the file, or start a new run"
                raise ResumeError(f"{path} is damaged at byte {offset}, before data that was acknowledged; {step}")
            return offset
        offset += _HEADER.size + len(record[1])
    return offset


def _number_of(path: Path) -> int:
    return int(path.stem.removeprefix("journal-"))


def _header(pieces: Sequence[Buffer], *, length: int, batch_start: int, segment: int) -> bytes:
    checksum = _checksum_start(batch_start, length, segment)
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    return _HEADER.pack(_RECORD_MAGIC, length, batch_start, checksum)


def _checksum_start(batch_start: int, length: int, segment: int) -> int:
    return zlib.crc32(struct.pack("<QQI", segment, batch_start, length))


def _write_all(descriptor: int, pieces: Sequence[Buffer], *, offset: int) -> int:
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


def _read_record(data: memoryview, offset: int, *, segment: int) -> tuple[int, memoryview] | None:
    """(batch_start, payload) of the record at ``offset``, None when there is no whole one."""
    if len(data) - offset < _HEADER.size:
        return None
    magic, length, batch_start, checksum = _HEADER.unpack_from(data, offset)
    payload = data[offset + _HEADER.size : offset + _HEADER.size + length]
    if magic != _RECORD_MAGIC or len(payload) != length:
        return None
    is_whole = checksum == zlib.crc32(payload, _checksum_start(batch_start, length, segment))
    return (batch_start, payload) if is_whole else None


def _next_batch_start(data: memoryview, offset: int, *, segment: int) -> int | None:
    """Largest ``batch_start`` of the readable records after ``offset``."""
    whole, found = bytes(data), None
    while (offset := whole.find(_RECORD_MAGIC, offset)) >= 0:
        record = _read_record(data, offset, segment=segment)
        if record is None:
            offset += 1
            continue
        found = record[0] if found is None else max(found, record[0])
        offset += _HEADER.size + len(record[1])
    return found
