"""Waiting until the screen is quiet, by events: no fixed sleeps.

After an action, first the application in front confirms that it has taken all input (ping); then the screen has settled once
neither X damage nor accessibility events came for a while, and it is not for lack of processor time: the application may have
taken a key and have yet to do what the key is for, or the X server may have yet to take what the application has sent.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..processes import is_application_at_rest, is_at_rest
from .windows import left

if TYPE_CHECKING:
    from ..applications import Applications
    from ..reading.accessibility import Accessibility
    from ..session import Session
    from .connection import Connection
    from .windows import Windows


@dataclass(frozen=True, slots=True)
class Settled:
    """How waiting ended."""

    by: str
    """`quiet`, or `deadline`."""
    duration_s: float


def settle(
    connection: Connection,
    accessibility: Accessibility,
    *,
    quiet_s: float,
    deadline_s: float,
    confirmed: Callable[[], bool],
    is_at_rest: Callable[[], bool],
    extra_fds: Sequence[int] = (),
    attend: Callable[[], bool] = bool,
    meanwhile: Callable[[], object] | None = None,
) -> Settled:
    """Wait until ``confirmed()`` is true and ``quiet_s`` has passed without change, at most ``deadline_s``.

    ``is_at_rest`` returns True when all processes that could still change something wait; else they get a quarter of the quiet
    time more. ``attend`` does what programs wait for, of which ``extra_fds`` tell; it returns whether there was anything, which
    counts as a change. ``meanwhile`` is called after half of the quiet time, and once more after a later change. Its own time
    counts as quiet.
    """
    started = last_change = time.monotonic()
    deadline = started + deadline_s
    poller = select.poll()
    for fd in (connection.fileno(), accessibility.fileno(), *extra_fds):
        poller.register(fd, select.POLLIN)
    is_confirmed = False
    num_calls_left, is_due = 2, meanwhile is not None

    def has_changed() -> bool:
        screen_has = connection.pump()
        has_attended = attend()
        return bool(accessibility.pump()) or screen_has or has_attended

    while True:
        changed = has_changed()
        now = time.monotonic()
        if not is_confirmed and confirmed():
            is_confirmed, changed = True, True
        if changed:
            last_change, is_due = now, meanwhile is not None and num_calls_left > 0
        if is_confirmed and now - last_change >= quiet_s:
            if not is_at_rest():
                last_change = now - quiet_s * 3 / 4
            elif has_changed():  # until they came to rest
                last_change, is_due = now, meanwhile is not None and num_calls_left > 0
            else:
                return Settled("quiet", now - started)
        if now >= deadline:
            return Settled("deadline", now - started)
        if meanwhile is not None and is_due and is_confirmed and now - last_change >= quiet_s / 2:
            num_calls_left, is_due = num_calls_left - 1, False
            meanwhile()
            continue
        pause_s = quiet_s / 2 if is_due else quiet_s
        wake = min(deadline, last_change + pause_s) if is_confirmed else deadline
        poller.poll(max(0.0, wake - now) * 1000 + 0.5)


class Settler:
    """Waits until the application in front has taken all input and the screen is quiet."""

    def __init__(self, session: Session, windows: Windows, apps: Applications, *, quiet_s: float) -> None:
        """``quiet_s``: how long nothing may change."""
        self._screen, self._accessibility = session.screen, session.accessibility
        self._x_server_pid, self._window_manager_pid = session.x_server_pid, session.window_manager_pid
        self._windows, self._chromium, self._sites, self._quiet_s = windows, apps.chromium, apps.sites, quiet_s

    def settle(self, *, limit_s: float, calm: float = 1.0, meanwhile: Callable[[], object] | None = None) -> Settled:
        """Wait at most ``limit_s`` for a screen that is quiet ``calm`` times as long as usual.

        ``meanwhile``: see the function `settle`."""
        deadline = time.monotonic() + limit_s
        self._screen.input.sync_clicks(limit_s)
        window, app = self._windows.front()
        manager, page = self._screen.manager, self._chromium.page
        ping = manager.ping(window.xid) if window else None
        flush = page.start_flush() if app is self._chromium else None
        pending: set[str] = {"ping"} if ping is not None else set()
        if flush is not None:
            pending.add("flush")
        # In the order in which one hands on to the next what it has done: the one that is at rest has passed all of it on.
        services = (self._x_server_pid, self._window_manager_pid, self._x_server_pid)

        def confirmed() -> bool:
            if ping is not None and "ping" in pending and manager.answered(ping):
                pending.discard("ping")
            if flush is not None and "flush" in pending and page.flushed(flush):
                pending.discard("flush")
            return not pending

        return settle(
            self._screen.connection,
            self._accessibility,
            quiet_s=calm * self._quiet_s,
            deadline_s=left(deadline),
            confirmed=confirmed,
            is_at_rest=lambda: (window is None or is_application_at_rest(window.pid)) and all(map(is_at_rest, services)),
            extra_fds=[
                fd for fd in (self._chromium.fileno() if flush is not None else None, self._sites.fileno()) if fd is not None
            ],
            attend=self._sites.pump,
            meanwhile=meanwhile,
        )
