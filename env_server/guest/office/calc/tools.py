"""The agent's API of Calc, see `common.actions.tables.calc`: cells, columns and sheets here, the rest in what it inherits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..process import DocumentError
from ..uno_values import properties, struct
from .base import area_of
from .format import FormatTools
from .objects import ObjectTools
from .ranges import (
    Area,
    check_sheet_name,
    column_index,
    cut_text,
    finite,
    list_text,
    row_index,
    runs,
    table_text,
    with_calc_references,
)
from .sheet import MAX_COLUMNS, MAX_ROWS, cell_text, column_name

_TABLE_ROWS, _TABLE_COLUMNS = 400, 200
"""More of a sheet never fits into a result."""


class CalcTools(FormatTools, ObjectTools):
    """One method per action."""

    # --- reading ---

    def env_info(self) -> str:
        """The active sheet as the agent may read it."""
        sheet = self.active_sheet
        used = self.used_area(sheet)
        if used is None:
            return f"{sheet.Name} is empty"
        right, bottom = min(used.right, used.left + _TABLE_COLUMNS - 1), min(used.bottom, used.top + _TABLE_ROWS - 1)
        rows = self.values(sheet, Area(used.left, used.top, right, bottom))
        return f"{sheet.Name}, used range {used.name}\n{table_text(rows, used)}"

    def get_workbook_info(self) -> str:
        """File, sheets with their used ranges, which one is active."""
        lines = []
        for sheet in self.all_sheets():
            used = self.used_area(sheet)
            lines.append(f"{sheet.Name} ({used.name if used else 'empty'}{'' if sheet.IsVisible else ', hidden'})")
        return (
            f"path: {self.file_name}\nname: {self.document.Title}\nsheets: {cut_text(', '.join(lines), max_chars=1200)}\n"
            f"active sheet: {self.active_sheet.Name}\nunsaved changes: {'yes' if self.document.isModified() else 'no'}"
        )

    def get_cell(self, cell: str) -> str:
        """What the cell holds: a formula's value, a date or an error as shown."""
        sheet, area = self._one_cell(cell)
        return cut_text(cell_text(self.values(sheet, area)[0][0]))

    def get_column_data(self, column_name: str) -> str:
        """All values of a column from row 1 to its last filled one."""
        sheet, column = self.active_sheet, column_index(column_name)
        filled = self.filled(sheet, _column(column))
        if filled is None:
            return "[]"
        area = Area(column, 0, column, filled.bottom)
        return f"{area.name}: {list_text([row[0] for row in self.values(sheet, area)])}"

    # --- cells ---

    def set_cell(self, cell: str, value: str | int | float) -> str:
        """Set a value or formula as if it was typed."""
        sheet, area = self._one_cell(cell)
        target = self.cells(self.changeable(sheet), area).getCellByPosition(0, 0)
        if isinstance(value, str):
            target.FormulaLocal = with_calc_references(value, self.sheets.ElementNames) if value.startswith("=") else value
        else:
            target.setValue(finite(value))
        return f"{area.name} shows {target.String!r}" if target.getError() else ""

    def set_column_values(self, column_name: str, data: Sequence[str | int | float], start_index: int) -> str:
        """A list downwards from a row on; text stays text, also when it looks like a formula."""
        sheet, column, top = self.changeable(self.active_sheet), column_index(column_name), row_index(start_index)
        if not data:
            raise DocumentError("there are no values to write")
        if top + len(data) > MAX_ROWS:
            raise DocumentError(f"{len(data)} values do not fit below row {start_index}")
        area = Area(column, top, column, top + len(data) - 1)
        self.write(sheet, area, [[value if isinstance(value, str) else finite(value)] for value in data])
        return f"wrote {area.name}"

    def transpose_range(self, source_range: str, target_cell: str) -> str:
        """Values and number formats; formulas arrive as their values."""
        source_sheet, source = self.locate(source_range)
        sheet, corner = self._one_cell(target_cell)
        self.changeable(sheet)
        source = source.cut(self.used_area(source_sheet)) or Area(source.left, source.top, source.left, source.top)
        right, bottom = corner.left + source.num_rows - 1, corner.top + source.num_columns - 1
        if right >= MAX_COLUMNS or bottom >= MAX_ROWS:
            raise DocumentError(f"{source.name} transposed at {corner.name} would leave the sheet")
        target = Area(corner.left, corner.top, right, bottom)
        self.values(source_sheet, source)  # refuses what is too large
        cells = self.cells(source_sheet, source)
        rows = [["" if value is None else value for value in row] for row in cells.getDataArray()]
        formats = self.format_areas(cells)
        with self.one_step("Transpose"):
            self.write(sheet, target, list(zip(*rows, strict=True)))
            for key, areas in formats:
                for area in areas:
                    left, top = corner.left + area.top - source.top, corner.top + area.left - source.left
                    place = Area(left, top, left + area.num_rows - 1, top + area.num_columns - 1)
                    self.cells(sheet, place).NumberFormat = key
        return f"wrote {target.name}"

    # --- columns and rows ---

    def sort_column(self, column_name: str, ascending: bool, start_index: int) -> str:
        """One column's cells from a row on; numbers before text, empty ones last; other columns stay."""
        import uno

        sheet, column, top = self.changeable(self.active_sheet), column_index(column_name), row_index(start_index)
        filled = self.filled(sheet, Area(column, top, column, MAX_ROWS - 1))
        if filled is None:
            raise DocumentError(f"column {column_name} is empty from row {start_index} on")
        area = Area(column, top, column, filled.bottom)
        cells = self.cells(sheet, area)
        self._refuse_merged(sheet, area)
        field = struct("table.TableSortField", Field=0, IsAscending=ascending, IsCaseSensitive=False)
        fields = uno.Any("[]com.sun.star.table.TableSortField", (field,))
        cells.sort(properties(SortFields=fields, ContainsHeader=False, IsSortColumns=False, BindFormatsToContent=True))
        return f"sorted {area.name}, {'smallest' if ascending else 'largest'} first"

    def reorder_columns(self, column_order: Sequence[str]) -> str:
        """The named columns share out their own places anew, the first named one gets the leftmost; references follow."""
        sheet = self.changeable(self.active_sheet)
        wanted = [column_index(name) for name in column_order]
        if len(wanted) < 2 or len(set(wanted)) < len(wanted):
            raise DocumentError("name at least two columns, each once, in the order that they shall have")
        places = sorted(wanted)
        used = self.used_area(sheet)
        spare = max(places[-1], used.right if used else 0) + 1
        if spare + len(places) > MAX_COLUMNS:
            raise DocumentError("there are not enough empty columns to move through")
        for first, last in runs(places):
            area = Area(first, 0, last, MAX_ROWS - 1)
            self._refuse_merged(sheet, area)
        looks = [(column.Width, column.IsVisible) for column in map(sheet.Columns.getByIndex, wanted)]
        with self.one_step("Reorder columns"):
            for offset, column in enumerate(wanted):
                self._move(sheet, _column(column), spare + offset)
            for offset, (place, (width, is_visible)) in enumerate(zip(places, looks, strict=True)):
                self._move(sheet, _column(spare + offset), place)
                column = sheet.Columns.getByIndex(place)
                column.Width, column.IsVisible = width, is_visible
        moved = ", ".join(
            f"{column_name(old)} to {column_name(new)}" for old, new in zip(wanted, places, strict=True) if old != new
        )
        return f"moved {moved}" if moved else "the columns have this order already"

    def hide_row_data(self, value: str | int | float) -> str:
        """Hide the rows of the used range that have a cell with exactly this value; errors also without their ``#``."""
        sheet = self.changeable(self.active_sheet)
        used = self.used_area(sheet)
        text = value.strip() if isinstance(value, str) else cell_text(finite(value))
        rows = self.values(sheet, used) if used else []
        top = used.top if used else 0
        hits = [
            row for row, cells in enumerate(rows, top) if any(cell_text(cell).strip() in (text, f"#{text}") for cell in cells)
        ]
        with self.one_step("Hide rows"):
            for first, last in runs(hits):
                sheet.getCellRangeByPosition(0, first, 0, last).Rows.IsVisible = False
        return f"hid {len(hits)} rows" + (
            f": {list_text([row + 1 for row in hits], max_chars=300)}" if hits else f", none has {text!r}"
        )

    # --- sheets ---

    def switch_active_sheet(self, sheet_name: str) -> str:
        """Bring a sheet into sight; made at the end when there is none of this name."""
        sheet, is_new = self.find_sheet(sheet_name), False
        if sheet is None:
            check_sheet_name(sheet_name)
            self.check_structure()
            self.sheets.insertNewByName(sheet_name, self.sheets.Count)
            sheet, is_new = self.sheets.getByName(sheet_name), True
        if not sheet.IsVisible:
            sheet.IsVisible = True
        self.controller.setActiveSheet(sheet)
        return f"{sheet.Name} is active{', a new sheet' if is_new else ''}"

    def rename_sheet(self, old_name: str, new_name: str) -> str:
        """Give a sheet another name."""
        sheet = self.sheet_named(old_name)
        self.check_structure()
        check_sheet_name(new_name)
        other = self.find_sheet(new_name)
        if other is not None and other.Name != sheet.Name:
            raise DocumentError(f"there is a sheet {other.Name!r} already")
        sheet.Name = new_name
        return f"{new_name} is the sheet's name"

    def copy_sheet(self, source_sheet: str, new_sheet_name: str | None) -> str:
        """A copy right behind its original."""
        source = self.sheet_named(source_sheet)
        self.check_structure()
        names = list(self.sheets.ElementNames)
        name = new_sheet_name if new_sheet_name is not None else self._free_name(source.Name)
        check_sheet_name(name)
        if self.find_sheet(name) is not None:
            raise DocumentError(f"there is a sheet {name!r} already")
        self.sheets.copyByName(source.Name, name, names.index(source.Name) + 1)
        return f"{name} is a copy of {source.Name}"

    def reorder_sheets(self, sheet_name: str, position: int) -> str:
        """Move a sheet so that ``position`` sheets stand before it."""
        sheet = self.sheet_named(sheet_name)
        self.check_structure()
        names = list(self.sheets.ElementNames)
        if not 0 <= position < len(names):
            raise DocumentError(f"there is no position {position}: 0 to {len(names) - 1}")
        # The office counts the sheet itself when it looks for the one to stand before.
        self.sheets.moveByName(sheet.Name, position if position <= names.index(sheet.Name) else position + 1)
        return cut_text(f"sheets: {', '.join(self.sheets.ElementNames)}")

    # --- helpers ---

    def _one_cell(self, cell: str) -> tuple[Any, Area]:
        sheet, area = self.locate(cell)
        if area.num_cells != 1:
            raise DocumentError(f'{cell!r} is no single cell, such as "B2"')
        return sheet, area

    def _free_name(self, name: str) -> str:
        for number in range(2, self.sheets.Count + 3):
            candidate = f"{name[:27]}_{number}"
            if self.find_sheet(candidate) is None:
                return candidate
        raise DocumentError("no free name for the copy: give one")

    def _refuse_merged(self, sheet: Any, area: Area) -> None:
        cells = self.cells(sheet, area)
        around = sheet.createCursorByRange(cells)
        around.collapseToMergedArea()
        if cells.IsMerged or area_of(around.RangeAddress) != area:
            raise DocumentError(f"{area.name} has merged cells, which cannot be moved singly: split them first")

    def _move(self, sheet: Any, column: Area, place: int) -> None:
        source = self.cells(sheet, column).RangeAddress
        sheet.moveRange(struct("table.CellAddress", source.Sheet, place, 0), source)


def _column(index: int) -> Area:
    return Area(index, 0, index, MAX_ROWS - 1)
