"""Frames between a desktop's host driver and its guest: a 4-byte big-endian length, then that many bytes of JSON.

Both ends use this file; the connection is an anonymous socket pair made by the host and handed to the guest as its
standard output, so nobody else can ever reach it. Screens do not travel here: the frame buffer's descriptor does,
once, and the host reads from it.
"""

from __future__ import annotations

import base64
import json
import os
import select
import socket
import struct
import time
from typing import Any

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Far above any file a desktop answers with; a larger length means the stream is out of step."""

MAX_OBSERVATION_BYTES = 8 << 20
"""Of an answer that is no value: a tree of 20,000 objects takes a fifth of it, its names and texts up to two thirds."""
MAX_NODES = 20_000
MAX_DEPTH = 500
"""Levels of a tree."""
MAX_TREE_CHARS = 900_000
"""Characters of all names and texts of a tree: each may take six bytes."""
MAX_RESULT_CHARS, MAX_TITLE_CHARS, MAX_MESSAGE_CHARS = 100_000, 1000, 2000
"""Longer texts are cut by both ends: by the guest since programs may show what they like, by the host since a guest may lie."""

_LENGTH = struct.Struct(">I")


_BYTES = "base64"
"""The one key of the object that stands for a file's content."""


def _bytes_to_json(value: object) -> dict[str, str]:
    if not isinstance(value, bytes):
        raise TypeError(f"{type(value).__name__} does not travel between host and guest")
    return {_BYTES: base64.b64encode(value).decode("ascii")}


def bytes_from_json(value: dict[str, Any]) -> Any:
    """`json`'s hook for objects: those that stand for bytes become them."""
    return base64.b64decode(value[_BYTES]) if value.keys() == {_BYTES} else value


class WireClosed(ConnectionError):
    """The other end is gone, or sent something that is no frame."""


class WireTimeout(TimeoutError):
    """No whole frame before the deadline."""


class Wire:
    """One end of the connection. Not thread-safe."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sock.setblocking(False)
        self._received = bytearray()

    def fileno(self) -> int:
        """For poll."""
        return self._sock.fileno()

    def has_frame(self) -> bool:
        """Is a whole frame here already?"""
        if len(self._received) < _LENGTH.size:
            return False
        (num_bytes,) = _LENGTH.unpack_from(self._received)
        return len(self._received) >= _LENGTH.size + num_bytes

    def send(self, message: dict[str, Any], *, timeout_s: float = 10.0) -> None:
        """Send one frame."""
        text = json.dumps(message, ensure_ascii=False, separators=(",", ":"), default=_bytes_to_json)
        # Names of files may be no UTF-8: what Python made of such bytes has no place in a message.
        body = text.encode("utf-8", "replace")
        data = memoryview(_LENGTH.pack(len(body)) + body)
        deadline = time.monotonic() + timeout_s
        while data:
            try:
                data = data[self._sock.send(data) :]
            except BlockingIOError:
                self._wait(select.POLLOUT, deadline)
            except OSError as error:
                raise WireClosed(f"connection lost: {error}") from error

    def receive(self, *, timeout_s: float, max_bytes: int = MAX_FRAME_BYTES) -> dict[str, Any]:
        """The next frame's message, of an end that is trusted; raises as `receive_frame`."""
        try:
            message = json.loads(self.receive_frame(timeout_s=timeout_s, max_bytes=max_bytes), object_hook=bytes_from_json)
        except ValueError as error:
            raise WireClosed(f"frame is no JSON: {error}") from error
        if not isinstance(message, dict):
            raise WireClosed("frame is no JSON object")
        return message

    def receive_frame(self, *, timeout_s: float, max_bytes: int = MAX_FRAME_BYTES) -> bytes:
        """The next frame; raises `WireTimeout` after ``timeout_s``, `WireClosed` at the end of the stream and when the frame is
        longer than ``max_bytes``."""
        deadline = time.monotonic() + timeout_s
        while True:
            frame = self._next_frame(max_bytes)
            if frame is not None:
                return frame
            self._wait(select.POLLIN, deadline)
            try:
                chunk = self._sock.recv(1 << 18)
            except BlockingIOError:
                continue
            except OSError as error:
                raise WireClosed(f"connection lost: {error}") from error
            if not chunk:
                raise WireClosed("the other end closed the connection")
            self._received += chunk

    def send_descriptor(self, descriptor: int, *, timeout_s: float = 10.0) -> None:
        """Hand an open file over; the other end must be waiting in `receive_descriptor`."""
        self._wait(select.POLLOUT, time.monotonic() + timeout_s)
        socket.send_fds(self._sock, [b"F"], [descriptor])

    def receive_descriptor(self, *, timeout_s: float) -> int:
        """The open file that the other end hands over; the caller closes it."""
        self._wait(select.POLLIN, time.monotonic() + timeout_s)
        try:
            data, descriptors, _, _ = socket.recv_fds(self._sock, 1, 1)
        except OSError as error:
            raise WireClosed(f"connection lost: {error}") from error
        if data != b"F" or len(descriptors) != 1:
            for descriptor in descriptors:
                os.close(descriptor)
            raise WireClosed("no descriptor came")
        return descriptors[0]

    def close(self) -> None:
        """Close this end; may be called twice."""
        self._sock.close()

    def _next_frame(self, max_bytes: int) -> bytes | None:
        if len(self._received) < _LENGTH.size:
            return None
        (num_bytes,) = _LENGTH.unpack_from(self._received)
        if num_bytes > max_bytes:
            raise WireClosed(f"a frame of {num_bytes} bytes, more than {max_bytes}")
        end = _LENGTH.size + num_bytes
        if len(self._received) < end:
            return None
        frame = bytes(memoryview(self._received)[_LENGTH.size : end])
        del self._received[:end]
        return frame

    def _wait(self, events: int, deadline: float) -> None:
        poller = select.poll()
        try:
            poller.register(self._sock, events)
        except ValueError as error:
            raise WireClosed("connection is closed") from error
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not poller.poll(remaining * 1000):
            raise WireTimeout("no frame in time")
