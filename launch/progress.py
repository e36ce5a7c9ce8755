"""Progress of long commands on standard error: share, count, time taken and an estimate of the time left.

A terminal has one line that is redrawn and vanishes at the end; elsewhere there are plain lines now and then. Standard output is
never written: JSON and pipes stay clean. `Pace` is the estimate, `in_words` the line, and `Progress` shows it. The display of a
run at work is `launch.watch.display`'s.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.text import Text

T = TypeVar("T")
Tell = Callable[[float, float | None], None]
"""Takes the number of parts that are done and the number of all parts; None: not known."""

FIRST_S = 0.8
"""Delay in seconds of the first plain line: a command that ends before it prints none."""
LINE_EVERY_S = 10.0
"""Minimum time in seconds between two plain lines."""
SILENCE_S = 60.0
"""Time in seconds without a plain line after which one is printed, even if no part was finished."""
_REDRAWS_PER_S = 2
WIDTH = 80
"""Maximum width of a line in columns."""


def tell_nobody(done: float, total: float | None) -> None:
    """A `Tell` that shows nothing."""


class Pace:
    """Estimate of the time left for parts that take about equally long. Times are seconds of any one clock."""

    def __init__(self, began: float, *, done: float = 0, total: float | None = None) -> None:
        """``done``: parts that are there before the work begins; they do not count for the speed."""
        self.began, self.done, self.total = began, done, total
        self._first, self._changed = done, began

    def at(self, done: float, total: float | None, *, now: float) -> None:
        """Set the number of parts that are done, and of all."""
        if done != self.done:
            self._changed = now
        self.done, self.total = done, total

    @property
    def share(self) -> float | None:
        """Share of the parts that is done, 0 to 1; None: the number of parts is not known."""
        if self.total is None:
            return None
        return min(1.0, self.done / self.total) if self.total > 0 else 1.0

    def left_s(self, now: float) -> float | None:
        """Estimate of the time left. None: unknown, because nothing is done yet, the number of parts is not known, or the parts
        under way already take longer than all that are left should."""
        made = self.done - self._first
        if self.total is None:
            return None
        left = self.total - self.done
        if left <= 0:
            return 0.0
        if made <= 0:
            return None
        found = left * (self._changed - self.began) / made - (now - self._changed)
        return found if found >= 0 else None


def duration(seconds: float) -> str:
    """`42 s`, `3:05 min`, `2:03:05 h`."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{rest:02d} h"
    return f"{minutes}:{rest:02d} min" if minutes else f"{whole} s"


def in_words(what: str, pace: Pace, *, unit: str, now: float) -> str:
    """One line of at most `WIDTH` columns; ``what`` is cut where it does not fit. Without ``unit`` the line has no count."""
    parts = [] if pace.share is None else [f"{pace.share:.0%}"]
    if unit:
        parts.append(f"{pace.done:,.0f}{'' if pace.total is None else f' of {pace.total:,.0f}'} {unit}")
    left_s = pace.left_s(now)
    parts.append(duration(now - pace.began))
    if pace.share != 1:
        parts.append("time left unknown" if left_s is None else f"about {duration(left_s)} left")
    rest = ", ".join(parts)
    room = max(1, WIDTH - 1 - len(rest) - 2)
    return f"{what if len(what) <= room else what[: room - 1] + '…'}: {rest}"[: WIDTH - 1]


class Progress(AbstractContextManager["Progress"]):
    """Shows the progress of one piece of work while inside ``with``. It is a `Tell`, which any thread may call."""

    def __init__(
        self, what: str, *, unit: str = "", done: float = 0, total: float | None = None, pace: Pace | None = None
    ) -> None:
        """``unit``: plural word for the parts. ``pace``: that of earlier parts of the same work, in place of a new one."""
        self._what, self._unit = what, unit
        self._clock = time.monotonic
        self._entered = self._clock()
        self._pace = pace or Pace(self._entered, done=done, total=total)
        self._lock = threading.RLock()
        self._printed: tuple[float, float] | None = None
        """Time and share of the last plain line."""
        self._ended = threading.Event()
        self._close: Callable[[], None] = self._ended.set

    def __call__(self, done: float, total: float | None) -> None:
        """Set the number of parts that are done, and of all."""
        with self._lock:
            self._pace.at(done, total, now=self._clock())
        self._print_if_due()

    def doing(self, what: str) -> None:
        """Replace the words for the work."""
        with self._lock:
            self._what = what

    def line(self) -> str:
        """The present line."""
        with self._lock:
            return in_words(self._what, self._pace, unit=self._unit, now=self._clock())

    def __enter__(self) -> Progress:
        from rich.console import Console

        console = Console(stderr=True)
        self._is_drawn = console.is_terminal and not console.is_dumb_terminal
        if self._is_drawn:
            from rich.live import Live

            # Lines that the command prints meanwhile go above the redrawn one; a piped standard output is left alone.
            live = Live(
                console=console,
                get_renderable=self._drawn,
                refresh_per_second=_REDRAWS_PER_S,
                transient=True,
                redirect_stdout=sys.stdout.isatty(),
            )
            live.start(refresh=True)
            self._close = live.stop
        else:
            thread = threading.Thread(target=self._beat, name="progress", daemon=True)
            thread.start()
            self._close = thread.join
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._close()

    def _drawn(self) -> Text:
        from rich.text import Text

        return Text(self.line(), style="dim", no_wrap=True, overflow="ellipsis")

    def _beat(self) -> None:
        while not self._ended.wait(FIRST_S):
            self._print_if_due()

    def _print_if_due(self) -> None:
        """Print a plain line where it is time for one."""
        if self._is_drawn:
            return
        with self._lock:
            now, share = self._clock(), self._pace.share or 0.0
            if is_due(now - self._entered, self._printed, now=now, share=share):
                self._printed = (now, share)
                print(self.line(), file=sys.stderr, flush=True)


def is_due(elapsed_s: float, printed: tuple[float, float] | None, *, now: float, share: float) -> bool:
    """Whether a plain line is due: the first after `FIRST_S`, the next with each tenth of the work, at most one each
    `LINE_EVERY_S`, and at least one each `SILENCE_S`. ``printed``: time and share of the last line."""
    if printed is None:
        return elapsed_s >= FIRST_S
    since_s = now - printed[0]
    return since_s >= SILENCE_S or (since_s >= LINE_EVERY_S and int(share * 10 + 1e-9) > int(printed[1] * 10 + 1e-9))


def tracked(items: Iterable[T], tell: Tell, *, total: float | None = None) -> Iterator[T]:
    """``items`` one by one; ``tell`` receives the number of those that are finished. ``total``: their number, where it is
    known."""
    tell(0, total)
    for number, item in enumerate(items, start=1):
        yield item
        tell(number, total)
