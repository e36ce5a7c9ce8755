"""Opening things: the set-up steps of tasks, files with their application, applications by name. Keeps what is open.

Warm applications run all the time and are only given something to show; the others (`guest.apps`) are started here and closed
at the next reset. `FileActionError`, `PageError`, `DocumentError`, `Refused` and `KeyError` say that what was asked for is not
there; anything else means that an application does not do what it should.
"""

from __future__ import annotations

import functools
import os
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import processes
from .apps import catalog
from .apps.on_demand import OnDemandApp, call
from .apps.simple import Terminal
from .faults import Refused
from .files.folder import MAX_FILE_BYTES, AgentFolder, FileActionError
from .gtk_apps import Editor, Files, gets_new_tab
from .office.calc.sheet import Calc
from .office.documents import Documents, OfficeApp, app_for
from .office.process import OfficeGone
from .reading.dbus import DBusError
from .screen.windows import APP_FAILURES, App, Windows, left
from .web.chromium import Chromium

if TYPE_CHECKING:
    from .reading.reader import TreeReader
    from .session import Session

_OPEN_LIMIT_S = 4.0
"""An application that has not opened what a task needs after this long is started anew."""
_DOCUMENT_LIMIT_S = 12.0
"""The same for an office document: the first one loads all of Writer or Impress from the disk."""
_CLOSE_LIMIT_S = 3.0
"""An office that has not closed its documents after this long is started anew."""
_FILE_LIST = frozenset({"table"})
"""Role of the file manager's list of files, each of which has several objects."""
_MAX_TABS = 20
_MOST_NAMED = 3


class Openers:
    """What is open on the desktop, and how more comes to be."""

    def __init__(
        self,
        session: Session,
        windows: Windows,
        reader: TreeReader,
        folder: AgentFolder,
        *,
        chromium: Chromium,
        calc: Calc,
        documents: Documents,
        office_apps: Mapping[str, Calc | OfficeApp],
        editor: Editor,
        files: Files,
        on_demand: Mapping[str, OnDemandApp],
    ) -> None:
        self._session, self._windows, self._reader, self._folder = session, windows, reader, folder
        self._chromium, self._calc, self._documents = chromium, calc, documents
        self._editor, self._files, self._on_demand = editor, files, on_demand
        self._warm = (chromium, calc, editor, files)
        self._office_apps = office_apps
        self._apps: dict[str, App] = {"chromium": chromium, "editor": editor, "files": files, **office_apps, **on_demand}
        self._num_starts: dict[str, int] = {}
        """Starts of each warm application before the agent acted."""
        self.remembering: set[str] = set()
        """Warm applications that may keep something of the task in their memory alone: what was copied, what can be undone."""
        self._first_files: frozenset[tuple[str, int, int]] = frozenset()
        """`AgentFolder.marks` before the agent acted."""
        self._tab_list = ""
        """Object path of the editor's list of tabs; empty: not known."""
        self._folder_shown = folder.root
        """The file manager's folder."""
        self._file_list = ""
        """Object path of its list of files; empty: not known."""
        self.open: list[str] = []
        """Applications with something open, the one opened last at the end."""
        self._steps: dict[str, tuple[App, Callable[[dict[str, Any], float], None]]] = {
            "web_page": (chromium, self._open_page),
            "web_file": (chromium, self._open_web_file),
            "calc_open": (calc, self._open_sheet),
            "editor_open": (editor, self._open_editor),
            "files_open": (files, self._open_files),
        }

    def knows(self, kind: str) -> bool:
        """Is this set-up step one that opens something?"""
        return kind in self._steps or kind in ("open", "open_app")

    def step(self, kind: str, args: dict[str, Any], deadline: float) -> None:
        """Carry out a set-up step."""
        if kind == "open":
            self.open_path(args["path"], deadline)
        elif kind == "open_app":
            self.open_app(args["app"], deadline)
        else:
            self._open_warm(*self._steps[kind], args, deadline)

    def open_path(self, path: str, deadline: float) -> str:
        """Open a file or folder with its application; gives that one's name."""
        place = self._folder.existing(path)
        _require_openable(place, path)
        office = app_for(path)
        if place.is_dir():
            self._open_warm(*self._steps["files_open"], {"folder": path}, deadline)
            return "files"
        if office is not None:
            self._open_warm(self._office_apps[office], self._open_document, {"path": path}, deadline)
            return office
        other = catalog.app_for(path)
        if other is not None:
            return self.open_with(other, path, deadline)
        self._open_warm(*self._steps["editor_open"], {"path": path}, deadline)
        return "editor"

    def open_with(self, name: str, path: str, deadline: float) -> str:
        """Open a file in an application that may not be the one of its kind; gives the name of the one that shows it."""
        if name == "editor":
            self._open_warm(*self._steps["editor_open"], {"path": path}, deadline)
            return name
        if name not in self._on_demand:
            return self.open_path(path, deadline)
        place = self._folder.existing(path)
        _require_openable(place, path)
        app = self.ensure(name, deadline)
        self._guard(app, lambda: app.open(place, timeout_s=left(deadline)))
        return name

    def open_app(self, name: str, deadline: float) -> str:
        """Open an application by any of its names, or bring it to the front; gives its name."""
        known = self.name_of(name)
        if known in self.open and self._windows.of(self._apps[known]):
            return known
        if known in self._on_demand:
            self.ensure(known, deadline)
        elif known == "calc":
            self._open_warm(*self._steps["calc_open"], {"cells": {}}, deadline)
        elif known in self._office_apps:
            self._open_warm(self._office_apps[known], self._open_new_document, {"app": known}, deadline)
        elif known == "editor":
            self._open_warm(*self._steps["editor_open"], {}, deadline)
        elif known == "files":
            self._open_warm(*self._steps["files_open"], {"folder": "."}, deadline)
        else:
            raise Refused("the browser of web tasks shows only the task's page")
        return known

    def name_of(self, text: str) -> str:
        """The application that ``text`` names. Raises `Refused`."""
        name = " ".join(str(text).lower().split())
        name = catalog.OTHER_NAMES.get(name, name)
        if name not in {*self._on_demand, *self._office_apps, "editor", "files", "chromium"}:
            known = sorted({*self._office_apps, "editor", "files", *self._on_demand})
            raise Refused(f"there is no application {text!r}; there are: {', '.join(known)}")
        return name

    # --- applications on demand ---

    def ensure(self, name: str, deadline: float) -> OnDemandApp:
        """The application, running with a window. Raises `Refused` where the image lacks it or it is not up by the deadline."""
        app = self._on_demand[name]
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
        self._note_open(name)
        return app

    def has_terminal(self) -> bool:
        """Is there one that may be opened?"""
        return "chromium" not in self.open and self._on_demand["terminal"].is_installed()

    def open_terminal(self, folder: Path, deadline: float) -> None:
        """A terminal in this folder; one more window where there is one already, with a shell where its first one is."""
        terminal = self._on_demand["terminal"]
        assert isinstance(terminal, Terminal)
        terminal.start_folder = folder
        is_there = terminal.program.running and not self._has_no_window(terminal)
        self.ensure(terminal.name, deadline)
        if is_there:
            self._guard(terminal, terminal.open_window)
        self._windows.bring_to_front(terminal, deadline)

    def use_tool(self, area: str, method: str, args: Mapping[str, Any], deadline: float) -> str:
        """Carry out one API method of an application on demand; gives its result text."""
        app = self._on_demand[catalog.AREAS[area]]
        tools = app.tools
        if tools is None or method.startswith("_"):
            raise Refused(f"{area} has no {method}")
        if not app.is_installed():
            raise Refused(f"{app.label} is not installed on this desktop")
        tools.check(method, args)
        if method not in tools.needs_no_start:
            self.ensure(app.name, deadline)
        return self._guard(app, lambda: call(tools, method, args))

    def close_on_demand(self, deadline: float) -> bool:
        """Close everything that runs on demand, and whatever it left behind; tells whether an agent could run programs of its own
        or did."""
        ran_programs = False
        for app in self._on_demand.values():
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
        """The application's failures are the agent's business: it is closed, and can be opened again."""
        try:
            return work()
        except APP_FAILURES as error:
            app.close()
            if app.name in self.open:
                self.open.remove(app.name)
            raise Refused(f"{app.label} did not answer and was closed ({error})") from error

    def _require_allowed(self, app: OnDemandApp) -> None:
        # A shell or a second browser could reach into the page that gives the reward.
        if "chromium" in self.open and app.name not in self.open:
            raise Refused(f"{app.label} cannot be opened beside a web task's page")

    def _note_open(self, name: str) -> None:
        if name in self.open:
            self.open.remove(name)
        self.open.append(name)

    # --- warm applications ---

    def forget(self, deadline: float, *, ran_programs: bool) -> None:
        """A new task: close all documents, nothing is open.

        An application that does not close them, that is no longer as it was at first, or that programs of the agent may have
        spoken to, is ended, with all its files. It is started anew when it is needed.
        """
        if self.open == [self._chromium.name]:
            self._chromium.note()
        self.open = []
        self._chromium.leave_page()
        for app in self._warm:
            why = "" if app.program.running else "it does not run"
            why = why or ("the agent ran programs" if ran_programs else self._change(app))
            if why:
                self._end(app, why, deadline)

    def note(self) -> None:
        """No agent has acted since the last reset: warm applications that run are as they should be."""
        self.remembering.clear()
        self._first_files = self._folder.marks()
        for app in self._warm:
            self._num_starts[app.name] = app.program.num_starts
            if app.program.running:
                app.note()

    def profiles(self) -> list[Path]:
        """Where the warm applications have files, whether they run or not."""
        return [path for app in self._warm for path in app.profile()]

    def kept(self) -> list[Path]:
        """Files and folders of the warm applications that run."""
        return [path for app in self._warm if app.program.running for path in app.kept()]

    def _change(self, app: Chromium | Calc | Editor | Files) -> str:
        """What an agent has changed of it for good; empty: nothing."""
        if app.program.num_starts != self._num_starts.get(app.name):
            return "it was started in the task"  # with all that the agent had written into the home: styles, for example
        if app.name in self.remembering and (app is not self._files or self._folder.marks() != self._first_files):
            return "it remembers the task"
        try:
            if app is self._calc and self._documents.has_any(timeout_s=_CLOSE_LIMIT_S):
                self._documents.close_all(timeout_s=_CLOSE_LIMIT_S)
            return ", ".join(app.changes(timeout_s=_CLOSE_LIMIT_S)[:_MOST_NAMED])
        except (OfficeGone, DBusError) as error:
            return str(error)

    def _end(self, app: Chromium | Calc | Editor | Files, why: str, deadline: float) -> None:
        if app.program.running:
            print(f"{app.name} is ended: {why}", flush=True)
        if app.program.pid:
            self._session.accessibility.forget(app.program.pid)
        app.end()
        self._windows.wait(lambda: not self._windows.of_process(app), deadline, f"{app.name} to be gone")

    def _open_warm(
        self, app: App, open_it: Callable[[dict[str, Any], float], None], args: dict[str, Any], deadline: float
    ) -> None:
        """Whatever state the last agent left the application in: if it does not obey soon, it is started anew."""
        try:
            limit_s = _DOCUMENT_LIMIT_S if open_it in (self._open_document, self._open_new_document) else _OPEN_LIMIT_S
            open_it(args, min(deadline, time.monotonic() + limit_s))
        except APP_FAILURES:
            self._windows.restart(app, deadline)
            open_it(args, deadline)
        self._note_open(app.name)

    def _open_document(self, args: dict[str, Any], deadline: float) -> None:
        self._ready_office(deadline)
        app = self._office_apps[self._documents.open(args["path"], timeout_s=left(deadline))]
        self._windows.wait_for_window(app, deadline)

    def _open_new_document(self, args: dict[str, Any], deadline: float) -> None:
        self._ready_office(deadline)
        self._documents.new(args["app"], timeout_s=left(deadline))
        self._windows.wait_for_window(self._office_apps[args["app"]], deadline)

    def _ready_office(self, deadline: float) -> None:
        # Not `Windows.ready`: Writer and Impress have no window before.
        if not self._calc.program.running:
            self._windows.restart(self._calc, deadline)
        self._calc.connect(timeout_s=left(deadline))

    def _open_page(self, args: dict[str, Any], deadline: float) -> None:
        self._windows.ready(self._chromium, deadline)
        self._chromium.open_page(args["page"], int(args["seed"]), timeout_s=left(deadline))

    def _open_web_file(self, args: dict[str, Any], deadline: float) -> None:
        self._windows.ready(self._chromium, deadline)
        self._chromium.open_file(self._folder.resolve(args["path"]), timeout_s=left(deadline))

    def _open_sheet(self, args: dict[str, Any], deadline: float) -> None:
        self._windows.ready(self._calc, deadline)
        self._calc.open(args["cells"], args.get("active_cell") or "A1", timeout_s=left(deadline))

    def _open_editor(self, args: dict[str, Any], deadline: float) -> None:
        """Show a file (``path``, written first where ``text`` is given), or nothing."""
        if "text" in args:
            self._folder.make_parents(args["path"])
            self._folder.write(args["path"], args["text"])
        app = self._editor
        self._ready_to_read(app, deadline)
        nodes = self._reader.nodes_of(app.program.pid)
        has_bar = any(node.role == "tool-bar" for node in nodes)  # the one to search
        if has_bar or len(self._windows.of(app)) != 1:
            self._windows.restart(app, deadline)
            self._ready_to_read(app, deadline)
            nodes = self._reader.nodes_of(app.program.pid)
        self._tab_list = next((node.path for node in nodes if node.role == "page-tab-list"), "")
        # The window stays: a new one costs ten times as much.
        place = self._folder.resolve(args["path"]) if "path" in args else None
        opens_first = place is not None and self._num_tabs() == 1 and gets_new_tab(place.name, self._windows.of(app)[0].title)
        if place is not None and opens_first:
            self._show_in_editor(place, deadline)
        else:
            app.activate("file.new")
            self._windows.wait(lambda: self._num_tabs() > 1, deadline, "a new tab")
        for _ in range(_MAX_TABS):
            num_tabs = self._num_tabs()
            if num_tabs == 1:
                break
            app.activate("document.previous-tab")
            app.activate("file.close-tab")
            self._windows.wait(functools.partial(self._has_closed_tab, num_tabs), deadline, "closing a tab")
        if place is not None and not opens_first:
            self._show_in_editor(place, deadline)

    def _show_in_editor(self, place: Path, deadline: float) -> None:
        self._editor.open(place, timeout_s=left(deadline))
        title = f"{place.name} - Mousepad"
        self._windows.wait(lambda: any(w.title == title for w in self._windows.of(self._editor)), deadline, "the editor's file")

    def _ready_to_read(self, app: App, deadline: float) -> None:
        """One that was just started may have its window before it is on the accessibility bus."""
        self._windows.ready(app, deadline)
        self._windows.wait(lambda: self._reader.knows(app.program.pid), deadline, f"{app.name} on the accessibility bus")

    def _num_tabs(self) -> int:
        pid = self._editor.program.pid
        found = self._reader.num_children(pid, self._tab_list) if self._tab_list else None
        return sum(node.role == "page-tab" for node in self._reader.nodes_of(pid)) if found is None else found

    def _has_closed_tab(self, num_before: int) -> bool:
        self._windows.discard_changes(self._editor)
        return self._num_tabs() < num_before

    def _open_files(self, args: dict[str, Any], deadline: float) -> None:
        folder = args.get("folder") or "."
        place = self._folder.resolve(folder)
        if not place.is_dir():
            raise FileActionError(f"there is no folder {folder}")
        app = self._files
        self._ready_to_read(app, deadline)
        nodes = self._reader.nodes_of(app.program.pid, without=_FILE_LIST)
        num_tabs = sum(node.role == "page-tab" for node in nodes)
        if num_tabs > 1:  # two panes have a tab each
            self._windows.restart(app, deadline)
            self._ready_to_read(app, deadline)
            nodes = self._reader.nodes_of(app.program.pid, without=_FILE_LIST)
        windows = self._windows.of(app)
        is_there = [window.title for window in windows] == [f"{place.name} - Thunar"]
        self._file_list = next((node.path for node in nodes if node.role in _FILE_LIST), "")
        if is_there and self._file_list and self._reader.has_plain_entry(app.program.pid, nodes, f"{place}/"):
            self._reader.focus(app.program.pid, self._file_list)
        else:
            old = {window.xid for window in windows}
            app.open(place, timeout_s=left(deadline))
            self._windows.wait(
                lambda: any(w.xid not in old for w in self._windows.of(app)), deadline, "the file manager's window"
            )
            self._windows.close(app, old, deadline)
            self._windows.wait(self._has_file_list, deadline, "the file manager's list of files")
        self._folder_shown = place

    def _has_file_list(self) -> bool:
        nodes = self._reader.nodes_of(self._files.program.pid, without=_FILE_LIST)
        self._file_list = next((node.path for node in nodes if node.role in _FILE_LIST), "")
        return bool(self._file_list)

    def select_first_file(self, deadline: float) -> None:
        """Have the file manager list its task's folder again, and select the first file."""
        place = self._folder_shown
        if not place.is_dir():  # a later step of the set-up has removed it
            return
        # The file manager takes notice of this change of the folder. Changes while it lists a folder it may miss for ever.
        os.chmod(place, stat.S_IMODE(place.stat().st_mode))
        names = [name.rstrip("/") for name in self._folder.list(str(place.relative_to(self._folder.root)))]
        self._reader.select_first_file(self._files.program.pid, self._file_list, names, deadline=deadline)


def _require_openable(place: Path, path: str) -> None:
    """Raise `FileActionError` for what would be waited for without end: pipes, and files that no memory holds."""
    if not place.is_file() and not place.is_dir():
        raise FileActionError(f"{path} is neither a file nor a folder")
    if place.is_file() and place.stat().st_size > MAX_FILE_BYTES:
        raise FileActionError(f"{path} is longer than {MAX_FILE_BYTES} bytes")
