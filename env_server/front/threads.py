"""Threads for the blocking calls of sessions: as many as there can be calls at work, and some that wait for a desktop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple, Unpack

from anyio import CapacityLimiter, to_thread

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_NUM_WAITING = 32


class Threads:
    """Made in the event loop that uses it."""

    def __init__(self, num_desktops: int) -> None:
        self._limiter = CapacityLimiter(2 * num_desktops + _NUM_WAITING)

    async def run(self, call: Callable[[Unpack[Ts]], T], *arguments: *Ts) -> T:
        """``call`` in a thread. It goes on to its end also when its request is cancelled."""
        return await to_thread.run_sync(call, *arguments, limiter=self._limiter)
