"""The agent's API of Calc: pivot tables, charts, exported files."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..process import DocumentError
from ..uno_values import properties, struct, url
from .base import CalcBase
from .ranges import Area, Value, check_sheet_name, list_text, parse_area, split_sheet
from .sheet import cell_text

_CHARTS = {
    "bar": ("BarDiagram", {"Vertical": True}),
    "column": ("BarDiagram", {"Vertical": False}),
    "line": ("LineDiagram", {}),
    "pie": ("PieDiagram", {}),
    "scatter": ("XYDiagram", {"Lines": False}),
    "area": ("AreaDiagram", {}),
}
"""com.sun.star.chart: what the old, complete chart interface calls them; its bars lie down when "Vertical"."""
_CHART_SIZE = (12_000, 8_000)
"""Width and height, 1/100 mm."""
_CHART_GAP = 500
_MAX_CHART_CELLS = 20_000
_ORIENTATION = "com.sun.star.sheet.DataPilotFieldOrientation"
_FUNCTIONS = {"sum": "SUM", "count": "COUNT", "average": "AVERAGE", "min": "MIN", "max": "MAX"}
"""com.sun.star.sheet.GeneralFunction."""
_CSV_OPTIONS = "44,34,76,1,,0,false,true,false"
"""Comma, double quote, UTF-8, from line 1, every column standard, no language, quotes where needed, as shown, no formulas."""


class ObjectTools(CalcBase):
    """One method per action."""

    # --- pivot tables ---

    def create_pivot_table(
        self,
        source_sheet: str,
        table_name: str,
        row_fields: Sequence[str] | None,
        col_fields: Sequence[str] | None,
        value_fields: Sequence[str],
        aggregation_function: str,
        target_cell: str,
    ) -> str:
        """Over the source sheet's table, on the sheet named in ``target_cell``, else on one called like the pivot table."""
        import uno

        source = self.sheet_named(source_sheet)
        area, headers = self._table(source)
        descriptor = source.DataPilotTables.createDataPilotDescriptor()
        descriptor.ShowFilterButton = False
        descriptor.setSourceRange(self.cells(source, area).RangeAddress)
        fields = descriptor.DataPilotFields
        uses = {"ROW": row_fields or (), "COLUMN": col_fields or (), "DATA": value_fields}
        chosen = [(_field(headers, name), orientation) for orientation, names in uses.items() for name in names]
        _check_fields(chosen)
        if not table_name.strip():
            raise DocumentError("the pivot table needs a name")
        if self._has_pivot_table(table_name):
            raise DocumentError(f"there is a pivot table {table_name!r} already")
        for name, orientation in chosen:
            field = fields.getByIndex(headers.index(name))
            field.Orientation = uno.Enum(_ORIENTATION, orientation)
            if orientation == "DATA":
                field.Function = uno.Enum("com.sun.star.sheet.GeneralFunction", _FUNCTIONS[aggregation_function])
        if row_fields and len(value_fields) > 1:
            fields.getByName("Data").Orientation = uno.Enum(_ORIENTATION, "COLUMN")  # side by side, as in Excel
        sheet, corner = self._pivot_place(table_name, target_cell)
        place = struct("table.CellAddress", sheet.RangeAddress.Sheet, corner.left, corner.top)
        sheet.DataPilotTables.insertNewByName(table_name, place, descriptor)
        self.controller.setActiveSheet(sheet)
        output = sheet.DataPilotTables.getByName(table_name).OutputRange
        filled = Area(output.StartColumn, output.StartRow, output.EndColumn, output.EndRow)
        return f"pivot table {table_name} at {sheet.Name}.{filled.name}; {sheet.Name} is active"

    def _table(self, sheet: Any) -> tuple[Area, list[str]]:
        """The sheet's first table, and what its columns are called: from the first named column on to the last before a gap."""
        used = self.used_area(sheet)
        if used is not None:
            names = [cell_text(value).strip() for value in self.values(sheet, Area(used.left, used.top, used.right, used.top))[0]]
            first = next(i for i, name in enumerate(names) if name)
            headers = list(itertools.takewhile(bool, names[first:]))
            left = used.left + first
            area = self.filled(sheet, Area(left, used.top, left + len(headers) - 1, used.bottom))
            if area is not None and area.num_rows > 1:
                return area, headers
        raise DocumentError(f"{sheet.Name} has no table: a first row of names and rows below it")

    def _has_pivot_table(self, name: str) -> bool:
        return any(sheet.DataPilotTables.hasByName(name) for sheet in self.all_sheets())

    def _pivot_place(self, table_name: str, target_cell: str) -> tuple[Any, Area]:
        """The sheet, made when there is none, and the upper left cell. Raises `DocumentError` where cells would be lost."""
        named, cell = split_sheet(target_cell)
        corner = parse_area(cell)
        if corner.num_cells != 1:
            raise DocumentError(f'{target_cell!r} is no single cell, such as "A1"')
        name = table_name if named is None else named
        sheet = self.find_sheet(name)
        if sheet is None:
            check_sheet_name(name)
            self.check_structure()
            self.sheets.insertNewByName(name, self.sheets.Count)
            return self.sheets.getByName(name), corner
        used = self.used_area(self.changeable(sheet))
        if used is not None and used.right >= corner.left and used.bottom >= corner.top:
            raise DocumentError(
                f"{sheet.Name} has cells in {used.name}: give a target_cell right of or below them, or another name"
            )
        return sheet, corner

    # --- charts ---

    def create_chart(
        self, chart_type: str, data_range: str, title: str | None, x_axis_title: str | None, y_axis_title: str | None
    ) -> str:
        """A chart right of the cells; text in the first row and column names its series and categories."""
        sheet, area = self.locate_to_change(data_range)
        data = area.cut(self.used_area(sheet))
        if data is None:
            raise DocumentError(f"{area.name} is empty")
        if data.num_cells > _MAX_CHART_CELLS:
            raise DocumentError(f"{data.name} has too many cells for a chart, at most {_MAX_CHART_CELLS}")
        if chart_type == "pie" and (x_axis_title or y_axis_title):
            raise DocumentError("a pie chart has no axes to name")
        rows = self.values(sheet, data)
        first_row, first_column = names_around(rows, is_scatter=chart_type == "scatter")
        if not any(isinstance(value, float) for row in rows[first_row:] for value in row[first_column:]):
            raise DocumentError(f"{data.name} has no numbers to draw")
        if chart_type == "scatter" and data.num_columns < 2:
            raise DocumentError("a scatter chart needs two columns: x and y")
        name = self._insert_chart(sheet, data, first_row, first_column)
        chart = sheet.Charts.getByName(name).EmbeddedObject
        _set_up_chart(chart, chart_type, title, x_axis_title, y_axis_title)
        return f"{chart_type} chart {name!r} of {data.name} on {sheet.Name}"

    def _insert_chart(self, sheet: Any, data: Area, first_row: bool, first_column: bool) -> str:
        """Right of the filled cells, below the charts that are there."""
        charts = sheet.Charts
        used = self.used_area(sheet) or data
        beside = sheet.getCellByPosition(used.right + 1, data.top).Position
        place = struct("awt.Rectangle", beside.X + _CHART_GAP, beside.Y + _CHART_GAP, *_CHART_SIZE)
        for shape in _shapes(sheet):
            place.Y = max(place.Y, shape.Position.Y + shape.Size.Height + _CHART_GAP)
        # Among all sheets' objects: two of one name are refused as if the office was broken.
        taken = {name for other in self.all_sheets() for shape in _shapes(other) for name in _object_names(shape)}
        name = next(name for name in (f"Chart {number}" for number in itertools.count(1)) if name not in taken)
        charts.addNewByName(name, place, (self.cells(sheet, data).RangeAddress,), first_row, first_column)
        return name

    def set_chart_legend_position(self, position: str) -> str:
        """The legend of the active sheet's last chart."""
        import uno

        sheet = self.changeable(self.active_sheet)
        charts = sheet.Charts
        if not charts.Count:
            raise DocumentError(f"there is no chart on {sheet.Name}")
        last = charts.getByIndex(charts.Count - 1)
        chart = last.EmbeddedObject
        chart.HasLegend = position != "none"
        if position != "none":
            chart.Legend.Alignment = uno.Enum("com.sun.star.chart.ChartLegendPosition", position.upper())
        return f"legend of {last.Name!r}: {position}"

    # --- exports ---

    def export_to_csv(self) -> str:
        """The active sheet beside the workbook, cells as shown."""
        target = self.path.with_suffix(".csv")
        self.document.storeToURL(
            url(target), properties(FilterName="Text - txt - csv (StarCalc)", FilterOptions=_CSV_OPTIONS, Overwrite=True)
        )
        return f"wrote {self.shown_path(target)}"

    def export_to_pdf(self, file_path: str | None, sheets: Sequence[str] | None, open_after_export: bool) -> str:
        """All sheets or some; beside the workbook when no path is given."""
        import uno

        target = self.path.with_suffix(".pdf") if file_path is None else self._pdf_path(file_path)
        options: dict[str, Any] = {}
        if sheets is not None:
            options["Selection"] = self._ranges_of(sheets)
        filter_data = uno.Any("[]com.sun.star.beans.PropertyValue", properties(**options))
        self.document.storeToURL(url(target), properties(FilterName="calc_pdf_Export", FilterData=filter_data, Overwrite=True))
        viewer = "; no program here shows PDF files" if open_after_export else ""
        return f"wrote {self.shown_path(target)}{viewer}"

    def _pdf_path(self, file_path: str) -> Path:
        target = self.resolve(file_path if Path(file_path).suffix else f"{file_path}.pdf")
        if target.suffix.lower() != ".pdf":
            raise DocumentError(f"{file_path!r} does not end in .pdf")
        if target.is_dir() or not target.parent.is_dir():
            raise DocumentError(f"{file_path!r} cannot be written: it is a folder, or its folder is missing")
        return target

    def _ranges_of(self, names: Sequence[str]) -> Any:
        """The filled cells of some sheets as one selection."""
        ranges = self.document.createInstance("com.sun.star.sheet.SheetCellRanges")
        for name in names:
            sheet = self.sheet_named(name)
            used = self.used_area(sheet)
            if used is not None:
                ranges.addRangeAddress(self.cells(sheet, used).RangeAddress, False)
        if not ranges.Count:
            raise DocumentError("there is nothing to export on these sheets")
        return ranges


def names_around(rows: Sequence[Sequence[Value]], *, is_scatter: bool) -> tuple[bool, bool]:
    """Does the first row name the series, does the first column name the categories?

    Text does (dates are text here), and so do numbers such as years beside or below an empty corner.
    """
    corner_is_empty = rows[0][0] == ""
    has_column = len(rows[0]) > 1 and not is_scatter
    below = [row[0] for row in rows[1:]] or [rows[0][0]]
    first_column = has_column and (
        (corner_is_empty and len(rows) > 1) or any(isinstance(value, str) and value for value in below)
    )
    right = rows[0][1:] if first_column else rows[0]
    first_row = len(rows) > 1 and (
        (corner_is_empty and len(rows[0]) > 1) or any(isinstance(value, str) and value for value in right)
    )
    return first_row, first_column


def _set_up_chart(chart: Any, chart_type: str, title: str | None, x_axis_title: str | None, y_axis_title: str | None) -> None:
    """Kind and titles of a fresh chart."""
    service, settings = _CHARTS[chart_type]
    chart.Diagram = chart.createInstance(f"com.sun.star.chart.{service}")
    for name, value in settings.items():
        chart.Diagram.setPropertyValue(name, value)
    chart.HasLegend = True
    if title:
        chart.HasMainTitle = True
        chart.Title.String = title
    if x_axis_title:
        chart.Diagram.HasXAxisTitle = True
        chart.Diagram.XAxisTitle.String = x_axis_title
    if y_axis_title:
        chart.Diagram.HasYAxisTitle = True
        chart.Diagram.YAxisTitle.String = y_axis_title


def _shapes(sheet: Any) -> list[Any]:
    page = sheet.DrawPage
    return [page.getByIndex(i) for i in range(page.Count)]


def _object_names(shape: Any) -> tuple[str, ...]:
    return (shape.Name, shape.PersistName) if hasattr(shape, "PersistName") else (shape.Name,)


def _field(headers: Sequence[str], name: str) -> str:
    """The header meant, upper and lower case alike. Raises `DocumentError`."""
    for header in headers:
        if header.lower() == name.strip().lower():
            return header
    raise DocumentError(f"there is no column {name!r}; columns: {list_text(headers)}")


def _check_fields(chosen: Sequence[tuple[str, str]]) -> None:
    """Raise `DocumentError` for fields that do not go together."""
    places = [name for name, orientation in chosen if orientation != "DATA"]
    if not any(orientation == "DATA" for _, orientation in chosen):
        raise DocumentError("give at least one value field")
    if not places:
        raise DocumentError("give at least one row or column field")
    repeated = {name for name, orientation in chosen if chosen.count((name, orientation)) > 1 or places.count(name) > 1}
    if repeated:
        raise DocumentError(f"each field stands in one place only: {', '.join(sorted(repeated))}")
