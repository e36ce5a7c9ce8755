"""Buttons, fields and lists of applications, asked about and operated by accessibility, for the desktop's own purposes.

The agent's observations are `reader`'s; here all that shows counts, of covered windows too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..files.folder import MAX_TEXT_BYTES
from .accessibility import Accessibility, AppGone, Application
from .dbus import DBusError
from .tree_walk import Node, Reading

if TYPE_CHECKING:
    from ..screen.display import Screen

READ_LIMIT_S = 3.0
"""Time for one reading of a tree."""
_LIST_LIMIT_S = 2.0
"""Time for the files of a folder to arrive in the file manager's list."""
_NO_EVENT_S = 0.1
"""A list that is awaited announces its changes. It is looked at again after this time though nothing was announced."""
_MAX_FILES_COMPARED = 200
"""Number of files up to which a folder is compared with its list: each costs three calls of the accessibility bus."""


class Controls:
    """The objects of all applications on one accessibility bus. Applications are named by their process ids."""

    def __init__(self, screen: Screen, accessibility: Accessibility) -> None:
        self._screen, self._accessibility = screen, accessibility

    def exists(self, pid: int) -> bool:
        """Is the application on the accessibility bus?"""
        try:
            self._app(pid)
        except AppGone:
            return False
        return True

    def nodes_of(self, pid: int, *, without: frozenset[str] = frozenset()) -> list[Node]:
        """All showing objects of the application but those below the roles ``without``; a reading is costly, so several questions
        share one."""
        deadline = time.monotonic() + READ_LIMIT_S
        reading = Reading(bool(self._screen.windows.num_popups), never_entered=without)
        return self._accessibility.app_of(pid, deadline=deadline).read(reading, deadline=deadline)

    def num_children(self, pid: int, path: str) -> int | None:
        """Number of children of an object (path), in one call; None when the object is gone."""
        return self._app(pid).num_children(path)

    def focus(self, pid: int, path: str) -> None:
        """Give the keyboard to an object (path)."""
        self._app(pid).focus(path)

    def has_plain_entry(self, pid: int, nodes: Sequence[Node], text: str) -> bool:
        """Does a text field among these nodes of the application hold ``text``, with nothing selected in it?"""
        entry = next((node for node in nodes if node.role == "text" and node.text == text), None)
        app = self._app(pid)
        return entry is not None and not app.has_selection(entry.path)

    def press_button(self, pid: int, names: Sequence[str]) -> bool:
        """Press the first button with one of these names; False when there is none."""
        try:
            for node in self.nodes_of(pid):
                if node.role == "button" and node.name.replace("_", "").replace("\u2019", "'") in names:
                    self._app(pid).press(node.path)
                    return True
        except (DBusError, AppGone):
            return False
        return False

    def text_of(self, pid: int) -> str:
        """Content of the application's largest text field; empty when the application is gone."""
        try:
            nodes = self.nodes_of(pid)
        except AppGone:  # the agent has closed it
            return ""
        texts = [node for node in nodes if node.text is not None]
        largest = max(texts, key=lambda node: node.extents[2] * node.extents[3], default=None)
        return (largest.text or "")[:MAX_TEXT_BYTES] if largest else ""

    def select_first_file(self, pid: int, table: str, names: Sequence[str], *, deadline: float) -> bool:
        """Wait until the file manager's table (object path) holds exactly these files, and select the first one. Returns whether
        it came to hold them.

        With the focus, the file manager selects the first file that it knows of, which later ones push down, or none.
        """
        app, wanted = self._accessibility.app_of(pid, deadline=deadline), sorted(names)
        is_listed = len(names) > _MAX_FILES_COMPARED
        limit = min(deadline, time.monotonic() + _LIST_LIMIT_S)
        while not is_listed and time.monotonic() < limit:
            num_events = self._accessibility.num_events
            is_listed = sorted(app.row_names(table, len(wanted) + 1, timeout_s=READ_LIMIT_S)) == wanted
            if not is_listed:
                self._accessibility.wait_for_event(_NO_EVENT_S, since=num_events)
        if names:
            self._screen.input.press_chord("home")
            app.select_row(table, 0)
        return is_listed

    def _app(self, pid: int) -> Application:
        """Raises `AppGone`."""
        return self._accessibility.app_of(pid, deadline=time.monotonic() + READ_LIMIT_S)
