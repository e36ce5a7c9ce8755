"""Windows of all applications: which is in front, raising, closing, dialogs, waiting until the screen is quiet."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ..faults import DesktopError
from ..office.documents import OfficeApp
from ..office.process import OfficeGone
from ..processes import Program, is_at_rest
from ..reading.accessibility import AppGone
from ..reading.dbus import DBusError
from ..web.chromium import Chromium, ChromiumGone
from .settle import Settled, settle

if TYPE_CHECKING:
    from ..reading.reader import TreeReader
    from ..session import Session
    from .display import Window

APP_FAILURES = (DesktopError, OfficeGone, ChromiumGone, DBusError, AppGone)
"""An application does not answer. On demand ones are closed then and may be opened again; the warm ones' are a broken desktop."""


class App(Protocol):
    """What every application is to the desktop."""

    @property
    def name(self) -> str:
        """What actions and set-up steps call it."""

    @property
    def window_kind(self) -> str:
        """The `Window.kind` of its windows; empty: all of its process."""

    @property
    def program(self) -> Program:
        """Its process, which others may share."""

    def start(self) -> None:
        """Start it anew."""

    def connect(self, *, timeout_s: float) -> None:
        """Wait until its interface answers; at once where it has none."""


_DISCARD = ("Don't Save", "Discard", "Close without Saving")
"""Names of the button that throws changes away."""
_MAX_DIALOGS = 8
_ESCAPE_LIMIT_S = 0.4
_END_LIMIT_S = 1.0
"""From the failure of an application that has died to the end of its process."""
_DIALOG_LIMIT_S = 1.0
"""A dialog or old window that has not closed after this long costs its program a restart."""


class NotInFront(DesktopError):
    """An application has no window, or another one keeps the focus."""


def left(deadline: float) -> float:
    """Seconds until a monotonic deadline, at least a little."""
    return max(0.05, deadline - time.monotonic())


def _owns(app: App, window: Window) -> bool:
    """Is the window the application's, or a helper's of it (a plug-in's dialog)? All run in its process group."""
    pid = app.program.pid
    if not pid or not window.pid:
        return False
    try:
        return window.pid == pid or os.getpgid(window.pid) == pid
    except ProcessLookupError:
        return False


def _shows(app: App, window: Window) -> bool:
    """Is this one of the application's windows? One process shows those of all office applications."""
    return _owns(app, window) and (app.window_kind == window.kind or not app.window_kind)


class Windows:
    """The windows of ``apps`` on one screen."""

    def __init__(
        self, session: Session, apps: Sequence[App], reader: TreeReader, *, browser: Chromium, settle_quiet_s: float
    ) -> None:
        self._session = session
        self._screen = session.screen
        self._accessibility = session.accessibility
        self._apps = tuple(apps)
        self._reader = reader
        self._chromium = browser
        self._quiet_s = settle_quiet_s

    def settle_within(self, *, deadline_s: float, calm: float = 1.0, meanwhile: Callable[[], object] | None = None) -> Settled:
        """Wait until the application in front has taken all input and the screen is quiet, ``calm`` times as long as usual.

        ``meanwhile``: see `settle.settle`."""
        deadline = time.monotonic() + deadline_s
        self._screen.sync_clicks(deadline_s)
        window, app = self.front()
        ping = self._screen.ping(window.xid) if window else None
        flush = self._chromium.start_flush() if app is self._chromium else None
        pending: set[str] = {"ping"} if ping is not None else set()
        if flush is not None:
            pending.add("flush")

        busy_ones = [self._session.window_manager_pid, *([window.pid] if window else [])]

        def confirmed() -> bool:
            if ping is not None and "ping" in pending and self._screen.answered(ping):
                pending.discard("ping")
            if flush is not None and "flush" in pending and self._chromium.flushed(flush):
                pending.discard("flush")
            return not pending

        return settle(
            self._screen,
            self._accessibility,
            quiet_s=calm * self._quiet_s,
            deadline_s=left(deadline),
            confirmed=confirmed,
            is_at_rest=lambda: all(map(is_at_rest, busy_ones)),
            extra_fd=self._chromium.fileno() if flush is not None else None,
            meanwhile=meanwhile,
        )

    def front(self) -> tuple[Window | None, App | None]:
        """The focused window and its application."""
        xid = self._screen.active_window()
        window = next((window for window in self._screen.windows() if window.xid == xid), None)
        return (window, self.app_of(window)) if window else (None, None)

    def front_app(self) -> App | None:
        """The application of the focused window."""
        return self.front()[1]

    def app_of(self, window: Window) -> App | None:
        """The window's application; for a dialog of unknown kind the one whose window lies topmost among its process's."""
        found = next((app for app in self._apps if _shows(app, window)), None)
        if found is not None:
            return found
        candidates = [app for app in self._apps if _owns(app, window)]
        if len(candidates) > 1:
            below = [other for other in self._screen.windows() if other.pid == window.pid and not other.is_dialog]
            for other in reversed(below):
                found = next((app for app in candidates if _shows(app, other)), None)
                if found is not None:
                    return found
        return candidates[0] if candidates else None

    def of(self, app: App) -> list[Window]:
        """An application's windows without dialogs, topmost last."""
        return [window for window in self._screen.windows() if _shows(app, window) and not window.is_dialog]

    def of_process(self, app: App) -> list[Window]:
        """All windows of the application's process and its helpers, dialogs included."""
        return [window for window in self._screen.windows() if window.pid == app.program.pid or _owns(app, window)]

    def ready(self, app: App, deadline: float) -> None:
        """Make sure that the application runs, answers and has a window, if it has one without a document."""
        if not app.program.running:
            self._accessibility.forget(app.program.pid)
            app.start()
        app.connect(timeout_s=left(deadline))
        if not isinstance(app, OfficeApp):
            self.wait_for_window(app, deadline)

    def ready_though_it_dies(self, app: App, deadline: float) -> None:
        """`ready`, for one that was just started: when it dies meanwhile, which the log is told, it is started once more."""
        try:
            self.ready(app, deadline)
        except APP_FAILURES:
            how = app.program.how_it_ended(wait_s=_END_LIMIT_S)
            if not how:
                raise
            print(f"{app.name} died while it started and is started again{how}", flush=True)
            self.restart(app, deadline)

    def wait_for_window(self, app: App, deadline: float) -> None:
        """Wait for the first window of an application that was just started. Raises `DesktopError`, also when it has ended."""
        try:
            self.wait(lambda: bool(self.of(app)) or not app.program.running, deadline, f"a window of {app.name}")
        except DesktopError as error:
            raise DesktopError(f"{error}; it said: {app.program.log_tail()}") from error
        if not app.program.running:
            raise DesktopError(f"{app.name} has no window{app.program.how_it_ended(wait_s=0.0)}")

    def bring_to_front(self, app: App, deadline: float, *, patience_s: float = math.inf, dialog_counts: bool = False) -> None:
        """Raise and focus the application's topmost window. Raises `NotInFront` when it has none or does not get the focus.

        ``patience_s``: how long it may take once the window manager has been told; the deadline counts in any case.
        ``dialog_counts``: the focus may go to a dialog of the application, which holds it until it is answered.
        """
        windows = self.of(app)
        if not windows:
            raise NotInFront(f"{app.name} has no window")
        wanted = windows[-1].xid
        # Asked for in any case: a window that has just appeared is listed before it gets the focus.
        self._focus(wanted, deadline)
        limit = min(deadline, time.monotonic() + patience_s)

        def is_in_front() -> bool:
            if self._screen.active_window() == wanted:
                return True
            window, front_app = self.front() if dialog_counts else (None, None)
            return window is not None and window.is_dialog and front_app is app

        try:
            self.wait(is_in_front, limit, f"{app.name} in front")
        except DesktopError as error:
            raise self.not_in_front(str(error)) from error

    def _focus(self, xid: int, deadline: float) -> None:
        """Have the window manager give a window the focus: what is typed from now on goes there, if the window takes it."""
        self._screen.activate(xid)
        # The focus moves by an event of its own, which the window manager takes after the request that caused it.
        for _ in range(2):
            if not self._screen.sync_window_manager(left(deadline)):
                raise DesktopError("the window manager did not answer in time")

    def not_in_front(self, problem: str) -> NotInFront:
        """The error, with what is on the screen instead."""
        shown = [f"{window.title!r} of {window.kind}" for window in self._screen.windows()]
        return NotInFront(f"{problem}; windows, topmost last: {', '.join(shown)}")

    def dismiss_popups(self) -> None:
        """Close open menus."""
        for _ in range(3):
            self._screen.pump()
            if not self._screen.num_popups:
                return
            self._screen.press_chord("esc")
            self.settle_within(deadline_s=0.2)

    def close_dialogs(self, deadline: float) -> None:
        """Close all dialogs, by Escape where that does it."""
        for _ in range(_MAX_DIALOGS):
            dialogs = [window for window in self._screen.windows() if window.is_dialog]
            if not dialogs:
                return
            top = dialogs[-1]
            self._focus(top.xid, deadline)
            self._screen.press_chord("esc")
            if self._gone(top.xid, time.monotonic() + _ESCAPE_LIMIT_S):
                continue
            app = self.app_of(top)
            if app is None:
                raise DesktopError(f"a dialog of nobody: {top.title}")
            self.close(app, {top.xid}, deadline)

    def restart_misplaced(self, deadline: float) -> None:
        """Start anew what does not fill the screen: an application that was made to keeps more in mind than its window shows."""
        for app in self._apps:
            if app.program.running and not all(self._screen.fills_screen(window.xid) for window in self.of(app)):
                self.restart(app, deadline)

    def _gone(self, xid: int, deadline: float) -> bool:
        try:
            self.wait(lambda: all(window.xid != xid for window in self._screen.windows()), deadline, "a window to close")
        except DesktopError:
            return False
        return True

    def close(self, app: App, xids: set[int], deadline: float) -> None:
        """Close windows, answering questions with "don't save"; a program that does not obey is started anew."""
        limit = min(deadline, time.monotonic() + _DIALOG_LIMIT_S)
        for xid in xids:
            self._screen.close_window(xid)

        def closed() -> bool:
            if not any(window.xid in xids for window in self._screen.windows()):
                return True
            self.discard_changes(app)
            return False

        try:
            self.wait(closed, limit, f"closing windows of {app.name}")
        except DesktopError:
            self.restart(app, deadline)

    def discard_changes(self, app: App) -> None:
        """Answer a "save changes?" dialog of the application, if there is one."""
        if any(window.is_dialog and window.pid == app.program.pid for window in self._screen.windows()):
            self._reader.press_button(app.program.pid, _DISCARD)

    def restart(self, app: App, deadline: float) -> None:
        """Start the application anew."""
        self._accessibility.forget(app.program.pid)
        app.start()
        self.ready(app, deadline)

    def wait(self, condition: Callable[[], bool], deadline: float, what: str) -> None:
        """Wait for a condition that X events bring about. Raises `DesktopError` naming ``what``."""
        while not condition():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise DesktopError(f"waited in vain for {what}")
            self._screen.wait_for_event(min(remaining, 0.05))
