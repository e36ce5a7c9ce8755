"""What the tools of Calc share: sheets by name, ranges as the agent writes them, what cells hold. No action of its own."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from ..process import DocumentError
from ..tools import OfficeTools
from ..uno_values import uno_class
from .ranges import Area, Value, cut_text, day_text, parse_area, split_sheet

MAX_CELLS = 200_000
"""More are neither read nor written at once: a second's worth."""
_FILLED = 1 | 2 | 4 | 16
"""com.sun.star.sheet.CellFlags: numbers, dates, text, formulas."""
_ERROR = 4
"""com.sun.star.sheet.FormulaResult."""
_DATE, _TIME = 2, 4
"""com.sun.star.util.NumberFormat."""


class CalcBase(OfficeTools):
    """Sheets and cells of the workbook."""

    @property
    def sheets(self) -> Any:
        """All sheets."""
        return self.document.Sheets

    @property
    def active_sheet(self) -> Any:
        """The sheet in sight."""
        return self.controller.ActiveSheet

    def all_sheets(self) -> list[Any]:
        """The sheets one after another."""
        return [self.sheets.getByIndex(i) for i in range(self.sheets.Count)]

    def sheet_named(self, name: str) -> Any:
        """A sheet, upper and lower case alike as in formulas. Raises `DocumentError` naming those there are."""
        found = self.find_sheet(name)
        if found is None:
            raise DocumentError(cut_text(f"there is no sheet {name!r}; sheets: {', '.join(self.sheets.ElementNames)}"))
        return found

    def find_sheet(self, name: str) -> Any:
        """A sheet, or None."""
        for known in self.sheets.ElementNames:
            if known.lower() == name.strip().lower():
                return self.sheets.getByName(known)
        return None

    def locate(self, text: str) -> tuple[Any, Area]:
        """Sheet and area of a range that may name its sheet, else lies on the active one. Raises `DocumentError`."""
        name, rest = split_sheet(text)
        area = parse_area(rest)
        return (self.active_sheet if name is None else self.sheet_named(name)), area

    def locate_to_change(self, text: str) -> tuple[Any, Area]:
        """Like `locate`, on a sheet that may be changed."""
        sheet, area = self.locate(text)
        return self.changeable(sheet), area

    def changeable(self, sheet: Any) -> Any:
        """``sheet``. Raises `DocumentError` when it is protected."""
        if sheet.isProtected():
            raise DocumentError(f"the sheet {sheet.Name!r} is protected")
        return sheet

    def check_structure(self) -> None:
        """Raise `DocumentError` when sheets must not be added, moved or renamed."""
        if self.document.isProtected():
            raise DocumentError("the workbook's structure is protected")

    def cells(self, sheet: Any, area: Area) -> Any:
        """UNO's range."""
        return sheet.getCellRangeByPosition(area.left, area.top, area.right, area.bottom)

    def used_area(self, sheet: Any) -> Area | None:
        """From the first to the last filled cell, None on an empty sheet. Cells that are only formatted do not count."""
        return bounds([area_of(address) for address in sheet.queryContentCells(_FILLED).RangeAddresses])

    def filled(self, sheet: Any, area: Area) -> Area | None:
        """The part of ``area`` from its first to its last filled cell."""
        found = self.cells(sheet, area).queryContentCells(_FILLED).RangeAddresses
        # Asked for columns right of all that was ever used, the office answers with the last used one.
        parts = [area_of(address).cut(area) for address in found]
        return bounds([part for part in parts if part is not None])

    def values(self, sheet: Any, area: Area) -> list[list[Value]]:
        """What the cells hold, row by row: numbers, text, dates as ISO text, errors as shown. Raises `DocumentError`."""
        if area.num_cells > MAX_CELLS:
            raise DocumentError(f"{area.name} has too many cells: {area.num_cells}, at most {MAX_CELLS}")
        cells = self.cells(sheet, area)
        found: list[list[Value]] = [["" if value is None else value for value in row] for row in cells.getDataArray()]
        for dates, with_date, with_time in self._date_areas(cells):
            for row in range(dates.top, dates.bottom + 1):
                for column in range(dates.left, dates.right + 1):
                    value = found[row - area.top][column - area.left]
                    if isinstance(value, float):
                        text = day_text(value, self._first_day, with_date=with_date, with_time=with_time)
                        found[row - area.top][column - area.left] = text
        for address in cells.queryFormulaCells(_ERROR).RangeAddresses:
            for row in range(address.StartRow, address.EndRow + 1):
                for column in range(address.StartColumn, address.EndColumn + 1):
                    found[row - area.top][column - area.left] = sheet.getCellByPosition(column, row).String
        return found

    def write(self, sheet: Any, area: Area, rows: Sequence[Sequence[Value]]) -> None:
        """Put numbers and text into all cells of ``area``; text stays text. Raises `DocumentError`."""
        runtime_error = uno_class("uno.RuntimeException")
        try:
            self.cells(sheet, area).setDataArray(tuple(tuple(row) for row in rows))
        except runtime_error as error:
            if type(error) is not runtime_error:
                raise  # a broken connection
            raise DocumentError(f"{area.name} cannot be written: it cuts through an array formula") from error

    def one_step(self, title: str) -> _OneStep:
        """For `with`: what is done inside is undone by one Ctrl+Z."""
        return _OneStep(self.document.UndoManager, title)

    def format_areas(self, cells: Any) -> list[tuple[int, list[Area]]]:
        """The number formats in ``cells`` and where each is."""
        groups = cells.UniqueCellFormatRanges
        return [
            (group.getByIndex(0).NumberFormat, [area_of(address) for address in group.RangeAddresses])
            for group in (groups.getByIndex(i) for i in range(groups.Count))
        ]

    def _date_areas(self, cells: Any) -> list[tuple[Area, bool, bool]]:
        formats = self.document.NumberFormats
        found = []
        for key, areas in self.format_areas(cells):
            kind = formats.getByKey(key).Type
            if kind & (_DATE | _TIME):
                found += [(area, bool(kind & _DATE), bool(kind & _TIME)) for area in areas]
        return found

    @property
    def _first_day(self) -> datetime.date:
        day = self.document.NullDate
        return datetime.date(day.Year, day.Month, day.Day)


class _OneStep:
    """Not by contextlib, see `refusing`."""

    def __init__(self, undo: Any, title: str) -> None:
        self._undo, self._title = undo, title

    def __enter__(self) -> None:
        self._undo.enterUndoContext(self._title)

    def __exit__(self, *_: object) -> None:
        self._undo.leaveUndoContext()


def area_of(address: Any) -> Area:
    """UNO's CellRangeAddress as `Area`."""
    return Area(address.StartColumn, address.StartRow, address.EndColumn, address.EndRow)


def bounds(areas: Sequence[Area]) -> Area | None:
    """The smallest area around all, None around nothing."""
    if not areas:
        return None
    return Area(min(a.left for a in areas), min(a.top for a in areas), max(a.right for a in areas), max(a.bottom for a in areas))
