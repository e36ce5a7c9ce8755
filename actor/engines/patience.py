"""Requests to the server of a model, repeated while it is away. Sends nothing itself."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from computerrl.common import log
from computerrl.common.errors import ConfigError, EndpointBusy, EndpointRefused, EngineFailed, PeerTimeout, Problem

PATIENCE_S = 120.0
"""Time for which a request is repeated while the server is away."""

_BACKOFF_S = (0.5, 10.0)
_MOST_WAIT_S = 60.0
"""Longest wait that a server can demand before the next try."""
_MOST_REFUSALS = 5
"""Number of refusals in a row, with nothing else under way, after which the server is taken to refuse for good."""

Reply = TypeVar("Reply")


class Patience:
    """All requests of an actor to one server. Thread-safe."""

    def __init__(self, *, max_requests_per_min: float | None = None) -> None:
        """``max_requests_per_min``: further requests wait; None: none does."""
        self._pause_s = 60.0 / max_requests_per_min if max_requests_per_min else 0.0
        self._next_at = -math.inf
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._num_asked = 0
        """Number of requests that the server works on now."""
        self._num_refused = 0
        """Number of refusals since the last answer."""
        self._answered_at = -math.inf

    @property
    def is_closed(self) -> bool:
        """Whether nothing is asked any more."""
        return self._closing.is_set()

    def close(self) -> None:
        """Fail what waits to be repeated; what the server works on is not waited for."""
        self._closing.set()

    def ask(self, ask: Callable[[], Reply]) -> Reply:
        """What ``ask`` gets from the server. One that is away, has no time, or ends the connection, is asked again for
        `PATIENCE_S`. Raises `EngineFailed` when it refuses, or has answered others meanwhile, `ConfigError` when it refuses
        whatever it is asked, or stays away."""
        pause_s, longest_s = _BACKOFF_S
        began = time.monotonic()
        deadline = began + PATIENCE_S
        while self._takes_turn():
            with self._lock:
                self._num_asked += 1
            wait_s = pause_s
            try:
                reply = ask()
            except PeerTimeout as error:
                self._end(counts=False)
                trouble: PeerTimeout | EndpointRefused = error
                if isinstance(error, EndpointBusy):
                    wait_s = min(max(pause_s, error.retry_after_s), _MOST_WAIT_S)
            except EndpointRefused as error:
                self._end(error)
                if not error.is_broken:
                    raise
                trouble = error
            else:
                self._end()
                return reply
            if time.monotonic() > deadline:
                raise self._given_up(trouble, began)
            log.get_logger().warning("endpoint.away", reason=str(trouble), again_in_s=wait_s)
            self._closing.wait(wait_s)
            pause_s = min(longest_s, 2 * pause_s)
        raise EngineFailed("the engine is closed")

    def _given_up(self, trouble: PeerTimeout | EndpointRefused, began: float) -> ConfigError | EngineFailed:
        """The error of a request that was asked for since ``began`` in vain."""
        with self._lock:
            if self._answered_at >= began:
                return EngineFailed(str(trouble))
        reason = f"the server has answered nothing for {time.monotonic() - began:.0f} s: {trouble}"
        return ConfigError([Problem("actor.endpoint", reason, "look at the server; --resume continues the evaluation")])

    def _end(self, refusal: EndpointRefused | None = None, *, counts: bool = True) -> None:
        """End of one try; without ``counts`` it says nothing about the server's will. Raises `ConfigError` when nothing is
        answered any more."""
        with self._lock:
            self._num_asked -= 1
            if counts:
                self._num_refused = self._num_refused + 1 if refusal else 0
                self._answered_at = self._answered_at if refusal else time.monotonic()
            is_hopeless = self._num_refused >= _MOST_REFUSALS and self._num_asked == 0 and not self._closing.is_set()
        if refusal is not None and is_hopeless:
            reason = f"the server refuses {_MOST_REFUSALS} requests in a row: {refusal}"
            raise ConfigError([Problem("actor.endpoint", reason, refusal.next_step)])

    def _takes_turn(self) -> bool:
        """Wait until the next request may be sent; False when nothing is asked any more."""
        with self._lock:
            now = time.monotonic()
            turn = max(now, self._next_at)
            self._next_at = turn + self._pause_s
        if turn > now:
            self._closing.wait(turn - now)
        return not self._closing.is_set()
