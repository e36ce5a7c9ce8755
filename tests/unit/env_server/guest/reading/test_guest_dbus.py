"""The small D-Bus client: bytes of calls and replies, and a bus imitated at the other end of a socket."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from computerrl.env_server.guest.reading.dbus import Bus, Call, Connection, ConnectionLost, DBusError, DBusTimeout
from computerrl.env_server.guest.reading.dbus_codec import FIXED, decode, encode_call, header_fields


def message(kind: int, fields: list[tuple[int, str, Any]], signature: str = "", body: bytes = b"", serial: int = 1) -> bytes:
    head = b""
    for code, field_type, value in [*fields, *([(8, "g", signature)] if signature else [])]:
        head += bytes(-len(head) % 8) + bytes((code, 1)) + field_type.encode() + b"\0"
        if field_type == "u":
            head += struct.pack("<I", value)
        elif field_type == "g":
            head += bytes((len(value),)) + value.encode() + b"\0"
        else:
            head += struct.pack("<I", len(value)) + value.encode() + b"\0"
    return FIXED.pack(ord("l"), kind, 0, 1, len(body), serial, len(head)) + head + bytes(-len(head) % 8) + body


def text(value: str) -> bytes:
    return struct.pack("<I", len(value)) + value.encode() + b"\0"


def reply(serial: int, signature: str = "", body: bytes = b"") -> bytes:
    return message(2, [(5, "u", serial)], signature, body)


class FakeBus:
    """Authenticates one client, answers Hello, then hands every call to ``answer``."""

    def __init__(self, folder: Path, answer: Callable[[int, dict[int, Any]], bytes]) -> None:
        self.address = f"unix:path={folder}/bus"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "bus"))
        self._listener.listen()
        self._answer = answer
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        peer, _ = self._listener.accept()
        assert peer.recv(512) == b"\0AUTH EXTERNAL\r\nDATA\r\n"
        peer.sendall(b"DATA\r\nO")  # in pieces, as a stream may come
        peer.sendall(b"K 1234\r\n")
        data = b""
        while chunk := peer.recv(65536):
            data += chunk
            data = data.removeprefix(b"BEGIN\r\n")
            while len(data) >= 16:
                body_bytes, serial, fields_bytes = struct.unpack_from("<III", data, 4)
                end = 16 + (fields_bytes + 7 & ~7) + body_bytes
                if len(data) < end:
                    break
                fields = header_fields(data[: 16 + fields_bytes])
                data = data[end:]
                peer.sendall(reply(serial, "s", text(":1.7")) if fields[3] == "Hello" else self._answer(serial, fields))


def test_call_as_bytes_reads_back_with_its_fields_and_arguments() -> None:
    raw = encode_call(Call(":1.2", "/a/b", "x.Y", "Do", "sasiua{sv}av", ("hi", ["p", "qq"], -3, 7, {}, ())), 9)
    _, kind, _, _, body_bytes, serial, fields_bytes = FIXED.unpack_from(raw)
    fields = header_fields(raw[: 16 + fields_bytes])
    assert (kind, serial) == (1, 9)
    assert (fields[1], fields[2], fields[3], fields[6], fields[8]) == ("/a/b", "x.Y", "Do", ":1.2", "sasiua{sv}av")
    assert decode("sasiua{sv}av", raw[len(raw) - body_bytes :]) == ["hi", ["p", "qq"], -3, 7, [], []]


def test_decode_of_nested_values_follows_alignment() -> None:
    inner = struct.pack("<I", 3) + bytes(4) + struct.pack("<iiii", 1, 2, 3, 4)
    assert decode("u(iiii)", inner) == [3, (1, 2, 3, 4)]
    assert decode("v", b"\x01s\0\0" + text("name")) == ["name"]
    assert decode("ax", struct.pack("<I", 8) + bytes(4) + struct.pack("<q", -5)) == [[-5]]


def test_calls_in_bulk_come_back_in_order_though_answered_unaligned_and_out_of_order(tmp_path: Path) -> None:
    held: list[bytes] = []

    def answer(serial: int, fields: dict[int, Any]) -> bytes:
        signal = message(4, [(1, "o", "/s"), (2, "s", "i"), (3, "s", "Changed"), (7, "s", ":1.3")], "s", text("odd"))
        held.append(reply(serial, "s", text(fields[1])))
        return b"".join([signal, *reversed(held)]) if len(held) == 50 else b""

    bus = Bus(FakeBus(tmp_path, answer).address)
    assert bus.name == ":1.7"
    results = bus.call_all([Call("d", f"/p{n}", "i", "m") for n in range(50)], timeout_s=5)
    assert results == [[f"/p{n}"] for n in range(50)]
    assert [signal.args() for signal in bus.signals] == [["odd"]]


def test_refused_call_raises_and_in_bulk_takes_only_its_own_place(tmp_path: Path) -> None:
    def answer(serial: int, fields: dict[int, Any]) -> bytes:
        if fields[3] == "bad":
            return message(3, [(5, "u", serial), (4, "s", "org.Error")], "s", text("no"))
        return reply(serial)

    bus = Bus(FakeBus(tmp_path, answer).address)
    with pytest.raises(DBusError, match="no"):
        bus.call(Call("d", "/", "i", "bad"))
    good, bad = bus.call_all([Call("d", "/", "i", "good"), Call("d", "/", "i", "bad")], timeout_s=5)
    assert good == [] and isinstance(bad, DBusError)


def test_missing_answer_times_out_and_a_late_one_is_dropped(tmp_path: Path) -> None:
    late: list[bytes] = []

    def answer(serial: int, fields: dict[int, Any]) -> bytes:
        if fields[3] == "slow":
            late.append(reply(serial, "s", text("late")))
            return b""
        return b"".join(late) + reply(serial, "s", text("now"))

    bus = Bus(FakeBus(tmp_path, answer).address)
    with pytest.raises(DBusTimeout):
        bus.call(Call("d", "/", "i", "slow"), timeout_s=0.05)
    assert bus.call(Call("d", "/", "i", "fast")) == ["now"]


def test_connection_to_nowhere_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DBusError):
        Bus(f"unix:path={tmp_path}/none")
    with pytest.raises(DBusError):
        Bus("tcp:host=localhost")


@pytest.mark.parametrize("value", [("b", True), ("s", "text"), ("i", -3), ("u", 7)])
def test_encode_call_of_a_variant_reads_back(value: tuple[str, Any]) -> None:
    data = encode_call(Call("a.b", "/c", "d.e", "Set", "ssv", ("one", "three", value)), 1)
    _, _, _, _, body_bytes, _, _ = FIXED.unpack_from(data)
    assert decode("ssv", data[len(data) - body_bytes :]) == ["one", "three", value[1]]


def test_encode_call_of_an_unknown_type_is_an_error() -> None:
    with pytest.raises(ValueError, match="cannot encode"):
        encode_call(Call("a.b", "/c", "d.e", "Set", "v", (("d", 1.5),)), 1)


def deaf_peer(folder: Path, answer: bytes, *, closes: bool = False) -> str:
    """An application that takes part in the authentication and then neither reads nor answers. Gives its address."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "peer"))
    listener.listen()

    def run() -> None:
        peer, _ = listener.accept()
        peer.recv(512)
        peer.sendall(answer)
        peer.recv(len(b"BEGIN\r\n"))
        if closes:
            peer.close()
        else:
            PEERS.append(peer)

    threading.Thread(target=run, daemon=True).start()
    return f"unix:path={folder}/peer,guid=12"


PEERS: list[socket.socket] = []
"""Kept open: a socket that nobody holds would be closed."""
ASK = Call(":1.1", "/a", "org.a11y.atspi.Accessible", "GetRole")


def test_a_connection_stuck_in_the_middle_of_a_message_is_lost(tmp_path: Path) -> None:
    connection = Connection(deaf_peer(tmp_path, b"DATA\r\nOK 1\r\n"))
    with pytest.raises(DBusTimeout):
        connection.call_all([ASK], timeout_s=0.05)
    assert not connection.is_lost  # all was sent; the answer may still come
    with pytest.raises(DBusTimeout):
        connection.call_all([ASK] * 20_000, timeout_s=0.2)
    assert connection.is_lost
    connection.close()


def test_a_connection_that_the_other_side_closed_is_lost(tmp_path: Path) -> None:
    connection = Connection(deaf_peer(tmp_path, b"DATA\r\nOK 1\r\n", closes=True))
    with pytest.raises(ConnectionLost):
        connection.call_all([ASK], timeout_s=5.0)
    assert connection.is_lost
    connection.close()


def test_refused_authentication_is_an_error_that_quotes_the_answer(tmp_path: Path) -> None:
    with pytest.raises(DBusError, match="REJECTED EXTERNAL"):
        Connection(deaf_peer(tmp_path, b"REJECTED EXTERNAL\r\n"))


def test_an_address_may_be_escaped(tmp_path: Path) -> None:
    address = deaf_peer(tmp_path, b"DATA\r\nOK 1\r\n").replace("peer", "%70eer")
    Connection(address).close()


@pytest.mark.parametrize(
    "answer",
    [
        b"l" + bytes(15) + b"\xff" * 40,
        FIXED.pack(ord("l"), 2, 1, 1, 4, 9, 7) + b"\x01\x01x\0\xff\xff\xff\x7f" + b"ab",
        FIXED.pack(ord("l"), 2, 1, 1, 0, 9, 3) + b"\x08\x01g\0\0\0\0\0",
    ],
)
def test_what_is_no_message_ends_the_connection(tmp_path: Path, answer: bytes) -> None:
    bus = Bus(FakeBus(tmp_path, lambda serial, fields: answer * 20).address)
    with pytest.raises(DBusError):
        bus.call(Call("d", "/", "i", "m"), timeout_s=0.2)


def test_deeply_nested_answer_ends_the_connection(tmp_path: Path) -> None:
    body = b"\x01v\0" * 5000 + b"\x01y\0\x01"
    bus = Bus(FakeBus(tmp_path, lambda serial, fields: reply(serial, "v", body)).address)
    with pytest.raises(ConnectionLost, match="Recursion"):
        bus.call(Call("d", "/", "i", "m"), timeout_s=5.0)


def test_answer_of_another_type_is_an_error_of_its_call_alone(tmp_path: Path) -> None:
    bus = Bus(FakeBus(tmp_path, lambda serial, fields: reply(serial, "s", text("no number"))).address)
    wrong, right = bus.call_all([Call("d", "/", "i", "m", returns="u"), Call("d", "/", "i", "m", returns="s")], timeout_s=5)
    assert isinstance(wrong, DBusError) and right == ["no number"]


@pytest.mark.parametrize("address", ["unix:guid=1", "unix:", "tcp:host=x", "", "unix:path=" + "a" * 300])
def test_address_that_is_none_is_an_error(address: str) -> None:
    with pytest.raises(DBusError):
        Bus(address)
