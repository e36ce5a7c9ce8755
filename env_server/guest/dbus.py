"""A small D-Bus client: method calls sent in bulk, replies collected in bulk, signals queued.

Why not Gio: an accessibility read is hundreds of tiny calls, and unpacking their answers through introspection costs ten
times what the applications need to answer. It speaks little-endian D-Bus over unix sockets and the types AT-SPI uses;
it serves no methods.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_FIXED = struct.Struct("<BBBBIII")
_U32 = struct.Struct("<I")
_REPLY, _ERROR, _SIGNAL = 2, 3, 4

Reader = Callable[[bytes, int], "tuple[Any, int]"]


class DBusError(RuntimeError):
    """The bus or the peer refused, or the connection is gone."""


class DBusTimeout(DBusError):
    """Answers are missing at the deadline."""


@dataclass(frozen=True, slots=True)
class Call:
    """One method call."""

    destination: str
    path: str
    interface: str
    member: str
    signature: str = ""
    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal of somebody else."""

    sender: str
    path: str
    interface: str
    member: str
    signature: str
    body: bytes

    def args(self) -> list[Any]:
        """The signal's arguments, decoded only when asked for."""
        return _decode(self.signature, self.body)


class Bus:
    """One connection to a message bus."""

    def __init__(self, address: str, *, timeout_s: float = 5.0) -> None:
        self._sock = _connect(address)
        self._sock.settimeout(timeout_s)
        self._received = bytearray()
        self._serial = 0
        self._replies: dict[int, list[Any] | DBusError] = {}
        self._awaited: set[int] = set()
        self.signals: deque[Signal] = deque(maxlen=20000)
        self._authenticate()
        self._sock.setblocking(False)
        self.name: str = self.call(_bus_call("Hello"))[0]

    def fileno(self) -> int:
        """For poll."""
        return self._sock.fileno()

    def close(self) -> None:
        """Leave the bus."""
        self._sock.close()

    def call(self, call: Call, *, timeout_s: float = 5.0) -> list[Any]:
        """One call; its result, or `DBusError`."""
        result = self.call_all([call], timeout_s=timeout_s)[0]
        if isinstance(result, DBusError):
            raise result
        return result

    def call_all(self, calls: Sequence[Call], *, timeout_s: float) -> list[list[Any] | DBusError]:
        """All calls in flight at once; a failed one's place holds its error. Raises `DBusTimeout` when some never answer."""
        if not calls:
            return []
        serials = []
        parts = []
        for call in calls:
            self._serial += 1
            serials.append(self._serial)
            parts.append(_encode_call(call, self._serial))
        self._awaited.update(serials)
        deadline = time.monotonic() + timeout_s
        try:
            self._send(memoryview(b"".join(parts)), deadline)
            missing = set(serials)
            while True:
                missing -= self._replies.keys()
                if not missing:
                    break
                self._fill(deadline)
        finally:
            self._awaited.difference_update(serials)
            found = {serial: self._replies.pop(serial) for serial in serials if serial in self._replies}
        return [found[serial] for serial in serials]

    def send(self, call: Call, *, timeout_s: float = 5.0) -> None:
        """One call without waiting for its end (an answer may wait for a person to close a dialog)."""
        self._serial += 1
        self._send(memoryview(_encode_call(call, self._serial)), time.monotonic() + timeout_s)

    def pump(self) -> int:
        """Take what has arrived without waiting; gives the number of signals now queued."""
        while self._read_some():
            pass
        return len(self.signals)

    def pid_of(self, name: str) -> int:
        """Process id of a connection, as this process's namespace numbers it."""
        return int(self.call(_bus_call("GetConnectionUnixProcessID", "s", (name,)))[0])

    def add_match(self, rule: str) -> None:
        """Subscribe to signals."""
        self.call(_bus_call("AddMatch", "s", (rule,)))

    def _send(self, data: memoryview, deadline: float) -> None:
        while data:
            try:
                data = data[self._sock.send(data[: 1 << 16]) :]
            except BlockingIOError:
                # Both directions may be full: keep reading so that the bus can go on writing.
                self._fill(deadline, writing=True)
            except OSError as error:
                raise DBusError(f"bus connection lost: {error}") from error

    def _fill(self, deadline: float, *, writing: bool = False) -> None:
        poller = select.poll()
        poller.register(self._sock, select.POLLIN | (select.POLLOUT if writing else 0))
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not poller.poll(remaining * 1000):
            raise DBusTimeout("no answer from the accessibility bus in time")
        self._read_some()

    def _read_some(self) -> bool:
        try:
            chunk = self._sock.recv(1 << 18)
        except BlockingIOError:
            return False
        except OSError as error:
            raise DBusError(f"bus connection lost: {error}") from error
        if not chunk:
            raise DBusError("the bus closed the connection")
        self._received += chunk
        self._take_messages()
        return True

    def _take_messages(self) -> None:
        data = bytes(self._received)
        pos = 0
        while len(data) - pos >= 16:
            _, kind, _, _, body_bytes, _, fields_bytes = _FIXED.unpack_from(data, pos)
            body_at = pos + 16 + (fields_bytes + 7 & ~7)
            end = body_at + body_bytes
            if end > len(data):
                break
            # Alignment counts from the start of a message, and messages follow each other unaligned.
            self._take(kind, _header_fields(data[pos : pos + 16 + fields_bytes]), data[body_at:end])
            pos = end
        if pos:
            del self._received[:pos]

    def _take(self, kind: int, fields: dict[int, Any], body: bytes) -> None:
        if kind == _SIGNAL:
            self.signals.append(
                Signal(fields.get(7, ""), fields.get(1, ""), fields.get(2, ""), fields.get(3, ""), fields.get(8, ""), body)
            )
            return
        serial = fields.get(5)
        if serial not in self._awaited:
            return
        if kind == _REPLY:
            self._replies[serial] = _decode(fields.get(8, ""), body)
        elif kind == _ERROR:
            text = _decode(fields.get(8, ""), body)
            self._replies[serial] = DBusError(f"{fields.get(4)}: {text[0] if text else ''}")

    def _authenticate(self) -> None:
        uid = str(os.getuid()).encode().hex()
        self._sock.sendall(f"\0AUTH EXTERNAL {uid}\r\n".encode())
        answer = self._sock.recv(512)
        if not answer.startswith(b"OK"):
            raise DBusError(f"bus refused authentication: {answer!r}")
        self._sock.sendall(b"BEGIN\r\n")


def _bus_call(member: str, signature: str = "", args: tuple[Any, ...] = ()) -> Call:
    return Call("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", member, signature, args)


def _connect(address: str) -> socket.socket:
    for part in address.split(";"):
        transport, _, options = part.partition(":")
        values = dict(option.split("=", 1) for option in options.split(",") if "=" in option)
        if transport != "unix":
            continue
        name = values["path"] if "path" in values else "\0" + values["abstract"]
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(name)
        except OSError as error:
            sock.close()
            raise DBusError(f"cannot reach the bus at {address}: {error}") from error
        return sock
    raise DBusError(f"no unix socket in bus address {address!r}")


# --- encoding --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=8192)
def _text_field(code: int, kind: str, text: str) -> bytes:
    raw = text.encode()
    return bytes((code, 1)) + kind.encode() + b"\0" + _U32.pack(len(raw)) + raw + b"\0"


def _pad8(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def _encode_call(call: Call, serial: int) -> bytes:
    fields = [
        _text_field(1, "o", call.path),
        _text_field(2, "s", call.interface),
        _text_field(3, "s", call.member),
        _text_field(6, "s", call.destination),
    ]
    body = b""
    if call.signature:
        raw = call.signature.encode()
        fields.append(b"\x08\x01g\0" + bytes((len(raw),)) + raw + b"\0")
        body = _encode_args(call.signature, call.args)
    head = b"".join([_pad8(field) for field in fields[:-1]]) + fields[-1]
    return _FIXED.pack(ord("l"), 1, 0, 1, len(body), serial, len(head)) + _pad8(head) + body


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
        out += bytes(-len(out) % 4)
        if kind in "so":
            out += _encode_text(value)
        elif kind in "ui":
            out += struct.pack("<I" if kind == "u" else "<i", value)
        else:
            raise ValueError(f"cannot encode D-Bus type {kind!r}")
    return bytes(out)


def _encode_text(text: str) -> bytes:
    raw = text.encode()
    return _U32.pack(len(raw)) + raw + b"\0"


# --- decoding --------------------------------------------------------------------------------------------------------


def _header_fields(data: bytes) -> dict[int, Any]:
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


def _decode(signature: str, body: bytes) -> list[Any]:
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
