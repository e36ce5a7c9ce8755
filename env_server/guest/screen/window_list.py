"""The windows on the screen: which there are, whose, where, in which order. All but the order is kept from events.

The children of X's root window are frames of managed windows, and popups, which the window manager leaves alone.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from Xlib import X, Xatom
from Xlib.error import BadDrawable, BadMatch, BadWindow, CatchError
from Xlib.ext import shape

from ..reading.visibility import Surface, holds
from ..wire import MAX_TITLE_CHARS
from .connection import Connection

_STRUCTURE_EVENTS = frozenset({X.CreateNotify, X.ConfigureNotify, X.MapNotify, X.UnmapNotify, X.ReparentNotify, X.DestroyNotify})
_EARLY_S = 0.7
"""Chromium's half second begins a little after its window appears."""
_DESCRIBING = ("_NET_WM_NAME", "_NET_WM_PID", "_NET_WM_WINDOW_TYPE", "WM_TRANSIENT_FOR", "WM_CLASS")
"""Properties that make up a `Window`."""
_MAXIMISED = frozenset({"_NET_WM_STATE_MAXIMIZED_HORZ", "_NET_WM_STATE_MAXIMIZED_VERT"})
_OTHERWISE_SHOWN = frozenset({"_NET_WM_STATE_FULLSCREEN", "_NET_WM_STATE_HIDDEN", "_NET_WM_STATE_SHADED"})
_HELPER_SIZE = 8
"""Toolkits keep tiny unmanaged windows for selections and grabs; no menu is this small."""


@dataclass(frozen=True, slots=True)
class Window:
    """One managed window."""

    xid: int
    pid: int
    title: str
    is_dialog: bool
    kind: str
    """Class of its WM_CLASS, such as ``libreoffice-calc``: one program may show windows of several applications."""
    instance: str = ""
    """Instance of its WM_CLASS, such as ``Mail``."""
    lets_clicks_through: bool = False
    """Nothing below it is harder to click: a tool tip, which leaves with the pointer, or a window that takes no clicks."""
    ignores_early_clicks: bool = False
    """A list of suggestions of Chromium's: it takes no clicks at first, lest one meant for what was there before chooses one."""

    @property
    def window_class(self) -> str:
        """Both parts of its WM_CLASS, as window managers' tools write them."""
        return f"{self.instance}.{self.kind}"


@dataclass(slots=True)
class _Child:
    box: tuple[int, int, int, int] = (0, 0, 0, 0)
    """x, y, width, height on the screen, with the border."""
    is_popup: bool = False
    is_mapped: bool = False
    shown_at: float = 0.0
    """Monotonic time at which it was noticed to show."""
    client: int = 0
    """The managed window inside a frame."""

    @property
    def is_seen(self) -> bool:
        """Does it show, and is it no helper? Windows off the screen to the right or below count as showing."""
        x, y, width, height = self.box
        return self.is_mapped and x + width > 0 and y + height > 0 and width > _HELPER_SIZE and height > _HELPER_SIZE


class TopLevelWindows:
    """Children of the root window that were made since this object was: a desktop has none before."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._children: dict[int, _Child] = {}

    @property
    def num_popups(self) -> int:
        """Number of popups that show."""
        return sum(child.is_popup and child.is_seen for child in self._children.values())

    def in_order(self) -> list[tuple[int, tuple[int, int, int, int], bool]]:
        """(window, place, is it a popup?) of all that show, topmost last; a frame counts as the managed window inside it."""
        known = [(one.id, self._children.get(one.id)) for one in self._root.query_tree().children]
        shown = [(xid, child) for xid, child in known if child is not None and child.is_seen]
        return [(child.client or xid, child.box, child.is_popup) for xid, child in shown if child.client or child.is_popup]

    def age_s(self, xid: int) -> float:
        """Seconds that a popup has been shown."""
        child = self._children.get(xid)
        return time.monotonic() - child.shown_at if child else 0.0

    def take(self, event: Any) -> None:
        """Take in a structure event of the root window."""
        kind, xid = event.type, event.window.id
        if kind == X.DestroyNotify:
            self._children.pop(xid, None)
        elif kind == X.ReparentNotify:
            self._take_reparented(xid, event.parent.id)
        else:
            child = self._children.setdefault(xid, _Child())
            if kind in (X.CreateNotify, X.ConfigureNotify):
                border = 2 * event.border_width
                child.box = (event.x, event.y, event.width + border, event.height + border)
                child.is_popup = bool(event.override)
            else:
                child.is_mapped, child.shown_at = kind == X.MapNotify, time.monotonic()

    def _take_reparented(self, xid: int, parent: int) -> None:
        for child in self._children.values():
            if child.client == xid:
                child.client = 0
        if parent == self._root.id:
            self._children.setdefault(xid, _Child())
        else:
            self._children.pop(xid, None)
            self._children.setdefault(parent, _Child()).client = xid


class WindowList:
    """The windows on one screen, as the window manager and the server list them."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._root = connection, connection.root
        self._described: dict[int, Window] = {}
        """Windows as they were described last; a change of one of its properties takes a window out."""
        self._top_level = TopLevelWindows(connection.root)
        connection.listen(self._take)

    def _take(self, event: Any) -> bool:
        """Take in one event; True when the windows changed."""
        kind = event.type
        atom = self._connection.atom
        if kind == X.PropertyNotify and event.window.id == self._root.id:
            return event.atom in (atom("_NET_CLIENT_LIST_STACKING"), atom("_NET_ACTIVE_WINDOW"))
        if kind == X.PropertyNotify:
            if event.atom in map(atom, _DESCRIBING):
                self._described.pop(event.window.id, None)
        elif kind in _STRUCTURE_EVENTS and kind != X.CreateNotify and event.event.id != self._root.id:
            # An event of a managed window itself: its place and whether it shows come with the root's events.
            if kind == X.DestroyNotify:
                self._described.pop(event.window.id, None)
        elif kind in _STRUCTURE_EVENTS:
            self._top_level.take(event)
            return True
        return False

    def managed(self) -> list[Window]:
        """Windows that the window manager manages, topmost last."""
        found = []
        xids = self._connection.numbers(self._root, "_NET_CLIENT_LIST_STACKING")
        # The server sends events before later answers: a description that is still kept now was right at the answer above.
        self._connection.take_pending()
        for xid in xids:
            try:
                found.append(self._description(xid))
            except (BadWindow, BadMatch):
                continue
        return found

    def active(self) -> int:
        """X id of the focused window, 0 when there is none."""
        values = self._connection.numbers(self._root, "_NET_ACTIVE_WINDOW")
        return int(values[0]) if values else 0

    @property
    def num_popups(self) -> int:
        """Number of visible windows that the window manager does not manage: menus, drop-downs, tool tips."""
        return self._top_level.num_popups

    def surfaces(self) -> list[Surface]:
        """All windows on the screen that take clicks, topmost last; costs one round trip, and some for each new window."""
        found = []
        in_order = self._top_level.in_order()
        self._connection.take_pending()
        for xid, box, is_popup in in_order:
            try:
                window = self._description(xid)
            except (BadWindow, BadMatch):
                continue
            if not window.lets_clicks_through:
                found.append(Surface(xid, window.pid, window.title, box, is_popup))
        return found

    def early_s(self, x: int, y: int) -> float:
        """Seconds for which a click there would still be ignored, because the window there has just appeared."""
        if not self.num_popups:
            return 0.0
        above = [surface for surface in self.surfaces() if holds(surface.box, (x, y))]
        if not above or not self._description(above[-1].xid).ignores_early_clicks:
            return 0.0
        return max(0.0, _EARLY_S - self._top_level.age_s(above[-1].xid))

    def geometry(self, xid: int) -> tuple[int, int, int, int]:
        """x, y, width, height of a window on the screen."""
        window = self._connection.window(xid)
        shape = window.get_geometry()
        place = self._root.translate_coords(window, 0, 0)
        return place.x, place.y, shape.width, shape.height

    def is_fullscreen(self, xid: int) -> bool:
        """Is it in full-screen mode?"""
        return "_NET_WM_STATE_FULLSCREEN" in self._states(xid)

    def fills_screen(self, xid: int) -> bool:
        """Is the window as it opens, if it is no dialog: maximised, neither full-screen nor an icon? True when it is gone."""
        try:
            states = set(self._states(xid))
            has_size = self.geometry(xid) == (0, 0, *self._connection.size)
        except (BadWindow, BadDrawable):
            return True
        return has_size and states >= _MAXIMISED and not states & _OTHERWISE_SHOWN

    def describe(self) -> dict[str, str]:
        """Place and states of every managed window, by its kind."""
        return {f"window {window.kind}": self._placing(window.xid) for window in self.managed()}

    def _placing(self, xid: int) -> str:
        return f"{self.geometry(xid)} {[name for name in self._states(xid) if name != '_NET_WM_STATE_FOCUSED']}"

    def _states(self, xid: int) -> list[str]:
        atoms = self._connection.numbers(self._connection.window(xid), "_NET_WM_STATE", Xatom.ATOM)
        return sorted(self._connection.display.get_atom_name(atom) for atom in atoms)

    def _description(self, xid: int) -> Window:
        known = self._described.get(xid)
        # A number may come back as another program's window after its owner died.
        if known is None or not os.path.exists(f"/proc/{known.pid}"):
            known = self._described[xid] = self._describe(xid)
        return known

    def _describe(self, xid: int) -> Window:
        connection = self._connection
        window = connection.window(xid)
        # Before anything is read: later changes come as events.
        mask = X.PropertyChangeMask | X.StructureNotifyMask
        window.change_attributes(onerror=CatchError(BadWindow), event_mask=mask)  # gone: the next request raises
        pid = connection.numbers(window, "_NET_WM_PID", Xatom.CARDINAL)
        kinds = connection.numbers(window, "_NET_WM_WINDOW_TYPE", Xatom.ATOM)
        is_dialog = window.get_wm_transient_for() is not None or connection.atom("_NET_WM_WINDOW_TYPE_DIALOG") in kinds
        passing = [connection.atom(f"_NET_WM_WINDOW_TYPE_{name}") for name in ("TOOLTIP", "DND")]
        takes_clicks = bool(window.shape_get_rectangles(shape.SK.Input).rectangles)
        title = connection.bytes_of(window, "_NET_WM_NAME", connection.atom("UTF8_STRING")).decode("utf-8", "replace")
        instance, kind, *_ = [*connection.bytes_of(window, "WM_CLASS", Xatom.STRING).decode("latin-1").split("\0"), ""]
        return Window(
            xid,
            pid[0] if pid else 0,
            title[:MAX_TITLE_CHARS],
            is_dialog,
            kind,
            instance,
            not takes_clicks or any(atom in kinds for atom in passing),
            connection.atom("_NET_WM_WINDOW_TYPE_NOTIFICATION") in kinds,
        )
