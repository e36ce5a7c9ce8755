"""Windows of all applications: which application is in front, its start, raising and closing its windows, dialogs."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from ..faults import DesktopError
from ..office.documents import OfficeApp
from ..office.process import OfficeGone
from ..processes import Program
from ..reading.accessibility import AppGone
from ..reading.dbus import DBusError
from ..web.devtools import ChromiumGone

if TYPE_CHECKING:
    from ..reading.controls import Controls
    from ..session import Session
    from .window_list import Window

APP_FAILURES = (DesktopError, OfficeGone, ChromiumGone, DBusError, AppGone)
"""Errors of an application that does not answer. One on demand is closed then and may be opened again; with a warm one, the
desktop is broken."""


class App(Protocol):
    """Every application, as the desktop handles it."""

    @property
    def name(self) -> str:
        """Its name in actions and set-up steps."""

    @property
    def window_kind(self) -> str:
        """The `Window.kind` of its windows; empty: all of its process."""

    @property
    def program(self) -> Program:
        """Its process, which other applications may share."""

    def start(self) -> None:
        """Start it anew."""

    def connect(self, *, timeout_s: float) -> None:
        """Wait until its interface answers; at once where it has none."""


SHOW_LIMIT_S = 8.0
"""Time for a window to come to the front. At a reset its application is started anew after that; an action is refused."""
_DISCARD = ("Don't Save", "Discard", "Close without Saving")
"""Names of the button that throws changes away."""
_MAX_DIALOGS = 8
_ESCAPE_LIMIT_S = 0.4
_END_LIMIT_S = 1.0
"""Time from the failure of an application that has died to the end of its process."""
_DIALOG_LIMIT_S = 1.0
"""A dialog or old window that has not closed after this long costs its program its life."""


class NotInFront(DesktopError):
    """An application has no window, or another one keeps the focus."""


def left(deadline: float) -> float:
    """Seconds until a monotonic deadline, at least 0.05."""
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

    def __init__(self, session: Session, apps: Sequence[App], controls: Controls) -> None:
        self._screen = session.screen
        self._accessibility = session.accessibility
        self._apps = tuple(apps)
        self._controls = controls

    def front(self) -> tuple[Window | None, App | None]:
        """The focused window and its application."""
        xid = self._screen.windows.active()
        window = next((window for window in self._screen.windows.managed() if window.xid == xid), None)
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
            below = [other for other in self._screen.windows.managed() if other.pid == window.pid and not other.is_dialog]
            for other in reversed(below):
                found = next((app for app in candidates if _shows(app, other)), None)
                if found is not None:
                    return found
        return candidates[0] if candidates else None

    def of(self, app: App) -> list[Window]:
        """An application's windows without dialogs, topmost last."""
        return [window for window in self._screen.windows.managed() if _shows(app, window) and not window.is_dialog]

    def of_process(self, app: App) -> list[Window]:
        """All windows of the application's process and its helpers, dialogs included."""
        return [window for window in self._screen.windows.managed() if window.pid == app.program.pid or _owns(app, window)]

    def ready(self, app: App, deadline: float) -> None:
        """Make sure that the application runs, answers and has a window, if it has one without a document."""
        if not app.program.running:
            self._accessibility.forget(app.program.pid)
            app.start()
        app.connect(timeout_s=left(deadline))
        if not isinstance(app, OfficeApp):
            self.wait_for_window(app, deadline)

    def ready_to_read(self, app: App, deadline: float) -> None:
        """Do as `ready` does, and wait until the application is on the accessibility bus: its window may come before."""
        self.ready(app, deadline)
        self.wait(lambda: self._controls.exists(app.program.pid), deadline, f"{app.name} on the accessibility bus")

    def ready_though_it_dies(self, app: App, deadline: float) -> None:
        """Do as `ready` does, for an application that was just started: one that dies meanwhile is started once more.

        The log names its end."""
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

        ``patience_s``: how long it may take from the request to the window manager on; the deadline counts in any case.
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
            if self._screen.windows.active() == wanted:
                return True
            window, front_app = self.front() if dialog_counts else (None, None)
            return window is not None and window.is_dialog and front_app is app

        try:
            self.wait(is_in_front, limit, f"{app.name} in front")
        except DesktopError as error:
            raise self.not_in_front(str(error)) from error

    def _focus(self, xid: int, deadline: float) -> None:
        """Have the window manager give a window the focus: keys go there from now on, if the window takes it."""
        self._screen.manager.activate(xid)
        # The focus moves by an event of its own, which the window manager takes after the request that caused it.
        for _ in range(2):
            if not self._screen.manager.sync(left(deadline)):
                raise DesktopError("the window manager did not answer in time")

    def not_in_front(self, problem: str) -> NotInFront:
        """The error, with the windows that are on the screen instead."""
        shown = [f"{window.title!r} of {window.kind}" for window in self._screen.windows.managed()]
        return NotInFront(f"{problem}; windows, topmost last: {', '.join(shown)}")

    def close_dialogs(self, deadline: float) -> None:
        """Close all dialogs, by Escape where that does it; a program that keeps one open is ended."""
        for _ in range(_MAX_DIALOGS):
            dialogs = [window for window in self._screen.windows.managed() if window.is_dialog]
            if not dialogs:
                return
            top = dialogs[-1]
            self._focus(top.xid, deadline)
            self._screen.input.press_chord("esc")
            with suppress(DesktopError):
                self._wait_until_gone(top.xid, time.monotonic() + _ESCAPE_LIMIT_S)
                continue
            app = self.app_of(top)
            if app is None:
                raise DesktopError(f"a dialog of nobody: {top.title}")
            try:
                self.close(app, {top.xid}, deadline)
            except DesktopError:
                app.program.kill()
                self._wait_until_gone(top.xid, deadline)

    def end_misplaced(self) -> None:
        """End every application that has a window which does not fill the screen.

        An application whose window was made smaller remembers more than the window shows."""
        for app in self._apps:
            if app.program.running and not all(self._screen.windows.fills_screen(window.xid) for window in self.of(app)):
                app.program.kill()

    def _wait_until_gone(self, xid: int, deadline: float) -> None:
        self.wait(lambda: all(window.xid != xid for window in self._screen.windows.managed()), deadline, "a window to close")

    def close(self, app: App, xids: set[int], deadline: float) -> None:
        """Close windows, answering questions with "don't save". Raises `DesktopError` when the program does not obey."""
        limit = min(deadline, time.monotonic() + _DIALOG_LIMIT_S)
        for xid in xids:
            self._screen.manager.close(xid)

        def closed() -> bool:
            if not any(window.xid in xids for window in self._screen.windows.managed()):
                return True
            self.discard_changes(app)
            return False

        self.wait(closed, limit, f"closing windows of {app.name}")

    def discard_changes(self, app: App) -> None:
        """Answer a "save changes?" dialog of the application, if there is one."""
        if any(window.is_dialog and window.pid == app.program.pid for window in self._screen.windows.managed()):
            self._controls.press_button(app.program.pid, _DISCARD)

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
            self._screen.connection.wait_for_event(min(remaining, 0.05))
