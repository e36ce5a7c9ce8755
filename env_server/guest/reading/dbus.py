"""A small D-Bus client: method calls sent in bulk, replies collected in bulk, signals queued.

Why not Gio: an accessibility read is hundreds of tiny calls, and unpacking their answers through introspection costs ten
times what the applications need to answer. It speaks little-endian D-Bus over unix sockets and the types AT-SPI uses;
it serves no methods.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from .dbus_codec import FIXED, Call, DBusError, decode, encode_call, header_fields

__all__ = ["XFCONF", "Bus", "Call", "Connection", "ConnectionLost", "DBusError", "DBusTimeout", "Signal"]

XFCONF = "org.xfce.Xfconf"
"""Name of Xfce's settings service on the session bus."""
_REPLY, _ERROR, _SIGNAL = 2, 3, 4
_CHUNK_BYTES = 1 << 18
_MAX_CHUNKS = 32
"""Of one `Connection.pump`: their messages take about a second."""


class DBusTimeout(DBusError):
    """Answers are missing at the deadline."""


class ConnectionLost(DBusError):
    """The other side is gone."""


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
        return decode(self.signature, self.body)


class Connection:
    """A connection on which calls can be made: to one application, or to a bus (`Bus`)."""

    def __init__(self, address: str, *, timeout_s: float = 5.0) -> None:
        self._sock = _connect(address, timeout_s)
        self._received = bytearray()
        self._serial = 0
        self._replies: dict[int, list[Any] | DBusError] = {}
        self._awaited: dict[int, str] = {}
        """Serials of calls -> signatures of their answers."""
        self.signals: deque[Signal] = deque(maxlen=20000)
        self.is_lost = False
        """It is of no use any more: closed by the other side, or stuck in the middle of a message."""
        try:
            self._authenticate(time.monotonic() + timeout_s)
        except (OSError, DBusError) as error:
            self._sock.close()
            raise DBusError(f"no authentication at {address}: {error}") from error
        self._sock.setblocking(False)

    def fileno(self) -> int:
        """For poll."""
        return self._sock.fileno()

    def close(self) -> None:
        """Leave it."""
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
            parts.append(encode_call(call, self._serial))
        self._awaited.update(zip(serials, (call.returns for call in calls), strict=True))
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
            for serial in serials:
                del self._awaited[serial]
            found = {serial: self._replies.pop(serial) for serial in serials if serial in self._replies}
        return [found[serial] for serial in serials]

    def send(self, call: Call, *, timeout_s: float = 5.0) -> None:
        """One call without waiting for its end (an answer may wait for a person to close a dialog)."""
        self._serial += 1
        self._send(memoryview(encode_call(call, self._serial)), time.monotonic() + timeout_s)

    def pump(self) -> int:
        """Take what has arrived without waiting, or a good part of it where a program says more and more; gives the number of
        signals now queued."""
        for _ in range(_MAX_CHUNKS):
            if not self._read_some():
                break
        return len(self.signals)

    def _send(self, data: memoryview, deadline: float) -> None:
        while data:
            try:
                data = data[self._sock.send(data[: 1 << 16]) :]
            except BlockingIOError:
                # Both directions may be full: keep reading so that the bus can go on writing.
                try:
                    self._fill(deadline, writing=True)
                except DBusTimeout:
                    self.is_lost = True  # the next message would begin in the middle of this one
                    raise
            except OSError as error:
                raise self._lost(error) from error

    def _fill(self, deadline: float, *, writing: bool = False) -> None:
        poller = select.poll()
        poller.register(self._sock, select.POLLIN | (select.POLLOUT if writing else 0))
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not poller.poll(remaining * 1000):
            raise DBusTimeout("no answer over D-Bus in time")
        self._read_some()

    def _read_some(self) -> bool:
        try:
            chunk = self._sock.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._lost(error) from error
        if not chunk:
            raise self._lost("closed by the other side")
        self._received += chunk
        try:
            self._take_messages()
        except (struct.error, LookupError, ValueError, RecursionError) as error:
            raise self._lost(f"no message: {error!r}") from error
        return True

    def _lost(self, reason: object) -> ConnectionLost:
        self.is_lost = True
        return ConnectionLost(f"D-Bus connection lost: {reason}")

    def _take_messages(self) -> None:
        data = bytes(self._received)
        pos = 0
        while len(data) - pos >= 16:
            _, kind, _, _, body_bytes, _, fields_bytes = FIXED.unpack_from(data, pos)
            body_at = pos + 16 + (fields_bytes + 7 & ~7)
            end = body_at + body_bytes
            if end > len(data):
                break
            # Alignment counts from the start of a message, and messages follow each other unaligned.
            self._take(kind, header_fields(data[pos : pos + 16 + fields_bytes]), data[body_at:end])
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
        signature, wanted = fields.get(8, ""), self._awaited[serial]
        if kind == _REPLY and wanted and signature != wanted:
            self._replies[serial] = DBusError(f"an answer of the type {signature!r}, not {wanted!r}")
        elif kind == _REPLY:
            self._replies[serial] = decode(signature, body)
        elif kind == _ERROR:
            text = decode(signature, body)
            self._replies[serial] = DBusError(f"{fields.get(4)}: {text[0] if text else ''}")

    def _authenticate(self, deadline: float) -> None:
        # Without naming our user id, which the other side may know by another number than we do: it asks the kernel.
        self._sock.sendall(b"\0AUTH EXTERNAL\r\nDATA\r\n")
        answer = b""
        while not (answer.endswith(b"\r\n") and answer != b"DATA\r\n"):
            received = self._sock.recv(512)
            if not received or len(answer) > 512 or time.monotonic() > deadline:
                raise DBusError(f"no answer to the authentication: {answer!r:.200}")
            answer += received
        if b"\r\nOK " not in answer:
            raise DBusError(f"authentication refused: {answer!r}")
        self._sock.sendall(b"BEGIN\r\n")


class Bus(Connection):
    """A connection to a message bus, with a name of our own on it."""

    def __init__(self, address: str, *, timeout_s: float = 5.0) -> None:
        super().__init__(address, timeout_s=timeout_s)
        self.name: str = self.call(_bus_call("Hello"))[0]

    def pid_of(self, name: str) -> int:
        """Process id of a connection, as this process's namespace numbers it."""
        return int(self.call(_bus_call("GetConnectionUnixProcessID", "s", (name,)))[0])

    def names(self) -> list[str]:
        """All names on the bus that somebody has."""
        return list(self.call(_bus_call("ListNames"))[0])

    def has_owner(self, name: str) -> bool:
        """Is somebody reachable by this name? Unlike a call to it, asking starts nobody."""
        return bool(self.call(_bus_call("NameHasOwner", "s", (name,)))[0])

    def add_match(self, rule: str) -> None:
        """Subscribe to signals."""
        self.call(_bus_call("AddMatch", "s", (rule,)))


def _bus_call(member: str, signature: str = "", args: tuple[Any, ...] = ()) -> Call:
    return Call("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", member, signature, args)


def path_of(address: str) -> str:
    """The unix socket of a bus address; one without a file begins with a zero. Raises `DBusError` where there is none."""
    for part in address.split(";"):
        transport, _, options = part.partition(":")
        values = {key: unquote(value) for key, _, value in (option.partition("=") for option in options.split(","))}
        if transport == "unix" and values.keys() & {"path", "abstract"}:
            return values["path"] if "path" in values else "\0" + values["abstract"]
    raise DBusError(f"no unix socket in bus address {address!r}")


def _connect(address: str, timeout_s: float) -> socket.socket:
    name = path_of(address)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout_s)
    try:
        sock.connect(name)
    except OSError as error:
        sock.close()
        raise DBusError(f"cannot reach the bus at {address}: {error}") from error
    return sock
