"""Message <-> frames: one msgpack header, then one frame with the raw bytes of all numpy arrays. The only importer of msgpack.

Header: ``{kind, schema, sender, id, cause, arrays, body}``. ``body`` is the message as nested maps in which every array is an
extension value holding its number; ``arrays`` gives dtype and length of each array, in order; the body uses each once, in
this order. The kind is the first field, so that its size limit is known before anything is unpacked. No pickle, ever: a header
can only become plain values, which pydantic then checks against the message's type. What does not decode raises `DecodeError`.

All arrays share a frame because each frame is encrypted, sent and received by itself: an episode of 50 steps has 200 of them.

Does not send, store or retry anything; see `common.transport` and `broker.journal`.

Decoded arrays are read-only views of the received bytes; copy before writing into them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, get_args

import msgpack
import numpy as np
from pydantic import TypeAdapter, ValidationError

from common import messages
from common.errors import DecodeError, MessageTooLarge
from common.messages import DEFAULT_SIZE_LIMIT, SCHEMA_VERSION, SIZE_LIMITS, Message

MAX_FRAMES = 2
MAX_ARRAYS = 1 << 17
"""Arrays of one message; a group of 64 episodes of 100 steps has 25,600."""
_MAX_MAP = 4096
"""Entries of one map in a body; the largest is `Status.metrics` with an entry per process."""
_MAX_REASON = 1000
"""Characters of a `DecodeError`: what it quotes comes from the peer."""
_FIRST_FIELD = re.compile(rb"[\x80-\x8f]\xa4kind[\xa1-\xbf]([A-Za-z]{1,31})")
"""The header's first field when it is the kind, as msgpack writes it."""
_ARRAY_EXTENSION = 1
_DTYPES = {"<i4": np.dtype("<i4"), "<f4": np.dtype("<f4")}
"""What `common.messages` uses, little-endian on every host."""
_ITEM_BYTES = 4

_KINDS: dict[str, type] = {cls.__name__: cls for cls in get_args(messages.Message)}
ALL_KINDS = frozenset(_KINDS)
_FIELD_NAMES: dict[type, tuple[str, ...] | None] = {}


@dataclass(frozen=True, slots=True)
class Envelope:
    """A decoded message and who sent it."""

    message: Message
    sender: str
    """`role-index:incarnation`"""
    message_id: int
    """Counts up per sender."""
    cause_id: int | None
    """``message_id`` of the request this answers; None for requests."""


def encode(
    message: Message, *, sender: str, message_id: int, cause_id: int | None = None, limited: bool = True
) -> list[bytes]:
    """Frames of ``message``: the header, then its arrays if it has any.

    Raises `MessageTooLarge`, unless not ``limited`` (to a file), and `TypeError` for what is no message.
    """
    kind = type(message).__name__
    if _KINDS.get(kind) is not type(message):
        raise TypeError(f"{type(message).__name__} is not in common.messages.Message")
    specs: list[tuple[str, int]] = []
    arrays: list[np.ndarray] = []

    def default(value: Any) -> Any:
        names = _field_names(type(value))
        if names is not None:
            return {name: getattr(value, name) for name in names}
        if isinstance(value, np.ndarray):
            specs.append((value.dtype.newbyteorder("<").str, value.size))
            arrays.append(np.ascontiguousarray(value, dtype=specs[-1][0]))
            return msgpack.ExtType(_ARRAY_EXTENSION, struct.pack("<I", len(specs) - 1))
        if isinstance(value, np.generic):
            return value.item()
        raise TypeError(f"{type(value).__name__} cannot travel in a {kind}")

    # `body` is packed first, because packing it is what finds the arrays.
    body = msgpack.packb(message, default=default)
    head = {"kind": kind, "schema": SCHEMA_VERSION, "sender": sender, "id": message_id, "cause": cause_id, "arrays": specs}
    header = msgpack.packb({**head, "body": body})
    frames = [header, b"".join(array.data for array in arrays)] if arrays else [header]
    excess = _excess(kind, frames) if limited else ""
    if excess:
        raise MessageTooLarge(f"{kind} cannot be sent: {excess}")
    return frames


def decode(frames: Sequence[bytes], *, kinds: Collection[str] = ALL_KINDS, limited: bool = True) -> Envelope:
    """The message in ``frames``. Raises `DecodeError` naming kind and sender, as far as they can be read.

    Of ``kinds`` only: others are refused without unpacking their body, and may not be large. ``limited``: as in `encode`.
    """
    header = _header(frames, kinds, limited=limited)
    kind, sender = _text(header, "kind"), _text(header, "sender")
    try:
        if kind in ALL_KINDS and kind not in kinds:
            raise _Malformed("this side takes no such message")
        return _decode_body(header, frames, kind=kind, sender=sender)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        reason = f"{error.error_count()} wrong fields, first {where}: {first['msg']}"
        raise DecodeError(reason, kind=kind, sender=sender) from None
    except (_Malformed, ValueError, TypeError, KeyError, RecursionError, struct.error) as error:
        raise DecodeError(str(error)[:_MAX_REASON] or type(error).__name__, kind=kind, sender=sender) from None


def peek_message_id(frames: Sequence[bytes]) -> int | None:
    """The id in the header of frames that may not decode, so that an error reply can name its cause."""
    try:
        return _integer(_header(frames, ALL_KINDS), "id")
    except (DecodeError, _Malformed):
        return None


class _Malformed(Exception):
    """Internal: frames that contradict themselves."""


def _header(frames: Sequence[bytes], kinds: Collection[str], *, limited: bool = True) -> dict[str, Any]:
    if not frames or len(frames) > MAX_FRAMES:
        raise DecodeError(f"{len(frames)} frames, want 1 to {MAX_FRAMES}")
    found = _FIRST_FIELD.match(frames[0])
    kind = found[1].decode() if found else "unknown"
    excess = _excess(kind if kind in kinds else "", frames) if limited else ""
    if excess:
        raise DecodeError(excess, kind=kind)
    try:
        header = msgpack.unpackb(frames[0], max_map_len=16, max_array_len=MAX_ARRAYS if len(frames) > 1 else 2)
    # msgpack raises several unrelated types for bytes that are no msgpack; all are ValueError or the two below.
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError, TypeError) as error:
        raise DecodeError(f"header is no msgpack: {str(error)[:_MAX_REASON] or type(error).__name__}") from None
    if not isinstance(header, dict):
        raise DecodeError(f"header is a {type(header).__name__}, not a map")
    if _text(header, "kind") != kind:
        raise DecodeError("the kind is not the header's first field, or is there twice")
    return header


def _excess(kind: str, frames: Sequence[bytes]) -> str:
    """What about ``frames`` is too large for a message of ``kind``, empty when nothing is."""
    limit = SIZE_LIMITS.get(kind, DEFAULT_SIZE_LIMIT)
    num_bytes = sum(map(len, frames))
    if len(frames[0]) <= limit.header_bytes and num_bytes <= limit.total_bytes:
        return ""
    allowed = f"at most {limit.header_bytes} and {limit.total_bytes} are allowed"
    return f"too large: header of {len(frames[0])} bytes, {num_bytes} in all; {allowed}"


def _text(header: dict[str, Any], key: str) -> str:
    value = header.get(key)
    return value[:128] if isinstance(value, str) else "unknown"


def _integer(header: dict[str, Any], key: str) -> int:
    value = header.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _Malformed(f"header field {key!r} is no integer")
    return value


def _decode_body(header: dict[str, Any], frames: Sequence[bytes], *, kind: str, sender: str) -> Envelope:
    if header.get("schema") != SCHEMA_VERSION:
        raise _Malformed(f"schema {header.get('schema')!r}, this side speaks {SCHEMA_VERSION}: run the same release everywhere")
    if kind not in _KINDS:
        raise _Malformed("no such kind of message")
    if not isinstance(header.get("body"), bytes):
        raise _Malformed("header field 'body' is no bytes")
    message_id = _integer(header, "id")
    cause_id = None if header.get("cause") is None else _integer(header, "cause")
    arrays = _arrays(header.get("arrays"), frames)
    num_used = 0

    def extension(code: int, data: bytes) -> np.ndarray:
        nonlocal num_used
        if code != _ARRAY_EXTENSION:
            raise _Malformed(f"unknown extension type {code}")
        (number,) = struct.unpack("<I", data)
        if number >= len(arrays):
            raise _Malformed(f"array {number} of {len(arrays)}")
        # One array named a thousand times, each time to be converted, would be a thousand arrays in memory.
        if number != num_used:
            raise _Malformed(f"array {number} where {num_used} comes next")
        num_used += 1
        return arrays[number]

    try:
        body = msgpack.unpackb(header["body"], ext_hook=extension, max_map_len=_MAX_MAP, max_array_len=MAX_ARRAYS)
    except msgpack.exceptions.UnpackException as error:
        raise _Malformed(f"body is no msgpack: {error}") from None
    if num_used != len(arrays):
        raise _Malformed(f"{len(arrays) - num_used} arrays are not used")
    return Envelope(_adapter(kind).validate_python(body), sender, message_id, cause_id)


def _arrays(specs: Any, frames: Sequence[bytes]) -> list[np.ndarray]:
    if not isinstance(specs, list) or len(frames) != (2 if specs else 1):
        count = len(specs) if isinstance(specs, list) else "no"
        raise _Malformed(f"header lists {count} arrays, {len(frames) - 1} frames of arrays came")
    arrays, offset = [], 0
    for dtype, size in specs:
        if dtype not in _DTYPES:
            raise _Malformed(f"array of dtype {dtype!r}")
        if not isinstance(size, int) or not 0 <= size <= (len(frames[1]) - offset) // _ITEM_BYTES:
            raise _Malformed(f"array of {size!r} numbers at byte {offset} of {len(frames[1])}")
        arrays.append(np.frombuffer(frames[1], _DTYPES[dtype], size, offset))
        offset += size * _ITEM_BYTES
    if specs and offset != len(frames[1]):
        raise _Malformed(f"arrays of {offset} bytes in a frame of {len(frames[1])}")
    return arrays


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(_KINDS[kind])


def _field_names(cls: type) -> tuple[str, ...] | None:
    """Names of the fields of a class of `common.messages`, None for any other class."""
    if cls not in _FIELD_NAMES:
        ours = cls.__module__ == messages.__name__
        _FIELD_NAMES[cls] = tuple(field.name for field in fields(cls)) if ours else None
    return _FIELD_NAMES[cls]
