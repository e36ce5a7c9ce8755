"""Message <-> frames: one msgpack header, then one frame with the raw bytes of all numpy arrays. The only importer of msgpack.

Header: ``{kind, schema, sender, id, cause, body}``. ``body`` is the message as nested maps in which every array is an extension
value: its type is the dtype, its content the length; the arrays lie in frame 1 in the order in which they are named. The kind is
the first field, so that its size limit is known before anything is unpacked. No pickle, ever: a header can only become plain
values, which pydantic then checks against the message's type. What does not decode raises `DecodeError`.

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
_DTYPES = {1: np.dtype("<i4"), 2: np.dtype("<f4")}
"""What `common.messages` uses, by extension type; little-endian on every host."""
_EXTENSIONS = {dtype.newbyteorder("="): code for code, dtype in _DTYPES.items()}
_ITEM_BYTES = 4
_LENGTH = struct.Struct("<I")

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
    arrays: list[np.ndarray] = []

    def default(value: Any) -> Any:
        names = _field_names(type(value))
        if names is not None:
            return {name: getattr(value, name) for name in names}
        code = _EXTENSIONS.get(value.dtype) if isinstance(value, np.ndarray) else None
        if code is not None:
            arrays.append(np.ascontiguousarray(value, dtype=_DTYPES[code]))
            return msgpack.ExtType(code, _LENGTH.pack(value.size))
        if isinstance(value, np.generic):
            return value.item()
        raise TypeError(f"{type(value).__name__} cannot travel in a {kind}")

    # `body` is packed first, because packing it is what finds the arrays.
    body = msgpack.packb(message, default=default)
    head = {"kind": kind, "schema": SCHEMA_VERSION, "sender": sender, "id": message_id, "cause": cause_id, "body": body}
    header = msgpack.packb(head)
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
        header = msgpack.unpackb(frames[0], max_map_len=16, max_array_len=2)
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
    arrays = _Arrays(frames[1] if len(frames) > 1 else b"")
    try:
        body = msgpack.unpackb(header["body"], ext_hook=arrays.take, max_map_len=_MAX_MAP, max_array_len=MAX_ARRAYS)
    except msgpack.exceptions.UnpackException as error:
        raise _Malformed(f"body is no msgpack: {error}") from None
    if arrays.num_left:
        raise _Malformed(f"{arrays.num_left} numbers of frame 1 are in no array")
    return Envelope(_adapter(kind).validate_python(body), sender, message_id, cause_id)


class _Arrays:
    """Frame 1, from which the body takes its arrays one after the other."""

    def __init__(self, frame: bytes) -> None:
        if len(frame) % _ITEM_BYTES:
            raise _Malformed(f"frame 1 has {len(frame)} bytes, no whole number of items")
        self._views = {code: np.frombuffer(frame, dtype) for code, dtype in _DTYPES.items()}
        self.num_left = len(frame) // _ITEM_BYTES
        self._offset = 0
        self._num_taken = 0

    def take(self, code: int, length: bytes) -> np.ndarray:
        """The next array: `msgpack`'s hook for extension values."""
        view = self._views.get(code)
        if view is None:
            raise _Malformed(f"unknown extension type {code}")
        (size,) = _LENGTH.unpack(length)
        if size > self.num_left:
            raise _Malformed(f"array of {size} numbers where {self.num_left} are left")
        # Without a bound, a small body could name millions of empty ones.
        self._num_taken += 1
        if self._num_taken > MAX_ARRAYS:
            raise _Malformed(f"more than {MAX_ARRAYS} arrays")
        first = self._offset
        self._offset, self.num_left = first + size, self.num_left - size
        return view[first : first + size]


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(_KINDS[kind])


def _field_names(cls: type) -> tuple[str, ...] | None:
    """Names of the fields of a class of `common.messages`, None for any other class."""
    if cls not in _FIELD_NAMES:
        ours = cls.__module__ == messages.__name__
        _FIELD_NAMES[cls] = tuple(field.name for field in fields(cls)) if ours else None
    return _FIELD_NAMES[cls]
