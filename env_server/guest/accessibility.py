"""The accessibility bus: applications on it, their events, their objects' places, names and actions, and their trees.

Gives plain nodes; which of them an agent sees is decided on the host (`env_server.observation`).
"""

from __future__ import annotations

import select
from collections.abc import Sequence

from .dbus import Bus, Call, DBusError
from .tree_walk import ACCESSIBLE, COMPONENT, PROPERTIES, ROOT, Extents, Node, Reading, TreeWalk

_REGISTRY = "org.a11y.atspi.Registry"
_ACTION = "org.a11y.atspi.Action"

_EVENTS = ("object:state-changed", "object:children-changed", "object:text-changed", "object:property-change", "window")


class AppGone(RuntimeError):
    """The application is not on the accessibility bus."""


class Accessibility:
    """One connection to the accessibility bus."""

    def __init__(self, address: str) -> None:
        self._bus = Bus(address)
        self._walk = TreeWalk(self._bus)
        self._names: dict[int, str] = {}
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

    def app_of(self, pid: int, *, timeout_s: float = 1.0) -> str:
        """Bus name of the application with this process id. Raises `AppGone`."""
        if pid in self._names:
            return self._names[pid]
        children = self._bus.call(Call(_REGISTRY, ROOT, ACCESSIBLE, "GetChildren"), timeout_s=timeout_s)[0]
        names = {}
        for name, _ in children:
            try:
                names[self._bus.pid_of(name)] = name
            except DBusError:  # gone meanwhile
                continue
        for gone in set(self._names.values()) - set(names.values()):
            self._walk.forget(gone)
        self._names = names
        if pid not in names:
            raise AppGone(f"process {pid} is not on the accessibility bus")
        return names[pid]

    def forget(self, pid: int) -> None:
        """The process is gone: its bus name means nothing any more."""
        name = self._names.pop(pid, None)
        if name is not None:
            self._walk.forget(name)

    def ping(self, name: str, *, timeout_s: float) -> None:
        """Wait until the application has gone once through its main loop."""
        self._bus.call(Call(name, ROOT, ACCESSIBLE, "GetRole"), timeout_s=timeout_s)

    def name_of(self, name: str, path: str, *, timeout_s: float = 1.0) -> str | None:
        """The object's name, None when it is gone."""
        answer = self._bus.call_all([Call(name, path, PROPERTIES, "Get", "ss", (ACCESSIBLE, "Name"))], timeout_s=timeout_s)[0]
        return None if isinstance(answer, DBusError) else str(answer[0])

    def do_action(self, name: str, path: str, *, timeout_s: float = 2.0) -> None:
        """Do the object's first action, as a click would."""
        self._bus.call(Call(name, path, _ACTION, "DoAction", "i", (0,)), timeout_s=timeout_s)

    def extents(self, name: str, paths: Sequence[str], *, timeout_s: float = 1.0) -> list[Extents | None]:
        """Screen rectangles; None for what is gone, and for an empty path: the bus would close the connection for it."""
        calls = [Call(name, path, COMPONENT, "GetExtents", "u", (0,)) for path in paths if path]
        answers = iter(self._bus.call_all(calls, timeout_s=timeout_s))
        found = [next(answers) if path else None for path in paths]
        return [None if answer is None or isinstance(answer, DBusError) else answer[0] for answer in found]

    def cells_at(self, name: str, table: str, places: Sequence[tuple[int, int]], *, timeout_s: float = 1.0) -> list[str | None]:
        """Object paths of table cells at (row, column)."""
        calls = [Call(name, table, "org.a11y.atspi.Table", "GetAccessibleAt", "ii", place) for place in places]
        return [None if isinstance(r, DBusError) else r[0][1] for r in self._bus.call_all(calls, timeout_s=timeout_s)]

    def read(self, name: str, reading: Reading, *, deadline: float) -> list[Node]:
        """All showing nodes of an application in breadth-first order. Raises `DBusTimeout` past the (monotonic) deadline."""
        return self._walk.read(name, reading, deadline=deadline)
