"""One desktop as a whole: its parts put together, and the host's requests: reset, action, observation, facts for evaluators.

Every method has a deadline. `Refused` is the agent's mistake, `TaskError` the task's; everything else that goes wrong here
is ours and breaks the desktop.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import processes
from .api import Api
from .applications import Applications
from .apps import catalog
from .apps.editor import EditorTabs
from .apps.file_manager import FileWindow
from .apps.launcher import Launcher
from .apps.on_demand import Surroundings
from .apps.warm import WarmApps
from .faults import DesktopError, Refused, TaskError
from .files.folder import AgentFolder, FileActionError
from .office.calc.sheet import empty_cells
from .office.process import DocumentError, OfficeGone
from .openers import Openers
from .osworld.calls import OsworldCalls
from .reading.controls import Controls
from .reading.reader import TreeReader
from .screen.chords import UnknownKey
from .screen.gui import Gui
from .screen.settle import Settled, Settler
from .screen.windows import APP_FAILURES, SHOW_LIMIT_S, NotInFront, Windows, left
from .session import Places, Session
from .task_start import TaskStart
from .traces import Traces
from .view import View
from .web.site_copy import SiteCopy
from .web.task_page import PageError
from .wire import Wire

_NO_SETTLING = Settled("none", 0.0)
_FRONT_LIMIT_S = 2.0
"""Time for an application to come to the front, when a tool of its own presses keys in it."""
_LOOK_S = 1.5
"""Time that a tool leaves for looking at the desktop after it: it may have failed by its deadline."""
_POPUP_LIMIT_S = 0.2
"""Time for a menu to close."""
_FILE_FACTS = frozenset({"file_bytes", "file_text", "folder_listing"})
_OF_NOTHING = ({"kind": "files_open", "args": {"folder": "."}},)
"""Set-up of a task that opens nothing."""
_NOTHING: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "calc_cells": lambda args: empty_cells(args["range"]),
    "editor_text": lambda args: "",
}
"""Facts of warm applications, and what they are of one that is closed, or busy with what the agent gave it."""
_FACTS_OF_APPS = _FILE_FACTS | _NOTHING.keys()


class Desktop:
    """The applications on one screen."""

    def __init__(
        self,
        places: Places,
        session: Session,
        *,
        width: int,
        height: int,
        pages: Path,
        copy: SiteCopy,
        settle_quiet_s: float,
        settle_deadline_s: float,
    ) -> None:
        self._session = session
        self._screen = session.screen
        self._folder = AgentFolder(places.agent)
        size = (width, height)
        around = Surroundings(
            env=session.env,
            log_folder=places.logs,
            private=places.home / "apps",
            folder=self._folder,
            wait=self._wait,
            titles=self._titles_of,
            press=self._press_in,
            screen_size=size,
            copy=copy,
        )
        apps = self._apps = Applications.make(
            session, places, self._folder, on_demand=catalog.make_apps(around), screen_size=size, pages=pages
        )
        self._controls = Controls(self._screen, session.accessibility)
        windows = self._windows = Windows(session, tuple(apps.by_name.values()), self._controls)
        settler = self._settler = Settler(session, windows, apps, quiet_s=settle_quiet_s)
        reader = TreeReader(self._screen, session.accessibility, apps.calc, web_scale=apps.chromium.scale)
        self._view = View(self._screen, apps, windows, settler, reader, settle_limit_s=settle_deadline_s)
        self._warm = WarmApps(session, windows, apps, self._folder)
        launcher = self._launcher = Launcher(session, windows, apps)
        file_window = FileWindow(apps.files, windows, self._controls, self._folder)
        openers = Openers(
            apps,
            launcher,
            windows,
            self._folder,
            editor_tabs=EditorTabs(apps.editor, windows, self._controls),
            file_window=file_window,
        )
        self._traces = Traces(session, places, self._folder, self._warm, browser_folder=apps.chromium.folder)
        self._start = TaskStart(self._screen, apps, windows, openers, self._view, file_window=file_window, folder=self._folder)
        self._gui = Gui(self._screen, windows, settler, locked=apps.chromium, open_terminal=launcher.terminal_shortcut)
        self._api = Api(apps, openers, launcher, windows, self._screen.input, self._folder)
        self._osworld = OsworldCalls(session, apps, openers, launcher, settler, self._view, self._gui, folder=places.agent)
        self._were_busy_s: dict[str, float] = {}
        """`Program.busy_s` of each warm application before the last action."""
        self._finishes_itself = False
        """Does the task end when its page has given its verdict?"""

    # --- for applications on demand, which are made before the windows ---

    def _wait(self, condition: Callable[[], bool], deadline: float, what: str) -> None:
        self._windows.wait(condition, deadline, what)

    def _titles_of(self, name: str) -> list[str]:
        return [window.title for window in self._windows.of(self._apps.by_name[name])]

    def _press_in(self, name: str, keys: str) -> None:
        self._windows.bring_to_front(self._apps.by_name[name], time.monotonic() + _FRONT_LIMIT_S)
        self._screen.input.press_chord(keys)
        self.settle()

    # --- starting ---

    def start(self, names: Sequence[str], *, deadline: float) -> None:
        """Start these applications side by side and wait until each can be used."""
        self._traces.begin()
        apps = [self._apps.by_name[name] for name in names]
        for app in apps:
            app.start()
        for app in apps:
            self._windows.ready_though_it_dies(app, deadline)
        processes.keep_services(self._session.programs)
        self._screen.state.note()
        self._warm.note()

    def check(self) -> None:
        """Raise `DesktopError` when a part of the session has ended."""
        broken = self._session.broken()
        if broken:
            raise DesktopError(broken)

    def wait_for(self, wire: Wire) -> None:
        """Wait for a request, and take all events meanwhile, so that none pile up anywhere."""
        sources = (self._screen.connection, self._session.accessibility, self._apps.sites)
        while not wire.has_frame():
            fds = [fd for fd in (wire.fileno(), *(source.fileno() for source in sources)) if fd is not None]
            if wire.fileno() in select.select(fds, [], [])[0]:
                return
            for source in sources:
                source.pump()

    # --- tasks ---

    def reset(self, setup: list[Mapping[str, Any]], *, deadline: float, with_tree: bool = True) -> Settled:
        """Remove all traces of the last task, do the set-up steps in order, wait until the last one's window is on screen.

        ``with_tree``: its tree will be observed."""
        # First of all: programs that run wild leave no processor time for anything else.
        has_run, ran_programs = self._osworld.end()
        ran_programs |= processes.end_strays()
        self._gui.let_go()
        self._apps.sites.leave()
        width, height = self._screen.connection.size
        self._screen.input.move(width - 1, height - 1)
        ran_programs |= self._launcher.close_all(deadline)
        self._traces.open_up()
        if has_run or ran_programs:
            self._traces.put_back_session()
        self._screen.state.put_back(programs=processes.living() if has_run or ran_programs else None)
        self._dismiss_popups()
        if self._windows.front_app() is self._apps.calc:
            self._screen.input.press_chord("esc")  # a half-typed cell would end up in the next sheet
        self._windows.close_dialogs(deadline)
        self._windows.end_misplaced()
        self._prepare(setup, deadline, ran_programs=ran_programs)
        try:
            return self._start.show(deadline, with_tree=with_tree, patience_s=SHOW_LIMIT_S)
        except NotInFront:
            # It died under our hands, or another window of it does not let go of the focus.
            app = self._apps.by_name[self._apps.open[-1]]
            self._launcher.close_all(deadline)
            if app.program.running:
                self._windows.restart(app, deadline)
                self._warm.note()
        self._prepare(setup, deadline)
        return self._start.show(deadline, with_tree=with_tree)

    def _dismiss_popups(self) -> None:
        for _ in range(3):
            self._screen.connection.pump()
            if not self._screen.windows.num_popups:
                return
            self._screen.input.press_chord("esc")
            self._settler.settle(limit_s=_POPUP_LIMIT_S)

    def _prepare(self, setup: list[Mapping[str, Any]], deadline: float, *, ran_programs: bool = False) -> None:
        self._warm.forget(deadline, ran_programs=ran_programs)
        self._traces.remove_files()
        self._start.set_up(setup, deadline)
        if not self._apps.open:
            # Else it would begin with whatever was on top, such as the browser with the page of another task.
            self._start.set_up(_OF_NOTHING, deadline)
        self._warm.note()
        self._finishes_itself = self._apps.open == ["chromium"]
        self._view.forget()
        self._note_busy_time()

    # --- actions and observations ---

    def act(self, name: str, args: Mapping[str, Any], *, deadline: float) -> str:
        """Do one action; returns an API call's result. Raises `Refused`, also when the agent keeps an application busy."""
        self._note_busy_time()
        self._screen.input.require_clicks(left(deadline) - _LOOK_S)  # those of the last action, on a machine that is busy
        try:
            if "." in name:
                return self._api.call(name, args, deadline - _LOOK_S)
            if name != "wait":
                self._warm.note_input(self._view.front)
            return self._gui.act(name, args)
        except (FileActionError, DocumentError, UnknownKey, NotInFront) as error:
            raise Refused(str(error)) from error  # a window that an agent has opened may hold the focus; the desktop is whole
        except APP_FAILURES as error:
            if not (busy := self._busy_app()):
                raise
            raise Refused(f"{busy} is still busy with what it was given: wait, and try again") from error

    def _note_busy_time(self) -> None:
        self._were_busy_s = {app.name: app.program.busy_s for app in self._apps.warm}

    def _busy_app(self) -> str:
        """Name of an application that is busy with what the agent has given it; empty: none, so one that fails hangs."""
        # One that did not obey has been started anew meanwhile: it was busy until then.
        for app in self._apps.warm:
            if app.program.busy_s - self._were_busy_s[app.name] >= processes.BUSY_S:
                return app.name
        return ""

    def settle(self) -> Settled:
        """Wait until the last action's effects are on screen."""
        return self._view.settle()

    def observe(
        self, settled: Settled = _NO_SETTLING, *, deadline: float, with_tree: bool = True, known_tree: int = 0
    ) -> dict[str, Any]:
        """The observation for the host; nodes are left out when they are those of ``known_tree``, which it has."""
        seen = self._view.observe(settled, deadline=deadline, with_tree=with_tree, known_tree=known_tree)
        self._warm.note_copied(self._view.front)
        finished = self._finishes_itself and self._apps.chromium.page.has_scored(timeout_s=left(deadline))
        return {**seen, "finished": finished}

    # --- facts ---

    def get(self, kind: str, args: Mapping[str, Any], *, deadline: float) -> Any:
        """One fact for an evaluator, or, with ``args["by_agent"]``, for the agent. Evaluators may press keys, too: those that an
        agent holds down are released for them."""
        if not args.get("by_agent"):
            self._gui.let_go()
        apps, folder = self._apps, self._folder
        is_office_file = kind in _FILE_FACTS and apps.is_office_open()
        may_lag = self._screen.input.holds_clicks or (kind in _FACTS_OF_APPS and self._view.may_lag)
        if is_office_file or may_lag:
            self._view.settle_for_judging(deadline)
        if is_office_file:
            try:
                apps.documents.finish(timeout_s=left(deadline))
            except OfficeGone:
                if not self._busy_app():
                    raise
                # What it has not saved by now is not there.
        facts: dict[str, Callable[[], Any]] = {
            "web_page": lambda: apps.chromium.page.state(timeout_s=left(deadline)),
            "web_shapes": lambda: apps.chromium.page.shapes(timeout_s=left(deadline)),
            "web_result": lambda: apps.chromium.page.result(timeout_s=left(deadline)),
            "calc_cells": lambda: apps.calc.read(args["range"], timeout_s=left(deadline)),
            "osworld": lambda: self._osworld.call(
                str(args["call"]), {key: args[key] for key in args if key not in ("call", "by_agent")}, deadline=deadline
            ),
            "file_bytes": lambda: folder.bytes_or_none(args["path"]),
            "file_text": lambda: folder.text_or_none(args["path"]),
            "folder_listing": lambda: folder.listing(args.get("path") or "."),
            "editor_text": self._editor_text,
            "fingerprint": self._traces.fingerprint,
        }
        if kind not in facts:
            raise TaskError(f"unknown fact {kind!r}")
        try:
            return facts[kind]()
        except (FileActionError, PageError, DocumentError, KeyError, Refused) as error:
            raise TaskError(f"{kind}: {error}") from error
        except APP_FAILURES:
            if kind not in _NOTHING or not self._busy_app():
                raise
            return _NOTHING[kind](args)

    def _editor_text(self) -> str:
        self._apps.require_open("editor")
        return self._controls.text_of(self._apps.editor.program.pid)
