"""The children of X's root window: frames of managed windows, and popups, which nobody manages.

Where they are and which show is kept from events; only their stacking order is asked for.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from Xlib import X

_HELPER_SIZE = 8
"""Toolkits keep tiny unmanaged windows for selections and grabs; no menu is this small."""


@dataclass(slots=True)
class _Child:
    box: tuple[int, int, int, int] = (0, 0, 0, 0)
    """x, y, width, height on the screen, the border included."""
    is_popup: bool = False
    is_mapped: bool = False
    shown_at: float = 0.0
    """Monotonic time at which it was noticed to show."""
    client: int = 0
    """The managed window inside a frame."""

    @property
    def is_seen(self) -> bool:
        """Does it show, and is it no helper? Windows off the screen to the right or below are not told apart."""
        x, y, width, height = self.box
        return self.is_mapped and x + width > 0 and y + height > 0 and width > _HELPER_SIZE and height > _HELPER_SIZE


class TopLevelWindows:
    """Windows made since this one was: a desktop has none before."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._children: dict[int, _Child] = {}

    @property
    def num_popups(self) -> int:
        """How many popups show."""
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
        """A structure event that the root window was told of."""
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
