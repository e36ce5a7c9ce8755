"""What `compare_table` reads of one sheet: values, styles, charts, pivot tables, filters, in a form that can be compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from computerrl.env_server.tasks.osworld.metrics.matching import BadRule
from computerrl.env_server.tasks.reading.limits import MAX_RANGE_WORK, Budget


def grid(sheet: Any, precision: int) -> dict[tuple[int, int], Any]:
    """Place -> value of every cell that is not empty."""
    values = {place: _value(cell, precision) for place, cell in sheet._cells.items()}
    return {place: value for place, value in values.items() if value != ""}


def _value(cell: Any, precision: int) -> Any:
    value = cell.value
    if value is None:
        return ""
    if cell.data_type == "e":
        # A text that reads like an error is none.
        return ("error", value)
    if isinstance(value, bool):
        # In Python TRUE equals 1; in a sheet they are two values.
        return ("TRUE" if value else "FALSE",)
    if isinstance(value, (int, float)):
        return round(float(value), precision)
    return value.strip() if isinstance(value, str) else value


# --- cells -----------------------------------------------------------------------------------------------------------


def cell_fact(cell: Any, name: str, *, value: Any = None) -> Any:
    """One property of a cell by the format's name for it; ``value`` is the value that was last computed."""
    if name == "value":
        return value
    if name not in _FACTS:
        raise BadRule(f"unknown property {name!r} of a cell")
    if (name in _OF_TEXT and cell.value is None) or (name == "number_format" and cell.data_type == "s"):
        return None
    return _FACTS[name](cell)


def _is_merged(cell: Any) -> bool:
    from computerrl.env_server.tasks.reading.workbooks import is_merged

    return is_merged(cell.parent, cell)


_NO_FILL = "00000000"
"""Colour of a cell that is not filled, as task files write it."""


def _background(fill: Any) -> str:
    # In a solid fill the foreground is what is seen; applications write anything as its background.
    return _fill_colour(fill, "fgColor" if fill.fill_type == "solid" else "bgColor")


def _fill_colour(fill: Any, name: str) -> str:
    """A colour of a pattern; gradients have none of these names."""
    return _colour(getattr(fill, name, None)) if fill.fill_type is not None else _NO_FILL


_FACTS: Mapping[str, Callable[[Any], Any]] = {
    "formula": lambda cell: cell.value if isinstance(cell.value, str) and cell.value.startswith("=") else None,
    "number_format": lambda cell: cell.number_format,
    "font_name": lambda cell: cell.font.name,
    "font_size": lambda cell: cell.font.sz,
    "font_bold": lambda cell: bool(cell.font.b),
    "font_italic": lambda cell: bool(cell.font.i),
    "font_underline": lambda cell: cell.font.u,
    "font_color": lambda cell: _colour(cell.font.color),
    "fill_type": lambda cell: cell.fill.tagname,
    "bgcolor": lambda cell: _background(cell.fill),
    "fgcolor": lambda cell: _fill_colour(cell.fill, "fgColor"),
    "horizontal_alignment": lambda cell: cell.alignment.horizontal,
    "vertical_alignment": lambda cell: cell.alignment.vertical,
    "hyperlink": lambda cell: (cell.hyperlink.target or cell.hyperlink.location) if cell.hyperlink else None,
    "merge": _is_merged,
}

_OF_TEXT = frozenset(
    {"font_name", "font_size", "font_bold", "font_italic", "font_underline", "font_color", "number_format", "hyperlink"}
)
"""Properties of what is written in a cell: an empty cell has none of them, whatever its style says."""


def _colour(colour: Any) -> str:
    """``FFRRGGBB`` as task files write it, opaque whatever the file says; theme colours by their number."""
    if colour is None:
        return "FF000000"
    if colour.type == "rgb" and isinstance(colour.rgb, str):
        return "FF" + colour.rgb[-6:].upper()
    return f"{colour.type}:{getattr(colour, colour.type, '')}:{colour.tint:.2f}"


_PLAIN: Mapping[str, Any] = {
    "font_bold": False,
    "font_italic": False,
    "merge": False,
    "fill_type": "patternFill",
    "bgcolor": _NO_FILL,
    "fgcolor": _NO_FILL,
}
"""Properties of a cell that nobody formatted, where that is not None."""


def styles(sheet: Any, props: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Cell -> the wanted properties. Cells that are empty and unformatted are left out; conditional formats are worked out."""
    from openpyxl.cell.cell import Cell

    from computerrl.env_server.tasks.reading.workbooks import used_cells

    conditional = _conditional(sheet) if {"bgcolor", "fgcolor", "font_color"} & set(props) else {}
    found = {}
    default = tuple(_PLAIN.get(name) for name in props)
    unwritten = tuple(cell_fact(Cell(sheet, 1, 1), name) for name in props)
    for cell in used_cells(sheet):
        extra = conditional.get(cell.coordinate, {})
        # Cells below others that they are merged with are none; the merged areas stand for them.
        facts = tuple(extra[name] if name in extra else name != "merge" and cell_fact(cell, name) for name in props)
        if facts != (unwritten if cell.value is None else default):
            found[cell.coordinate] = facts
    if "merge" in props:
        found |= {str(area): ("merged",) for area in sheet.merged_cells.ranges}
    return found


_TESTS: Mapping[str, Any] = {
    "greaterThan": lambda value, limits: value > limits[0],
    "greaterThanOrEqual": lambda value, limits: value >= limits[0],
    "lessThan": lambda value, limits: value < limits[0],
    "lessThanOrEqual": lambda value, limits: value <= limits[0],
    "equal": lambda value, limits: value == limits[0],
    "notEqual": lambda value, limits: value != limits[0],
    "between": lambda value, limits: limits[0] <= value <= limits[1],
    "notBetween": lambda value, limits: not limits[0] <= value <= limits[1],
}


def _conditional(sheet: Any) -> dict[str, dict[str, str]]:
    """Cell -> colours that comparisons with plain numbers or texts give it. Other kinds of conditions stay out on both sides."""
    from computerrl.env_server.tasks.reading.workbooks import cells_of, work_of

    work = Budget("cells of conditional formats", MAX_RANGE_WORK)
    found: dict[str, dict[str, str]] = {}
    for area in sheet.conditional_formatting:
        for rule in area.rules:
            limits = [_literal(text) for text in rule.formula]
            if rule.type != "cellIs" or rule.operator not in _TESTS or None in limits or rule.dxf is None:
                continue
            colours = {}
            if rule.dxf.font is not None and rule.dxf.font.color is not None:
                colours["font_color"] = _colour(rule.dxf.font.color)
            if rule.dxf.fill is not None:
                # In differential styles the solid colour is the background.
                colours["bgcolor"] = colours["fgcolor"] = _colour(rule.dxf.fill.bgColor)
            for block in area.sqref.ranges:
                work.spend(1 + work_of(sheet, block))
                for cell in cells_of(sheet, block):
                    if _comparable(cell.value, limits[0]) and _TESTS[rule.operator](cell.value, limits):
                        found.setdefault(cell.coordinate, {}).update(colours)
    return found


def _comparable(value: Any, limit: float | str | None) -> bool:
    """Are both numbers, or both texts?"""
    if isinstance(limit, str):
        return isinstance(value, str)
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _literal(text: str) -> float | str | None:
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return text[1:-1]
    try:
        return float(text)
    except ValueError:
        return None


# --- the sheet as a whole --------------------------------------------------------------------------------------------


def frozen(sheet: Any) -> str | None:
    """The cell at which panes are frozen."""
    return str(sheet.freeze_panes) if sheet.freeze_panes else None


def filters(sheet: Any) -> Any:
    """The automatic filter: its range and what each column shows."""
    auto = sheet.auto_filter
    return (auto.ref, sorted(((column.colId, _shown(column)) for column in auto.filterColumn), key=repr))


def _shown(column: Any) -> tuple[Any, ...]:
    """What a filter of one column shows, by its kind. Numbers of styles are a file's own, and do not count."""
    if column.customFilters is not None:
        parts = tuple((part.operator, part.val) for part in column.customFilters.customFilter)
        # One condition needs no connection.
        return ("custom", parts, len(parts) > 1 and bool(column.customFilters._and))
    if column.top10 is not None:
        return ("top", column.top10.val, column.top10.top is not False, bool(column.top10.percent))
    if column.dynamicFilter is not None:
        return ("dynamic", column.dynamicFilter.type)
    if column.colorFilter is not None:
        return ("colour", column.colorFilter.cellColor is not False)
    if column.iconFilter is not None:
        return ("icon", column.iconFilter.iconSet, column.iconFilter.iconId)
    if column.filters is None:
        return ()
    dates = sorted(repr(sorted(dict(date).items())) for date in column.filters.dateGroupItem)
    return ("values", tuple(sorted(column.filters.filter)), tuple(dates), bool(column.filters.blank))


def rows(sheet: Any, props: Sequence[str]) -> dict[int, tuple[Any, ...]]:
    """Row -> properties such as ``hidden``, ``height``; rows that are like any other are left out."""
    return _dimensions(sheet.row_dimensions, props)


def columns(sheet: Any, props: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Column -> properties such as ``hidden``, ``width``; each column of a group by itself."""
    from openpyxl.utils import get_column_letter

    from computerrl.env_server.tasks.reading.workbooks import last_column

    found = {}
    end, work = last_column(sheet), Budget("columns with properties", MAX_RANGE_WORK)
    for letter, facts in _dimensions(sheet.column_dimensions, props).items():
        dimension = sheet.column_dimensions[letter]
        last = min(dimension.max or dimension.min or 0, end)
        for number in range(dimension.min or 0, last + 1):
            work.spend()
            found[get_column_letter(number)] = facts
    return found


def _dimensions(dimensions: Any, props: Sequence[str]) -> dict[Any, tuple[Any, ...]]:
    found = {}
    for key in list(dimensions):
        facts = tuple(getattr(dimensions[key], name) for name in props)
        if any(fact not in (None, False, 0) for fact in facts):
            found[key] = facts
    return found


_VALIDATION = (
    "type",
    "operator",
    "formula1",
    "formula2",
    "allowBlank",
    "showDropDown",
    "showInputMessage",
    "showErrorMessage",
    "errorStyle",
    "errorTitle",
    "error",
    "promptTitle",
    "prompt",
    "imeMode",
)


def validations(sheet: Any) -> list[dict[str, Any]]:
    """Every validation's properties by their names in the file; its cells as ``ranges`` and as ``sqref``."""
    return [
        {**{name: getattr(one, name) for name in _VALIDATION}, "sqref": str(one.sqref), "ranges": str(one.sqref)}
        for one in sheet.data_validations.dataValidation
    ]
