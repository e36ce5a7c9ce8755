"""What the payloads of a journal mean: messages, and the snapshot that a segment begins with.

A payload is one byte of type, then: ``M`` a message that came in; ``S`` the core's snapshot as JSON, with the positions of the
trajectories that it holds. Messages are frames of `common.codec`: a count, the frames' lengths, the frames.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from broker.core import BrokerCore
from broker.events import Event, MessagePersisted, StateRestored, TrajectoryRestored, trajectories_of
from broker.journal import Position
from common import codec
from common.errors import DecodeError, ResumeError
from common.messages import Message

_WRITER = "journal"


def message_record(message: Message, *, frames: Sequence[bytes] | None = None) -> list[bytes]:
    """Pieces of the record; ``frames``: what the message came in, if over the wire, which saves encoding it again."""
    frames = frames if frames is not None else codec.encode(message, sender=_WRITER, message_id=0, limited=False)
    return [b"M" + struct.pack(f"<I{len(frames)}I", len(frames), *map(len, frames)), *frames]


def snapshot_record(core: BrokerCore, positions: Mapping[str, Position]) -> bytes:
    """First record of a segment. ``positions``: where the record of every trajectory that ``core`` holds lies, by its id."""
    held = [positions[trajectory.trajectory_id] for trajectory in core.held()]
    return b"S" + json.dumps({**core.snapshot(), "held": held}, separators=(",", ":")).encode()


class Readable(Protocol):
    """The part of `broker.journal.Journal` that a replay needs."""

    def replay(self) -> Iterator[tuple[Position, bytes]]: ...

    def read(self, position: Position) -> bytes: ...


def events(journal: Readable) -> Iterator[tuple[Position, Event]]:
    """What to tell a new core so that it is where the journal ends. Raises `ResumeError`."""
    for position, payload in journal.replay():
        if payload[:1] == b"S":
            snapshot = _json(payload[1:])
            yield position, StateRestored(snapshot)
            yield from _held(journal, [Position(*place) for place in snapshot["held"]])
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


def _json(data: bytes) -> dict[str, Any]:
    try:
        snapshot: dict[str, Any] = json.loads(data)
    except ValueError as error:
        raise ResumeError(f"the journal holds a snapshot that this release cannot read: {error}") from None
    return snapshot


def _unpack(data: bytes) -> list[bytes]:
    (count,) = struct.unpack_from("<I", data, 1)
    lengths = struct.unpack_from(f"<{count}I", data, 5)
    frames, offset = [], 5 + 4 * count
    for length in lengths:
        frames.append(data[offset : offset + length])
        offset += length
    return frames
