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
from .calc import Calc, CalcGone, CellError
from .chromium import Chromium, ChromiumGone, PageError, refused_keys
from .dbus import DBusError
from .display import Window
from .folder import AgentFolder, FileActionError
from .gtk_apps import Editor, Files
from .keyboard import UnknownKey
from .reader import TreeReader
from .session import Places, Session
from .settle import Settled, settle
from .wire import Wire

App = Chromium | Calc | Editor | Files
_NO_SETTLING = Settled("none", 0.0)
_OPEN_LIMIT_S = 4.0
"""An application that has not opened what a task needs after this long is started anew."""
_DISCARD = ("Don't Save", "Discard", "Close without Saving")
"""Names of the button that throws changes away."""
_MAX_TABS = 20
_MAX_DIALOGS = 8
_ESCAPE_LIMIT_S = 0.4
_DIALOG_LIMIT_S = 1.0
"""A dialog or old window that has not closed after this long costs its program a restart."""


class Refused(ValueError):
    """The action cannot be done; the message is for the agent."""


class TaskError(ValueError):
    """The task asks for something that is not there."""


class DesktopError(RuntimeError):
    """A part of the desktop does not do what it should."""


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
        self._quiet_s, self._deadline_s = settle_quiet_s, settle_deadline_s
        self.folder = AgentFolder(places.agent)
        self._chromium = Chromium(env=session.env, log_folder=places.logs, width=width, height=height, pages=pages)
        self._calc = Calc(env=session.env, log_folder=places.logs, folder=places.agent)
        self._editor = Editor(env=session.env, log_folder=places.logs)
        self._files = Files(env=session.env, log_folder=places.logs, folder=places.agent)
        self._apps: dict[str, App] = {app.name: app for app in (self._chromium, self._calc, self._editor, self._files)}
        self._reader = TreeReader(self._screen, self._accessibility, self._calc)
        self._open: list[str] = []
        self._openers: dict[str, tuple[App, Callable[[dict[str, Any], float], None]]] = {
            "web_page": (self._chromium, self._open_page),
            "calc_open": (self._calc, self._open_sheet),
            "editor_open": (self._editor, self._open_editor),
            "files_open": (self._files, self._open_files),
        }

    # --- starting ---

    def start(self, *, timeout_s: float) -> None:
        """Start all applications side by side and wait until each can be used."""
        for app in (self._calc, self._chromium, self._files, self._editor):
            app.start()
        deadline = time.monotonic() + timeout_s
        self._calc.connect(timeout_s=timeout_s)
        self._chromium.connect(timeout_s=deadline - time.monotonic())
        for app in self._apps.values():
            self._wait_for_window(app, deadline)

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
        self._dismiss_popups()
        if self._front_app() is self._calc:
            self._screen.press_chord("esc")  # a half-typed cell would end up in the next sheet
        self._close_dialogs(deadline)
        settled = self._prepare(setup, deadline)
        if self._open and self._front_app() is not self._apps[self._open[-1]]:
            # The application died under our hands; it is noticed by now and will be started anew.
            settled = self._prepare(setup, deadline)
        return settled

    def _prepare(self, setup: list[Mapping[str, Any]], deadline: float) -> Settled:
        self.folder.wipe()
        self._open = []
        self._chromium.leave_page()
        for step in setup:
            self._set_up(str(step["kind"]), dict(step["args"]), deadline)
        self._reader.forget()
        if self._open:
            self._bring_to_front(self._apps[self._open[-1]], deadline)
        return self.settle()

    def _set_up(self, kind: str, args: dict[str, Any], deadline: float) -> None:
        try:
            if kind == "write_file":
                self.folder.make_parents(args["path"])
                self.folder.write(args["path"], args["text"])
            elif kind == "make_folder":
                self.folder.make_folder(args["path"])
            elif kind in self._openers:
                self._open_app(*self._openers[kind], args, deadline)
            else:
                raise TaskError(f"unknown set-up step {kind!r}")
        except (FileActionError, PageError, CellError, KeyError) as error:
            raise TaskError(f"{kind}: {error}") from error

    def _open_app(
        self, app: App, open_it: Callable[[dict[str, Any], float], None], args: dict[str, Any], deadline: float
    ) -> None:
        """Whatever state the last agent left the application in: if it does not obey soon, it is started anew."""
        try:
            open_it(args, min(deadline, time.monotonic() + _OPEN_LIMIT_S))
        except OUR_FAILURES:
            self._restart(app, deadline)
            open_it(args, deadline)
        if app.name in self._open:
            self._open.remove(app.name)
        self._open.append(app.name)

    def _open_page(self, args: dict[str, Any], deadline: float) -> None:
        self._ready(self._chromium, deadline)
        self._chromium.open_page(args["page"], int(args["seed"]), timeout_s=_left(deadline))

    def _open_sheet(self, args: dict[str, Any], deadline: float) -> None:
        self._ready(self._calc, deadline)
        self._calc.open(args["cells"], args.get("active_cell") or "A1", timeout_s=_left(deadline))

    def _open_editor(self, args: dict[str, Any], deadline: float) -> None:
        self.folder.make_parents(args["path"])
        self.folder.write(args["path"], args["text"])
        app = self._editor
        self._ready(app, deadline)
        if len(self._windows_of(app)) != 1:
            self._restart(app, deadline)
        # The window stays: a new one costs ten times as much. Old tabs go first, since a file that is still open would only be
        # shown again, with whatever was typed into it.
        app.activate(self._session.bus, "file.new")
        self._wait(lambda: self._num_tabs() > 1, deadline, "a new tab")
        for _ in range(_MAX_TABS):
            num_tabs = self._num_tabs()
            if num_tabs == 1:
                break
            app.activate(self._session.bus, "document.previous-tab")
            app.activate(self._session.bus, "file.close-tab")
            self._wait(functools.partial(self._has_closed_tab, num_tabs), deadline, "closing a tab")
        place = self.folder.resolve(args["path"])
        app.open(self._session.bus, place, timeout_s=_left(deadline))
        title = f"{place.name} - Mousepad"
        self._wait(lambda: any(w.title == title for w in self._windows_of(app)), deadline, "the editor's file")

    def _num_tabs(self) -> int:
        return self._reader.count(self._editor.program.pid, "page-tab")

    def _has_closed_tab(self, num_before: int) -> bool:
        if any(window.is_dialog and window.pid == self._editor.program.pid for window in self._screen.windows()):
            self._reader.press_button(self._editor.program.pid, _DISCARD)
        return self._num_tabs() < num_before

    def _open_files(self, args: dict[str, Any], deadline: float) -> None:
        folder = args.get("folder") or "."
        place = self.folder.resolve(folder)
        if not place.is_dir():
            raise FileActionError(f"there is no folder {folder}")
        app = self._files
        self._ready(app, deadline)
        windows = self._windows_of(app)
        if [window.title for window in windows] != [f"{place.name} - Thunar"]:
            old = {window.xid for window in windows}
            app.open(self._session.bus, place, timeout_s=_left(deadline))
            self._wait(lambda: any(w.xid not in old for w in self._windows_of(app)), deadline, "the file manager's window")
            self._close_windows(app, old, deadline)
        self._reader.expect_files([name.rstrip("/") for name in self.folder.list(folder)])

    # --- actions ---

    def act(self, name: str, args: Mapping[str, Any], *, deadline: float) -> str:
        """Do one action; gives what an API call returned. Raises `Refused`."""
        try:
            if "." in name:
                return self._call_api(name, args, deadline)
            self._act_gui(name, args)
        except (FileActionError, CellError, UnknownKey) as error:
            raise Refused(str(error)) from error
        return ""

    def _act_gui(self, name: str, args: Mapping[str, Any]) -> None:
        screen, front = self._screen, self._front_app()
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
            self._settle(deadline_s=0.1)  # toolkits follow a drag only when they see it move
        self._screen.release()

    def _call_api(self, name: str, args: Mapping[str, Any], deadline: float) -> str:
        area, _, method = name.partition(".")
        if area == "files":
            result = getattr(self.folder, method)(**args)
            return "\n".join(result) if isinstance(result, list) else result or ""
        if area == "calc":
            return self._call_calc(method, args, deadline)
        if name == "editor.save":
            self._bring_to_front(self._require_open(self._editor), deadline)
            self._screen.press_chord("ctrl+s")
            return ""
        if name == "apps.switch":
            app = self._apps.get(str(args["app"]).strip().lower())
            if app is None or app.name not in self._open:
                raise Refused(f"{args['app']!r} is not open; open: {', '.join(self._open)}")
            self._bring_to_front(app, deadline)
            return ""
        raise Refused(f"unknown action {name!r}")

    def _call_calc(self, method: str, args: Mapping[str, Any], deadline: float) -> str:
        self._require_open(self._calc)
        if method == "set_cell":
            self._calc.set_cell(args["cell"], args["value"], timeout_s=_left(deadline))
        elif method == "get_cell":
            return self._calc.read(args["cell"], timeout_s=_left(deadline))[0][0]
        elif method == "save":
            return self._calc.save(timeout_s=_left(deadline))
        else:
            raise Refused(f"unknown action calc.{method}")
        return ""

    def _require_open(self, app: App) -> App:
        if app.name not in self._open:
            raise Refused(f"{app.name} is not open")
        return app

    # --- observing ---

    def settle(self) -> Settled:
        """Wait until the last action's effects are on screen."""
        return self._settle(deadline_s=self._deadline_s)

    def observe(self, settled: Settled = _NO_SETTLING, *, with_tree: bool = True) -> dict[str, Any]:
        """What is on screen, for the host."""
        window, app = self._front()
        nodes: list[Node] = []
        age_s = 0.0
        if with_tree and app is not None and window is not None:
            nodes, age_s = self._reader.read(app.name, app.program.pid, frame_mark=self._chromium.frame_mark)
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
                return self._chromium.state(timeout_s=_left(deadline))
            if kind == "calc_cells":
                return self._calc.read(args["range"], timeout_s=_left(deadline))
            if kind == "file_text":
                return self.folder.text_or_none(args["path"])
            if kind == "folder_listing":
                return self.folder.listing(args.get("path") or ".")
            if kind == "editor_text":
                return self._reader.text_of(self._require_open(self._editor).program.pid)
        except (FileActionError, PageError, CellError, KeyError, Refused) as error:
            raise TaskError(f"{kind}: {error}") from error
        raise TaskError(f"unknown fact {kind!r}")

    def _settle(self, *, deadline_s: float) -> Settled:
        window, app = self._front()
        ping = self._screen.ping(window.xid) if window else None
        flush = self._chromium.start_flush() if app is self._chromium else None
        pending: set[str] = {"ping"} if ping is not None else set()
        if flush is not None:
            pending.add("flush")

        def confirmed() -> bool:
            if ping is not None and "ping" in pending and self._screen.answered(ping):
                pending.discard("ping")
            if flush is not None and "flush" in pending and self._chromium.flushed(flush):
                pending.discard("flush")
            return not pending

        return settle(
            self._screen,
            self._accessibility,
            quiet_s=self._quiet_s,
            deadline_s=deadline_s,
            confirmed=confirmed,
            extra_fd=self._chromium.fileno() if flush is not None else None,
        )

    # --- windows ---

    def _front(self) -> tuple[Window | None, App | None]:
        xid = self._screen.active_window()
        window = next((window for window in self._screen.windows() if window.xid == xid), None)
        return window, self._app_of(window) if window else None

    def _front_app(self) -> App | None:
        return self._front()[1]

    def _app_of(self, window: Window) -> App | None:
        return next((app for app in self._apps.values() if app.program.pid == window.pid), None)

    def _windows_of(self, app: App) -> list[Window]:
        return [w for w in self._screen.windows() if w.pid == app.program.pid and not w.is_dialog]

    def _ready(self, app: App, deadline: float) -> None:
        if not app.program.running:
            self._accessibility.forget(app.program.pid)
            app.start()
        if isinstance(app, Calc | Chromium):
            app.connect(timeout_s=_left(deadline))
        self._wait_for_window(app, deadline)

    def _wait_for_window(self, app: App, deadline: float) -> None:
        self._wait(lambda: bool(self._windows_of(app)), deadline, f"a window of {app.name} ({app.program.log_tail()})")

    def _bring_to_front(self, app: App, deadline: float) -> None:
        windows = self._windows_of(app)
        if not windows:
            raise DesktopError(f"{app.name} has no window")
        wanted = windows[-1].xid
        if self._screen.active_window() == wanted:
            return
        self._screen.activate(wanted)
        self._wait(lambda: self._screen.active_window() == wanted, deadline, f"{app.name} in front")

    def _dismiss_popups(self) -> None:
        for _ in range(3):
            self._screen.pump()
            if not self._screen.num_popups:
                return
            self._screen.press_chord("esc")
            self._settle(deadline_s=0.2)

    def _close_dialogs(self, deadline: float) -> None:
        for _ in range(_MAX_DIALOGS):
            dialogs = [window for window in self._screen.windows() if window.is_dialog]
            if not dialogs:
                return
            top = dialogs[-1]
            self._screen.activate(top.xid)
            self._screen.press_chord("esc")
            if self._gone(top.xid, time.monotonic() + _ESCAPE_LIMIT_S):
                continue
            app = self._app_of(top)
            if app is None:
                raise DesktopError(f"a dialog of nobody: {top.title}")
            self._close_windows(app, {top.xid}, deadline)

    def _gone(self, xid: int, deadline: float) -> bool:
        try:
            self._wait(lambda: all(window.xid != xid for window in self._screen.windows()), deadline, "a window to close")
        except DesktopError:
            return False
        return True

    def _close_windows(self, app: App, xids: set[int], deadline: float) -> None:
        """Close windows, answering questions with "don't save"; a program that does not obey is started anew."""
        limit = min(deadline, time.monotonic() + _DIALOG_LIMIT_S)
        for xid in xids:
            self._screen.close_window(xid)

        def closed() -> bool:
            windows = self._screen.windows()
            if not any(window.xid in xids for window in windows):
                return True
            if any(window.is_dialog and window.pid == app.program.pid for window in windows):
                self._reader.press_button(app.program.pid, _DISCARD)
            return False

        try:
            self._wait(closed, limit, f"closing windows of {app.name}")
        except DesktopError:
            self._restart(app, deadline)

    def _restart(self, app: App, deadline: float) -> None:
        self._accessibility.forget(app.program.pid)
        app.start()
        self._ready(app, deadline)

    def _wait(self, condition: Callable[[], bool], deadline: float, what: str) -> None:
        while not condition():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise DesktopError(f"waited in vain for {what}")
            self._screen.wait_for_event(min(remaining, 0.05))


def _left(deadline: float) -> float:
    return max(0.05, deadline - time.monotonic())


OUR_FAILURES = (DesktopError, CalcGone, ChromiumGone, DBusError, AppGone)
"""What the host must hear of as a broken desktop."""
