"""Message <-> frames: one msgpack header, then one frame with the raw bytes of all numpy arrays.

Header: ``{kind, schema, sender, id, cause, body}``. ``body`` is the message as nested maps in which every array is an extension
value: its type is the dtype, its content the length; the arrays lie in frame 1 in the order in which they are named. The kind is
the first field, so that its size limit is known before anything is unpacked. No pickle, ever: bytes are unpacked
straight into the message's type, whose fields and bounds they must fit. What does not decode raises `DecodeError`.

All arrays share a frame because each frame is encrypted, sent and received by itself: an episode of 50 steps has 200 of them.

Does not send, store or retry anything; see `common.wire.transport` and `broker.journal.file`.

Decoded arrays are read-only views of the received bytes; copy before writing into them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import msgspec
import numpy as np
from msgspec.msgpack import Decoder, Encoder, Ext

from computerrl.common import messages
from computerrl.common.errors import DecodeError, MessageTooLarge
from computerrl.common.messages import DEFAULT_SIZE_LIMIT, FLOAT32, INT32, SCHEMA_VERSION, SIZE_LIMITS, UINT8, Message

Buffer = bytes | memoryview
"""A frame that came in."""
MAX_FRAMES = 2
MAX_ARRAYS = 1 << 17
"""Arrays of one message; a group of 64 episodes of 100 steps has 25,600."""
_MAX_REASON = 1000
"""Characters of a `DecodeError`: what it quotes comes from the peer."""
_FIRST_FIELD = re.compile(rb"[\x80-\x8f]\xa4kind[\xa1-\xbf]([A-Za-z]{1,31})")
"""The header's first field when it is the kind, as msgpack writes it."""
_DTYPES: dict[int, np.dtype[Any]] = {1: INT32, 2: FLOAT32, 3: UINT8}
"""What `common.messages` uses, by extension type."""
_EXTENSIONS = {dtype: code for code, dtype in _DTYPES.items()}
_ITEM_BYTES = 4
"""Every array begins at a multiple of this in frame 1; bytes are filled up with zeros."""
_LENGTH = struct.Struct("<I")

_KINDS: dict[str, type] = {cls.__name__: cls for cls in get_args(messages.Message)}
ALL_KINDS = frozenset(_KINDS)


_UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)
"""For bytes that do not fit a type; the second for text that is no UTF-8, the third for odd keys of maps."""


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    schema: int
    sender: str
    id: int
    cause: int | None = None
    body: bytes = b""


_HEADER_ENCODER, _HEADER_DECODER = Encoder(), Decoder(_Header)


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


def encode(message: Message, *, sender: str, message_id: int, cause_id: int | None = None, limited: bool = True) -> list[bytes]:
    """Frames of ``message``: the header, then its arrays if it has any.

    Raises `MessageTooLarge`, unless not ``limited`` (to a file), and `TypeError` for what is no message.
    """
    kind = type(message).__name__
    if _KINDS.get(kind) is not type(message):
        raise TypeError(f"{type(message).__name__} is not in common.messages.Message")
    arrays: list[np.ndarray] = []

    def hook(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            arrays.append(value)
            return Ext(_EXTENSIONS[value.dtype], _LENGTH.pack(value.size))
        if isinstance(value, np.generic):
            return value.item()
        raise TypeError(f"{type(value).__name__} cannot travel in a {kind}")

    # The body first, because encoding it is what finds the arrays.
    body = Encoder(enc_hook=hook).encode(message)
    header = _HEADER_ENCODER.encode(_Header(kind, SCHEMA_VERSION, sender, message_id, cause_id, body))
    pieces = (piece for array in arrays for piece in (array.data, bytes(-array.nbytes % _ITEM_BYTES)))
    frames = [header, b"".join(pieces)] if arrays else [header]
    excess = _excess(kind, frames) if limited else ""
    if excess:
        raise MessageTooLarge(f"{kind} cannot be sent: {excess}")
    return frames


def decode(frames: Sequence[Buffer], *, kinds: Collection[str] = ALL_KINDS, limited: bool = True) -> Envelope:
    """The message in ``frames``. Raises `DecodeError` naming kind and sender, as far as they can be read.

    Of ``kinds`` only: others are refused without unpacking their body, and may not be large. ``limited``: as in `encode`.
    """
    header = _header(frames, kinds, limited=limited)
    kind, sender = header.kind, header.sender[:128]
    try:
        if kind in ALL_KINDS and kind not in kinds:
            raise _Malformed("this side takes no such message")
        return Envelope(_body(header, frames), sender, header.id, header.cause)
    except _Malformed as error:
        raise DecodeError(str(error), kind=kind, sender=sender) from None
    except _UNREADABLE as error:
        raise DecodeError(f"body: {str(error)[:_MAX_REASON]}", kind=kind, sender=sender) from None


def peek_message_id(frames: Sequence[Buffer]) -> int | None:
    """The id in the header of frames that may not decode, so that an error reply can name its cause."""
    try:
        return _header(frames, ALL_KINDS).id
    except DecodeError:
        return None


class _Malformed(Exception):
    """Internal: what is wrong with frames whose header could be read."""


def _header(frames: Sequence[Buffer], kinds: Collection[str], *, limited: bool = True) -> _Header:
    if not frames or len(frames) > MAX_FRAMES:
        raise DecodeError(f"{len(frames)} frames, want 1 to {MAX_FRAMES}")
    found = _FIRST_FIELD.match(frames[0])
    kind = found[1].decode() if found else "unknown"
    excess = _excess(kind if kind in kinds else "", frames) if limited else ""
    if excess:
        raise DecodeError(excess, kind=kind)
    try:
        header = _HEADER_DECODER.decode(frames[0])
    except _UNREADABLE as error:
        raise DecodeError(f"header: {str(error)[:_MAX_REASON]}", kind=kind) from None
    if header.kind != kind:
        raise DecodeError("the kind is not the header's first field, or is there twice")
    return header


def _excess(kind: str, frames: Sequence[Buffer]) -> str:
    """What about ``frames`` is too large for a message of ``kind``, empty when nothing is."""
    limit = SIZE_LIMITS.get(kind, DEFAULT_SIZE_LIMIT)
    num_bytes = sum(map(len, frames))
    if len(frames[0]) <= limit.header_bytes and num_bytes <= limit.total_bytes:
        return ""
    allowed = f"at most {limit.header_bytes} and {limit.total_bytes} are allowed"
    return f"too large: header of {len(frames[0])} bytes, {num_bytes} in all; {allowed}"


def _body(header: _Header, frames: Sequence[Buffer]) -> Message:
    if header.schema != SCHEMA_VERSION:
        raise _Malformed(f"schema {header.schema}, this side speaks {SCHEMA_VERSION}: run the same release everywhere")
    if header.kind not in _KINDS:
        raise _Malformed("no such kind of message")
    arrays = _Arrays(frames[1] if len(frames) > 1 else b"")
    message: Message = Decoder(_KINDS[header.kind], ext_hook=arrays.take).decode(header.body)
    if arrays.num_left:
        raise _Malformed(f"{arrays.num_left} numbers of frame 1 are in no array")
    return message


class _Arrays:
    """Frame 1, from which the body takes its arrays one after the other."""

    def __init__(self, frame: Buffer) -> None:
        if len(frame) % _ITEM_BYTES:
            raise _Malformed(f"frame 1 has {len(frame)} bytes, no whole number of items")
        self._views = {code: np.frombuffer(frame, dtype) for code, dtype in _DTYPES.items()}
        self.num_left = len(frame) // _ITEM_BYTES
        """Items that no array holds yet."""
        self._offset = 0
        """In items."""
        self._num_taken = 0

    def take(self, code: int, length: memoryview) -> np.ndarray:
        """The next array: `msgspec`'s hook for extension values."""
        view = self._views.get(code)
        if view is None:
            raise _Malformed(f"unknown extension type {code}")
        if len(length) != _LENGTH.size:
            raise _Malformed(f"the length of an array has {_LENGTH.size} bytes, not {len(length)}")
        (size,) = _LENGTH.unpack(length)
        num_items = -(-size * view.itemsize // _ITEM_BYTES)
        if num_items > self.num_left:
            raise _Malformed(f"array of {num_items} numbers where {self.num_left} are left")
        # Without a bound, a small body could name millions of empty ones.
        self._num_taken += 1
        if self._num_taken > MAX_ARRAYS:
            raise _Malformed(f"more than {MAX_ARRAYS} arrays")
        first = self._offset * _ITEM_BYTES // view.itemsize
        self._offset, self.num_left = self._offset + num_items, self.num_left - num_items
        return view[first : first + size]
