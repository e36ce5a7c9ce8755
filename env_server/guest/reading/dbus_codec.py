"""D-Bus messages as bytes: method calls in, replies and signals out. Little-endian, and only the types that AT-SPI
and the applications use."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

FIXED = struct.Struct("<BBBBIII")
"""Byte order, kind, flags, version, length of the body, serial, length of the header fields."""
_U32 = struct.Struct("<I")

Reader = Callable[[bytes, int], "tuple[Any, int]"]


class DBusError(RuntimeError):
    """The bus or the peer refused, or the connection is gone."""


@dataclass(frozen=True, slots=True)
class Call:
    """One method call."""

    destination: str
    path: str
    interface: str
    member: str
    signature: str = ""
    args: tuple[Any, ...] = ()
    returns: str = ""
    """Signature of the answer, where nobody vouches for the other side; empty: any."""


# --- encoding --------------------------------------------------------------------------------------------------------


def encode_call(call: Call, serial: int) -> bytes:
    """A method call as a whole message."""
    raw = call.path.encode()
    path = b"\x01\x01o\0" + _U32.pack(len(raw)) + raw + bytes(8 - len(raw) % 8)  # its end and padding: one to eight zeros
    fields, length = _fields(call.destination, call.interface, call.member, call.signature)
    body = _encode_args(call.signature, call.args) if call.signature else b""
    return FIXED.pack(ord("l"), 1, 0, 1, len(body), serial, len(path) + length) + path + fields + body


@lru_cache(maxsize=1024)
def _fields(destination: str, interface: str, member: str, signature: str) -> tuple[bytes, int]:
    """A call's header fields but its path, padded, and their length without the padding. The same few calls go to thousands of
    objects."""
    fields = [_text_field(2, "s", interface), _text_field(3, "s", member), _text_field(6, "s", destination)]
    if signature:
        raw = signature.encode()
        fields.append(b"\x08\x01g\0" + bytes((len(raw),)) + raw + b"\0")
    head = b"".join(map(_pad8, fields[:-1])) + fields[-1]
    return _pad8(head), len(head)


def _text_field(code: int, kind: str, text: str) -> bytes:
    raw = text.encode()
    return bytes((code, 1)) + kind.encode() + b"\0" + _U32.pack(len(raw)) + raw + b"\0"


def _pad8(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def _encode_args(signature: str, args: Sequence[Any]) -> bytes:
    out = bytearray()
    position = 0
    for value in args:
        kind = signature[position]
        if kind == "a" and signature[position : position + 2] == "as":
            position += 2
            out += bytes(-len(out) % 4)
            items = bytearray()
            for text in value:
                items += bytes(-len(items) % 4) + _encode_text(text)
            out += _U32.pack(len(items)) + items
            continue
        if signature.startswith("av", position):
            assert not value, "only empty lists of variants are ever sent"
            position += 2
            out += bytes(-len(out) % 4) + _U32.pack(0)
            continue
        if signature.startswith("a{sv}", position):
            assert not value, "only empty dictionaries are ever sent"
            position += 5
            out += bytes(-len(out) % 4) + _U32.pack(0)
            out += bytes(-len(out) % 8)
            continue
        position += 1
        if kind == "v":
            inner, content = value
            out += bytes((1,)) + inner.encode() + b"\0"
            out += bytes(-len(out) % 4) + _encode_simple(inner, content)
        else:
            out += bytes(-len(out) % 4) + _encode_simple(kind, value)
    return bytes(out)


def _encode_simple(kind: str, value: Any) -> bytes:
    if kind in ("s", "o"):
        return _encode_text(value)
    if kind in ("u", "i", "b"):
        return struct.pack("<i" if kind == "i" else "<I", value)
    raise ValueError(f"cannot encode D-Bus type {kind!r}")


def _encode_text(text: str) -> bytes:
    raw = text.encode()
    return _U32.pack(len(raw)) + raw + b"\0"


# --- decoding --------------------------------------------------------------------------------------------------------


def header_fields(data: bytes) -> dict[int, Any]:
    """Header fields by their code, of a message's bytes up to its body."""
    fields: dict[int, Any] = {}
    pos = 16
    while pos < len(data):
        pos = pos + 7 & ~7
        code, kind = data[pos], data[pos + 2]
        pos += 4
        if kind == 0x67:  # g
            length = data[pos]
            fields[code] = data[pos + 1 : pos + 1 + length].decode()
            pos += length + 2
        elif kind == 0x75:  # u
            (fields[code],) = _U32.unpack_from(data, pos)
            pos += 4
        else:
            (length,) = _U32.unpack_from(data, pos)
            fields[code] = data[pos + 4 : pos + 4 + length].decode()
            pos += length + 5
    return fields


def decode(signature: str, body: bytes) -> list[Any]:
    """A body's values."""
    values = []
    pos = 0
    for reader in _readers(signature):
        value, pos = reader(body, pos)
        values.append(value)
    return values


@lru_cache(maxsize=256)
def _readers(signature: str) -> tuple[Reader, ...]:
    readers = []
    position = 0
    while position < len(signature):
        reader, position = _reader_at(signature, position)
        readers.append(reader)
    return tuple(readers)


_NUMBERS = {"y": "<B", "b": "<I", "n": "<h", "q": "<H", "i": "<i", "u": "<I", "x": "<q", "t": "<Q", "d": "<d", "h": "<I"}
_ALIGNMENT = {"y": 1, "g": 1, "v": 1, "n": 2, "q": 2, "x": 8, "t": 8, "d": 8, "(": 8, "{": 8}


def _reader_at(signature: str, position: int) -> tuple[Reader, int]:
    kind = signature[position]
    if kind in _NUMBERS:
        return _number_reader(_NUMBERS[kind]), position + 1
    if kind in "so":
        return _read_text, position + 1
    if kind == "g":
        return _read_signature, position + 1
    if kind == "v":
        return _read_variant, position + 1
    if kind == "a":
        item, after = _reader_at(signature, position + 1)
        return _array_reader(item, _ALIGNMENT.get(signature[position + 1], 4)), after
    if kind in "({":
        members = []
        position += 1
        while signature[position] not in ")}":
            member, position = _reader_at(signature, position)
            members.append(member)
        return _struct_reader(tuple(members)), position + 1
    raise DBusError(f"unknown D-Bus type {kind!r} in {signature!r}")


def _number_reader(layout: str) -> Reader:
    number = struct.Struct(layout)
    size, unpack = number.size, number.unpack_from

    def read(data: bytes, pos: int) -> tuple[Any, int]:
        pos = pos + size - 1 & -size
        return unpack(data, pos)[0], pos + size

    return read


def _read_text(data: bytes, pos: int) -> tuple[str, int]:
    pos = pos + 3 & ~3
    end = pos + 4 + _U32.unpack_from(data, pos)[0]
    return data[pos + 4 : end].decode("utf-8", "replace"), end + 1


def _read_signature(data: bytes, pos: int) -> tuple[str, int]:
    end = pos + 1 + data[pos]
    return data[pos + 1 : end].decode(), end + 1


def _read_variant(data: bytes, pos: int) -> tuple[Any, int]:
    signature, pos = _read_signature(data, pos)
    return _readers(signature)[0](data, pos)


def _array_reader(item: Reader, alignment: int) -> Reader:
    def read(data: bytes, pos: int) -> tuple[list[Any], int]:
        pos = pos + 3 & ~3
        (num_bytes,) = _U32.unpack_from(data, pos)
        pos = pos + 4 + alignment - 1 & -alignment
        end = pos + num_bytes
        values = []
        while pos < end:
            value, pos = item(data, pos)
            values.append(value)
        return values, end

    return read


def _struct_reader(members: tuple[Reader, ...]) -> Reader:
    def read(data: bytes, pos: int) -> tuple[tuple[Any, ...], int]:
        pos = pos + 7 & ~7
        values = []
        for member in members:
            value, pos = member(data, pos)
            values.append(value)
        return tuple(values), pos

    return read
