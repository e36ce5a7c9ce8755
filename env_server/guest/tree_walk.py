"""Reading an application's accessibility tree fast: all that it showed last time is asked about at once, the rest level by level.

Only where to look is remembered. Every role, state, name, place, text and list of children is read anew: applications do not
announce all changes by events, and their own list of all objects lacks many that show (`computerrl bench accessibility`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .dbus import Call, Connection, DBusError, DBusTimeout
from .roles import ROLE_NAMES, SHOWING, has_state, state_names

ROOT = "/org/a11y/atspi/accessible/root"
ACCESSIBLE = "org.a11y.atspi.Accessible"
COMPONENT = "org.a11y.atspi.Component"
TEXT = "org.a11y.atspi.Text"
PROPERTIES = "org.freedesktop.DBus.Properties"

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


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read of an application's tree."""

    with_popups: bool = False
    """Enter menus and lists that may be open."""
    never_entered: frozenset[str] = frozenset()
    """Roles whose children are not even asked for: a spreadsheet's table would count a billion cells."""
    with_text: frozenset[str] = TEXT_ROLES
    """Roles whose content is read."""
    hidden: frozenset[str] = frozenset()
    """Names of main windows that are left out: to be covered counts as showing, too."""

    def asks(self, role: str) -> tuple[bool, bool]:
        """Are the children and the content of objects with this role read?"""
        is_closed = not self.with_popups and role in _CLOSED_UNLESS_POPUP
        return not is_closed and role not in _NEVER_ENTERED and role not in self.never_entered, role in self.with_text


@dataclass(frozen=True, slots=True)
class _Details:
    """What is only asked of an object that shows."""

    name: str
    extents: Extents
    children: Sequence[str]
    text: str | None


@dataclass(slots=True)
class _Object:
    states: int
    role: str
    details: _Details | None = None


class TreeWalk:
    """Reads the tree of the application with this bus name."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection, self._name = connection, name
        self._last = Reading()
        self._met: dict[str, str] = {}
        """The objects of the last reading; their roles, empty for those that did not show."""

    def read(self, reading: Reading, *, deadline: float) -> list[Node]:
        """All showing nodes in breadth-first order. Raises `DBusTimeout` past the (monotonic) deadline."""
        objects = self._look_again(reading, deadline)
        nodes: list[Node] = []
        met: dict[str, str] = {}
        listed = {ROOT}
        level = [(ROOT, -1)]
        while level:
            self._look([path for path, _ in level if path not in objects], objects, deadline)
            showing = [item for item in level if item[0] in objects and (_shows(objects[item[0]]) or item[1] < 0)]
            self._ask_details([path for path, _ in showing if objects[path].details is None], objects, reading, deadline)
            met |= {path: "" for path, _ in level if path in objects}
            level = []
            for path, parent in showing:
                found = objects[path]
                details = found.details
                assert details is not None
                met[path] = found.role
                if found.role == "frame" and details.name in reading.hidden:
                    continue
                nodes.append(Node(path, parent, found.role, details.name, details.text, details.extents, found.states))
                for child in details.children:
                    if child not in listed:  # an object that moves may be two others' child for a moment
                        listed.add(child)
                        level.append((child, len(nodes) - 1))
        self._last, self._met = reading, met
        return nodes

    def _look_again(self, reading: Reading, deadline: float) -> dict[str, _Object]:
        """All that is to be known of the objects of the last reading, in one go; without those that are gone."""
        name = self._name
        # What is asked otherwise now has to be met first: the sheet behind a letter would count its cells.
        met = {path: role if self._last.asks(role) == reading.asks(role) else "" for path, role in self._met.items()}
        calls: list[Call] = []
        for path, role in met.items():
            calls.append(Call(name, path, ACCESSIBLE, "GetState"))
            if role:
                calls += [Call(name, path, ACCESSIBLE, "GetRole"), *_detail_calls(name, path, role, reading)]
        answers = iter(self._call_all(calls, deadline))
        objects: dict[str, _Object] = {}
        for path, role in met.items():
            if role:
                found = _object(next(answers), next(answers))
                details = _take_details(name, answers, role, reading)
                if found is not None:
                    # With another role, other things would have been asked: they are asked again.
                    found.details = details if found.role == role else None
            else:
                found = _object(next(answers), [0])
                if found is not None and _shows(found):
                    continue  # not met as it is now: its role is asked for as that of a new one
            if found is not None:
                objects[path] = found
        return objects

    def _look(self, paths: Sequence[str], objects: dict[str, _Object], deadline: float) -> None:
        calls = [Call(self._name, path, ACCESSIBLE, asked) for path in paths for asked in ("GetState", "GetRole")]
        answers = iter(self._call_all(calls, deadline))
        for path in paths:
            found = _object(next(answers), next(answers))
            if found is not None:
                objects[path] = found

    def _ask_details(self, paths: Sequence[str], objects: dict[str, _Object], reading: Reading, deadline: float) -> None:
        calls = [call for path in paths for call in _detail_calls(self._name, path, objects[path].role, reading)]
        answers = iter(self._call_all(calls, deadline))
        for path in paths:
            objects[path].details = _take_details(self._name, answers, objects[path].role, reading)

    def _call_all(self, calls: Sequence[Call], deadline: float) -> list[list[Any] | DBusError]:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise DBusTimeout("the tree was not read in time")
        return self._connection.call_all(calls, timeout_s=remaining)


def _shows(found: _Object) -> bool:
    return has_state(found.states, SHOWING)


def _object(state: list[Any] | DBusError, role: list[Any] | DBusError) -> _Object | None:
    if isinstance(state, DBusError) or isinstance(role, DBusError):
        return None
    return _Object(sum(word << 32 * place for place, word in enumerate(state[0])), ROLE_NAMES.get(role[0], "unknown"))


def _detail_calls(name: str, path: str, role: str, reading: Reading) -> Iterable[Call]:
    yield Call(name, path, PROPERTIES, "Get", "ss", (ACCESSIBLE, "Name"))
    yield Call(name, path, COMPONENT, "GetExtents", "u", (0,))
    with_children, with_text = reading.asks(role)
    if with_children:
        yield Call(name, path, ACCESSIBLE, "GetChildren")
    if with_text:
        yield Call(name, path, TEXT, "GetText", "ii", (0, -1))


def _take_details(name: str, answers: Iterator[list[Any] | DBusError], role: str, reading: Reading) -> _Details:
    label, extents = next(answers), next(answers)
    with_children, with_text = reading.asks(role)
    children = next(answers) if with_children else [[]]
    text = next(answers) if with_text else [None]
    return _Details(
        name="" if isinstance(label, DBusError) else label[0],
        extents=(0, 0, 0, 0) if isinstance(extents, DBusError) else extents[0],
        children=() if isinstance(children, DBusError) else _own(children[0], name)[:_MAX_CHILDREN],
        text=None if isinstance(text, DBusError) else text[0],
    )


def _own(children: Sequence[tuple[str, str]], name: str) -> list[str]:
    return [path for owner, path in children if owner == name]
