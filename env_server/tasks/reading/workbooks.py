"""Workbooks as openpyxl reads them, but sparse: only cells that the file holds become cells.

openpyxl makes a cell for each place of a merged area, of a link's area and of a comment's area. A file of five kilobytes may
claim seventeen billion of them. Here areas stay areas. Comments, tables, pictures, defined names and links to
other files are left out: no judge reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any

from openpyxl.cell.cell import Cell
from openpyxl.chart.chartspace import ChartSpace
from openpyxl.chart.reader import read_chart
from openpyxl.chartsheet import Chartsheet
from openpyxl.drawing.spreadsheet_drawing import SpreadsheetDrawing
from openpyxl.packaging.relationship import RelationshipList, get_dependents, get_rel, get_rels_path
from openpyxl.pivot.cache import CacheDefinition
from openpyxl.pivot.table import TableDefinition
from openpyxl.reader.excel import ExcelReader
from openpyxl.styles.stylesheet import apply_stylesheet
from openpyxl.worksheet._reader import WorksheetReader
from openpyxl.worksheet.cell_range import CellRange, MultiCellRange
from openpyxl.xml.constants import ARC_STYLE
from openpyxl.xml.functions import fromstring

from computerrl.env_server.tasks.reading import limits
from computerrl.env_server.tasks.reading.limits import Budget, within
from computerrl.env_server.tasks.reading.packages import Package


def open_workbook(package: Package, *, formulas: bool) -> Any:
    """The workbook with the values that were last computed, or with formulas. Each sheet has its part's name as `part_name`."""
    reader = _BookReader(package.file(), data_only=not formulas, keep_links=False)
    reader.read()
    return reader.wb


def used_cells(sheet: Any) -> list[Any]:
    """The cells that the file holds, row by row."""
    return [sheet._cells[place] for place in sorted(sheet._cells)]


def cells_of(sheet: Any, area: CellRange) -> Iterator[Any]:
    """The cells among them that lie in ``area``, in no order; the work is the smaller of the area and the number of cells."""
    stored = sheet._cells
    if area.size["rows"] * area.size["columns"] <= len(stored):
        rows, columns = range(area.min_row, area.max_row + 1), range(area.min_col, area.max_col + 1)
        places = ((row, column) for row in rows for column in columns)
        yield from (stored[place] for place in places if place in stored)
        return
    for (row, column), cell in list(stored.items()):
        if area.min_row <= row <= area.max_row and area.min_col <= column <= area.max_col:
            yield cell


def work_of(sheet: Any, area: CellRange) -> int:
    """Steps that `cells_of` takes."""
    return int(min(area.size["rows"] * area.size["columns"], len(sheet._cells)))


def is_merged(sheet: Any, cell: Any) -> bool:
    """Is the cell covered by another one that it is merged with?"""
    return any(
        area.min_row <= cell.row <= area.max_row
        and area.min_col <= cell.column <= area.max_col
        and (cell.row, cell.column) != (area.min_row, area.min_col)
        for area in sheet.merged_cells.ranges
    )


def last_column(sheet: Any) -> int:
    """The last column that holds something, merged areas included."""
    return int(max([sheet.max_column, *(area.max_col for area in sheet.merged_cells.ranges)]))


class _BookReader(ExcelReader):
    """Reads what judges look at, each sheet and drawing once."""

    def read(self) -> None:
        """All of it. Unlike the method that it replaces it lets errors through as they are."""
        self.read_manifest()
        self.read_strings()
        self.read_workbook()
        self._read_styles()
        self.read_worksheets()
        self.archive.close()

    def _read_styles(self) -> None:
        """All styles; openpyxl looks for dates in number formats by patterns that cost the square of a format's length."""
        if ARC_STYLE in self.valid_files:
            for node in fromstring(self.archive.read(ARC_STYLE)).iter("{*}numFmt"):
                within("characters of a number format", len(node.get("formatCode", "")), limits.MAX_NUMBER_FORMAT)
        apply_stylesheet(self.archive, self.wb)

    def read_worksheets(self) -> None:
        """Every sheet with its charts and pivot tables."""
        within("sheets", len(self.parser.sheets), limits.MAX_SHEETS)
        cells, text = Budget("rows and cells", limits.MAX_CELLS), Budget("characters in cells", limits.MAX_CELL_TEXT)
        for entry, relation in self.parser.find_sheets():
            within("characters of a sheet's name", len(entry.name), limits.MAX_TITLE)
            if relation.target not in self.valid_files:
                continue
            if "chartsheet" in relation.Type:
                self._read_chart_sheet(entry.name, relation.target)
                continue
            sheet = self.wb.create_sheet(entry.name)
            sheet.sheet_state = entry.state
            sheet.part_name = relation.target
            sheet._rels = self._relations(relation.target)
            with self.archive.open(relation.target) as source:
                _SheetReader(sheet, source, self.shared_strings, self.data_only, cells, text).bind_all()
            sheet.legacy_drawing = None
            self._read_charts(sheet)
            for pivot in sheet._rels.find(TableDefinition.rel_type):
                self._read_pivot(sheet, pivot.Target)

    def _relations(self, target: str) -> Any:
        path = get_rels_path(target)
        return get_dependents(self.archive, path) if path in self.valid_files else RelationshipList()

    def _read_chart_sheet(self, title: str, path: str) -> None:
        sheet = Chartsheet.from_tree(fromstring(self.archive.read(path)))
        sheet._parent, sheet.title, sheet._rels, sheet.part_name = self.wb, title, self._relations(path), path
        self.wb._add_sheet(sheet)
        self._read_charts(sheet)

    def _read_charts(self, sheet: Any) -> None:
        for drawing in sheet._rels.find(SpreadsheetDrawing._rel_type):
            relations = self._relations(drawing.target)
            for place in SpreadsheetDrawing.from_tree(fromstring(self.archive.read(drawing.target)))._chart_rels:
                chart = read_chart(get_rel(self.archive, relations, place.id, ChartSpace))
                chart.anchor = place.anchor
                sheet._charts.append(chart)

    def _read_pivot(self, sheet: Any, path: str) -> None:
        pivot = TableDefinition.from_tree(fromstring(self.archive.read(path)))
        cache = next(cache for cache in self.parser.caches if cache.cacheId == pivot.cacheId)
        pivot.cache = get_rel(self.archive, self.parser.rels, id=cache.id, cls=CacheDefinition)
        sheet.add_pivot(pivot)


class _SheetReader(WorksheetReader):
    """Reads one sheet. Rows and cells are counted while they are read."""

    def __init__(self, sheet: Any, source: Any, strings: Any, data_only: bool, cells: Budget, text: Budget) -> None:
        super().__init__(sheet, source, strings, data_only, False)
        self._cells, self._text = cells, text
        self._parse_formula = self.parser.parse_formula
        self.parser.parse_formula = self._counted_formula

    def _counted_formula(self, element: Any) -> Any:
        formula = element.find("{*}f")
        if formula.get("t") == "shared":
            within("characters of a shared formula", len(formula.text or ""), limits.MAX_FORMULA)
        value = self._parse_formula(element)
        self._text.spend(len(value) if isinstance(value, str) else 0)
        return value

    def bind_cells(self) -> None:
        """Rows and cells of the file, no others."""
        styles, stored = self.ws.parent._cell_styles, self.ws._cells
        for _, row in self.parser.parse():
            self._cells.spend(1 + len(row))
            for found in row:
                cell = Cell(self.ws, row=found["row"], column=found["column"], style_array=styles[found["style_id"]])
                cell._value, cell.data_type = found["value"], found["data_type"]
                self._text.spend(len(found["value"]) if isinstance(found["value"], str) else 0)
                stored[found["row"], found["column"]] = cell
        if stored:
            self.ws._current_row = self.ws.max_row

    def bind_merged_cells(self) -> None:
        """Merged areas as areas. What lies below them is no cell of its own."""
        merged = self.parser.merged_cells
        areas = [CellRange(one.ref) for one in merged.mergeCell] if merged else []
        work = Budget("cells of merged areas", limits.MAX_RANGE_WORK)
        for area in areas:
            work.spend(1 + work_of(self.ws, area))
            for cell in list(cells_of(self.ws, area)):
                if (cell.row, cell.column) != (area.min_row, area.min_col):
                    del self.ws._cells[cell.row, cell.column]
        self.ws.merged_cells = MultiCellRange(areas)

    def bind_hyperlinks(self) -> None:
        """Links of cells; a link over an area is one of its first cell and of the cells in it that hold something."""
        work = Budget("cells of links", limits.MAX_RANGE_WORK)
        for link in self.parser.hyperlinks.hyperlink:
            if link.id:
                link.target = self.ws._rels.get(link.id).Target
            area = CellRange(link.ref)
            work.spend(1 + work_of(self.ws, area))
            first = self.ws.cell(area.min_row, area.min_col)
            for cell in (first, *(cell for cell in list(cells_of(self.ws, area)) if cell is not first)):
                cell.hyperlink = copy(link)
