"""Payloads of a journal: messages, and the snapshot at the start of a segment.

A payload is one byte of type, then: ``M`` a message that came in, as frames of `common.wire.codec`: a count, the frames' lengths,
the frames; ``S`` a snapshot: the length of its JSON, the core's state and the positions of images as JSON, and three whole
numbers of 64 bits for the position of each trajectory that it holds, of which there may be ten thousands.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from computerrl.broker.core import BrokerCore
from computerrl.broker.events import Event, MessagePersisted, StateRestored, TrajectoryRestored, trajectories_of
from computerrl.broker.journal.file import Position
from computerrl.common.errors import DecodeError, ResumeError
from computerrl.common.messages import Message
from computerrl.common.wire import codec
from computerrl.common.wire.codec import Buffer

_WRITER = "journal"
_LENGTH = struct.Struct("<I")
_POSITION, _POSITION_ITEM = struct.Struct("<3Q"), "<u8"


def message_record(message: Message, *, frames: Sequence[Buffer] | None = None) -> list[Buffer]:
    """Pieces of the record. ``frames``: frames in which the message arrived, which saves encoding it again."""
    frames = frames if frames is not None else codec.encode(message, sender=_WRITER, message_id=0, limited=False)
    return [b"M" + struct.pack(f"<I{len(frames)}I", len(frames), *map(len, frames)), *frames]


def packed(position: Position) -> bytes:
    """Position in the form of a snapshot; thousands are kept in this compact form."""
    return _POSITION.pack(*position)


def segments_in(held: bytes) -> set[int]:
    """The segments of packed positions."""
    return set(np.frombuffer(held, _POSITION_ITEM)[::3].tolist())


def snapshot_record(core: BrokerCore, held: bytes, *, images: Mapping[str, Sequence[int]]) -> bytes:
    """First record of a segment. ``held``: packed positions of all trajectories that ``core`` holds; ``images``: position of each
    of its images."""
    state = msgspec.json.encode({**core.snapshot(), "images": images})
    return b"S" + _LENGTH.pack(len(state)) + state + held


def snapshot_of(payload: bytes) -> tuple[dict[str, Any], list[Position]]:
    """The core's state and the positions of the trajectories that it holds. Raises `ResumeError`."""
    try:
        (length,) = _LENGTH.unpack_from(payload, 1)
        start = 1 + _LENGTH.size
        state: dict[str, Any] = msgspec.json.decode(payload[start : start + length])
        numbers = np.frombuffer(payload, _POSITION_ITEM, offset=start + length).reshape(-1, 3).tolist()
    except (ValueError, struct.error, msgspec.MsgspecError) as error:
        raise ResumeError(f"the journal holds a snapshot that this release cannot read: {error}") from None
    return state, [Position(*one) for one in numbers]


class Readable(Protocol):
    """The part of `broker.journal.file.Journal` that a replay needs."""

    def replay(self) -> Iterator[tuple[Position, bytes]]: ...

    def read(self, position: Position) -> bytes: ...


def events(journal: Readable) -> Iterator[tuple[Position, Event]]:
    """Events that bring a new core to the state at the journal's end, with their positions. Raises `ResumeError`."""
    for position, payload in journal.replay():
        if payload[:1] == b"S":
            state, held = snapshot_of(payload)
            yield position, StateRestored(state)
            yield from _held(journal, held)
        else:
            yield position, MessagePersisted(None, message_of(payload))


def _held(journal: Readable, positions: Sequence[Position]) -> Iterator[tuple[Position, Event]]:
    read: dict[Position, Message] = {}
    for position in positions:
        record = position._replace(part=0)
        if record not in read:
            read[record] = message_of(journal.read(record))
        found = trajectories_of(read[record])
        if position.part >= len(found):
            kind = type(read[record]).__name__
            raise ResumeError(f"the journal's record at {position} is needed as a trajectory, and is a {kind} of {len(found)}")
        yield position, TrajectoryRestored(found[position.part])


def message_of(payload: bytes) -> Message:
    """The message in a record. Raises `ResumeError`."""
    if payload[:1] != b"M":
        raise ResumeError(f"the journal holds a record of unknown type {payload[:1]!r}")
    try:
        return codec.decode(_unpack(payload), limited=False).message
    except (DecodeError, struct.error) as error:
        raise ResumeError(f"the journal holds a record that this release cannot read: {error}") from None


def _unpack(data: bytes) -> list[bytes]:
    (count,) = struct.unpack_from("<I", data, 1)
    lengths = struct.unpack_from(f"<{count}I", data, 5)
    frames, offset = [], 5 + 4 * count
    for length in lengths:
        frames.append(data[offset : offset + length])
        offset += length
    return frames
