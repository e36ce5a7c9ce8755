"""One desktop as a whole: which application is in front, set-up of tasks, actions, observations, facts for evaluators.

Every method has a deadline. `Refused` is the agent's mistake, `TaskError` the task's; everything else that goes wrong here
is ours and breaks the desktop.
"""

from __future__ import annotations

import functools
import select
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .accessibility import AppGone, Node
from .chromium import Chromium, ChromiumGone, PageError, refused_keys
from .dbus import DBusError
from .faults import DesktopError, Refused, TaskError
from .folder import AgentFolder, FileActionError
from .gtk_apps import Editor, Files
from .keyboard import UnknownKey
from .office.documents import Documents, OfficeApp, app_for
from .office.process import DocumentError, Office, OfficeGone
from .office.sheet import Calc
from .reader import TreeReader
from .session import Places, Session
from .settle import Settled
from .windows import App, Windows, left
from .wire import Wire

_NO_SETTLING = Settled("none", 0.0)
_OPEN_LIMIT_S = 4.0
"""An application that has not opened what a task needs after this long is started anew."""
_DOCUMENT_LIMIT_S = 12.0
"""The same for an office document: the first one loads all of Writer or Impress from the disk."""
_CLOSE_LIMIT_S = 3.0
"""An office that has not closed its documents after this long is started anew."""
_MAX_TABS = 20
_OFFICE = frozenset({"calc", "writer", "impress"})

OUR_FAILURES = (DesktopError, OfficeGone, ChromiumGone, DBusError, AppGone)
"""What the host must hear of as a broken desktop."""


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
        settle_quiet_s: float,
        settle_deadline_s: float,
    ) -> None:
        self._session = session
        self._screen = session.screen
        self._accessibility = session.accessibility
        self._size = (width, height)
        self._settle_deadline_s = settle_deadline_s
        self.folder = AgentFolder(places.agent)
        self._chromium = Chromium(env=session.env, log_folder=places.logs, width=width, height=height, pages=pages)
        office = Office(env=session.env, log_folder=places.logs)
        self._calc = Calc(office, folder=places.agent)
        self._documents = Documents(office, self._calc, folder=self.folder)
        writer, impress = OfficeApp("writer", office), OfficeApp("impress", office)
        self._editor = Editor(env=session.env, log_folder=places.logs)
        self._files = Files(env=session.env, log_folder=places.logs, folder=places.agent)
        apps: tuple[App, ...] = (self._chromium, self._calc, writer, impress, self._editor, self._files)
        self._apps: dict[str, App] = {app.name: app for app in apps}
        self._reader = TreeReader(self._screen, self._accessibility, self._calc)
        self._windows = Windows(
            session, tuple(self._apps.values()), self._reader, browser=self._chromium, settle_quiet_s=settle_quiet_s
        )
        self._open: list[str] = []
        self._openers: dict[str, tuple[App, Callable[[dict[str, Any], float], None]]] = {
            "web_page": (self._chromium, self._open_page),
            "calc_open": (self._calc, self._open_sheet),
            "editor_open": (self._editor, self._open_editor),
            "files_open": (self._files, self._open_files),
        }
        self._office_apps: dict[str, App] = {"calc": self._calc, "writer": writer, "impress": impress}

    # --- starting ---

    def start(self, *, timeout_s: float) -> None:
        """Start all applications side by side and wait until each can be used."""
        for app in (self._calc, self._chromium, self._files, self._editor):
            app.start()
        deadline = time.monotonic() + timeout_s
        self._calc.connect(timeout_s=timeout_s)
        self._chromium.connect(timeout_s=deadline - time.monotonic())
        for app in (self._calc, self._chromium, self._files, self._editor):
            self._windows.wait_for_window(app, deadline)

    def check(self) -> None:
        """Raise `DesktopError` when the ground under the applications is gone."""
        broken = self._session.broken()
        if broken:
            raise DesktopError(broken)

    def wait_for(self, wire: Wire) -> None:
        """Wait for a request; meanwhile nothing that applications say piles up anywhere."""
        poller = select.poll()
        for fd in (wire.fileno(), self._screen.fileno(), self._accessibility.fileno()):
            poller.register(fd, select.POLLIN)
        while not wire.has_frame() and not any(fd == wire.fileno() for fd, _ in poller.poll()):
            self._screen.pump()
            self._accessibility.pump()

    # --- tasks ---

    def reset(self, setup: list[Mapping[str, Any]], *, deadline: float) -> Settled:
        """Remove all traces of the last task, do the set-up steps in order, wait until the last one's window is on screen."""
        self._screen.move(self._size[0] - 1, self._size[1] - 1)
        self._windows.dismiss_popups()
        if self._windows.front_app() is self._calc:
            self._screen.press_chord("esc")  # a half-typed cell would end up in the next sheet
        self._windows.close_dialogs(deadline)
        settled = self._prepare(setup, deadline)
        if self._open and self._windows.front_app() is not self._apps[self._open[-1]]:
            # The application died under our hands; it is noticed by now and will be started anew.
            settled = self._prepare(setup, deadline)
        return settled

    def _prepare(self, setup: list[Mapping[str, Any]], deadline: float) -> Settled:
        self._close_documents(deadline)
        self.folder.wipe()
        self._open = []
        self._chromium.leave_page()
        for step in setup:
            self._set_up(str(step["kind"]), dict(step["args"]), deadline)
        self._reader.forget()
        if self._open:
            self._windows.bring_to_front(self._apps[self._open[-1]], deadline)
        return self.settle()

    def _set_up(self, kind: str, args: dict[str, Any], deadline: float) -> None:
        try:
            if kind == "write_file":
                self.folder.make_parents(args["path"])
                self.folder.write(args["path"], args["text"])
            elif kind == "put_file":
                self.folder.make_parents(args["path"])
                self.folder.put(args["path"], args["data"])
            elif kind == "make_folder":
                self.folder.make_folder(args["path"])
            elif kind == "open":
                self._open_path(args["path"], deadline)
            elif kind in self._openers:
                self._open_app(*self._openers[kind], args, deadline)
            else:
                raise TaskError(f"unknown set-up step {kind!r}")
        except (FileActionError, PageError, DocumentError, KeyError) as error:
            raise TaskError(f"{kind}: {error}") from error

    def _open_app(
        self, app: App, open_it: Callable[[dict[str, Any], float], None], args: dict[str, Any], deadline: float
    ) -> None:
        """Whatever state the last agent left the application in: if it does not obey soon, it is started anew."""
        try:
            limit_s = _DOCUMENT_LIMIT_S if open_it == self._open_document else _OPEN_LIMIT_S
            open_it(args, min(deadline, time.monotonic() + limit_s))
        except OUR_FAILURES:
            self._windows.restart(app, deadline)
            open_it(args, deadline)
        if app.name in self._open:
            self._open.remove(app.name)
        self._open.append(app.name)

    def _close_documents(self, deadline: float) -> None:
        try:
            if self._documents.has_any(timeout_s=_CLOSE_LIMIT_S):
                self._documents.close_all(timeout_s=_CLOSE_LIMIT_S)
        except OfficeGone:
            self._windows.restart(self._calc, deadline)

    def _open_path(self, path: str, deadline: float) -> str:
        """Open a file or folder with its application; gives that one's name."""
        name = app_for(path)
        if name is not None:
            self._open_app(self._office_apps[name], self._open_document, {"path": path}, deadline)
            return name
        if self.folder.resolve(path).is_dir():
            self._open_app(*self._openers["files_open"], {"folder": path}, deadline)
            return "files"
        self._open_app(*self._openers["editor_open"], {"path": path}, deadline)
        return "editor"

    def _open_document(self, args: dict[str, Any], deadline: float) -> None:
        # Not `Windows.ready`: Writer and Impress have no window before.
        if not self._calc.program.running:
            self._windows.restart(self._calc, deadline)
        self._calc.connect(timeout_s=left(deadline))
        app = self._office_apps[self._documents.open(args["path"], timeout_s=left(deadline))]
        self._windows.wait_for_window(app, deadline)

    def _open_page(self, args: dict[str, Any], deadline: float) -> None:
        self._windows.ready(self._chromium, deadline)
        self._chromium.open_page(args["page"], int(args["seed"]), timeout_s=left(deadline))

    def _open_sheet(self, args: dict[str, Any], deadline: float) -> None:
        self._windows.ready(self._calc, deadline)
        self._calc.open(args["cells"], args.get("active_cell") or "A1", timeout_s=left(deadline))

    def _open_editor(self, args: dict[str, Any], deadline: float) -> None:
        if "text" in args:
            self.folder.make_parents(args["path"])
            self.folder.write(args["path"], args["text"])
        app = self._editor
        self._windows.ready(app, deadline)
        if len(self._windows.of(app)) != 1:
            self._windows.restart(app, deadline)
        # The window stays: a new one costs ten times as much. Old tabs go first, since a file that is still open would only be
        # shown again, with whatever was typed into it.
        app.activate(self._session.bus, "file.new")
        self._windows.wait(lambda: self._num_tabs() > 1, deadline, "a new tab")
        for _ in range(_MAX_TABS):
            num_tabs = self._num_tabs()
            if num_tabs == 1:
                break
            app.activate(self._session.bus, "document.previous-tab")
            app.activate(self._session.bus, "file.close-tab")
            self._windows.wait(functools.partial(self._has_closed_tab, num_tabs), deadline, "closing a tab")
        place = self.folder.resolve(args["path"])
        app.open(self._session.bus, place, timeout_s=left(deadline))
        title = f"{place.name} - Mousepad"
        self._windows.wait(lambda: any(w.title == title for w in self._windows.of(app)), deadline, "the editor's file")

    def _num_tabs(self) -> int:
        return self._reader.count(self._editor.program.pid, "page-tab")

    def _has_closed_tab(self, num_before: int) -> bool:
        self._windows.discard_changes(self._editor)
        return self._num_tabs() < num_before

    def _open_files(self, args: dict[str, Any], deadline: float) -> None:
        folder = args.get("folder") or "."
        place = self.folder.resolve(folder)
        if not place.is_dir():
            raise FileActionError(f"there is no folder {folder}")
        app = self._files
        self._windows.ready(app, deadline)
        windows = self._windows.of(app)
        if [window.title for window in windows] != [f"{place.name} - Thunar"]:
            old = {window.xid for window in windows}
            app.open(self._session.bus, place, timeout_s=left(deadline))
            self._windows.wait(
                lambda: any(w.xid not in old for w in self._windows.of(app)), deadline, "the file manager's window"
            )
            self._windows.close(app, old, deadline)
        self._reader.expect_files([name.rstrip("/") for name in self.folder.list(folder)])

    # --- actions ---

    def act(self, name: str, args: Mapping[str, Any], *, deadline: float) -> str:
        """Do one action; gives what an API call returned. Raises `Refused`."""
        try:
            if "." in name:
                return self._call_api(name, args, deadline)
            self._act_gui(name, args)
        except (FileActionError, DocumentError, UnknownKey) as error:
            raise Refused(str(error)) from error
        return ""

    def _act_gui(self, name: str, args: Mapping[str, Any]) -> None:
        screen, front = self._screen, self._windows.front_app()
        if name == "click":
            if front is self._chromium and args["button"] != "left":
                raise Refused("only the left button works in the browser")
            screen.click(args["x"], args["y"], button=args["button"])
        elif name == "double_click":
            screen.click(args["x"], args["y"], num_clicks=2)
        elif name == "hover":
            screen.move(args["x"], args["y"])
        elif name == "scroll":
            screen.scroll(args["x"], args["y"], args["direction"])
        elif name == "drag":
            self._drag((args["x"], args["y"]), (args["to_x"], args["to_y"]))
        elif name == "type":
            screen.type_text(args["text"] + ("\n" if args["enter"] else ""))
        elif name == "key":
            if front is self._chromium and refused_keys(args["keys"]):
                raise Refused("the browser's own shortcuts are locked")
            screen.press_chord(args["keys"])
        elif name != "wait":
            raise Refused(f"unknown action {name!r}")

    def _drag(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        path = self._screen.drag_path(start, end)
        self._screen.move(*path[0])
        self._screen.press()
        for place in path[1:]:
            self._screen.move(*place)
            self._windows.settle_within(deadline_s=0.1)  # toolkits follow a drag only when they see it move
        self._screen.release()

    def _call_api(self, name: str, args: Mapping[str, Any], deadline: float) -> str:
        area, _, method = name.partition(".")
        if area == "files":
            result = getattr(self.folder, method)(**args)
            return "\n".join(result) if isinstance(result, list) else result or ""
        if area in _OFFICE:
            self._require_open(self._apps[area])
            return self._documents.use_tool(area, method, args, timeout_s=left(deadline))
        if name == "editor.save":
            self._windows.bring_to_front(self._require_open(self._editor), deadline)
            self._screen.press_chord("ctrl+s")
            return ""
        if name == "apps.switch":
            app = self._apps.get(str(args["app"]).strip().lower())
            if app is None or app.name not in self._open:
                raise Refused(f"{args['app']!r} is not open; open: {', '.join(self._open)}")
            if not self._windows.of(app):
                raise Refused(f"{app.name} has no window any more")
            self._windows.bring_to_front(app, deadline)
            return ""
        raise Refused(f"unknown action {name!r}")

    def _require_open(self, app: App) -> App:
        if app.name not in self._open:
            raise Refused(f"{app.name} is not open")
        return app

    # --- observing ---

    def settle(self) -> Settled:
        """Wait until the last action's effects are on screen."""
        return self._windows.settle_within(deadline_s=self._settle_deadline_s)

    def observe(self, settled: Settled = _NO_SETTLING, *, with_tree: bool = True) -> dict[str, Any]:
        """What is on screen, for the host."""
        window, app, hidden = self._windows.front_with_hidden()
        nodes: list[Node] = []
        age_s = 0.0
        if with_tree and app is not None and window is not None:
            nodes, age_s = self._reader.read(app.name, app.program.pid, hidden=hidden, frame_mark=self._chromium.frame_mark)
        return {
            "app": app.name if app else "",
            "title": window.title if window else "",
            "nodes": [node.to_wire() for node in nodes],
            "settled_by": settled.by,
            "settle_s": settled.duration_s,
            "tree_age_s": age_s,
            "finished": self._finished(),
        }

    def _finished(self) -> bool:
        return "chromium" in self._open and self._open == ["chromium"] and bool(self._chromium.state()["done"])

    def get(self, kind: str, args: Mapping[str, Any], *, deadline: float) -> Any:
        """One fact for an evaluator."""
        try:
            if kind == "web_page":
                return self._chromium.state(timeout_s=left(deadline))
            if kind == "calc_cells":
                return self._calc.read(args["range"], timeout_s=left(deadline))
            if kind == "file_bytes":
                return self.folder.bytes_or_none(args["path"])
            if kind == "file_text":
                return self.folder.text_or_none(args["path"])
            if kind == "folder_listing":
                return self.folder.listing(args.get("path") or ".")
            if kind == "editor_text":
                return self._reader.text_of(self._require_open(self._editor).program.pid)
        except (FileActionError, PageError, DocumentError, KeyError, Refused) as error:
            raise TaskError(f"{kind}: {error}") from error
        raise TaskError(f"unknown fact {kind!r}")
