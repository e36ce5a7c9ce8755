"""The desktop's accessibility tree as one list of nodes: what is read when, what is kept, and how Calc's cells come in."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from ..files.folder import MAX_TEXT_BYTES
from ..office.calc.sheet import Calc, SheetView, column_name
from ..office.process import OfficeGone
from ..screen.display import Screen
from ..web.page_reach import Page, within_reach
from ..web.page_scripts import MARK
from .accessibility import Accessibility, AppGone
from .dbus import DBusError
from .document_nodes import as_agents_see
from .roles import EDITABLE, ENABLED, SELECTED, SENSITIVE, SHOWING, VISIBLE
from .tree_walk import TEXT_ROLES, Extents, Node, Reading
from .visibility import Arrangement

_READ_LIMIT_S = 3.0
"""One reading of a tree at most, where there is a last tree to be shown with its age."""
_VIEW_LIMIT_S = 2.0
_EXPECT_LIMIT_S = 2.0
"""A fresh page or folder must have arrived in the tree by then, else what there is is shown."""
_FIRST_LIMIT_S = 15.0
"""The same for the first reading of a task, which would show a page as it was before its task began. A browser that gets no
processor time has taken more than `_EXPECT_LIMIT_S`."""
_NO_EVENT_S = 0.1
"""A tree that is awaited announces its changes. It is looked at again after this time though nothing was announced."""
_MAX_FILES_COMPARED = 200
"""Number of files up to which a folder is compared with its list: each costs three calls of the accessibility bus."""
_SHEETS = frozenset({"document-spreadsheet"})
"""What Writer's and Impress's trees are read without: the sheet behind them would be entered once their own window is gone.
Of a sheet, Calc itself tells what its table holds.
"""
_DOCUMENT_TEXT_ROLES = TEXT_ROLES | {"paragraph", "heading"}
"""In the office's documents: there these have their text as content, elsewhere as name."""
_CELL_STATES = 1 << ENABLED | 1 << SENSITIVE | 1 << SHOWING | 1 << VISIBLE | 1 << EDITABLE


class TreeReader:
    """Reads the tree of the application in front."""

    def __init__(self, screen: Screen, accessibility: Accessibility, calc: Calc, *, web_scale: float) -> None:
        """``web_scale``: device pixels per CSS pixel in the browser of web tasks."""
        self._screen, self._accessibility, self._calc = screen, accessibility, calc
        self._web_scale = web_scale
        self._last: list[Node] = []
        self._last_key: tuple[object, ...] = ()
        self._last_at = 0.0
        self.serial = 0
        """Goes up with every reading: the same number means the same nodes."""
        self._office: list[Node] = []
        self._office_key: tuple[object, ...] = ()
        self._office_arrangement: Arrangement | None = None
        self._edges_key: tuple[object, ...] = ()
        self._column_edges: dict[int, tuple[int, int]] = {}
        self._row_edges: dict[int, tuple[int, int]] = {}
        self._mark_path = ""
        self._read_since = (0, 0)
        """`_num_changes` when the last reading of a tree began; later ones make it old."""

    def forget(self) -> None:
        """A new task: nothing read before counts."""
        self._last, self._last_key = [], ()
        self._mark_path = ""

    def select_first_file(self, pid: int, table: str, names: Sequence[str], *, deadline: float) -> None:
        """Wait until the file manager's table (object path) holds exactly these files, and select the first one.

        With the focus, the file manager selects the first file that it knows of, which later ones push down, or none.
        """
        app, wanted = self._accessibility.app_of(pid, deadline=deadline), sorted(names)
        limit = min(deadline, time.monotonic() + _EXPECT_LIMIT_S) if len(names) <= _MAX_FILES_COMPARED else 0.0
        while time.monotonic() < limit:
            num_events = self._accessibility.num_events
            if sorted(app.row_names(table, len(wanted) + 1, timeout_s=_READ_LIMIT_S)) == wanted:
                break
            self._accessibility.wait_for_event(_NO_EVENT_S, since=num_events)
        if names:
            self._screen.press_chord("home")
            app.select_row(table, 0)

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
    ) -> tuple[list[Node], float]:
        """(nodes, age in seconds) of the application in front, whose windows process ``pid`` shows.

        ``app``: empty for a process that is none of the desktop's applications; ``is_warm``: it runs all the time, so that
        silence in a task's first reading is an error (`DBusError`, `AppGone`); ``frame_mark``: what the browser's tree must show
        to be new; ``is_mark_sure``: nothing on the page can hold that back; ``page``: the browser whose page is in front. Of
        an application that does not answer only its windows are given.
        """
        has_last = bool(self._last) and self._last_key[:2] == (app, pid)
        if has_last:  # else there is nothing to show instead
            deadline = min(deadline, time.monotonic() + _READ_LIMIT_S)
        self._screen.pump()
        self._accessibility.pump()
        arrangement = self._arrangement(pid)
        key = (app, pid, arrangement.key)
        if (*key, self._num_changes()) == self._last_key:
            return self._last, 0.0
        self._read_since = self._num_changes()
        try:
            missed = page.ask_missed() if page else list
            limit_s = _FIRST_LIMIT_S if is_mark_sure and not has_last else _EXPECT_LIMIT_S
            nodes = self._read_app(app, pid, arrangement, frame_mark, limit_s, deadline)
        except (DBusError, AppGone):
            if has_last:
                return self._last, time.monotonic() - self._last_at
            if is_warm and not self._last:
                raise
            self.serial += 1
            self._last_key = ()
            return arrangement.seen([]), 0.0
        nodes = within_reach(nodes, missed())
        self._last, self._last_at, self._last_key = nodes, time.monotonic(), (*key, self._read_since)
        self.serial += 1
        return nodes, 0.0

    def _read_app(
        self, app: str, pid: int, arrangement: Arrangement, frame_mark: str, limit_s: float, deadline: float
    ) -> list[Node]:
        if app == "calc":
            return self._read_sheet(pid, arrangement, deadline)
        if app in ("writer", "impress"):
            return arrangement.seen(self._read_document(pid, arrangement, deadline))
        if app == "chromium":
            return arrangement.seen(self._read_browser(pid, arrangement, frame_mark, limit_s, deadline))
        return arrangement.seen(self._read_visible(pid, Reading(bool(self._screen.num_popups)), arrangement, deadline))

    def _arrangement(self, pid: int) -> Arrangement:
        screen = (0, 0, *self._screen.size)
        return Arrangement(self._screen.surfaces(), pid=pid, active=self._screen.active_window(), screen=screen)

    def text_of(self, pid: int) -> str:
        """Content of the application's largest text field."""
        try:
            nodes = self._read(pid, time.monotonic() + _READ_LIMIT_S)
        except AppGone:  # the agent has closed it
            return ""
        texts = [node for node in nodes if node.text is not None]
        largest = max(texts, key=lambda node: node.extents[2] * node.extents[3], default=None)
        return (largest.text or "")[:MAX_TEXT_BYTES] if largest else ""

    def knows(self, pid: int) -> bool:
        """Is the application there to be read?"""
        try:
            self._accessibility.app_of(pid, deadline=time.monotonic() + _READ_LIMIT_S)
        except AppGone:
            return False
        return True

    def nodes_of(self, pid: int, *, without: frozenset[str] = frozenset()) -> list[Node]:
        """All showing objects of the application but those below the roles ``without``; a reading is costly, so several questions
        share one."""
        return self._read(pid, time.monotonic() + _READ_LIMIT_S, never_entered=without)

    def num_children(self, pid: int, path: str) -> int | None:
        """How many children this object of the application has, in one call; None when it is gone."""
        return self._accessibility.app_of(pid, deadline=time.monotonic() + _READ_LIMIT_S).num_children(path)

    def focus(self, pid: int, path: str) -> None:
        """Give the keyboard to this object of the application."""
        self._accessibility.app_of(pid, deadline=time.monotonic() + _READ_LIMIT_S).focus(path)

    def has_plain_entry(self, pid: int, nodes: Sequence[Node], text: str) -> bool:
        """Does a text field among these nodes of the application hold ``text``, with nothing selected in it?"""
        entry = next((node for node in nodes if node.role == "text" and node.text == text), None)
        app = self._accessibility.app_of(pid, deadline=time.monotonic() + _READ_LIMIT_S)
        return entry is not None and not app.has_selection(entry.path)

    def press_button(self, pid: int, names: Sequence[str]) -> bool:
        """Press the first button with one of these names, by accessibility."""
        try:
            deadline = time.monotonic() + _READ_LIMIT_S
            for node in self._read(pid, deadline):
                if node.role == "button" and node.name.replace("_", "").replace("\u2019", "'") in names:
                    self._accessibility.app_of(pid, deadline=deadline).press(node.path)
                    return True
        except (DBusError, AppGone):
            return False
        return False

    def _read(self, pid: int, deadline: float, *, never_entered: frozenset[str] = frozenset()) -> list[Node]:
        """All that shows, of covered windows too."""
        reading = Reading(bool(self._screen.num_popups), never_entered=never_entered)
        return self._accessibility.app_of(pid, deadline=deadline).read(reading, deadline=deadline)

    def _num_changes(self) -> tuple[int, int]:
        return self._screen.num_damages, self._accessibility.num_events

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
            reading = Reading(bool(self._screen.num_popups), scale=self._web_scale)
            nodes = self._read_visible(pid, reading, arrangement, deadline)
            mark = next((node for node in nodes if node.name.startswith(MARK)), None)
            self._mark_path = mark.path if mark else ""
            # The page may be in a window that is covered whole, and its mark with it; but no task begins so.
            is_fresh = mark.name == frame_mark if mark else bool(self._last) and arrangement.has_left_out
            if not frame_mark or is_fresh or time.monotonic() >= limit:
                return _without_marks(nodes)
            self._accessibility.wait_for_event(_NO_EVENT_S, since=num_events)

    # --- the office ---

    def _read_document(self, pid: int, arrangement: Arrangement, deadline: float) -> list[Node]:
        reading = Reading(bool(self._screen.num_popups), never_entered=_SHEETS, with_text=_DOCUMENT_TEXT_ROLES)
        return as_agents_see(_shift_root_panes(self._read_visible(pid, reading, arrangement, deadline)))

    def _read_sheet(self, pid: int, arrangement: Arrangement, deadline: float) -> list[Node]:
        try:
            view = self._calc.view(timeout_s=_VIEW_LIMIT_S)
        except OfficeGone:
            view = None  # the agent closed the document, or a dialog blocks it: what is on screen is shown without cells
        # Every sheet has an accessible table of its own.
        key = (pid, arrangement.key, self._screen.num_popups, view.surroundings if view else ())
        if key != self._office_key or not self._office or self._office_arrangement is None:
            reading = Reading(bool(self._screen.num_popups), closed_below=_SHEETS)
            nodes = self._read_visible(pid, reading, arrangement, deadline)
            self._office, self._office_key, self._office_arrangement = _shift_root_panes(nodes), key, arrangement
        table = _table_index(self._office) if view else -1
        if view is None or table < 0:
            return self._office_arrangement.seen(self._office)
        self._find_edges(pid, view, self._office[table], deadline)
        return self._office_arrangement.seen(self._office + self._cells(view, parent=table))

    def _cells(self, view: SheetView, *, parent: int) -> list[Node]:
        shown = {(row, column): text for row, column, text in view.cells}
        shown.setdefault(view.active, "")
        nodes = []
        for (row, column), text in sorted(shown.items()):
            if row not in self._row_edges or column not in self._column_edges:
                continue
            y, height = self._row_edges[row]
            x, width = self._column_edges[column]
            address = f"{column_name(column)}{row + 1}"
            states = _CELL_STATES | (1 << SELECTED if (row, column) == view.active else 0)
            nodes.append(Node(f"cell:{address}", parent, "table-cell", address, text, (x, y, width, height), states))
        return nodes

    def _find_edges(self, pid: int, view: SheetView, table: Node, deadline: float) -> None:
        key = (pid, table.path, table.extents, view.layout)
        if key == self._edges_key:
            return
        top, bottom, left, right = view.visible
        app = self._accessibility.app_of(pid, deadline=deadline)
        places = [(top, column) for column in range(left, right + 1)] + [(row, left) for row in range(top, bottom + 1)]
        paths = [path or "" for path in app.cells_at(table.path, places)]
        boxes = app.extents(paths)
        raw = app.extents([table.path])[0]
        dx, dy = (0, 0) if raw is None else (table.extents[0] - raw[0], table.extents[1] - raw[1])
        self._column_edges, self._row_edges = {}, {}
        for index, ((row, column), box) in enumerate(zip(places, boxes, strict=True)):
            if box is None or box[2] <= 0:
                continue
            if index <= right - left:
                self._column_edges[column] = (box[0] + dx, box[2])
            else:
                self._row_edges[row] = (box[1] + dy, box[3])
        self._edges_key = key


def _table_index(nodes: Sequence[Node]) -> int:
    for index, node in enumerate(nodes):
        if node.role == "table" and node.parent >= 0 and nodes[node.parent].role == "document-spreadsheet":
            return index
    return -1


def _shift_root_panes(nodes: Sequence[Node]) -> list[Node]:
    """LibreOffice counts its own area's positions from below the menu bar; the enclosing GTK panel says where that is.

    GTK widgets inside that area (name box, input line) report true positions again: known by their being where their parent,
    shifted, is. The office's own menu bar, which GTK replaces, is left out with its menus.
    """
    shifts: list[tuple[int, int]] = []
    moved: list[Node] = []
    for node in nodes:
        x, y, width, height = node.extents
        shift = shifts[node.parent] if node.parent >= 0 else (0, 0)
        if node.parent >= 0:
            outer: Extents = moved[node.parent].extents
            if node.role == "root-pane":
                shift = (outer[0] - x, outer[1] - y)
            elif shift != (0, 0) and all(abs(a - b) <= 2 for a, b in zip(node.extents, outer, strict=True)):
                shift = (0, 0)
        is_replaced = node.parent >= 0 and moved[node.parent].role == "menu-bar" and moved[node.parent].extents[3] == 0
        shifts.append(shift)
        role = "unknown" if is_replaced else node.role
        moved.append(replace(node, role=role, extents=(x + shift[0], y + shift[1], width, height)))
    return moved


def _without_marks(nodes: Sequence[Node]) -> list[Node]:
    """The mark and what is below it out; its place in the list stays, so that parents' indices do."""
    hidden: set[int] = set()
    kept = []
    for index, node in enumerate(nodes):
        if node.name.startswith(MARK) or node.parent in hidden:
            hidden.add(index)
            kept.append(replace(node, role="unknown", name="", text=None))
        else:
            kept.append(node)
    return kept
