"""Fractions of time that an actor's episode slots spend on each activity, over a sliding window. Thread-safe."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from computerrl.common.clock import Clock, monotonic_s

Kind = Literal["generate", "desktop", "bound_wait", "no_work"]
"""`bound_wait`: the broker's staleness bound or a policy version still on its way; `no_work`: there is no episode to play."""

KINDS: tuple[Kind, ...] = ("generate", "desktop", "bound_wait", "no_work")


class ActivityMeter:
    """Fractions of the slots' time by activity; time in none of `KINDS` is idle."""

    def __init__(self, num_slots: int, *, window_s: float = 30.0, clock: Clock = monotonic_s) -> None:
        self._num_slots = num_slots
        self._window_s = window_s
        self._clock = clock
        self._started = clock()
        self._lock = threading.Lock()
        self._closed: deque[tuple[Kind, float, float]] = deque()
        """(kind, start, end), in order of their ends."""
        self._open: dict[int, tuple[Kind, float]] = {}
        self._next_id = 0

    @contextmanager
    def during(self, kind: Kind) -> Iterator[None]:
        """One slot does ``kind`` inside the block."""
        with self._lock:
            number, self._next_id = self._next_id, self._next_id + 1
            self._open[number] = (kind, self._clock())
        try:
            yield
        finally:
            with self._lock:
                _, start = self._open.pop(number)
                self._closed.append((kind, start, self._clock()))

    def fractions(self) -> dict[str, float]:
        """Each kind's share of all slot time in the window, and `idle`: the share, of the time in which there was work that
        might be done, in which a slot neither generated nor waited for a desktop."""
        with self._lock:
            now = self._clock()
            begin = max(self._started, now - self._window_s)
            while self._closed and self._closed[0][2] <= begin:
                self._closed.popleft()
            spent = dict.fromkeys(KINDS, 0.0)
            for kind, start, end in self._closed:
                spent[kind] += max(0.0, end - max(start, begin))
            for kind, start in self._open.values():
                spent[kind] += now - max(start, begin)
        total = self._num_slots * (now - begin)
        if total <= 0:
            return {**dict.fromkeys(KINDS, 0.0), "idle": 0.0}
        available = total - spent["bound_wait"] - spent["no_work"]
        idle = available - spent["generate"] - spent["desktop"]
        fractions: dict[str, float] = {kind: min(1.0, seconds / total) for kind, seconds in spent.items()}
        fractions["idle"] = min(1.0, max(0.0, idle / available)) if available > 0.001 * total else 0.0
        return fractions
