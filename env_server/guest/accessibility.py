"""Reading applications' accessibility trees over the accessibility bus, fast: level by level, all calls of a level in flight.

Walks only what is showing; closed menus and the cells of a spreadsheet are never entered. Gives plain nodes; which of them an
agent sees is decided on the host (`env_server.observation`).
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .dbus import Bus, Call, DBusError, DBusTimeout
from .roles import ROLE_NAMES, SHOWING, has_state, state_names

_REGISTRY = "org.a11y.atspi.Registry"
_ROOT = "/org/a11y/atspi/accessible/root"
_ACCESSIBLE = "org.a11y.atspi.Accessible"
_COMPONENT = "org.a11y.atspi.Component"
_TEXT = "org.a11y.atspi.Text"
_ACTION = "org.a11y.atspi.Action"
_PROPERTIES = "org.freedesktop.DBus.Properties"

_EVENTS = ("object:state-changed", "object:children-changed", "object:text-changed", "object:property-change", "window")
TEXT_ROLES = frozenset({"text", "entry", "password-text", "terminal", "document-text", "editbar", "spin-button"})
_CLOSED_UNLESS_POPUP = frozenset({"menu", "combo-box"})
_NEVER_ENTERED = frozenset({"menu-item", "separator"})
_MAX_CHILDREN = 400
"""A folder of thousands of files shows far fewer rows than this."""

Extents = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Node:
    """One accessible object."""

    path: str
    """Object path; stays while the object lives."""
    parent: int
    """Index of the parent in the same list, -1 for the root."""
    role: str
    name: str
    text: str | None
    """Content of a text field."""
    extents: Extents
    """x, y, width, height on the screen."""
    states: int

    def to_wire(self) -> list[Any]:
        """For the host."""
        return [self.path, self.parent, self.role, self.name, self.text, *self.extents, state_names(self.states)]


class AppGone(RuntimeError):
    """The application is not on the accessibility bus."""


class Accessibility:
    """One connection to the accessibility bus."""

    def __init__(self, address: str) -> None:
        self._bus = Bus(address)
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
        children = self._bus.call(Call(_REGISTRY, _ROOT, _ACCESSIBLE, "GetChildren"), timeout_s=timeout_s)[0]
        names = {}
        for name, _ in children:
            try:
                names[self._bus.pid_of(name)] = name
            except DBusError:  # gone meanwhile
                continue
        self._names = names
        if pid not in names:
            raise AppGone(f"process {pid} is not on the accessibility bus")
        return names[pid]

    def forget(self, pid: int) -> None:
        """The process is gone: its bus name means nothing any more."""
        self._names.pop(pid, None)

    def ping(self, name: str, *, timeout_s: float) -> None:
        """Wait until the application has gone once through its main loop."""
        self._bus.call(Call(name, _ROOT, _ACCESSIBLE, "GetRole"), timeout_s=timeout_s)

    def name_of(self, name: str, path: str, *, timeout_s: float = 1.0) -> str | None:
        """The object's name, None when it is gone."""
        answer = self._bus.call_all([Call(name, path, _PROPERTIES, "Get", "ss", (_ACCESSIBLE, "Name"))], timeout_s=timeout_s)[0]
        return None if isinstance(answer, DBusError) else str(answer[0])

    def do_action(self, name: str, path: str, *, timeout_s: float = 2.0) -> None:
        """Do the object's first action, as a click would."""
        self._bus.call(Call(name, path, _ACTION, "DoAction", "i", (0,)), timeout_s=timeout_s)

    def extents(self, name: str, paths: Sequence[str], *, timeout_s: float = 1.0) -> list[Extents | None]:
        """Screen rectangles; None for what is gone, and for an empty path: the bus would close the connection for it."""
        calls = [Call(name, path, _COMPONENT, "GetExtents", "u", (0,)) for path in paths if path]
        answers = iter(self._bus.call_all(calls, timeout_s=timeout_s))
        found = [next(answers) if path else None for path in paths]
        return [None if answer is None or isinstance(answer, DBusError) else answer[0] for answer in found]

    def cells_at(self, name: str, table: str, places: Sequence[tuple[int, int]], *, timeout_s: float = 1.0) -> list[str | None]:
        """Object paths of table cells at (row, column)."""
        calls = [Call(name, table, "org.a11y.atspi.Table", "GetAccessibleAt", "ii", place) for place in places]
        return [None if isinstance(r, DBusError) else r[0][1] for r in self._bus.call_all(calls, timeout_s=timeout_s)]

    def read(
        self,
        name: str,
        *,
        deadline: float,
        with_popups: bool,
        never_entered: frozenset[str] = frozenset(),
        with_text: frozenset[str] = TEXT_ROLES,
        hidden: frozenset[str] = frozenset(),
        root: str = _ROOT,
    ) -> list[Node]:
        """All showing nodes of an application in breadth-first order. Raises `DBusTimeout` past the (monotonic) deadline.

        Children of roles ``never_entered`` are not even asked for: a spreadsheet's table would count a billion cells. The content
        of roles ``with_text`` is read. Main windows with names in ``hidden`` are left out: to be covered counts as showing, too.
        """
        closed = _NEVER_ENTERED | never_entered | (frozenset() if with_popups else _CLOSED_UNLESS_POPUP)
        nodes: list[Node] = []
        level: list[tuple[str, int]] = [(root, -1)]
        while level:
            showing = self._showing(name, level, deadline, is_root=not nodes)
            details = self._details(name, [(path, role not in closed) for path, _, role, _ in showing], deadline)
            found = _without_frames(list(zip(showing, details, strict=True)), hidden)
            level = []
            for (path, parent, role, states), (children, label, extents) in found:
                nodes.append(Node(path, parent, role, label, None, extents, states))
                level += [(child, len(nodes) - 1) for child in children[:_MAX_CHILDREN]]
        return self._with_texts(name, nodes, with_text, deadline)

    def _showing(
        self, name: str, level: Sequence[tuple[str, int]], deadline: float, *, is_root: bool
    ) -> list[tuple[str, int, str, int]]:
        calls = []
        for path, _ in level:
            calls += [Call(name, path, _ACCESSIBLE, "GetState"), Call(name, path, _ACCESSIBLE, "GetRole")]
        answers = self._call_all(calls, deadline)
        found = []
        for (path, parent), state, role in zip(level, answers[::2], answers[1::2], strict=True):
            if isinstance(state, DBusError) or isinstance(role, DBusError):
                continue
            bits = sum(word << 32 * place for place, word in enumerate(state[0]))
            if has_state(bits, SHOWING) or is_root:
                found.append((path, parent, ROLE_NAMES.get(role[0], "unknown"), bits))
        return found

    def _details(self, name: str, wanted: Sequence[tuple[str, bool]], deadline: float) -> list[tuple[list[str], str, Extents]]:
        calls = []
        for path, is_entered in wanted:
            calls += [
                Call(name, path, _PROPERTIES, "Get", "ss", (_ACCESSIBLE, "Name")),
                Call(name, path, _COMPONENT, "GetExtents", "u", (0,)),
            ]
            if is_entered:
                calls.append(Call(name, path, _ACCESSIBLE, "GetChildren"))
        answers = iter(self._call_all(calls, deadline))
        found = []
        for _, is_entered in wanted:
            label, extents = next(answers), next(answers)
            children = next(answers) if is_entered else [[]]
            found.append(
                (
                    [] if isinstance(children, DBusError) else [path for owner, path in children[0] if owner == name],
                    "" if isinstance(label, DBusError) else label[0],
                    (0, 0, 0, 0) if isinstance(extents, DBusError) else extents[0],
                )
            )
        return found

    def _with_texts(self, name: str, nodes: list[Node], roles: frozenset[str], deadline: float) -> list[Node]:
        wanted = [index for index, node in enumerate(nodes) if node.role in roles]
        calls = [Call(name, nodes[index].path, _TEXT, "GetText", "ii", (0, -1)) for index in wanted]
        for index, answer in zip(wanted, self._call_all(calls, deadline), strict=True):
            if not isinstance(answer, DBusError):
                nodes[index] = replace(nodes[index], text=answer[0])
        return nodes

    def _call_all(self, calls: Sequence[Call], deadline: float) -> list[list[Any] | DBusError]:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise DBusTimeout("the tree was not read in time")
        return self._bus.call_all(calls, timeout_s=remaining)


_Found = tuple[tuple[str, int, str, int], tuple[list[str], str, Extents]]


def _without_frames(found: list[_Found], names: frozenset[str]) -> list[_Found]:
    return [item for item in found if item[0][2] != "frame" or item[1][1] not in names] if names else found
