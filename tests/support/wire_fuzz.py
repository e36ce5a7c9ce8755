"""Frames gone wrong, on purpose: bytes, frames, header fields, array specs and values of the body, from one random generator.

Packets are how several messages travel in one file: a count of frames, their lengths, the frames; the golden messages are that.
"""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack

from computerrl.common.messages import (
    SCHEMA_VERSION,
    AssignmentRequest,
    AssignmentReturn,
    ConsumptionReport,
    GroupRequest,
    Message,
    OrderClosure,
    StatusRequest,
    VersionAnnouncement,
)
from computerrl.common.wire import codec
from tests.support.data.broker_data import assignment, order, trajectory_for

Frames = list[bytes]

GIANT = [first + b"\xff\xff\xff\xff" for first in (b"\xdf", b"\xdd", b"\xc6", b"\xdb")]
"""A map, list, binary and text of 4 billion, as declared."""

GOLDEN = Path(__file__).parents[1] / "golden/codec"
MAX_PACKETS, MAX_FRAMES = 32, 64


def _nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


_INTEGERS = [-1, 0, 1, 2, 3, 255, 2**31 - 1, 2**31, 2**48, 2**53, 2**53 + 1, 2**63 - 1, 2**64 - 1, -(2**63)]
_FLOATS = [0.5, -0.0, 1e308, float("nan"), float("inf"), float("-inf")]
_NAMES = ["a", "i1", "r1", "rl-1", "rl-2", "rl-1/0", "rl-1/0/0", "rl-1/1/1", "rl-1/4/0", "training", "actor"]
_TEXTS = ["", "x", "\0", "../../x", "é" * 300, "x" * 5000, "1e400"]
_EXTENSIONS = [msgpack.ExtType(code, data) for code, data in ((1, b"\0\0\0\0"), (1, b"\xff" * 4), (1, b""), (7, b"x"))]
_OTHERS = [None, True, False, b"x", [], {}, [[]] * 2000, {"a": {}}, _nested(200), *_EXTENSIONS]
HOSTILE = [*_INTEGERS, *_FLOATS, *_NAMES, *_TEXTS, *_OTHERS]
"""What a field does not expect."""
_OF_ITS_TYPE = {int: _INTEGERS, float: _FLOATS, str: _NAMES + _TEXTS}


def _hostile(old: Any, rng: random.Random) -> Any:
    """Instead of ``old``: usually of the same type, which gets further."""
    alike = _OF_ITS_TYPE.get(type(old), HOSTILE)
    return rng.choice(alike if rng.random() < 0.7 else HOSTILE)


def pack(packets: Sequence[Sequence[bytes]]) -> bytes:
    """`unpack` gives them back."""
    return b"".join(struct.pack(f"<I{len(frames)}I", len(frames), *map(len, frames)) + b"".join(frames) for frames in packets)


def unpack(data: bytes) -> list[Frames]:
    """The packets in ``data``; what is cut off is as long as it is."""
    packets: list[Frames] = []
    while len(data) >= 4 and len(packets) < MAX_PACKETS:
        (count,) = struct.unpack_from("<I", data)
        count = min(count, MAX_FRAMES, (len(data) - 4) // 4)
        lengths, data, frames = struct.unpack_from(f"<{count}I", data, 4), data[4 + 4 * count :], []
        for length in lengths:
            frames.append(data[:length])
            data = data[length:]
        packets.append(frames)
    return packets


def seeds() -> dict[str, Frames]:
    """The golden message of every kind."""
    return {path.stem: unpack(path.read_bytes())[0] for path in sorted(GOLDEN.glob("*.bin"))}


def of_today(frames: Frames) -> Frames:
    """``frames`` that were kept from an older schema version, said in this one: else nothing would look at their content."""
    return [_packed({**_map_of(frames[0]), "schema": SCHEMA_VERSION}), *frames[1:]]


def session() -> list[Frames]:
    """What an actor and the learner send while two groups are played and trained."""
    slots = [(number, index) for number in range(2) for index in range(2)]
    played: list[Message] = [trajectory_for(assignment(number=number, index=index)) for number, index in slots]
    asked = [AssignmentRequest("a", 3, f"r{number}") for number in range(4, 7)]
    taken = [GroupRequest(0), GroupRequest(1), VersionAnnouncement(1, 2), ConsumptionReport(1), ConsumptionReport(2)]
    rest = [AssignmentReturn("rl-1/2/0", "a", "task_failed"), OrderClosure("rl-1"), order("rl-2"), StatusRequest()]
    messages = [*played, *asked, *taken, *rest]
    return [codec.encode(message, sender="actor-0:a", message_id=number) for number, message in enumerate(messages)]


def mutated(frames: Frames, rng: random.Random) -> Frames:
    """``frames`` with a few things changed."""
    frames = list(frames)
    for _ in range(rng.choice([1, 1, 2, 3])):
        # Most often a value of the body: what is wrong elsewhere is refused before anybody looks at the message.
        (change,) = rng.choices([_change_body, _change_bytes, _change_frames, _change_header, _change_arrays], [8, 1, 1, 1, 1])
        frames = change(frames, rng)
    return frames


def _change_bytes(frames: Frames, rng: random.Random) -> Frames:
    place = rng.randrange(len(frames)) if frames else 0
    if not frames or not frames[place]:
        return [*frames, rng.randbytes(rng.choice([0, 1, 20, 3000]))]
    frame = bytearray(frames[place])
    offset = rng.randrange(len(frame))
    match rng.randrange(4):
        case 0:
            frame[offset] ^= 1 << rng.randrange(8)
        case 1:
            frame[offset : offset + 1] = rng.choice(GIANT)
        case 2:
            del frame[offset:]
        case _:
            frame[offset:offset] = frame[: rng.randrange(64)]
    return [*frames[:place], bytes(frame), *frames[place + 1 :]]


def _change_frames(frames: Frames, rng: random.Random) -> Frames:
    place = rng.randrange(len(frames) + 1)
    match rng.randrange(5):
        case 0:
            return frames[:place] + frames[place + 1 :]
        case 1:
            return [*frames[:place], *frames[place:][:1], *frames[place:]]
        case 2:
            return [*frames[:place], b"", *frames[place:]]
        case 3:
            return [*frames, *[rng.randbytes(4)] * rng.choice([1, 10, 500])]
        case _:
            return rng.sample(frames, len(frames))


def _change_header(frames: Frames, rng: random.Random) -> Frames:
    header = _map_of(frames[0] if frames else b"")
    name = rng.choice([*header, "more"])
    if rng.random() < 0.2:
        header.pop(name, None)
    else:
        header[name] = rng.choice(HOSTILE)
    return [_packed(header), *frames[1:]]


def _change_arrays(frames: Frames, rng: random.Random) -> Frames:
    """The length or the type of one of the body's arrays: extension values of four bytes."""
    body = _map_of(frames[0] if frames else b"").get("body")
    if not isinstance(body, bytes) or not (places := [found.start() for found in re.finditer(rb"\xd6[\x01\x02]", body)]):
        return _change_bytes(frames, rng)
    place = rng.choice(places)
    named = bytes([0xD6, rng.choice([1, 2, 3, 255])]) + struct.pack("<I", rng.choice([*range(5), 2**31, 2**32 - 1]))
    header = {**_map_of(frames[0]), "body": body[:place] + named + body[place + 6 :]}
    return [_packed(header), *frames[1:]]


def _change_body(frames: Frames, rng: random.Random) -> Frames:
    header = _map_of(frames[0] if frames else b"")
    body = _map_of(header.get("body", b""))
    holder: Any = body
    # Down to some value, perhaps a deep one.
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if not keys:
            break
        key = rng.choice(keys)
        if isinstance(holder[key], dict | list) and holder[key] and rng.random() < 0.8:
            holder = holder[key]
            continue
        if rng.random() < 0.15:
            del holder[key]
        else:
            holder[key] = _hostile(holder[key], rng)
        break
    return [_packed({**header, "body": msgpack.packb(body)}), *frames[1:]]


def _map_of(data: Any) -> dict[Any, Any]:
    """The map that ``data`` holds, an empty one when it holds none."""
    try:
        value = msgpack.unpackb(data)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException):
        return {}
    return value if isinstance(value, dict) else {}


def _packed(header: dict[Any, Any]) -> bytes:
    return msgpack.packb(header)
