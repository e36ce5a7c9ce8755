"""Calc as the environment uses it: the warm sheet of tasks without a file, and what the active sheet shows.

Cells are read by UNO in one call; where they are on screen comes from the accessibility table's row and column edges,
read once per layout (`guest.reading.sheet_cells`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...files.folder import read_regular
from ...processes import Program
from ..process import DocumentError, Office, OfficeGone
from ..uno_values import dispatch
from .sheet_window import SheetWindow, area_on_screen

FILE_NAME = "sheet.ods"
"""What the warm sheet is saved as, in the agent's folder."""
_SHEET = "Sheet1"
_COLUMN_WIDTH = 2258
"""LibreOffice's default, 1/100 mm."""
_EVERYTHING = 1023
"""com.sun.star.sheet.CellFlags: contents, styles, formats, notes, objects."""
_MAX_CELLS = 400
_ANSWER_LIMIT_S = 5.0
_SERVICE = "com.sun.star.sheet.SpreadsheetDocument"
MAX_COLUMNS, MAX_ROWS = 16_384, 1_048_576
"""Of a sheet since LibreOffice 7.4, as in Excel."""
_CELL = re.compile(r"^\$?([A-Za-z]{1,3})\$?([1-9][0-9]{0,6})$")


@dataclass(frozen=True, slots=True)
class SheetView:
    """What the active sheet shows."""

    cells: list[tuple[int, int, str]]
    """(row, column, text) of filled visible cells, 0-based."""
    active: tuple[int, int]
    visible: tuple[int, int, int, int]
    """First row, last row, first column, last column."""
    layout: tuple[Any, ...]
    """Changes whenever rows or columns move or change size."""
    surroundings: tuple[Any, ...]
    """Changes with the sheet, and whenever something around it comes or goes."""


def column_name(index: int) -> str:
    """0 -> A, 25 -> Z, 26 -> AA."""
    name = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        name = chr(ord("A") + rest) + name
    return name


def cell_index(cell: str) -> tuple[int, int]:
    """Row 2, column 1 for "B3". Raises `DocumentError`."""
    match = _CELL.match(cell.strip())
    if not match:
        raise DocumentError(f"{cell!r} is no cell")
    column = 0
    for letter in match[1].upper():
        column = column * 26 + ord(letter) - ord("A") + 1
    row = int(match[2])
    if column > MAX_COLUMNS or row > MAX_ROWS:
        raise DocumentError(f"{cell!r} lies outside the sheet")
    return row - 1, column - 1


def cell_text(value: object) -> str:
    """A cell's value as text: numbers without trailing zeros."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.15g}"
    return "" if value is None else str(value)


class Calc:
    """The office's sheets. The warm one stays open between tasks, emptied and refilled: a new window costs ten times as much."""

    name = "calc"
    window_kind = "libreoffice-calc"

    def __init__(self, office: Office, *, folder: Path) -> None:
        self._office = office
        self._folder = folder
        self._warm: Any = None
        self._start = -1
        """Which start of the office the warm sheet belongs to."""
        self._window: SheetWindow

    @property
    def program(self) -> Program:
        """The office's process."""
        return self._office.program

    def start(self) -> None:
        """Start the office; the warm sheet is there once `connect` returns."""
        self._office.start()

    def end(self) -> None:
        """End the office and forget its profile."""
        self._office.end()
        self._warm = None

    def note(self) -> None:
        """See `Office.note`."""
        self._office.note()

    def changes(self, *, timeout_s: float) -> list[str]:
        """See `Office.changes`."""
        return self._office.changes(timeout_s=timeout_s)

    def profile(self) -> list[Path]:
        """Where all the office's files lie."""
        return [self._office.folder]

    def kept(self) -> list[Path]:
        """All of them."""
        return self.profile()

    def connect(self, *, timeout_s: float) -> None:
        """Wait for the office and its warm sheet. Raises `OfficeGone`, also when that was closed or does not answer."""
        if self._warm is not None and self._start == self._office.num_starts:
            self._office.call(lambda: self._warm.CurrentController.Frame is not None, timeout_s=min(timeout_s, _ANSWER_LIMIT_S))
            return
        self._warm = None
        deadline = time.monotonic() + timeout_s
        self._office.connect(timeout_s=timeout_s)
        while self._warm is None:
            self._office.call(self._find_warm, timeout_s=max(1.0, deadline - time.monotonic()))
            if self._warm is None:
                if time.monotonic() > deadline or not self.program.running:
                    raise OfficeGone(f"the office opened no document: {self.program.log_tail()}")
                time.sleep(0.03)
        self._name(deadline)
        self._start = self._office.num_starts

    def open(self, cells: Mapping[str, str], active_cell: str, *, timeout_s: float) -> None:
        """A sheet with exactly these cells, nothing else left of the last one."""
        cell_index(active_cell)
        places = {cell_index(cell): str(text) for cell, text in cells.items()}
        self._office.call(lambda: self._refill(places, active_cell), timeout_s=timeout_s)

    def view(self, *, timeout_s: float) -> SheetView:
        """Filled and visible cells."""
        return self._office.call(self._view, timeout_s=timeout_s)

    def read(self, cells: str, *, timeout_s: float) -> list[list[str]]:
        """Cell texts of a range such as ``A1:C9``, row by row; all empty in a workbook that the agent has closed."""
        left, top, right, bottom = _area(cells)

        def rows() -> Sequence[Sequence[object]]:
            sheet = self._sheet()
            return empty_cells(cells) if sheet is None else sheet.getCellRangeByPosition(left, top, right, bottom).getDataArray()

        return [[cell_text(value) for value in row] for row in self._office.call(rows, timeout_s=timeout_s)]

    def _name(self, deadline: float) -> None:
        """Have the warm sheet saved as `FILE_NAME` from now on. It gets the name by being stored, and what lies there stays.

        The office that has just started is still making its window: to store from another thread than its main one ends it.
        """
        place = self._folder / FILE_NAME
        before, there = read_regular(place), self._temporary()
        try:
            self._office.on_main(
                lambda: self._warm.storeAsURL(place.as_uri(), ()), timeout_s=max(1.0, deadline - time.monotonic())
            )
        finally:  # also when the office ends meanwhile
            for left in self._temporary() - there:
                left.unlink(missing_ok=True)
            if before is None:
                place.unlink(missing_ok=True)
            else:
                place.write_bytes(before)

    def _temporary(self) -> set[Path]:
        """Files into which the office stores a document, until they get its name."""
        return {place for place in self._folder.glob("lu*.tmp") if place.is_file()}

    # --- in the worker's thread ---

    def _find_warm(self) -> None:
        # The office opens its first document by itself, from its command line.
        desktop = self._office.create("com.sun.star.frame.Desktop")
        components = desktop.Components.createEnumeration()
        if not components.hasMoreElements():
            return
        document = components.nextElement()
        if document.CurrentController is None:
            return
        self._desktop, self._warm, self._window = desktop, document, SheetWindow(self._office, document)

    def active(self) -> Any:
        """The workbook in front, else the warm one, None when the agent has closed that; only inside the office's calls."""
        component = self._desktop.CurrentComponent
        if component is not None and component.supportsService(_SERVICE):
            return component
        components = self._desktop.Components.createEnumeration()
        while components.hasMoreElements():
            if self.is_warm(components.nextElement()):
                return self._warm
        return None

    def is_warm(self, document: Any) -> bool:
        """Is this the warm sheet? Only inside the office's calls."""
        return self._warm is not None and bool(document == self._warm)

    def _sheet(self) -> Any:
        document = self.active()
        if document is None:
            return None
        active = getattr(document.CurrentController, "ActiveSheet", None)
        return document.Sheets.getByIndex(0) if active is None else active  # a print preview shows no sheet

    def _refill(self, places: Mapping[tuple[int, int], str], active_cell: str) -> None:
        document, controller = self._warm, self._warm.CurrentController
        sheets = document.Sheets
        sheet = sheets.getByIndex(0)
        undo = document.UndoManager
        undo.clear()
        undo.lock()
        document.addActionLock()
        try:
            for name in sheets.ElementNames[1:]:
                sheets.removeByName(name)
            _forget_ranges(document)
            if sheet.Name != _SHEET:
                sheet.Name = _SHEET
            # Ends a half-typed cell now: ended by a later selection, its text would land in the new sheet.
            controller.setActiveSheet(sheet)
            controller.select(sheet.getCellByPosition(0, 0))
            cursor = sheet.createCursor()
            cursor.gotoEndOfUsedArea(False)
            end = cursor.RangeAddress
            used = sheet.getCellRangeByPosition(0, 0, end.EndColumn, end.EndRow)
            used.merge(False)
            used.clearContents(_EVERYTHING)
            columns, rows = sheet.Columns, sheet.Rows
            columns.IsVisible, rows.IsVisible = True, True
            columns.Width = _COLUMN_WIDTH
            rows.OptimalHeight = True
            if places:
                bottom, right = max(row for row, _ in places), max(column for _, column in places)
                block = tuple(tuple(places.get((row, column), "") for column in range(right + 1)) for row in range(bottom + 1))
                sheet.getCellRangeByPosition(0, 0, right, bottom).setFormulaArray(block)
        finally:
            document.removeActionLock()
            undo.unlock()
        if controller.hasFrozenPanes() or controller.getIsWindowSplit():
            controller.splitAtPosition(0, 0)  # which is how a split is taken away
        if controller.ZoomValue != 100:
            controller.ZoomValue = 100
        controller.setActiveSheet(sheet)
        # Not by selecting: in a selection, Enter would not move on.
        dispatch(self._office, document, ".uno:GoToCell", ToPoint=active_cell)
        controller.setFirstVisibleRow(0)
        controller.setFirstVisibleColumn(0)
        self._window.restore()

    def _view(self) -> SheetView:
        document = self.active()
        if document is None:
            raise OfficeGone("the workbook was closed")
        controller = document.CurrentController
        sheet = getattr(controller, "ActiveSheet", None)
        if sheet is None:
            raise OfficeGone("a print preview shows no sheet")
        seen = controller.VisibleRange
        # Each call takes the office about a millisecond, so as few as possible: all that is visible, empty cells too.
        rows = sheet.getCellRangeByPosition(seen.StartColumn, seen.StartRow, seen.EndColumn, seen.EndRow).getDataArray()
        cells = [
            (seen.StartRow + r, seen.StartColumn + c, cell_text(value))
            for r, row in enumerate(rows)
            for c, value in enumerate(row)
            if value != ""
        ][:_MAX_CELLS]
        address = getattr(document.CurrentSelection, "RangeAddress", None)
        corner = sheet.getCellByPosition(seen.EndColumn, seen.EndRow).Position
        visible = (seen.StartRow, seen.EndRow, seen.StartColumn, seen.EndColumn)
        return SheetView(
            cells=cells,
            active=(address.StartRow, address.StartColumn) if address is not None else (0, 0),
            visible=visible,
            layout=(*visible, corner.X, corner.Y, controller.ZoomValue, sheet.Name),
            surroundings=(sheet.Name, *area_on_screen(controller)),
        )


def empty_cells(cells: str) -> list[list[str]]:
    """What `Calc.read` gives of a range where nothing is."""
    left, top, right, bottom = _area(cells)
    return [[""] * (right - left + 1)] * (bottom - top + 1)


def _area(cells: str) -> tuple[int, int, int, int]:
    """First and last column and row of a range, as left, top, right and bottom. Raises `DocumentError`."""
    first, _, last = cells.partition(":")
    (top, left), (bottom, right) = cell_index(first), cell_index(last or first)
    top, bottom, left, right = min(top, bottom), max(top, bottom), min(left, right), max(left, right)
    if (bottom - top + 1) * (right - left + 1) > 100_000:
        raise DocumentError(f"{cells} has too many cells")
    return left, top, right, bottom


def _forget_ranges(document: Any) -> None:
    """Names of ranges, and filters."""
    for ranges in (document.NamedRanges, document.DatabaseRanges):
        for name in ranges.ElementNames:
            ranges.removeByName(name)
    unnamed = document.getPropertyValue("UnnamedDatabaseRanges")
    if unnamed.hasByTable(0):
        unnamed.getByTable(0).AutoFilter = False
