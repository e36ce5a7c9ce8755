"""Calc's cells: texts come from the office, places from the table's edges; the tree around them is read when it changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from computerrl.env_server.guest.office.calc.sheet import SheetView
from computerrl.env_server.guest.office.process import OfficeGone
from computerrl.env_server.guest.reading.roles import SELECTED, has_state
from computerrl.env_server.guest.reading.sheet_cells import SheetTree
from computerrl.env_server.guest.reading.tree_walk import Extents, Node

AROUND = [
    Node("root", -1, "application", "soffice", None, (0, 0, 800, 600), 0),
    Node("document", 0, "document-spreadsheet", "", None, (0, 100, 800, 500), 0),
    Node("table", 1, "table", "Sheet1", None, (10, 110, 400, 300), 0),
]
VIEW = SheetView(cells=[(0, 1, "7"), (5, 0, "far")], active=(1, 0), visible=(0, 1, 0, 1), layout=(1,), surroundings=("Sheet1",))


class Accessibility:
    """One application. Column C begins at 100 C, row R at 20 R; all places are 10 too small."""

    num_calls = 0

    def app_of(self, pid: int, *, deadline: float) -> Accessibility:
        return self

    def cells_at(self, table: str, places: Sequence[tuple[int, int]]) -> list[str]:
        self.num_calls += 1
        return [f"{row} {column}" for row, column in places]

    def extents(self, paths: Sequence[str]) -> list[Extents]:
        if list(paths) == ["table"]:
            return [(0, 100, 400, 300)]
        places = [tuple(map(int, path.split())) for path in paths]
        return [(100 * column, 20 * row, 60, 20) for row, column in places]


class Office:
    view_now: SheetView | None = VIEW

    def view(self, *, timeout_s: float) -> SheetView:
        if self.view_now is None:
            raise OfficeGone("blocked")
        return self.view_now


@pytest.fixture
def office() -> Office:
    return Office()


@pytest.fixture
def accessibility() -> Accessibility:
    return Accessibility()


def reader(office: Office, accessibility: Accessibility) -> Any:
    """Reads the sheet, and counts in ``.num_reads`` how often that took the tree around the cells."""
    calc: Any = office
    bus: Any = accessibility
    sheet, arrangement = SheetTree(calc, bus), SimpleNamespace(key=(1,), seen=list)

    def read_around() -> list[Node]:
        read.num_reads += 1
        return AROUND

    def read() -> list[Node]:
        return sheet.read(1, arrangement, 0, read_around, deadline=60.0)  # type: ignore[arg-type]

    read.num_reads = 0  # type: ignore[attr-defined]
    return read


def test_cells_lie_where_the_table_s_edges_are(office: Office, accessibility: Accessibility) -> None:
    cells = reader(office, accessibility)()[len(AROUND) :]
    assert [(node.name, node.text, node.extents) for node in cells] == [
        ("B1", "7", (110, 10, 60, 20)),
        ("A2", "", (10, 30, 60, 20)),
    ]
    assert all(node.parent == 2 and node.role == "table-cell" for node in cells)
    assert [has_state(node.states, SELECTED) for node in cells] == [False, True]


def test_tree_and_edges_are_read_once_as_long_as_only_cells_change(office: Office, accessibility: Accessibility) -> None:
    read = reader(office, accessibility)
    read()
    office.view_now = replace(VIEW, cells=[(0, 0, "8")])
    assert read()[-2].text == "8" and read.num_reads == 1 and accessibility.num_calls == 1
    office.view_now = replace(VIEW, layout=(2,))
    read()
    assert read.num_reads == 1 and accessibility.num_calls == 2
    office.view_now = replace(VIEW, surroundings=("Sheet2",))
    read()
    assert read.num_reads == 2


def test_sheet_of_an_office_that_is_blocked_has_no_cells(office: Office, accessibility: Accessibility) -> None:
    office.view_now = None
    assert reader(office, accessibility)() == AROUND
