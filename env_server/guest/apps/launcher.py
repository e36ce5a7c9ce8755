"""Starting applications on demand, using their tools, and closing them all at the next reset.

`Refused` is raised for everything that an application does not do: its failures are the agent's business, and the desktop is
whole without it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import processes
from ..faults import Refused
from ..screen.windows import APP_FAILURES, SHOW_LIMIT_S, Windows, left
from . import catalog
from .on_demand import OnDemandApp, call
from .simple import Terminal

if TYPE_CHECKING:
    from ..applications import Applications
    from ..session import Session


class Launcher:
    """Starts and ends the applications on demand of one desktop."""

    def __init__(self, session: Session, windows: Windows, apps: Applications) -> None:
        self._session, self._windows, self._apps = session, windows, apps

    def ensure(self, name: str, deadline: float) -> OnDemandApp:
        """The application, running with a window. Raises `Refused` where the image lacks it or it is not up by the deadline."""
        app = self._apps.on_demand[name]
        self._require_allowed(app)
        # One that had a window and has none any more is on its way out: it would end while it is waited for.
        is_quitting = app.had_window and self._has_no_window(app)
        if is_quitting or not app.program.running:
            if not app.is_installed():
                raise Refused(f"{app.label} is not installed on this desktop")
            try:
                app.start()
            except OSError as error:  # a folder or a file of its settings that the agent has put there, or a full disk
                raise Refused(f"{app.label} cannot start: {error.filename or ''}: {error.strerror}") from error
        try:
            app.connect(timeout_s=left(deadline))
            self._windows.wait_for_window(app, deadline)
        except APP_FAILURES as error:
            if app.program.running:
                raise Refused(f"{app.label} is still starting: wait and try again") from error
            raise Refused(f"{app.label} did not start: {app.program.log_tail(200)}") from error
        app.had_window = True
        self._apps.note_open(name)
        return app

    def open_file(self, name: str, place: Path, deadline: float) -> None:
        """Open a file in the application, which is started if need be. Raises `Refused`."""
        app = self._apps.on_demand[name]
        app.first = place
        try:
            self.ensure(name, deadline)
        finally:
            app.first = None
        self._guard(app, lambda: app.open(place, timeout_s=left(deadline)))

    def terminal_shortcut(self) -> bool:
        """Open a terminal in the home, as the desktop's own shortcut does; False where there is none that may be opened."""
        terminal = self._apps.on_demand["terminal"]
        if "chromium" in self._apps.open or not terminal.is_installed():
            return False
        self.open_terminal(terminal.home, time.monotonic() + SHOW_LIMIT_S)
        return True

    def open_terminal(self, folder: Path, deadline: float) -> None:
        """Open a terminal in this folder. Where there is one, it opens one more window, with a shell where its first one is."""
        terminal = self._apps.on_demand["terminal"]
        assert isinstance(terminal, Terminal)
        terminal.start_folder = folder
        is_there = terminal.program.running and not self._has_no_window(terminal)
        self.ensure(terminal.name, deadline)
        if is_there:
            self._guard(terminal, terminal.open_window)
        self._windows.bring_to_front(terminal, deadline)

    def use_tool(self, area: str, method: str, args: Mapping[str, Any], deadline: float) -> str:
        """Carry out one API method; returns its result text. Raises `Refused`."""
        app = self._apps.on_demand[catalog.AREAS[area]]
        tools = app.tools
        if tools is None or method.startswith("_"):
            raise Refused(f"{area} has no {method}")
        if not app.is_installed():
            raise Refused(f"{app.label} is not installed on this desktop")
        tools.check(method, args)
        if method not in tools.needs_no_start:
            self.ensure(app.name, deadline)
        return str(self._guard(app, lambda: call(tools, method, args)))

    def close_all(self, deadline: float) -> bool:
        """Close every application on demand, and all that it left behind.

        Returns True when an agent could run programs of its own, or did.
        """
        ran_programs = False
        for app in self._apps.on_demand.values():
            if app.program.pid:
                ran_programs |= app.runs_programs and app.num_starts_before != app.program.num_starts
                app.num_starts_before = app.program.num_starts
                self._session.accessibility.forget(app.program.pid)
                app.close()
                self._windows.wait(functools.partial(self._has_no_window, app), deadline, f"{app.name} to be gone")
        return processes.end_strays() or ran_programs

    def _has_no_window(self, app: OnDemandApp) -> bool:
        return not self._windows.of_process(app)

    def _guard(self, app: OnDemandApp, work: Callable[[], Any]) -> Any:
        """Do ``work``; an application that fails is closed, and can be opened again. Raises `Refused`."""
        try:
            return work()
        except APP_FAILURES as error:
            app.close()
            self._apps.note_closed(app.name)
            raise Refused(f"{app.label} did not answer and was closed ({error})") from error

    def _require_allowed(self, app: OnDemandApp) -> None:
        # A shell or a second browser could reach into the page that gives the reward.
        if "chromium" in self._apps.open and app.name not in self._apps.open:
            raise Refused(f"{app.label} cannot be opened beside a web task's page")
