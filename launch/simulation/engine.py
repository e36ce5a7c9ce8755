"""One engine and the episodes that share it. An episode waits for its desktop or for a completion; the more of them wait for
completions, the longer each takes.

Steps are not played one by one: with m episodes in play of which a share gamma of their own time is generation, n of them
generate at a time, each slowed by x = 1 + crowding (n - 1), where n = m gamma x / (1 - gamma + gamma x). All then progress at the
rate 1 / (1 - gamma + gamma x) of their time alone (processor sharing). That is exact for equal episodes in the mean, and is what
makes a day of a thousand desktops a matter of seconds.
"""

from __future__ import annotations

import heapq
from typing import Any

_ITERATIONS = 4
"""Iterations of the search for the fixed point, which starts from the last one: one episode more or less moves it little."""


class Engine:
    """Progress in seconds of an episode's own time; the owner gives the time and schedules the end of the next episode."""

    def __init__(self, *, crowding: float) -> None:
        self._crowding = crowding
        self._playing: list[tuple[float, int, Any]] = []
        """Heap of (progress at which it is through, number, episode)."""
        self._progress = 0.0
        self._rate = 0.0
        self._updated_s = 0.0
        self._generate_s = 0.0
        self._total_s = 0.0
        self._num_pauses = 0
        self._slowed = 1.0
        """How much longer a completion takes than alone; where the next search for the fixed point starts."""
        self._count = 0
        self.num_generating = 0.0
        """Mean number of completions under way now."""
        self.epoch = 0
        """Number that grows when `next_end` has changed."""
        self.generating_integral = 0.0
        """Integral of ``num_generating`` over time."""

    def __len__(self) -> int:
        return len(self._playing)

    def episodes(self) -> list[tuple[float, Any]]:
        """(own time left, episode) of all in play."""
        return [(end - self._progress, episode) for end, _, episode in self._playing]

    def advance(self, now: float) -> None:
        """Bring everything up to ``now``."""
        passed = now - self._updated_s
        self._progress += passed * self._rate
        if self._num_pauses == 0:
            self.generating_integral += passed * self.num_generating
        self._updated_s = now

    def start(self, episode: Any, *, desktop_s: float, generate_s: float, now: float) -> None:
        """``episode`` begins to play."""
        self.advance(now)
        self._count += 1
        heapq.heappush(self._playing, (self._progress + desktop_s + generate_s, self._count, episode))
        self._account(desktop_s, generate_s)

    def next_end(self) -> float | None:
        """Seconds from the last `advance` until the first episode is through; None: none, or a pause."""
        if not self._playing or self._rate == 0.0:
            return None
        return max(0.0, (self._playing[0][0] - self._progress) / self._rate)

    def finish(self, now: float) -> Any:
        """Take out the episode that is through."""
        self.advance(now)
        _, _, episode = heapq.heappop(self._playing)
        self._account(-episode.times.desktop_s, -episode.times.generate_s)
        return episode

    def remove(self, episode: Any, now: float) -> None:
        """Take ``episode`` out before its end."""
        self.advance(now)
        self._playing = [entry for entry in self._playing if entry[2] is not episode]
        heapq.heapify(self._playing)
        self._account(-episode.times.desktop_s, -episode.times.generate_s)

    def pause(self, now: float) -> None:
        """Nothing progresses until as many `resume` as `pause`."""
        self.advance(now)
        self._num_pauses += 1
        self._set_rate()

    def resume(self, now: float) -> None:
        """See `pause`."""
        self.advance(now)
        self._num_pauses -= 1
        self._set_rate()

    def _account(self, desktop_s: float, generate_s: float) -> None:
        self._generate_s += generate_s
        self._total_s += desktop_s + generate_s
        self._set_rate()

    def _set_rate(self) -> None:
        self.epoch += 1
        count = len(self._playing)
        if count == 0 or self._num_pauses:
            self._rate = 0.0
            self.num_generating = 0.0
            if count == 0:
                self._generate_s = self._total_s = 0.0  # Rounding must not add up over a day.
            return
        share = min(1.0, max(0.0, self._generate_s / self._total_s)) if self._total_s > 0 else 0.0
        slowed = self._slowed
        for _ in range(_ITERATIONS):
            stretch = 1.0 - share + share * slowed
            self.num_generating = count * share * slowed / stretch
            slowed = 1.0 + self._crowding * max(0.0, self.num_generating - 1.0)
        self._slowed = slowed
        self._rate = 1.0 / (1.0 - share + share * slowed)
