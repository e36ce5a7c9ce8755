"""The application in front as one list of nodes for the agent: when which tree is read, and which nodes are kept until later."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..office.calc.sheet import Calc
from ..web.page_reach import Page, within_reach
from ..web.page_scripts import MARK
from .accessibility import Accessibility, AppGone
from .controls import READ_LIMIT_S
from .dbus import DBusError
from .document_nodes import as_agents_see, shift_root_panes
from .sheet_cells import SHEETS, SheetTree
from .tree_walk import TEXT_ROLES, Node, Reading
from .visibility import Arrangement

if TYPE_CHECKING:
    from ..screen.display import Screen

_EXPECT_LIMIT_S = 2.0
"""A fresh page must have arrived in the tree by then, else the tree is shown as it is."""
_FIRST_LIMIT_S = 15.0
"""The same for the first reading of a task, which would show a page as it was before its task began. A browser that gets no
processor time has taken more than `_EXPECT_LIMIT_S`."""
_NO_EVENT_S = 0.1
"""A tree that is awaited announces its changes. It is looked at again after this time though nothing was announced."""
_DOCUMENT_TEXT_ROLES = TEXT_ROLES | {"paragraph", "heading"}
"""In the office's documents: there these have their text as content, elsewhere as name."""


class TreeReader:
    """Reads the tree of the application in front."""

    def __init__(self, screen: Screen, accessibility: Accessibility, calc: Calc, *, web_scale: float) -> None:
        """``web_scale``: device pixels per CSS pixel in the browser of web tasks."""
        self._screen, self._accessibility = screen, accessibility
        self._web_scale = web_scale
        self._sheet = SheetTree(calc, accessibility)
        self._last: list[Node] = []
        self._last_key: tuple[object, ...] = ()
        self.serial = 0
        """Goes up with every reading: the same number means the same nodes."""
        self._mark_path = ""
        self._read_since = (0, 0)
        """`_num_changes` when the last reading of a tree began; later ones make it old."""

    def forget(self) -> None:
        """A new task: nothing read before counts."""
        self._last, self._last_key = [], ()
        self._mark_path = ""

    def read(
        self,
        app: str,
        pid: int,
        *,
        deadline: float,
        is_warm: bool,
        frame_mark: str = "",
        is_mark_sure: bool = False,
        page: Page | None = None,
    ) -> list[Node]:
        """Nodes of the application in front, whose windows process ``pid`` shows; the last ones when it misses its deadline.

        ``app``: empty for a process that is none of the desktop's applications; ``is_warm``: it runs all the time, so that
        silence in a task's first reading is an error (`DBusError`, `AppGone`); ``frame_mark``: name of an object that is in the
        browser's tree once that is new; ``is_mark_sure``: nothing on the page can hold that back; ``page``: the page in front.
        An application that does not answer is shown by its windows alone.
        """
        has_last = bool(self._last) and self._last_key[:2] == (app, pid)
        if has_last:  # else there is nothing to show instead
            deadline = min(deadline, time.monotonic() + READ_LIMIT_S)
        self._screen.connection.pump()
        self._accessibility.pump()
        arrangement = self._arrangement(pid)
        key = (app, pid, arrangement.key)
        if (*key, self._num_changes()) == self._last_key:
            return self._last
        self._read_since = self._num_changes()
        try:
            missed = page.ask_missed() if page else list
            limit_s = _FIRST_LIMIT_S if is_mark_sure and not has_last else _EXPECT_LIMIT_S
            nodes = self._read_app(app, pid, arrangement, frame_mark, limit_s, deadline)
        except (DBusError, AppGone):
            if has_last:
                return self._last
            if is_warm and not self._last:
                raise
            self.serial += 1
            self._last_key = ()
            return arrangement.seen([])
        nodes = within_reach(nodes, missed())
        self._last, self._last_key = nodes, (*key, self._read_since)
        self.serial += 1
        return nodes

    def _read_app(
        self, app: str, pid: int, arrangement: Arrangement, frame_mark: str, limit_s: float, deadline: float
    ) -> list[Node]:
        num_popups = self._screen.windows.num_popups
        if app == "calc":
            reading = Reading(bool(num_popups), closed_below=SHEETS)
            read_around = functools.partial(self._read_visible, pid, reading, arrangement, deadline)
            return self._sheet.read(pid, arrangement, num_popups, read_around, deadline=deadline)
        if app in ("writer", "impress"):
            # The sheet behind them would be entered once their own window is gone.
            reading = Reading(bool(num_popups), never_entered=SHEETS, with_text=_DOCUMENT_TEXT_ROLES)
            nodes = self._read_visible(pid, reading, arrangement, deadline)
            return arrangement.seen(as_agents_see(shift_root_panes(nodes)))
        if app == "chromium":
            return arrangement.seen(self._read_browser(pid, arrangement, frame_mark, limit_s, deadline))
        return arrangement.seen(self._read_visible(pid, Reading(bool(num_popups)), arrangement, deadline))

    def _arrangement(self, pid: int) -> Arrangement:
        windows = self._screen.windows
        screen = (0, 0, *self._screen.connection.size)
        return Arrangement(windows.surfaces(), pid=pid, active=windows.active(), screen=screen)

    def _num_changes(self) -> tuple[int, int]:
        return self._screen.connection.num_damages, self._accessibility.num_events

    def _read_visible(self, pid: int, reading: Reading, arrangement: Arrangement, deadline: float) -> list[Node]:
        """The tree without the windows that are covered whole."""
        app = self._accessibility.app_of(pid, deadline=deadline)
        reading = replace(reading, left_out=arrangement.left_out)
        nodes = app.read(reading, deadline=deadline)
        if arrangement.may_miss_objects() and self._accessibility.adopt_announced(app):
            nodes = app.read(reading, deadline=deadline)
        return nodes

    def _read_browser(self, pid: int, arrangement: Arrangement, frame_mark: str, limit_s: float, deadline: float) -> list[Node]:
        app = self._accessibility.app_of(pid, deadline=deadline)
        limit_s = min(limit_s, max(_EXPECT_LIMIT_S, (deadline - time.monotonic()) / 2))
        limit = time.monotonic() + limit_s
        while True:
            self._read_since = self._num_changes()
            num_events = self._accessibility.num_events
            if self._mark_path and frame_mark and time.monotonic() < limit - limit_s / 2:
                shown = app.name_of(self._mark_path)
                if shown is not None and shown != frame_mark:
                    self._accessibility.wait_for_event(_NO_EVENT_S, since=num_events)
                    continue
            reading = Reading(bool(self._screen.windows.num_popups), scale=self._web_scale)
            nodes = self._read_visible(pid, reading, arrangement, deadline)
            mark = next((node for node in nodes if node.name.startswith(MARK)), None)
            self._mark_path = mark.path if mark else ""
            # The page may be in a window that is covered whole, and its mark with it; but no task begins so.
            is_fresh = mark.name == frame_mark if mark else bool(self._last) and arrangement.has_left_out
            if not frame_mark or is_fresh or time.monotonic() >= limit:
                return _without_marks(nodes)
            self._accessibility.wait_for_event(_NO_EVENT_S, since=num_events)


def _without_marks(nodes: Sequence[Node]) -> list[Node]:
    """The nodes with the mark and all below it made blank; their places in the list stay, so that parents' indices do."""
    hidden: set[int] = set()
    kept = []
    for index, node in enumerate(nodes):
        if node.name.startswith(MARK) or node.parent in hidden:
            hidden.add(index)
            kept.append(replace(node, role="unknown", name="", text=None))
        else:
            kept.append(node)
    return kept
