"""Time, in one place, so that what decides can be given a time instead of asking for it."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds; only differences mean something."""


def monotonic_s() -> float:
    """For durations and deadlines."""
    return time.monotonic()


class ManualClock:
    """A clock for tests and simulations that moves only when told."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, duration_s: float) -> None:
        """Let ``duration_s`` pass."""
        self.now += duration_s
