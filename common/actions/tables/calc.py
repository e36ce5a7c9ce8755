"""LibreOffice Calc: ComputerRL's CalcTools (arXiv 2508.14040, released evaluation code) and `get_cell`.

The published `set_cell_value` is called `set_cell`. Rows count from 1, sheet positions from 0. Cells and ranges lie on the active
sheet, or on the one that they name, as in `Sheet2.A1:B3`; a range may also be whole columns (`A:C`) or rows (`2:5`).
"""

from __future__ import annotations

from computerrl.common.actions.spec import Param, flag, many, number, table, text, whole

_SCALARS = (str, int, float)
_FORMATS = ("general", "number", "currency", "accounting", "date", "time", "percentage", "fraction", "scientific", "text")
_CHARTS = ("bar", "column", "line", "pie", "scatter", "area")

TABLE = table(
    "calc",
    ("set_cell", (text("cell"), Param("value", _SCALARS)), "set a cell to a value or formula"),
    ("get_cell", (text("cell"),), "read a cell"),
    ("save", (), "save the workbook"),
    ("env_info", (), "the used range of the active sheet as a table"),
    ("get_workbook_info", (), "path, name, sheets and active sheet"),
    ("get_column_data", (text("column_name"),), "all values of a column, from row 1"),
    ("switch_active_sheet", (text("sheet_name"),), "activate a sheet, made when it is absent"),
    ("rename_sheet", (text("old_name"), text("new_name")), "rename a sheet"),
    ("copy_sheet", (text("source_sheet"), text("new_sheet_name", None)), "copy a sheet"),
    ("reorder_sheets", (text("sheet_name"), whole("position")), "move a sheet to a position, from 0"),
    (
        "set_column_values",
        (text("column_name"), many("data", _SCALARS), whole("start_index", 2)),
        "write a list into a column from a row on",
    ),
    ("transpose_range", (text("source_range"), text("target_cell")), "write a range transposed at a cell"),
    ("sort_column", (text("column_name"), flag("ascending", True), whole("start_index", 2)), "sort one column's values"),
    ("reorder_columns", (many("column_order", (str,)),), "put the named columns into this order, given as letters"),
    ("hide_row_data", (Param("value", _SCALARS, "N/A"),), "hide the rows that have a cell with this value"),
    ("merge_cells", (text("range_str"),), "merge a range"),
    ("highlight_range", (text("range_str"), Param("color", (int, str), 0xFFFF00)), "fill a range with a colour"),
    (
        "format_range",
        (
            text("range_str"),
            text("background_color", None),
            text("font_color", None),
            flag("bold", None),
            text("alignment", None, choices=("left", "center", "right", "justify")),
        ),
        'colours like "#FF0000", bold, alignment of a range',
    ),
    (
        "set_number_format",
        (text("range_str"), text("format_type", choices=_FORMATS), whole("decimal_places", None)),
        "how a range shows its numbers",
    ),
    (
        "adjust_column_width",
        (text("columns"), number("width", None), flag("autofit", False)),
        'width of columns like "A:C" or "A, D:F", in centimetres or fitting',
    ),
    (
        "adjust_row_height",
        (text("rows"), number("height", None), flag("autofit", False)),
        'height of rows like "1:10", in centimetres or fitting',
    ),
    ("freeze_panes", (whole("rows", 0), whole("columns", 0)), "keep the first rows and columns in sight"),
    ("set_zoom_level", (whole("zoom_percentage"),), "zoom of the view"),
    ("set_validation_list", (text("column_name"), many("values", _SCALARS)), "a drop-down of allowed values in a column"),
    (
        "create_pivot_table",
        (
            text("source_sheet"),
            text("table_name"),
            many("row_fields", (str,), None),
            many("col_fields", (str,), None),
            many("value_fields", (str,)),
            text("aggregation_function", "sum", choices=("sum", "count", "average", "min", "max")),
            text("target_cell", "A1"),
        ),
        "a pivot table of a sheet's columns, on the sheet that target_cell names, else on a new one called like the table",
    ),
    (
        "create_chart",
        (
            text("chart_type", choices=_CHARTS),
            text("data_range"),
            text("title", None),
            text("x_axis_title", None),
            text("y_axis_title", None),
        ),
        "a chart of a range",
    ),
    (
        "set_chart_legend_position",
        (text("position", choices=("top", "bottom", "left", "right", "none")),),
        "where the last chart's legend stands",
    ),
    ("export_to_csv", (), "save the active sheet as CSV beside the workbook"),
    (
        "export_to_pdf",
        (text("file_path", None), many("sheets", (str,), None), flag("open_after_export", False)),
        "export all sheets or some as PDF",
    ),
)
