"""What the payloads of a journal mean: messages, and the state that a compacted journal starts with.

A payload is one byte of type, then: ``S`` the core's snapshot as JSON; ``K`` a trajectory held at that time; ``M`` any message
that came after. Messages are frames of `common.codec`: a count, the frames' lengths, the frames.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence

from broker.core import BrokerCore
from broker.events import Event, MessagePersisted, StateRestored, TrajectoryRestored
from common import codec
from common.errors import DecodeError, ResumeError
from common.messages import Message, Trajectory

_WRITER = "journal"


def message_record(message: Message, *, frames: Sequence[bytes] | None = None) -> bytes:
    """A message that was taken in; ``frames``: what it came in, if it came over the wire, which saves encoding it again."""
    return _pack(b"M", frames if frames is not None else _encode(message))


def compacted_records(core: BrokerCore) -> Iterator[bytes]:
    """A whole journal that leads to the state of ``core``."""
    yield b"S" + json.dumps(core.snapshot(), separators=(",", ":")).encode()
    for trajectory in core.held():
        yield _pack(b"K", _encode(trajectory))


def event_of(payload: bytes) -> Event:
    """What to tell the core when a record is replayed. Raises `ResumeError`."""
    kind, rest = payload[:1], payload[1:]
    if kind == b"S":
        return StateRestored(json.loads(rest))
    try:
        message = codec.decode(_unpack(rest), limited=False).message
    except (DecodeError, struct.error) as error:
        raise ResumeError(f"the journal holds a record that this release cannot read: {error}") from None
    if kind == b"M":
        return MessagePersisted(None, message)
    if kind == b"K" and isinstance(message, Trajectory):
        return TrajectoryRestored(message)
    raise ResumeError(f"the journal holds a record of unknown type {kind!r}")


def _encode(message: Message) -> list[bytes]:
    return codec.encode(message, sender=_WRITER, message_id=0, limited=False)


def _pack(kind: bytes, frames: Sequence[bytes]) -> bytes:
    lengths = struct.pack(f"<I{len(frames)}I", len(frames), *map(len, frames))
    return b"".join((kind, lengths, *frames))


def _unpack(data: bytes) -> list[bytes]:
    (count,) = struct.unpack_from("<I", data)
    lengths = struct.unpack_from(f"<{count}I", data, 4)
    frames, offset = [], 4 + 4 * count
    for length in lengths:
        frames.append(data[offset : offset + length])
        offset += length
    return frames
