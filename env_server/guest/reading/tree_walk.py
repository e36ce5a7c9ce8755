"""Reading an application's accessibility tree fast: all that it showed last time is asked about at once, the rest level by level.

Only where to look is remembered. Every role, state, name, place, text and list of children is read anew: applications do not
announce all changes by events, and their own list of all objects lacks many that show (`computerrl bench accessibility`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..wire import MAX_DEPTH, MAX_NODES, MAX_TREE_CHARS
from .dbus import Call, Connection, DBusError, DBusTimeout
from .roles import ROLE_NAMES, SHOWING, VISIBLE, has_state, state_names

ROOT = "/org/a11y/atspi/accessible/root"
ACCESSIBLE = "org.a11y.atspi.Accessible"
COMPONENT = "org.a11y.atspi.Component"
TEXT = "org.a11y.atspi.Text"
PROPERTIES = "org.freedesktop.DBus.Properties"

TEXT_ROLES = frozenset({"text", "entry", "password-text", "terminal", "document-text", "editbar", "spin-button"})
_MENU = "menu"
_CLOSED_UNLESS_POPUP = frozenset({_MENU, "combo-box"})
_DOCUMENTS = frozenset({"document-web"})
_MENU_ITEM = "menu-item"
_NEVER_ENTERED = frozenset({_MENU_ITEM, "separator"})
_MAX_CHILDREN = 400
"""A folder of thousands of files shows far fewer rows than this."""

_MAX_UNSEEN = 8
"""Parts of one object of a page that are entered though they do not show: rows of long lists have no others outside of them."""
_NOWHERE = -(2**31)
_MAX_ORPHANS = 50

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


def to_wire(nodes: Sequence[Node]) -> list[list[Any]]:
    """For the host: as many nodes, names and texts as an answer takes. What comes later is left out: a page or a text of an
    agent's may have any size."""
    rows, num_left = [], MAX_TREE_CHARS
    for node in nodes[:MAX_NODES]:
        name = node.name[:num_left]
        num_left -= len(name)
        text = None if node.text is None else node.text[:num_left]
        num_left -= len(text or "")
        rows.append([node.path, node.parent, node.role, name, text, *node.extents, state_names(node.states)])
    return rows


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read of an application's tree."""

    with_popups: bool = False
    """Enter menus and lists that may be open."""
    never_entered: frozenset[str] = frozenset()
    """Roles whose children are not even asked for."""
    closed_below: frozenset[str] = frozenset()
    """Roles whose children are not entered: the table below a spreadsheet would count a billion cells."""
    with_text: frozenset[str] = TEXT_ROLES
    """Roles whose content is read."""
    items_hold_menus: bool = False
    """Enter menu items: in Qt a menu is the child of the item that opens it."""
    items_never_show: bool = False
    """GTK 2 does not count the items of an open menu as showing: those that are visible and have a place are read."""
    scale: float = 1.0
    """Pixels per unit of places outside of documents: Chromium gives those of its own widgets in device-independent pixels."""
    left_out: Callable[[Sequence[Node]], Collection[str]] = lambda tops: ()
    """Paths of the top-level objects, among all that show, which are left out with all below: to be covered counts as showing."""

    def asks(self, role: str, *, is_closed: bool = False) -> tuple[bool, bool]:
        """Are the children and the content of objects with this role read? ``is_closed``: see `closed_below`."""
        if role == _MENU_ITEM:
            is_entered = self.items_hold_menus and self.with_popups
        else:
            is_entered = (self.with_popups or role not in _CLOSED_UNLESS_POPUP) and role not in _NEVER_ENTERED
        return is_entered and not is_closed and role not in self.never_entered, role in self.with_text

    def may_show(self, states: int, *, above: str) -> bool:
        """May an object with these states, below one of the role ``above``, show? Its place tells, see `_is_placed`."""
        is_item = self.items_never_show and self.with_popups and above in _CLOSED_UNLESS_POPUP
        return has_state(states, SHOWING) or (is_item and has_state(states, VISIBLE))


@dataclass(frozen=True, slots=True)
class Adopted:
    """Objects that an application shows and does not list among its children."""

    roots: tuple[str, ...] = ()
    """Roots besides its own: Chromium's file and print dialogs are GTK's, which has a root of its own."""
    orphans: tuple[str, ...] = ()
    """Top-level objects, such as context menus of Qt and GTK 2."""

    def with_more(self, *, roots: Collection[str], orphans: Collection[str]) -> Adopted:
        """These and others, the latest last."""
        every = [*(path for path in self.orphans if path not in orphans), *orphans]
        return Adopted(tuple(sorted({*self.roots, *roots})), tuple(every[-_MAX_ORPHANS:]))


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
    """Empty: not asked for."""
    details: _Details | None = None
    is_closed: bool = False
    """Were its children left out, see `Reading.closed_below`?"""


_NO_ADOPTED = Adopted()


class TreeWalk:
    """Reads the tree of the application with this bus name."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection, self._name = connection, name
        self._last = Reading()
        self._met: dict[str, tuple[str, bool]] = {}
        """The objects of the last reading; their roles, empty for those that did not show, and whether they were closed."""

    def read(self, reading: Reading, *, deadline: float, adopted: Adopted = _NO_ADOPTED) -> list[Node]:
        """All showing nodes down to `MAX_DEPTH` levels, breadth first, and those of `_unseen`. Raises `DBusTimeout` past the
        (monotonic) deadline."""
        objects = self._look_again(reading, deadline)
        nodes: list[Node] = []
        met: dict[str, tuple[str, bool]] = {}
        level = [(path, -1, "") for path in (ROOT, *adopted.roots)]
        listed = {ROOT, *adopted.roots}
        unscaled: set[int] = set()
        inside: set[int] = set()
        """Indices of nodes of pages."""
        depth = 0
        while level and depth < MAX_DEPTH:
            met |= {path: ("", False) for path, _, _ in level}
            may_hold = {index for index in {parent for _, parent, _ in level} & inside if has_state(nodes[index].states, SHOWING)}
            found = [
                node if node.role in _DOCUMENTS or node.parent in unscaled else _scaled(node, reading.scale)
                for node in self._read_level(level, objects, reading, deadline, may_hold)
            ]
            met |= {node.path: (node.role, objects[node.path].is_closed) for node in found}
            left_out = reading.left_out(found) if depth == 1 else ()
            level = []
            for node in found:
                if node.path in left_out:
                    continue
                if node.role in _DOCUMENTS or node.parent in unscaled or node.path in adopted.roots:
                    unscaled.add(len(nodes))
                if node.role in _DOCUMENTS or node.parent in inside:
                    inside.add(len(nodes))
                nodes.append(node)
                details = objects[node.path].details
                for child in details.children if details else ():
                    if child not in listed:  # an object that moves may be two others' child for a moment
                        listed.add(child)
                        level.append((child, len(nodes) - 1, node.role))
            if depth == 0 and nodes:
                level += [(path, 0, nodes[0].role) for path in adopted.orphans if path not in listed]
                listed.update(adopted.orphans)
            depth += 1
        self._last, self._met = reading, {path: known for path, known in met.items() if path in objects}
        return nodes

    def _read_level(
        self,
        level: Sequence[tuple[str, int, str]],
        objects: dict[str, _Object],
        reading: Reading,
        deadline: float,
        may_hold: Collection[int],
    ) -> list[Node]:
        """Those of these (path, parent, the parent's role) that show, and of the parents ``may_hold`` those of `_unseen`."""
        self._look([path for path, _, _ in level if path not in objects], objects, deadline)
        unseen = _unseen(level, objects, may_hold)
        self._look([path for path in unseen if not objects[path].role], objects, deadline)
        showing = []
        for path, parent, above in level:
            thing = objects.get(path)
            if thing is None or (parent >= 0 and path not in unseen and not reading.may_show(thing.states, above=above)):
                continue
            showing.append((path, parent))
            is_closed = above in reading.closed_below
            if thing.is_closed != is_closed:
                thing.is_closed, thing.details = is_closed, None
        self._ask_details([path for path, _ in showing if objects[path].details is None], objects, reading, deadline)
        found = [_node(path, parent, objects[path]) for path, parent in showing]
        return [node for node in found if has_state(node.states, SHOWING) or node.parent < 0 or _is_placed(node)]

    def _look_again(self, reading: Reading, deadline: float) -> dict[str, _Object]:
        """All that is to be known of the objects of the last reading, in one go; without those that are gone."""
        name = self._name
        # What is asked otherwise now has to be met first: the sheet behind a letter would count its cells.
        met = {
            path: (role if self._last.asks(role) == reading.asks(role) else "", is_closed)
            for path, (role, is_closed) in self._met.items()
        }
        calls: list[Call] = []
        for path, (role, is_closed) in met.items():
            calls.append(Call(name, path, ACCESSIBLE, "GetState", returns="au"))
            if role:
                asked = reading.asks(role, is_closed=is_closed)
                calls += [Call(name, path, ACCESSIBLE, "GetRole", returns="u"), *_detail_calls(name, path, asked)]
        answers = iter(self._call_all(calls, deadline))
        objects: dict[str, _Object] = {}
        for path, (role, is_closed) in met.items():
            if role:
                found = _object(next(answers), next(answers))
                details = _take_details(name, answers, reading.asks(role, is_closed=is_closed))
                if found is not None:
                    # With another role, other things would have been asked: they are asked again.
                    found.details, found.is_closed = details if found.role == role else None, is_closed
            else:
                found = _object(next(answers), [0])
                if found is not None and any(reading.may_show(found.states, above=above) for above in ("", _MENU)):
                    continue  # not met as it is now: its role is asked for as that of a new one
                if found is not None:
                    found.role = ""
            if found is not None:
                objects[path] = found
        return objects

    def _look(self, paths: Sequence[str], objects: dict[str, _Object], deadline: float) -> None:
        asked = (("GetState", "au"), ("GetRole", "u"))
        calls = [Call(self._name, path, ACCESSIBLE, member, returns=kind) for path in paths for member, kind in asked]
        answers = iter(self._call_all(calls, deadline))
        for path in paths:
            found = _object(next(answers), next(answers))
            if found is not None:
                objects[path] = found

    def _ask_details(self, paths: Sequence[str], objects: dict[str, _Object], reading: Reading, deadline: float) -> None:
        asked = {path: reading.asks(objects[path].role, is_closed=objects[path].is_closed) for path in paths}
        calls = [call for path in paths for call in _detail_calls(self._name, path, asked[path])]
        answers = iter(self._call_all(calls, deadline))
        for path in paths:
            objects[path].details = _take_details(self._name, answers, asked[path])

    def _call_all(self, calls: Sequence[Call], deadline: float) -> list[list[Any] | DBusError]:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise DBusTimeout("the tree was not read in time")
        return self._connection.call_all(calls, timeout_s=remaining)


def _node(path: str, parent: int, found: _Object) -> Node:
    details = found.details
    assert details is not None
    return Node(path, parent, found.role, details.name, details.text, details.extents, found.states)


def _unseen(level: Sequence[tuple[str, int, str]], objects: dict[str, _Object], may_hold: Collection[int]) -> Sequence[str]:
    """Parts of pages that do not show and are entered all the same, in order.

    Chromium tells of a box that has been scrolled away that it does not show, also where its content is longer and shows.
    """
    found: dict[int, list[str]] = {}
    for path, parent, _ in level:
        thing = objects.get(path) if parent in may_hold else None
        if thing is not None and not has_state(thing.states, SHOWING) and has_state(thing.states, VISIBLE):
            found.setdefault(parent, []).append(path)
    return [path for paths in found.values() if len(paths) <= _MAX_UNSEEN for path in paths]


def _scaled(node: Node, scale: float) -> Node:
    if scale == 1.0:
        return node
    x, y, width, height = (round(number * scale) for number in node.extents)
    return replace(node, extents=(x, y, width, height))


def _is_placed(node: Node) -> bool:
    """GTK gives the least number there is as the place of an object that is not drawn."""
    return node.extents[0] > _NOWHERE and node.extents[1] > _NOWHERE


def _object(state: list[Any] | DBusError, role: list[Any] | DBusError) -> _Object | None:
    if isinstance(state, DBusError) or isinstance(role, DBusError):
        return None
    return _Object(sum(word << 32 * place for place, word in enumerate(state[0])), ROLE_NAMES.get(role[0], "unknown"))


def _detail_calls(name: str, path: str, asked: tuple[bool, bool]) -> Iterable[Call]:
    yield Call(name, path, PROPERTIES, "Get", "ss", (ACCESSIBLE, "Name"), returns="v")
    yield Call(name, path, COMPONENT, "GetExtents", "u", (0,), returns="(iiii)")
    with_children, with_text = asked
    if with_children:
        yield Call(name, path, ACCESSIBLE, "GetChildren", returns="a(so)")
    if with_text:
        yield Call(name, path, TEXT, "GetText", "ii", (0, -1), returns="s")


def _take_details(name: str, answers: Iterator[list[Any] | DBusError], asked: tuple[bool, bool]) -> _Details:
    label, extents = next(answers), next(answers)
    with_children, with_text = asked
    children = next(answers) if with_children else [[]]
    text = next(answers) if with_text else [None]
    return _Details(
        name="" if isinstance(label, DBusError) else str(label[0]),
        extents=(0, 0, 0, 0) if isinstance(extents, DBusError) else extents[0],
        children=() if isinstance(children, DBusError) else _own(children[0], name)[:_MAX_CHILDREN],
        text=None if isinstance(text, DBusError) else text[0],
    )


def _own(children: Sequence[tuple[str, str]], name: str) -> list[str]:
    return [path for owner, path in children if owner == name]
