"""A clock for tests."""

from __future__ import annotations


class ManualClock:
    """A `Clock` that moves only when told."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, duration_s: float) -> None:
        self.now += duration_s
