"""The accessibility bus: applications on it, their events, their objects' places, names and actions, and their trees.

Gives plain nodes; which of them an agent sees is decided on the host (`env_server.observation`).
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .dbus import Bus, Call, Connection, ConnectionLost, DBusError, DBusTimeout
from .tree_walk import ACCESSIBLE, COMPONENT, PROPERTIES, ROOT, TEXT, Extents, Node, Reading, TreeWalk

_REGISTRY = "org.a11y.atspi.Registry"

_APPLICATIONS = (ACCESSIBLE, "GetChildren")
_OWN_ADDRESS = ("org.a11y.atspi.Application", "GetApplicationBusAddress")

_EVENTS = ("object:state-changed", "object:children-changed", "object:text-changed", "object:property-change", "window")


class AppGone(RuntimeError):
    """The application is not on the accessibility bus."""


class Application:
    """The accessible objects of one application."""

    def __init__(self, name: str, *, bus: Bus, direct: Connection | None) -> None:
        self.name = name
        self._direct, self._connection = direct, direct or bus
        self._walk = TreeWalk(self._connection, name)

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
            return self._walk.read(reading, deadline=deadline)

    def name_of(self, path: str, *, timeout_s: float = 1.0) -> str | None:
        """The object's name, None when it is gone."""
        answer = self._ask([Call(self.name, path, PROPERTIES, "Get", "ss", (ACCESSIBLE, "Name"))], timeout_s)[0]
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

    def has_selection(self, path: str, *, timeout_s: float = 2.0) -> bool:
        """Is some of the object's text selected?"""
        answer = self._ask([Call(self.name, path, TEXT, "GetNSelections")], timeout_s)[0]
        return not isinstance(answer, DBusError) and answer[0] > 0

    def num_children(self, path: str, *, timeout_s: float = 1.0) -> int | None:
        """How many children the object has, None when it is gone."""
        answer = self._ask([Call(self.name, path, ACCESSIBLE, "GetChildren")], timeout_s)[0]
        return None if isinstance(answer, DBusError) else len(answer[0])

    def extents(self, paths: Sequence[str], *, timeout_s: float = 1.0) -> list[Extents | None]:
        """Screen rectangles; None for what is gone, and for an empty path: the connection would be closed for it."""
        calls = [Call(self.name, path, COMPONENT, "GetExtents", "u", (0,)) for path in paths if path]
        answers = iter(self._ask(calls, timeout_s))
        found = [next(answers) if path else None for path in paths]
        return [None if answer is None or isinstance(answer, DBusError) else answer[0] for answer in found]

    def cells_at(self, table: str, places: Sequence[tuple[int, int]], *, timeout_s: float = 1.0) -> list[str | None]:
        """Object paths of table cells at (row, column)."""
        calls = [Call(self.name, table, "org.a11y.atspi.Table", "GetAccessibleAt", "ii", place) for place in places]
        return [None if isinstance(answer, DBusError) else answer[0][1] for answer in self._ask(calls, timeout_s)]

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
        self._bus.signals.clear()
        self.num_events += num_events
        return num_events

    def wait_for_event(self, timeout_s: float) -> None:
        """Wait until an application says something, and take it in."""
        select.select([self.fileno()], [], [], timeout_s)
        self.pump()

    def app_of(self, pid: int, *, deadline: float) -> Application:
        """The application with this process id. Raises `AppGone`, and `DBusTimeout` past the (monotonic) deadline."""
        known = self._apps.get(pid)
        if known is not None and not known.is_lost:
            return known
        self.forget(pid)
        names = [name for name, _ in self._call(_REGISTRY, _APPLICATIONS, deadline)]
        for gone in [other for other, app in self._apps.items() if app.name not in names]:
            self.forget(gone)
        for name in names:
            try:
                is_wanted = self._bus.pid_of(name) == pid
            except DBusError:  # gone meanwhile
                continue
            if is_wanted:
                self._apps[pid] = Application(name, bus=self._bus, direct=self._direct(name, deadline))
                return self._apps[pid]
        raise AppGone(f"process {pid} is not on the accessibility bus")

    def forget(self, pid: int) -> None:
        """The process is gone: its objects mean nothing any more."""
        app = self._apps.pop(pid, None)
        if app is not None:
            app.close()

    def _direct(self, name: str, deadline: float) -> Connection | None:
        """A connection straight to the application, where it offers one: to pass through the bus takes a third of the time."""
        try:
            address = self._call(name, _OWN_ADDRESS, deadline)
            return Connection(address, timeout_s=max(0.05, deadline - time.monotonic())) if address else None
        except DBusTimeout:
            raise
        except DBusError:  # Qt's applications offer none
            return None

    def _call(self, name: str, method: tuple[str, str], deadline: float) -> Any:
        return self._bus.call(Call(name, ROOT, *method), timeout_s=max(0.05, deadline - time.monotonic()))[0]
