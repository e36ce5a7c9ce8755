"""Frames between host and guest: whole, split, too long, no JSON, closed."""

from __future__ import annotations

import socket
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computerrl.env_server.guest.wire import MAX_FRAME_BYTES, Wire, WireClosed, WireTimeout


def pair() -> tuple[Wire, socket.socket]:
    ours, theirs = socket.socketpair()
    return Wire(ours), theirs


def test_messages_arrive_whole_and_in_order_however_they_are_split() -> None:
    left, right = socket.socketpair()
    sender, receiver = Wire(left), Wire(right)
    big = {"text": "x" * 3_000_000, "emoji": "\u00e4\U0001f600"}
    thread = threading.Thread(target=lambda: [sender.send(big), sender.send({"n": 2})])
    thread.start()
    assert receiver.receive(timeout_s=5) == big
    assert receiver.receive(timeout_s=5) == {"n": 2}
    thread.join()
    assert not receiver.has_frame()


def test_text_that_is_no_unicode_arrives_as_something_that_is() -> None:
    left, right = socket.socketpair()
    sender, receiver = Wire(left), Wire(right)
    sender.send({"name": b"caf\xe9.txt".decode("utf-8", "surrogateescape")})
    assert receiver.receive(timeout_s=5) == {"name": "caf?.txt"}


def test_receive_without_a_message_times_out() -> None:
    wire, _other = pair()
    with pytest.raises(WireTimeout):
        wire.receive(timeout_s=0.01)


def test_receive_after_the_other_end_closed_says_so() -> None:
    wire, other = pair()
    other.close()
    with pytest.raises(WireClosed):
        wire.receive(timeout_s=1)


def test_half_a_frame_times_out_and_the_rest_completes_it() -> None:
    wire, other = pair()
    frame = struct.pack(">I", 8) + b'{"a": 1}'
    other.sendall(frame[:6])
    assert not wire.has_frame()
    with pytest.raises(WireTimeout):
        wire.receive(timeout_s=0.01)
    other.sendall(frame[6:])
    assert wire.receive(timeout_s=1) == {"a": 1}


@pytest.mark.parametrize(
    "junk", [struct.pack(">I", MAX_FRAME_BYTES + 1), struct.pack(">I", 3) + b"{x}", struct.pack(">I", 2) + b"[]"]
)
def test_receive_of_what_is_no_message_closes(junk: bytes) -> None:
    wire, other = pair()
    other.sendall(junk)
    with pytest.raises(WireClosed):
        wire.receive(timeout_s=1)


@given(st.binary(max_size=64))
def test_receive_of_any_bytes_raises_only_its_own_errors(junk: bytes) -> None:
    wire, other = pair()
    other.sendall(junk)
    other.close()
    try:
        wire.receive(timeout_s=1)
    except (WireClosed, WireTimeout):
        pass
    finally:
        wire.close()
