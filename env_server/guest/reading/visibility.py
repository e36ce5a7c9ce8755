"""Which accessible objects an agent can click, given the windows on the screen in stacking order. Pure.

An object belongs to the window that draws it, and can be clicked where that window is the topmost one. Accessibility does not
tell which window that is: top-level objects are matched with windows by name and place. What is below them belongs to the same
window, but for the items of menus and lists: those belong to the popup that holds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .roles import ACTIVE, COVERED, ENABLED, MODAL, SENSITIVE, SHOWING, VISIBLE, has_state
from .tree_walk import Extents, Node

WINDOW_KEY = "window:"
"""Begins the key of a row that stands for a window without accessible objects."""
_WITHOUT_OBJECTS = "(window without elements)"
_LIKE = 0.8
"""Intersection over union of a top-level object and its window, at least: either may leave out the window's border."""
_TOLERANCE = 2
"""Pixels by which the boxes of a popup and of its object may differ."""
_LISTS = frozenset({"menu", "combo-box"})
"""Roles whose children may be drawn in a popup outside of their parent."""
_OVERLAYS = frozenset({"alert", "dialog", "notification", "info-bar", "window", "popup-menu"})
"""Roles of top-level objects that a window may draw above its content, without a window of their own."""
_WINDOW_STATES = 1 << ENABLED | 1 << SENSITIVE | 1 << SHOWING | 1 << VISIBLE


@dataclass(frozen=True, slots=True)
class Surface:
    """One window on the screen that takes clicks."""

    xid: int
    pid: int
    """Process that made it; 0: not known."""
    title: str
    box: Extents
    """Place on the screen, with the window manager's frame."""
    is_popup: bool = False
    """Not managed by the window manager: a menu, a list."""


def visible_parts(surfaces: Sequence[Surface], *, screen: Extents) -> dict[int, list[Extents]]:
    """For every surface of which something is visible the visible rectangles, by ``xid``. ``surfaces``: topmost last."""
    found = {}
    above: list[Extents] = []
    for surface in reversed(surfaces):
        parts = _without([_common(surface.box, screen)], above)
        if parts:
            found[surface.xid] = parts
        above.append(surface.box)
    return found


def match(tops: Sequence[Node], surfaces: Sequence[Surface], *, active: int) -> dict[str, Surface]:
    """The window of each top-level object, by object path; those that match none are left out.

    ``active``: ``xid`` of the window with the focus. Objects that are alike take windows in the order in which both were made.
    """
    by_age = sorted(surfaces, key=lambda surface: surface.xid)
    pairs = sorted(
        (-likeness, age, place)
        for age, surface in enumerate(by_age)
        for place, node in enumerate(tops)
        if (likeness := _likeness(node, surface, active=active))
    )
    found: dict[str, Surface] = {}
    taken: set[int] = set()
    for _, age, place in pairs:
        if tops[place].path not in found and by_age[age].xid not in taken:
            found[tops[place].path] = by_age[age]
            taken.add(by_age[age].xid)
    # A title may change between the two readings, and the first place of a window may be told late.
    left = [surface for surface in by_age if not surface.is_popup and surface.xid not in taken]
    frames = [node for node in tops if node.role == "frame" and node.name and node.path not in found]
    if len(left) == len(frames):
        found |= {node.path: surface for node, surface in zip(frames, left, strict=True)}
    return found


class Arrangement:
    """The windows of one moment, for one reading of the tree of process ``pid``."""

    def __init__(self, surfaces: Sequence[Surface], *, pid: int, active: int, screen: Extents) -> None:
        self._parts = visible_parts(surfaces, screen=screen)
        self._own = [surface for surface in surfaces if surface.pid == pid or (surface.is_popup and not surface.pid)]
        self._visible = [surface for surface in surfaces if surface.xid in self._parts]
        self._active = active
        self._windows: Mapping[str, Surface] = {}
        self.has_left_out = False
        """Is a main window of the process covered whole, as far as `left_out` was told?"""

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for two moments whose windows lie alike."""
        return (self._active, *((surface.xid, surface.box) for surface in self._visible))

    def left_out(self, tops: Sequence[Node]) -> frozenset[str]:
        """Paths of the main windows among all top-level objects that are covered whole. Has to be called before `seen`."""
        self._windows = match(tops, self._own, active=self._active)
        shown = {path for path, surface in self._windows.items() if surface.xid in self._parts}
        found = frozenset(node.path for node in tops if node.role == "frame" and node.path not in shown)
        self.has_left_out = bool(found)
        return found

    def may_miss_objects(self) -> bool:
        """Is there a window in front or above it that no top-level object stands for? True for most menus."""
        found = {surface.xid for surface in self._windows.values()}
        return any(surface.xid not in found for surface in self._from_front())

    def _from_front(self) -> Sequence[Surface]:
        """The window with the focus and those above it."""
        places = [place for place, surface in enumerate(self._visible) if surface.xid == self._active]
        return self._visible[places[0] :] if places else []

    def seen(self, nodes: Sequence[Node]) -> list[Node]:
        """The nodes, with `COVERED` where a click would meet another window, and one for every window without objects."""
        order, owners = self._owners(nodes)
        has_to_be_answered = any(self._is_modal_in_front(node) for node in nodes)
        found = []
        for node, owner in zip(nodes, owners, strict=True):
            x, y, width, height = node.extents
            above = _topmost(order, (x + width // 2, y + height // 2))
            is_covered = owner is not None and above is not None and above != owner
            # Items of a menu that has been closed keep their places, see `Reading.items_never_show`.
            is_closed = owner is not None and not owner.is_popup and not has_state(node.states, SHOWING)
            is_blocked = has_to_be_answered and owner is not None and not owner.is_popup and owner.xid != self._active
            is_out_of_reach = is_covered or is_closed or is_blocked
            found.append(replace(node, states=node.states | 1 << COVERED) if is_out_of_reach else node)
        return found + self._bare_windows(nodes, owners)

    def _is_modal_in_front(self, node: Node) -> bool:
        """Is this a dialog with the focus that blocks the other windows of its process?"""
        surface = self._windows.get(node.path)
        return has_state(node.states, MODAL) and surface is not None and surface.xid == self._active

    def _owners(self, nodes: Sequence[Node]) -> tuple[list[Surface], list[Surface | None]]:
        """The surfaces in stacking order, with those of overlays, and the one that draws each node."""
        order = list(self._visible)
        popups = [surface for surface in self._own if surface.is_popup and surface.xid in self._parts]
        lists = _popups_of_lists(nodes, popups)
        owners: list[Surface | None] = []
        for node in nodes:
            parent = nodes[node.parent] if node.parent >= 0 else None
            owner = owners[node.parent] if node.parent >= 0 else None
            if node.path in self._windows:
                owner = self._windows[node.path]
            elif parent is not None and parent.role == "application":
                owner = self._overlay(node, order)
            else:
                popup = next((popup for popup in reversed(popups) if _same(node.extents, popup.box)), None)
                listed = lists.get(node.parent)
                if listed is not None and _is_drawn_outside(node, nodes) and holds(listed.box, _centre(node.extents)):
                    popup = popup or listed
                owner = popup or owner
            owners.append(owner)
        return order, owners

    def _overlay(self, node: Node, order: list[Surface]) -> Surface | None:
        """A surface for a top-level object without a window, just above the one that draws it."""
        own = {surface.xid for surface in self._own}
        below = [place for place, one in enumerate(order) if one.xid in own and holds(one.box, _centre(node.extents))]
        if node.role not in _OVERLAYS or not below:
            return None
        drawn = Surface(0, order[below[-1]].pid, node.name, node.extents, is_popup=True)
        order.insert(below[-1] + 1, drawn)
        return drawn

    def _bare_windows(self, nodes: Sequence[Node], owners: Sequence[Surface | None]) -> list[Node]:
        """A node for the window in front and each one above it, where nothing is known of what it shows."""
        inside = [pair for pair in zip(nodes, owners, strict=True) if pair[0].path not in self._windows]
        told = {owner.xid for node, owner in inside if owner and (node.name.strip() or node.text is not None)}
        found = []
        for surface in self._from_front():
            if surface.xid not in told:
                box = max(self._parts[surface.xid], key=lambda part: part[2] * part[3])
                name = f"{surface.title} {_WITHOUT_OBJECTS}".strip()
                found.append(Node(f"{WINDOW_KEY}{surface.xid}", 0 if nodes else -1, "window", name, None, box, _WINDOW_STATES))
        return found


def _likeness(node: Node, surface: Surface, *, active: int) -> int:
    """How well a top-level object fits a window; 0: not at all."""
    name, title = node.name.strip(), surface.title.strip()
    named = 4 if name == title else 2 if name.startswith(title) or title.startswith(name) else 0
    likeness = (named if name and title else 0) + (3 if _overlap(node.extents, surface.box) >= _LIKE else 0)
    is_told = has_state(node.states, ACTIVE) and surface.xid == active
    return 2 * likeness + is_told if likeness else 0


def _popups_of_lists(nodes: Sequence[Node], popups: Sequence[Surface]) -> dict[int, Surface]:
    """The popup of every open menu and list, by index: each popup shows the one whose items fill it best."""
    filled: dict[tuple[int, int], Extents] = {}
    for node in nodes if popups else ():
        if not _is_drawn_outside(node, nodes):
            continue
        for place, popup in enumerate(popups):
            if holds(popup.box, _centre(node.extents)):
                known = filled.get((node.parent, place), node.extents)
                filled[node.parent, place] = _around(known, node.extents)
    found: dict[int, Surface] = {}
    for index, place in sorted(filled, key=lambda pair: -_overlap(filled[pair], popups[pair[1]].box)):
        if index not in found and popups[place] not in found.values():
            found[index] = popups[place]
    return found


def _is_drawn_outside(node: Node, nodes: Sequence[Node]) -> bool:
    """Is this an item of a menu or list that its parent's own place has no room for?"""
    parent = nodes[node.parent] if node.parent >= 0 else None
    return parent is not None and parent.role in _LISTS and _common(node.extents, parent.extents) != node.extents


def _topmost(order: Sequence[Surface], point: tuple[int, int]) -> Surface | None:
    return next((surface for surface in reversed(order) if holds(surface.box, point)), None)


def _centre(box: Extents) -> tuple[int, int]:
    return box[0] + box[2] // 2, box[1] + box[3] // 2


def holds(box: Extents, point: tuple[int, int]) -> bool:
    """Is the point inside?"""
    return box[0] <= point[0] < box[0] + box[2] and box[1] <= point[1] < box[1] + box[3]


def _same(one: Extents, other: Extents) -> bool:
    return all(abs(a - b) <= _TOLERANCE for a, b in zip(one, other, strict=True))


def _common(one: Extents, other: Extents) -> Extents:
    left, top = max(one[0], other[0]), max(one[1], other[1])
    return left, top, min(one[0] + one[2], other[0] + other[2]) - left, min(one[1] + one[3], other[1] + other[3]) - top


def _around(one: Extents, other: Extents) -> Extents:
    left, top = min(one[0], other[0]), min(one[1], other[1])
    right, bottom = max(one[0] + one[2], other[0] + other[2]), max(one[1] + one[3], other[1] + other[3])
    return left, top, right - left, bottom - top


def _overlap(one: Extents, other: Extents) -> float:
    both = _common(one, other)
    if both[2] <= 0 or both[3] <= 0:
        return 0.0
    return both[2] * both[3] / (one[2] * one[3] + other[2] * other[3] - both[2] * both[3])


def _without(parts: Iterable[Extents], covers: Sequence[Extents]) -> list[Extents]:
    """What is left of rectangles below others."""
    rest = [part for part in parts if part[2] > 0 and part[3] > 0]
    for cover in covers:
        rest = [piece for part in rest for piece in _cut(part, cover)]
    return rest


def _cut(part: Extents, cover: Extents) -> list[Extents]:
    x, y, width, height = _common(part, cover)
    if width <= 0 or height <= 0:
        return [part]
    right, bottom = part[0] + part[2], part[1] + part[3]
    pieces = [
        (part[0], part[1], part[2], y - part[1]),
        (part[0], y + height, part[2], bottom - y - height),
        (part[0], y, x - part[0], height),
        (x + width, y, right - x - width, height),
    ]
    return [piece for piece in pieces if piece[2] > 0 and piece[3] > 0]
