"""The agent's API of Calc: how cells, columns, rows and the view look, and what a column accepts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..process import DocumentError
from ..uno_values import colour, struct
from .base import CalcBase
from .ranges import Area, column_index, finite, parse_columns, parse_rows
from .sheet import MAX_ROWS, cell_text

_BOLD, _NORMAL = 150.0, 100.0
"""com.sun.star.awt.FontWeight."""
_ALIGNMENTS = {"left": "LEFT", "center": "CENTER", "right": "RIGHT", "justify": "BLOCK"}
"""com.sun.star.table.CellHoriJustify."""
_MAX_DECIMALS = 20
_MIN_CM, _MAX_CM = 0.05, 50.0
"""Narrower cannot be told from hidden, wider leaves the window."""
_SPLIT_PX = 200
"""Anywhere within the cells."""
_MIN_ZOOM, _MAX_ZOOM = 20, 400
"""What both Calc and .xlsx can hold, in per cent."""
_MAX_LIST_CHARS = 255
"""Excel's limit for a list of allowed values."""


class FormatTools(CalcBase):
    """One method per action."""

    # --- cells ---

    def merge_cells(self, range_str: str) -> str:
        """One cell out of a range; the first one's contents are seen."""
        sheet, area = self.locate_to_change(range_str)
        if area.num_cells == 1:
            raise DocumentError(f"{range_str!r} is one cell: nothing to merge")
        cells = self.cells(sheet, area)
        cells.merge(True)
        return f"merged {area.name}"

    def highlight_range(self, range_str: str, color: int | str) -> str:
        """Fill with a colour."""
        sheet, area = self.locate_to_change(range_str)
        self.cells(sheet, area).CellBackColor = _colour(color)
        return f"filled {area.name}"

    def format_range(
        self,
        range_str: str,
        background_color: str | None,
        font_color: str | None,
        bold: bool | None,
        alignment: str | None,
    ) -> str:
        """Change what is given and leave the rest."""
        import uno

        sheet, area = self.locate_to_change(range_str)
        changes: dict[str, Any] = {}
        if background_color is not None:
            changes["CellBackColor"] = colour(background_color)
        if font_color is not None:
            changes["CharColor"] = colour(font_color)
        if bold is not None:
            changes["CharWeight"] = _BOLD if bold else _NORMAL
        if alignment is not None:
            changes["HoriJustify"] = uno.Enum("com.sun.star.table.CellHoriJustify", _ALIGNMENTS[alignment])
        if not changes:
            raise DocumentError("nothing to change: give background_color, font_color, bold or alignment")
        cells = self.cells(sheet, area)
        with self.one_step("Format"):
            for name, value in changes.items():
                cells.setPropertyValue(name, value)
        return f"formatted {area.name}"

    def set_number_format(self, range_str: str, format_type: str, decimal_places: int | None) -> str:
        """One of the usual formats, as American English writes it."""
        sheet, area = self.locate_to_change(range_str)
        code = number_format(format_type, decimal_places)
        # Stored in the workbook's own language: in another one, the saved code would begin with that one's number.
        formats, own, american = self.document.NumberFormats, struct("lang.Locale"), struct("lang.Locale", "en", "US", "")
        key = formats.queryKey(code, own, False)
        self.cells(sheet, area).NumberFormat = key if key != -1 else formats.addNewConverted(code, american, own)
        return f"{area.name} has the format {code}"

    def set_validation_list(self, column_name: str, values: Sequence[str | int | float]) -> str:
        """A drop-down in every cell of the column; what is there already stays."""
        import uno

        sheet, column = self.changeable(self.active_sheet), column_index(column_name)
        texts = [value if isinstance(value, str) else cell_text(finite(value)) for value in values]
        if not texts or not all(text.strip() for text in texts):
            raise DocumentError("give at least one value, and none that is empty")
        if (
            any(not text.isprintable() or set(',"') & set(text) for text in texts)
            or sum(len(text) + 1 for text in texts) > _MAX_LIST_CHARS
        ):
            raise DocumentError(f"values of a list have no comma or quote, and at most {_MAX_LIST_CHARS} characters together")
        cells = self.cells(sheet, Area(column, 0, column, MAX_ROWS - 1))
        rule = cells.Validation
        rule.Type = uno.Enum("com.sun.star.sheet.ValidationType", "LIST")
        rule.setFormula1(";".join(f'"{text}"' for text in texts))
        rule.ShowList, rule.IgnoreBlankCells, rule.ShowErrorMessage = 1, True, True
        rule.ErrorAlertStyle = uno.Enum("com.sun.star.sheet.ValidationAlertStyle", "STOP")
        cells.Validation = rule
        return f"column {column_name.upper()} offers {', '.join(texts)}"

    # --- columns and rows ---

    def adjust_column_width(self, columns: str, width: float | None, autofit: bool) -> str:
        """In centimetres, or so that all fits."""
        sheet, spans = self.changeable(self.active_sheet), parse_columns(columns)
        size = _size(width, autofit, "width")
        for first, last in spans:
            target = sheet.getCellRangeByPosition(first, 0, last, 0).Columns
            if size is None:
                target.OptimalWidth = True
            else:
                target.Width = size
        return f"width of {columns}: {'fitting' if size is None else f'{width} cm'}"

    def adjust_row_height(self, rows: str, height: float | None, autofit: bool) -> str:
        """In centimetres, or so that all fits."""
        sheet, spans = self.changeable(self.active_sheet), parse_rows(rows)
        size = _size(height, autofit, "height")
        for first, last in spans:
            target = sheet.getCellRangeByPosition(0, first, 0, last).Rows
            if size is None:
                target.OptimalHeight = True
            else:
                target.Height = size
        return f"height of {rows}: {'fitting' if size is None else f'{height} cm'}"

    # --- the view ---

    def freeze_panes(self, rows: int, columns: int) -> str:
        """Keep the first rows and columns in sight; zero of both lets all scroll again."""
        controller = self.controller
        if rows < 0 or columns < 0:
            raise DocumentError("rows and columns to freeze are 0 or more")
        _unfreeze(controller)
        seen = controller.VisibleRange
        if rows > seen.EndRow or columns > seen.EndColumn:
            limits = f"{seen.EndRow} rows and {seen.EndColumn} columns"
            raise DocumentError(f"the window shows {limits}: with more of them frozen, the rest could not be reached")
        if rows or columns:
            controller.freezeAtPosition(columns, rows)
            return f"froze {rows} rows and {columns} columns"
        return "nothing is frozen"

    def set_zoom_level(self, zoom_percentage: int) -> str:
        """How large the active sheet is shown."""
        if not _MIN_ZOOM <= zoom_percentage <= _MAX_ZOOM:
            raise DocumentError(f"the zoom goes from {_MIN_ZOOM} to {_MAX_ZOOM} per cent")
        self.controller.ZoomType, self.controller.ZoomValue = 3, zoom_percentage  # 3: by value
        return f"zoom {zoom_percentage} %"


def _unfreeze(controller: Any) -> None:
    """All panes gone and scrolled to the start."""
    # The office saves where a right pane was last scrolled to even when there is none any more.
    for split_px in (_SPLIT_PX, 0):
        controller.splitAtPosition(split_px, 0)  # at 0 it takes any split or freeze away
        for pane in (controller.getByIndex(i) for i in range(controller.Count)):
            pane.setFirstVisibleRow(0)
            pane.setFirstVisibleColumn(0)


_DECIMAL_FORMATS: dict[str, Callable[[str], str]] = {
    "number": lambda zeros: f"0{zeros}",
    "currency": lambda zeros: f"[$$-409]#,##0{zeros};-[$$-409]#,##0{zeros}",
    "accounting": lambda zeros: (
        f'_([$$-409]* #,##0{zeros}_);_([$$-409]* (#,##0{zeros});_([$$-409]* "-"{"?" * max(len(zeros) - 1, 0)}_);_(@_)'
    ),
    "percentage": lambda zeros: f"0{zeros}%",
    "scientific": lambda zeros: f"0{zeros}E+00",
}
_PLAIN_FORMATS = {"general": "General", "date": "YYYY-MM-DD", "text": "@"}


def number_format(format_type: str, decimal_places: int | None) -> str:
    """The format's code in American English; two decimal places where it has any and none are given. Raises `DocumentError`."""
    if decimal_places is not None and not 0 <= decimal_places <= _MAX_DECIMALS:
        raise DocumentError(f"decimal_places goes from 0 to {_MAX_DECIMALS}")
    if format_type in _PLAIN_FORMATS:
        return _PLAIN_FORMATS[format_type]
    if format_type == "time":
        return "HH:MM:SS" + (f".{'0' * decimal_places}" if decimal_places else "")
    if format_type == "fraction":
        digits = "?" * max(decimal_places or 1, 1)
        return f"# {digits}/{digits}"
    num_decimals = 2 if decimal_places is None else decimal_places
    return _DECIMAL_FORMATS[format_type](f".{'0' * num_decimals}" if num_decimals else "")


def _colour(value: int | str) -> int:
    if isinstance(value, str):
        return colour(value)
    if not 0 <= value <= 0xFFFFFF:
        raise DocumentError("a colour is a number from 0 to 0xFFFFFF")
    return value


def _size(size_cm: float | None, autofit: bool, name: str) -> int | None:
    """In 1/100 mm, None for what fits."""
    if (size_cm is None) != autofit:
        raise DocumentError(f"give either {name} in centimetres or autofit=True")
    if size_cm is None:
        return None
    if not _MIN_CM <= size_cm <= _MAX_CM:
        raise DocumentError(f"{name} goes from {_MIN_CM} to {_MAX_CM} cm")
    return round(size_cm * 1000)
