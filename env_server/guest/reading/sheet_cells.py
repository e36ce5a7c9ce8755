"""Calc's tree: the table's cells come from the office, their places from the table's edges in the tree.

The office counts a billion accessible cells below a sheet, so the tree is read without them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ..office.calc.sheet import Calc, SheetView, column_name
from ..office.process import OfficeGone
from .accessibility import Accessibility
from .document_nodes import shift_root_panes
from .roles import EDITABLE, ENABLED, SELECTED, SENSITIVE, SHOWING, VISIBLE
from .tree_walk import Node
from .visibility import Arrangement

SHEETS = frozenset({"document-spreadsheet"})
"""Role of the object that holds a sheet's table."""
_VIEW_LIMIT_S = 2.0
_CELL_STATES = 1 << ENABLED | 1 << SENSITIVE | 1 << SHOWING | 1 << VISIBLE | 1 << EDITABLE


class SheetTree:
    """The tree of Calc's window, and the cells in it. What is around the cells is read anew only when it may have changed."""

    def __init__(self, calc: Calc, accessibility: Accessibility) -> None:
        self._calc, self._accessibility = calc, accessibility
        self._around: list[Node] = []
        """All nodes but the cells, as they were read last, under this key, with the windows of that moment."""
        self._around_key: tuple[object, ...] = ()
        self._arrangement: Arrangement | None = None
        self._edges_key: tuple[object, ...] = ()
        self._column_edges: dict[int, tuple[int, int]] = {}
        """Column -> x and width on the screen."""
        self._row_edges: dict[int, tuple[int, int]] = {}
        """Row -> y and height on the screen."""

    def read(
        self, pid: int, arrangement: Arrangement, num_popups: int, read_around: Callable[[], list[Node]], *, deadline: float
    ) -> list[Node]:
        """The nodes of the office's process ``pid``; ``read_around`` reads all but the cells."""
        try:
            view = self._calc.view(timeout_s=min(_VIEW_LIMIT_S, max(0.0, deadline - time.monotonic())))
        except OfficeGone:
            view = None  # the agent closed the document, or a dialog blocks it: the screen is shown without cells
        # Every sheet has an accessible table of its own.
        key = (pid, arrangement.key, num_popups, view.surroundings if view else ())
        if key != self._around_key or not self._around or self._arrangement is None:
            self._around, self._around_key, self._arrangement = shift_root_panes(read_around()), key, arrangement
        table = _table_index(self._around) if view else -1
        if view is None or table < 0:
            return self._arrangement.seen(self._around)
        self._find_edges(pid, view, self._around[table], deadline)
        return self._arrangement.seen(self._around + self._cells(view, parent=table))

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
