"""The accessibility bus: applications on it, their events, their objects' places, names and actions, and their trees.

Gives plain nodes; which of them an agent sees is decided on the host (`env_server.drivers.observation`).
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from .dbus import Bus, Call, Connection, ConnectionLost, DBusError, DBusTimeout
from .roles import ROLE_NAMES
from .tree_walk import ACCESSIBLE, COMPONENT, PROPERTIES, ROOT, TEXT, Adopted, Extents, Node, Reading, TreeWalk

_REGISTRY = "org.a11y.atspi.Registry"

_APPLICATIONS = (ACCESSIBLE, "GetChildren")
_OWN_ADDRESS = ("org.a11y.atspi.Application", "GetApplicationBusAddress")

_EVENTS = ("object:state-changed", "object:children-changed", "object:text-changed", "object:property-change", "window")
_APPEARING = (b"\x06\0\0\0active\0\0\x01", b"\x07\0\0\0showing\0\x01")
"""First bytes of a signal StateChanged that says so; to decode each one would cost more than all the rest."""
NOBODY = "/org/a11y/atspi/null"
"""Path of no object."""
_TOP_LEVEL_ROLES = frozenset(
    {"window", "popup-menu", "frame", "dialog", "alert", "file-chooser", "font-chooser", "color-chooser"}
)
_MAX_ANNOUNCED = 300
"""Objects of one application that are remembered: the windows among them announce themselves last."""


class AppGone(RuntimeError):
    """The application is not on the accessibility bus."""


class Application:
    """The accessible objects of one application."""

    def __init__(self, name: str, *, bus: Bus, direct: Connection | None) -> None:
        self.name = name
        self._direct, self._connection = direct, direct or bus
        self._walk = TreeWalk(self._connection, name)
        self._adopted = Adopted()
        self._toolkit: str | None = None

    @property
    def is_lost(self) -> bool:
        """Is the connection to it of no use any more?"""
        return self._connection.is_lost

    def close(self) -> None:
        """Leave the connection to it."""
        if self._direct is not None:
            self._direct.close()

    def read(self, reading: Reading, *, deadline: float) -> list[Node]:
        """All showing nodes in breadth-first order. Raises `AppGone`, and `DBusTimeout` past the (monotonic) deadline."""
        with self._noticing_its_end():
            return self._walk.read(self._as_toolkit_does(reading), deadline=deadline, adopted=self._adopted)

    def adopt(self, announced: Sequence[str], *, timeout_s: float = 1.0) -> bool:
        """Top-level objects among those that said they show may be missing in the tree: have them read. Are there any?"""
        roles = self._roles(announced, timeout_s)
        tops = [path for path in announced if roles.get(path) in _TOP_LEVEL_ROLES]
        asked = [Call(self.name, path, PROPERTIES, "Get", "ss", (ACCESSIBLE, "Parent"), "v") for path in tops]
        above = [None if isinstance(answer, DBusError) else _path_of(answer[0]) for answer in self._ask(asked, timeout_s)]
        parents = {path: parent for path, parent in zip(tops, above, strict=True) if parent}
        others = sorted(set(parents.values()) - {ROOT, NOBODY})
        roots = {path for path, role in self._roles(others, timeout_s).items() if role == "application"}
        before = self._adopted
        orphans = [path for path, parent in parents.items() if parent in (ROOT, NOBODY)]
        self._adopted = before.with_more(roots=roots, orphans=orphans)
        return self._adopted != before

    def _roles(self, paths: Sequence[str], timeout_s: float) -> dict[str, str]:
        answers = self._ask([Call(self.name, path, ACCESSIBLE, "GetRole", returns="u") for path in paths], timeout_s)
        found = zip(paths, answers, strict=True)
        return {path: ROLE_NAMES.get(answer[0], "") for path, answer in found if not isinstance(answer, DBusError)}

    def _as_toolkit_does(self, reading: Reading) -> Reading:
        """The reading, with the habits of the toolkit that the application is built with."""
        if self._toolkit is None:
            asked = Call(self.name, ROOT, PROPERTIES, "Get", "ss", ("org.a11y.atspi.Application", "ToolkitName"), "v")
            answer = self._ask([asked], 1.0)[0]
            self._toolkit = "" if isinstance(answer, DBusError) else str(answer[0])
        return replace(
            reading,
            with_popups=reading.with_popups or self._toolkit == "Chromium",  # a page draws its menus within itself
            items_hold_menus=self._toolkit == "Qt",
            items_never_show=self._toolkit == "GAIL",
        )

    def name_of(self, path: str, *, timeout_s: float = 1.0) -> str | None:
        """The object's name, None when it is gone."""
        answer = self._ask([Call(self.name, path, PROPERTIES, "Get", "ss", (ACCESSIBLE, "Name"), "v")], timeout_s)[0]
        return None if isinstance(answer, DBusError) else str(answer[0])

    def press(self, path: str, *, timeout_s: float = 2.0) -> None:
        """Do the object's first action, as a click would."""
        answer = self._ask([Call(self.name, path, "org.a11y.atspi.Action", "DoAction", "i", (0,))], timeout_s)[0]
        if isinstance(answer, DBusError):
            raise answer

    def focus(self, path: str, *, timeout_s: float = 2.0) -> None:
        """Give the keyboard to the object within its window."""
        answer = self._ask([Call(self.name, path, COMPONENT, "GrabFocus")], timeout_s)[0]
        if isinstance(answer, DBusError):
            raise answer

    def select_row(self, path: str, row: int, *, timeout_s: float = 2.0) -> None:
        """Select a row of the table besides those that are."""
        answer = self._ask([Call(self.name, path, "org.a11y.atspi.Table", "AddRowSelection", "i", (row,))], timeout_s)[0]
        if isinstance(answer, DBusError):
            raise answer

    def has_selection(self, path: str, *, timeout_s: float = 2.0) -> bool:
        """Is some of the object's text selected?"""
        answer = self._ask([Call(self.name, path, TEXT, "GetNSelections", returns="i")], timeout_s)[0]
        return not isinstance(answer, DBusError) and answer[0] > 0

    def num_children(self, path: str, *, timeout_s: float = 1.0) -> int | None:
        """How many children the object has, None when it is gone."""
        answer = self._ask([Call(self.name, path, ACCESSIBLE, "GetChildren", returns="a(so)")], timeout_s)[0]
        return None if isinstance(answer, DBusError) else len(answer[0])

    def extents(self, paths: Sequence[str], *, timeout_s: float = 1.0) -> list[Extents | None]:
        """Screen rectangles; None for what is gone, and for an empty path: the connection would be closed for it."""
        calls = [Call(self.name, path, COMPONENT, "GetExtents", "u", (0,), "(iiii)") for path in paths if path]
        answers = iter(self._ask(calls, timeout_s))
        found = [next(answers) if path else None for path in paths]
        return [None if answer is None or isinstance(answer, DBusError) else answer[0] for answer in found]

    def cells_at(self, table: str, places: Sequence[tuple[int, int]], *, timeout_s: float = 1.0) -> list[str | None]:
        """Object paths of table cells at (row, column)."""
        calls = [Call(self.name, table, "org.a11y.atspi.Table", "GetAccessibleAt", "ii", place, "(so)") for place in places]
        return [None if isinstance(answer, DBusError) else answer[0][1] for answer in self._ask(calls, timeout_s)]

    def row_names(self, table: str, num_rows: int, *, timeout_s: float = 1.0) -> list[str]:
        """Names in the first column, whose cells hold a picture and the name, of so many rows; empty where that is missing."""
        cells = self.cells_at(table, [(row, 0) for row in range(num_rows)], timeout_s=timeout_s)
        calls = [Call(self.name, path, ACCESSIBLE, "GetChildAtIndex", "i", (1,)) for path in cells if path]
        found = [answer[0][1] for answer in self._ask(calls, timeout_s) if not isinstance(answer, DBusError)]
        names = self._ask([Call(self.name, path, PROPERTIES, "Get", "ss", (ACCESSIBLE, "Name")) for path in found], timeout_s)
        return ["" if isinstance(answer, DBusError) else str(answer[0]) for answer in names]

    def _ask(self, calls: Sequence[Call], timeout_s: float) -> list[list[Any] | DBusError]:
        with self._noticing_its_end():
            return self._connection.call_all(calls, timeout_s=timeout_s)

    @contextmanager
    def _noticing_its_end(self) -> Iterator[None]:
        try:
            yield
        except ConnectionLost as error:
            if self._direct is None:
                raise  # the bus itself, which all of the desktop needs
            raise AppGone(f"{self.name} has ended: {error}") from error


class Accessibility:
    """One connection to the accessibility bus, and one to each application that was asked for."""

    def __init__(self, address: str) -> None:
        self._bus = Bus(address)
        self._apps: dict[int, Application] = {}
        self._announced: dict[str, dict[str, None]] = {}
        """Application's bus name -> objects that it said show, the latest last."""
        self.num_events = 0
        for interface in ("Object", "Window", "Document"):
            self._bus.add_match(f"type='signal',interface='org.a11y.atspi.Event.{interface}'")
        for event in _EVENTS:
            self._bus.call(Call(_REGISTRY, "/org/a11y/atspi/registry", _REGISTRY, "RegisterEvent", "sass", (event, (), "")))

    def fileno(self) -> int:
        """For poll."""
        return self._bus.fileno()

    def pump(self) -> int:
        """Take what has arrived; gives how many events that were."""
        num_events = self._bus.pump()
        for signal in self._bus.signals:
            if signal.member == "Create" or (signal.member == "StateChanged" and signal.body.startswith(_APPEARING)):
                self._note(signal.sender, signal.path)
        self._bus.signals.clear()
        self.num_events += num_events
        return num_events

    def _note(self, sender: str, path: str) -> None:
        known = self._announced.setdefault(sender, {})
        known.pop(path, None)
        known[path] = None
        if len(known) > _MAX_ANNOUNCED:
            del known[next(iter(known))]

    def adopt_announced(self, app: Application) -> bool:
        """Look for windows of the application that its tree lacks, among what showed itself since. Are there any?"""
        self.pump()
        announced = self._announced.pop(app.name, {})
        return bool(announced) and app.adopt(list(announced))

    def wait_for_event(self, timeout_s: float, *, since: int) -> None:
        """Wait until `num_events` is more than ``since``."""
        self.pump()
        if self.num_events == since:
            select.select([self.fileno()], [], [], timeout_s)
            self.pump()

    def app_of(self, pid: int, *, deadline: float) -> Application:
        """The application with this process id. Raises `AppGone`, and `DBusTimeout` past the (monotonic) deadline."""
        app = self._apps.get(pid)
        if app is None or app.is_lost:
            self.forget(pid)
            app = self._apps[pid] = self._find(pid, deadline)
        return app

    def _find(self, pid: int, deadline: float) -> Application:
        names = [name for name, _ in self._call(_REGISTRY, _APPLICATIONS, deadline, returns="a(so)")]
        for gone in [other for other, app in self._apps.items() if app.name not in names]:
            self.forget(gone)
        self._announced = {name: paths for name, paths in self._announced.items() if name in names}
        for name in names:
            try:
                is_wanted = self._bus.pid_of(name) == pid
            except DBusError:  # gone meanwhile
                continue
            if is_wanted:
                return Application(name, bus=self._bus, direct=self._direct(name, deadline))
        raise AppGone(f"process {pid} is not on the accessibility bus")

    def forget(self, pid: int) -> None:
        """The process is gone: its objects mean nothing any more."""
        app = self._apps.pop(pid, None)
        if app is not None:
            app.close()

    def _direct(self, name: str, deadline: float) -> Connection | None:
        """A connection straight to the application, where it offers one: to pass through the bus takes a third of the time."""
        try:
            address = self._call(name, _OWN_ADDRESS, deadline, returns="s")
            return Connection(address, timeout_s=max(0.05, deadline - time.monotonic())) if address else None
        except DBusTimeout:
            raise
        except DBusError:  # Qt's applications offer none
            return None

    def _call(self, name: str, method: tuple[str, str], deadline: float, *, returns: str) -> Any:
        call = Call(name, ROOT, *method, returns=returns)
        return self._bus.call(call, timeout_s=max(0.05, deadline - time.monotonic()))[0]


def _path_of(reference: Any) -> str | None:
    """The object's path in (application, path); None for anything else that an application may give for one."""
    is_one = isinstance(reference, tuple) and len(reference) == 2 and isinstance(reference[1], str)
    return reference[1] if is_one else None
