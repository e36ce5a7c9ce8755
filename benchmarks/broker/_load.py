"""A load generator for the broker: many requests in flight over real CURVE sockets, encoded beforehand.

What is measured is the broker, which usually has a machine to itself: so the generator sends messages that were encoded before
the clock started, and keeps a window of them in flight on each connection, as an actor with that many episodes would.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import zmq

from computerrl.common.host import keep_freed_memory
from computerrl.common.messages import ErrorReply, Message
from computerrl.common.wire import codec
from computerrl.common.wire.keys import Keys
from computerrl.common.wire.transport import client_socket

Frames = list[bytes]
_PATIENCE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Load:
    """Results of a window of requests."""

    took_s: float
    answers: list[Message]
    """In order of their requests."""
    latencies_s: list[float]


class Connections:
    """``count`` connections to the broker, as that many actors have."""

    def __init__(self, address: str, keys: Keys, *, count: int) -> None:
        keep_freed_memory()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets = [self._connect(address, keys) for _ in range(count)]
        self._poller = zmq.Poller()
        for socket in self._sockets:
            self._poller.register(socket, zmq.POLLIN)

    def _connect(self, address: str, keys: Keys) -> zmq.Socket[bytes]:
        socket = client_socket(self._context, keys)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.connect(address)
        return socket

    def send_all(self, requests: Sequence[Frames], *, window: int, per_s: float | None = None) -> Load:
        """Send all, ``window`` in flight per connection; with ``per_s`` at that pace instead, however late answers are."""
        gc.disable()  # Pauses of 0.1 s of this process are none of the broker's.
        try:
            return self._send_all(requests, window=window, per_s=per_s)
        finally:
            gc.enable()

    def _send_all(self, requests: Sequence[Frames], *, window: int, per_s: float | None) -> Load:
        sent_at, latencies, raw = [0.0] * len(requests), [0.0] * len(requests), [Frames()] * len(requests)
        in_flight: list[deque[int]] = [deque() for _ in self._sockets]
        started = time.perf_counter()
        following, num_open = 0, 0
        while following < len(requests) or num_open:
            now = time.perf_counter()
            allowed = len(requests) if per_s is None else min(len(requests), int((now - started) * per_s) + 1)
            for socket, queue in zip(self._sockets, in_flight, strict=True):
                while following < allowed and (per_s is not None or len(queue) < window):
                    sent_at[following] = time.perf_counter() if per_s is None else started + following / per_s
                    socket.send_multipart(requests[following], copy=False)
                    queue.append(following)
                    following, num_open = following + 1, num_open + 1
                    if per_s is not None:
                        break
            pause_ms = _PATIENCE_MS if following == len(requests) or per_s is None else 1
            ready = dict(self._poller.poll(pause_ms))
            if not ready and pause_ms == _PATIENCE_MS:
                raise TimeoutError(f"the broker owes {num_open} answers and was silent for {_PATIENCE_MS / 1000:g} s")
            for socket, queue in zip(self._sockets, in_flight, strict=True):
                while socket in ready and queue:
                    try:
                        answer = socket.recv_multipart(zmq.DONTWAIT)
                    except zmq.Again:
                        break
                    # In order: all requests are of one kind, so that either all of them wait for the disk or none.
                    number = queue.popleft()
                    latencies[number], raw[number] = time.perf_counter() - sent_at[number], answer
                    num_open -= 1
        took_s = time.perf_counter() - started
        answers = [codec.decode(frames).message for frames in raw]
        errors = [answer for answer in answers if isinstance(answer, ErrorReply)]
        if errors:
            raise RuntimeError(f"{len(errors)} of {len(answers)} requests were refused, the first with: {errors[0]}")
        return Load(took_s, answers, latencies)

    def close(self) -> None:
        """Close all sockets."""
        for socket in self._sockets:
            socket.close(linger=0)
        self._context.term()
