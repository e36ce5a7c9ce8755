"""One desktop as a whole: which application is in front, set-up of tasks, actions, observations, facts for evaluators.

Every method has a deadline. `Refused` is the agent's mistake, `TaskError` the task's; everything else that goes wrong here
is ours and breaks the desktop.
"""

from __future__ import annotations

import contextlib
import math
import select
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import processes
from .apps import catalog
from .apps.browser import Browser
from .apps.on_demand import Surroundings
from .faults import DesktopError, Refused, TaskError
from .files import fingerprint, home
from .files.file_tools import FileTools
from .files.folder import AgentFolder, FileActionError
from .files.leftovers import WritableFolders
from .gtk_apps import Editor, Files
from .office.calc.sheet import Calc
from .office.documents import Documents, OfficeApp
from .office.process import DocumentError, Office, OfficeGone
from .openers import Openers
from .osworld import OsworldCalls
from .reading.reader import TreeReader
from .reading.tree_walk import Node, to_wire
from .screen.chords import UnknownKey
from .screen.display import DisplayGone, Window
from .screen.gui import Gui
from .screen.settle import Settled
from .screen.windows import APP_FAILURES, App, NotInFront, Windows, left
from .session import FRAME_NAME, Places, Session
from .web.chromium import Chromium, PageError
from .wire import Wire

_NO_SETTLING = Settled("none", 0.0)
_FRONT_LIMIT_S = 2.0
_SHOW_LIMIT_S = 8.0
"""For a window to come to the front. At a reset its application is started anew after that; an action is refused."""
_TAKE_LIMIT_S = 3.0
"""For an application to take the keys that were pressed before, when a judge asks what it has made of them."""
_OSWORLD_READ_LIMIT_S = 5.0
_CALM_AT_RESET = 2.0
_CALM_OF_OWN_KEYS = 5.0
_OFFICE = frozenset({"calc", "writer", "impress"})
_FILE_FACTS = frozenset({"file_bytes", "file_text", "folder_listing"})
_FACTS_OF_APPS = _FILE_FACTS | {"calc_cells", "editor_text"}


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
        self._session, self._places = session, places
        self._writable = WritableFolders()
        self._screen = session.screen
        self._accessibility = session.accessibility
        self._size = (width, height)
        self._settle_deadline_s = settle_deadline_s
        self._may_lag = False
        """The last action's waiting ended before the application had taken its keys, or the screen was quiet."""
        self.folder = AgentFolder(places.agent)
        own_env = {**session.env, "HOME": str(places.home)}  # nothing of this browser's is the user's
        self._chromium = Chromium(env=own_env, log_folder=places.logs, width=width, height=height, pages=pages)
        office = Office(env=session.env, log_folder=places.logs)
        self._calc = Calc(office, folder=places.agent)
        self._documents = Documents(office, self._calc, folder=self.folder)
        office_apps: dict[str, Calc | OfficeApp] = {
            "calc": self._calc,
            "writer": OfficeApp("writer", office),
            "impress": OfficeApp("impress", office),
        }
        self._editor = Editor(env=session.env, log_folder=places.logs, bus=session.bus)
        self._files = Files(env=session.env, log_folder=places.logs, folder=places.agent, bus=session.bus)
        around = Surroundings(
            env=session.env,
            log_folder=places.logs,
            private=places.home / "apps",
            folder=self.folder,
            wait=self._wait,
            titles=self._titles_of,
            press=self._press_in,
            screen_size=(width, height),
        )
        on_demand = {app.name: app for app in catalog.make_apps(around)}
        browser = on_demand["browser"]
        assert isinstance(browser, Browser)
        apps: tuple[App, ...] = (self._chromium, *office_apps.values(), self._editor, self._files, *on_demand.values())
        self._apps: dict[str, App] = {app.name: app for app in apps}
        self._reader = TreeReader(self._screen, self._accessibility, self._calc, web_scale=self._chromium.scale)
        self._windows = Windows(session, apps, self._reader, browser=self._chromium, settle_quiet_s=settle_quiet_s)
        self._openers = Openers(
            session,
            self._windows,
            self._reader,
            self.folder,
            chromium=self._chromium,
            calc=self._calc,
            documents=self._documents,
            office_apps=office_apps,
            editor=self._editor,
            files=self._files,
            on_demand=on_demand,
        )
        self._osworld = OsworldCalls(
            session,
            folder=places.agent,
            show=self._show_for_osworld,
            open_terminal=self._openers.open_terminal,
            quit_app=lambda name: on_demand[name].quit(),
            end_programs=self._openers.close_on_demand,
            flush=self._flush,
            read_tree=self._nodes_in_front,
            browser=browser,
            settle=lambda limit_s: self._windows.settle_within(deadline_s=limit_s, calm=_CALM_OF_OWN_KEYS),
        )
        self._gui = Gui(self._screen, self._windows, locked=self._chromium, open_terminal=self._open_terminal)
        self._file_tools = FileTools(self.folder)
        self._finishes_itself = False
        self._front = ""
        """Application that was last seen in front."""

    # --- starting ---

    def start(self, names: Sequence[str], *, deadline: float) -> None:
        """Start these applications side by side and wait until each can be used."""
        home.renew(self.folder)
        apps = [self._apps[name] for name in names]
        for app in apps:
            app.start()
        for app in apps:
            self._windows.ready_though_it_dies(app, deadline)
        processes.keep_services(self._session.programs)
        self._screen.note()
        self._openers.note()

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

    def reset(self, setup: list[Mapping[str, Any]], *, deadline: float, with_tree: bool = True) -> Settled:
        """Remove all traces of the last task, do the set-up steps in order, wait until the last one's window is on screen.

        ``with_tree``: its tree will be observed."""
        # First of all: what runs wild leaves no processor time for anything else.
        has_run, ran_programs = self._osworld.end()
        ran_programs |= processes.end_strays()
        self._gui.let_go()
        self._screen.move(self._size[0] - 1, self._size[1] - 1)
        ran_programs |= self._openers.close_on_demand(deadline)
        self._writable.open_up([*self._openers.profiles(), *processes.log_files()], home=self.folder.root)
        if has_run or ran_programs:
            self._put_back_session()
        self._screen.put_back(programs=processes.living() if has_run or ran_programs else None)
        self._windows.dismiss_popups()
        if self._windows.front_app() is self._calc:
            self._screen.press_chord("esc")  # a half-typed cell would end up in the next sheet
        self._windows.close_dialogs(deadline)
        self._windows.restart_misplaced(deadline)
        self._prepare(setup, deadline, ran_programs=ran_programs)
        try:
            return self._show(deadline, patience_s=_SHOW_LIMIT_S, with_tree=with_tree)
        except NotInFront:
            # It died under our hands, or another window of it does not let go of the focus.
            app = self._apps[self._open[-1]]
            self._openers.close_on_demand(deadline)
            if app.program.running:
                self._windows.restart(app, deadline)
                self._openers.note()
        self._prepare(setup, deadline)
        return self._show(deadline, with_tree=with_tree)

    @property
    def _open(self) -> list[str]:
        return self._openers.open

    def _put_back_session(self) -> None:
        """Programs of an agent's have run, which can do more than mouse and keyboard."""
        if processes.have_services_changed():
            raise DesktopError("a service of the session has ended, or no longer runs as it did")
        self._session.put_back()

    def _prepare(self, setup: list[Mapping[str, Any]], deadline: float, *, ran_programs: bool = False) -> None:
        self._openers.forget(deadline, ran_programs=ran_programs)
        self._remove_leftovers()
        for step in setup:
            self._set_up(str(step["kind"]), dict(step["args"]), deadline)
        self._openers.note()
        self._finishes_itself = self._open == ["chromium"]
        self._reader.forget()

    def _fingerprint(self) -> dict[str, dict[str, str]]:
        own = [*self._openers.kept(), *self._own_files(), self._chromium.folder]
        return fingerprint.take(session=self._session, home=self.folder.root, own=own)

    def _remove_leftovers(self) -> None:
        kept = self._openers.kept()
        home.renew(self.folder, keep=kept)
        self._writable.wipe(folders=[*kept, self.folder.root], files=[*kept, *self._own_files()])

    def _own_files(self) -> list[Path]:
        return [*processes.log_files(), self._places.frame / FRAME_NAME]

    def _show(self, deadline: float, *, with_tree: bool, patience_s: float = math.inf) -> Settled:
        """Bring what was opened last to the front. Raises `NotInFront` when it does not come, or goes again."""
        if not self._open:
            return self._settle_fully()
        app = self._apps[self._open[-1]]
        self._windows.bring_to_front(app, deadline, patience_s=patience_s)
        if app.name in _OFFICE:
            self._documents.focus(app.name, timeout_s=left(deadline))
        if app is self._files:
            self._openers.select_first_file(deadline)
        # Not the others: asked for its tree, the file manager announces names of buttons; the browser is still building its own.
        may_read_ahead = app.name in _OFFICE or app is self._editor
        settled = self._settle_fully(read_by=deadline if with_tree and may_read_ahead else None)
        window, front_app = self._windows.front()
        if front_app is not app:
            raise self._windows.not_in_front(f"{app.name} did not stay in front")
        if window is not None and not window.is_dialog and not self._screen.fills_screen(window.xid):
            raise self._windows.not_in_front(f"{app.name} did not fill the screen")
        return settled

    def _settle_fully(self, *, read_by: float | None = None) -> Settled:
        """``read_by``: deadline of a reading of the tree meanwhile. It is the one observed if nothing changes afterwards."""
        # The same task must begin with the same picture, and the office paints its toolbars only once it has nothing else to do.
        return self._windows.settle_within(
            deadline_s=self._settle_deadline_s,
            calm=_CALM_AT_RESET,
            meanwhile=None if read_by is None else lambda: self._read_ahead(read_by),
        )

    def _read_ahead(self, deadline: float) -> None:
        window, app = self._windows.front()
        if window is not None:
            with contextlib.suppress(*APP_FAILURES):  # told by the reading that is observed, if it fails as well
                self._read(window, app, deadline=deadline)

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
            elif self._openers.knows(kind):
                self._openers.step(kind, args, deadline)
            else:
                raise TaskError(f"unknown set-up step {kind!r}")
        except (FileActionError, PageError, DocumentError, Refused, KeyError) as error:
            raise TaskError(f"{kind}: {error}") from error

    def _show_for_osworld(self, app: str, paths: Sequence[str], deadline: float) -> None:
        names = [self._openers.open_with(app, path, deadline) for path in paths] or [self._openers.open_app(app, deadline)]
        self._windows.bring_to_front(self._apps[names[-1]], deadline)

    def _flush(self, deadline: float) -> None:
        """What was set in the office is in its files, also where nobody has saved a document."""
        if _OFFICE.intersection(self._open) and self._calc.program.running:
            with contextlib.suppress(OfficeGone):  # what an office that hangs, or is just ending, has not written is not kept
                self._documents.flush(timeout_s=left(deadline))

    def _nodes_in_front(self) -> list[Node]:
        window, app = self._windows.front()
        if window is None or app is None:
            return []
        return self._read(window, app, deadline=time.monotonic() + _OSWORLD_READ_LIMIT_S)[0]

    def _read(self, window: Window, app: App | None, *, deadline: float) -> tuple[list[Node], float]:
        name = app.name if app else ""
        is_warm = bool(name) and name not in catalog.NAMES
        # While a page asks something in a dialog, it answers nothing.
        page = app if isinstance(app, Chromium | Browser) and not window.is_dialog else None
        return self._reader.read(
            name,
            window.pid,
            deadline=deadline,
            is_warm=is_warm,
            frame_mark=self._chromium.frame_mark,
            is_mark_sure=self._chromium.is_web_task,
            page=page,
        )

    # --- actions ---

    def act(self, name: str, args: Mapping[str, Any], *, deadline: float) -> str:
        """Do one action; gives what an API call returned. Raises `Refused`."""
        try:
            if "." in name:
                return self._call_api(name, args, deadline)
            if self._front == self._files.name and name != "wait":
                self._openers.remembering.add(self._front)  # what was done by mouse and keyboard can be undone there
            return self._gui.act(name, args)
        except (FileActionError, DocumentError, UnknownKey, NotInFront) as error:
            raise Refused(str(error)) from error  # what an agent has opened may hold the focus; the desktop is whole

    def _call_api(self, name: str, args: Mapping[str, Any], deadline: float) -> str:
        area, _, method = name.partition(".")
        # Without room for a thread, applications end in the middle of a call, and the office's library ends this process.
        if (area != "files" or method == "open") and processes.are_used_up():
            raise Refused("your programs use up the processes that this desktop may have: end some of them")
        if name == "files.open":
            return self._open_and_show(self._openers.open_path(args["path"], deadline), deadline)
        if area == "files":
            return self._use_files(method, args)
        if area in _OFFICE:
            self._require_open(self._apps[area])
            return self._documents.use_tool(area, method, args, timeout_s=left(deadline))
        if area in catalog.AREAS:
            return self._use_on_demand(area, method, args, deadline)
        if name == "editor.save":
            self._raise(self._require_open(self._editor), deadline)
            self._screen.press_chord("ctrl+s")
            return ""
        if name == "apps.switch":
            return self._switch(str(args["app"]), deadline)
        if name == "apps.list":
            return self._list_windows()
        if name == "apps.open":
            return self._open_and_show(self._openers.open_app(args["app"], deadline), deadline)
        raise Refused(f"unknown action {name!r}")

    def _use_files(self, method: str, args: Mapping[str, Any]) -> str:
        try:
            return str(getattr(self._file_tools, method)(**args) or "")
        except DisplayGone:
            raise
        except OSError as error:  # no permission, name too long, disk full
            raise Refused(f"{error.strerror or error}") from error

    def _use_on_demand(self, area: str, method: str, args: Mapping[str, Any], deadline: float) -> str:
        before = list(self._open)
        result = self._openers.use_tool(area, method, args, deadline)
        name = catalog.AREAS[area]
        if name in self._open and (name not in before or area == "chrome"):
            self._raise(self._apps[name], deadline)
        return result

    def _open_terminal(self) -> bool:
        """The desktop's own shortcut; False where there is no terminal to open."""
        if not self._openers.has_terminal():
            return False
        self._openers.open_terminal(self.folder.root, time.monotonic() + _SHOW_LIMIT_S)
        return True

    def _open_and_show(self, name: str, deadline: float) -> str:
        self._raise(self._apps[name], deadline)
        return f"opened with {name}"

    def _raise(self, app: App, deadline: float) -> None:
        """Bring an application to the front for the agent, or the dialog that holds its focus. Raises `NotInFront`."""
        self._windows.bring_to_front(app, deadline, patience_s=_SHOW_LIMIT_S, dialog_counts=True)

    def _press_in(self, name: str, keys: str) -> None:
        self._windows.bring_to_front(self._apps[name], time.monotonic() + _FRONT_LIMIT_S)
        self._screen.press_chord(keys)
        self.settle()

    def _wait(self, condition: Callable[[], bool], deadline: float, what: str) -> None:
        self._windows.wait(condition, deadline, what)

    def _titles_of(self, name: str) -> list[str]:
        return [window.title for window in self._windows.of(self._apps[name])]

    def _switch(self, wanted: str, deadline: float) -> str:
        try:
            name = self._openers.name_of(wanted)
        except Refused:
            name = wanted
        if name not in self._open:
            raise Refused(f"{wanted!r} is not open; open: {', '.join(self._open)}")
        if not self._windows.of(self._apps[name]):
            raise Refused(f"{name} has no window any more: apps.open opens one")
        self._raise(self._apps[name], deadline)
        return ""

    def _list_windows(self) -> str:
        front = self._windows.front()[0]
        shown = [(name, window) for name in self._open for window in self._windows.of(self._apps[name])]
        return "\n".join(
            f"{name}: {window.title}{' (in front)' if front and window.xid == front.xid else ''}" for name, window in shown
        )

    def _require_open(self, app: App) -> App:
        if app.name not in self._open:
            raise Refused(f"{app.name} is not open")
        return app

    # --- observing ---

    def settle(self) -> Settled:
        """Wait until the last action's effects are on screen."""
        settled = self._windows.settle_within(deadline_s=self._settle_deadline_s)
        self._may_lag = settled.by == "deadline"
        return settled

    def observe(
        self, settled: Settled = _NO_SETTLING, *, deadline: float, with_tree: bool = True, known_tree: int = 0
    ) -> dict[str, Any]:
        """What is on screen, for the host; nodes are left out when they are those of ``known_tree``, which it has."""
        window, app = self._windows.front()
        nodes: list[Node] = []
        age_s, tree = 0.0, 0
        if with_tree and window is not None:
            # One that is on its way to the bus, or just ending, has none: a warm one that stays away is noticed at its next use.
            nodes, age_s = self._read(window, app, deadline=deadline)
            tree = self._reader.serial
        self._front = app.name if app else ""
        if app is self._editor and self._screen.clipboard_owner() == app.program.pid:
            self._openers.remembering.add(app.name)  # it offers every text that was copied from it
        self._screen.pump()  # what was painted while the tree was read counts for the picture
        return {
            "app": app.name if app else "",
            "title": window.title if window else "",
            "tree": tree,
            "nodes": None if tree and tree == known_tree else to_wire(nodes),
            "picture": self._screen.num_damages,
            "settled_by": settled.by,
            "settle_s": settled.duration_s,
            "tree_age_s": age_s,
            "finished": self._finished(deadline),
        }

    def _finished(self, deadline: float) -> bool:
        return self._finishes_itself and self._chromium.has_scored(timeout_s=left(deadline))

    def get(self, kind: str, args: Mapping[str, Any], *, deadline: float) -> Any:
        """One fact for an evaluator. What the agent still holds down is released: whoever judges may press keys, too."""
        self._gui.let_go()
        is_office_file = kind in _FILE_FACTS and bool(_OFFICE.intersection(self._open))
        if is_office_file or (kind in _FACTS_OF_APPS and self._may_lag):
            self._windows.settle_within(deadline_s=min(left(deadline), _TAKE_LIMIT_S))
            self._may_lag = False
        if is_office_file:
            self._documents.finish(timeout_s=left(deadline))
        facts: dict[str, Callable[[], Any]] = {
            "web_page": lambda: self._chromium.state(timeout_s=left(deadline)),
            "web_shapes": lambda: self._chromium.shapes(timeout_s=left(deadline)),
            "web_result": lambda: self._chromium.result(timeout_s=left(deadline)),
            "calc_cells": lambda: self._calc.read(args["range"], timeout_s=left(deadline)),
            "osworld": lambda: self._osworld.call(
                str(args["call"]), {key: args[key] for key in args if key != "call"}, deadline=deadline
            ),
            "file_bytes": lambda: self.folder.bytes_or_none(args["path"]),
            "file_text": lambda: self.folder.text_or_none(args["path"]),
            "folder_listing": lambda: self.folder.listing(args.get("path") or "."),
            "editor_text": lambda: self._reader.text_of(self._require_open(self._editor).program.pid),
            "fingerprint": self._fingerprint,
        }
        if kind not in facts:
            raise TaskError(f"unknown fact {kind!r}")
        try:
            return facts[kind]()
        except (FileActionError, PageError, DocumentError, KeyError, Refused) as error:
            raise TaskError(f"{kind}: {error}") from error
