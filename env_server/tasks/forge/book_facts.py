"""What a saved workbook holds and how it looks, as facts; see `facts`."""

from __future__ import annotations

import datetime
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from computerrl.env_server.tasks.forge.facts import Facts, Near, reading
from computerrl.env_server.tasks.reading import limits
from computerrl.env_server.tasks.reading.limits import Budget

if TYPE_CHECKING:
    from computerrl.env_server.tasks.reading.packages import Package

_C = "{http://schemas.openxmlformats.org/drawingml/2006/chart}"
_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_REFERENCE = re.compile(r"\$?[A-Z]{1,3}\$?[0-9]+|\[\.")
_WIDTH_TOLERANCE = 1.2
"""Characters: the office rounds widths to its own units, which depend on the font it finds."""
_FONT_COLORS = {"000000": "", "": ""}
_PLOTS = {
    "barChart": "bar",
    "bar3DChart": "bar",
    "lineChart": "line",
    "pieChart": "pie",
    "scatterChart": "scatter",
    "areaChart": "area",
}


def book_facts(data: bytes) -> Facts:
    """Facts of an .xlsx file. Raises `UnreadableFile`."""
    from computerrl.env_server.tasks.reading.packages import Package
    from computerrl.env_server.tasks.reading.workbooks import open_workbook

    with reading("workbook"):
        package = Package(data)
        formulas, results = open_workbook(package, formulas=True), open_workbook(package, formulas=False)
        facts: Facts = {"sheets": [sheet.title for sheet in formulas.worksheets]}
        for sheet in formulas.worksheets:
            facts.update(_sheet_facts(sheet, results[sheet.title]))
        facts.update(_chart_facts(package))
    return facts


def _sheet_facts(sheet: Any, results: Any) -> Facts:
    from computerrl.env_server.tasks.reading.workbooks import used_cells

    title = sheet.title
    facts: Facts = {}
    for cell in used_cells(sheet):
        name = f"{title}!{cell.coordinate}"
        value = cell.value
        if isinstance(value, str) and value.startswith("="):
            facts[f"{name} formula"] = "refers to cells" if _REFERENCE.search(value) else "constant"
            value = results[cell.coordinate].value
        if value is not None and value != "":
            facts[name] = _plain(value)
            facts.update(_font_facts(name, cell))
        if cell.fill.fill_type == "solid":
            facts[f"{name} fill"] = _rgb(cell.fill.fgColor)
    facts[f"{title} merged"] = sorted(str(area) for area in sheet.merged_cells.ranges)
    facts[f"{title} hidden rows"] = sorted(index for index, row in sheet.row_dimensions.items() if row.hidden)
    facts[f"{title} frozen at"] = sheet.freeze_panes or ""
    facts[f"{title} zoom"] = sheet.sheet_view.zoomScale or 100
    facts[f"{title} allowed values"] = _validations(sheet)
    for letter, width in _widths(sheet).items():
        facts[f"{title} width {letter}"] = Near(width, _WIDTH_TOLERANCE)
    return facts


def _plain(value: object) -> object:
    if isinstance(value, datetime.datetime):
        return value.isoformat(sep=" ").removesuffix(" 00:00:00")
    return value.isoformat() if isinstance(value, datetime.date) else value


def _font_facts(name: str, cell: Any) -> Facts:
    font = cell.font
    facts: Facts = {}
    if font.b:
        facts[f"{name} bold"] = True
    if font.i:
        facts[f"{name} italic"] = True
    color = _FONT_COLORS.get(_rgb(font.color), _rgb(font.color))
    if color:
        facts[f"{name} colour"] = color
    if cell.alignment.horizontal not in (None, "general"):
        facts[f"{name} alignment"] = cell.alignment.horizontal
    kind = number_kind(cell.number_format)
    if kind != "general":
        facts[f"{name} shown as"] = kind
    facts[f"{name} font"] = (font.name, font.sz)
    return facts


def _rgb(color: Any) -> str:
    """`RRGGBB`; empty for automatic and theme colours."""
    if color is None or color.type != "rgb" or not isinstance(color.rgb, str):
        return ""
    return str(color.rgb[-6:]).upper()


@lru_cache(maxsize=1000)
def number_kind(code: str) -> str:
    """What a number format is for: general, text, date, percentage/2, currency/2, number/0, ..."""
    plain = re.sub(r'\\.|"[^"]*"', lambda match: match[0] if "$" in match[0] or "€" in match[0] else "", code.split(";")[0])
    if plain.lower() == "general" or not plain:
        return "general"
    if plain == "@":
        return "text"
    match = re.search(r"[0#]\.([0#]+)", plain)
    decimals = len(match[1]) if match else 0
    if "%" in plain:
        return f"percentage/{decimals}"
    if re.search(r"\[\$[^\]-]+|\$|€", plain):
        return f"currency/{decimals}"
    if re.search(r"[ymdhs]", re.sub(r"\[[^\[\]]*\]", "", plain), re.IGNORECASE):
        return "date"
    return f"number/{decimals}"


def _widths(sheet: Any) -> dict[str, float]:
    """Widths of the columns that hold something; one entry of the file may stand for several columns."""
    from computerrl.env_server.tasks.reading.workbooks import last_column

    widths: dict[str, float] = {}
    last, work = last_column(sheet), Budget("columns with a width", limits.MAX_RANGE_WORK)
    for dimension in sheet.column_dimensions.values():
        if not dimension.width:
            continue
        for index in range(dimension.min or 1, min(dimension.max or 1, last) + 1):
            work.spend()
            widths[chr(ord("A") + index - 1)] = dimension.width
    return widths


def _validations(sheet: Any) -> list[tuple[str, str]]:
    found = []
    for rule in sheet.data_validations.dataValidation:
        if rule.type == "list":
            allowed = ",".join(part.strip() for part in str(rule.formula1).strip('"').split(","))
            found += [(str(area), allowed) for area in rule.sqref.ranges]
    return sorted(found)


def _chart_facts(package: Package) -> Facts:
    """What charts plot, with their titles, in the order of the parts' names."""
    names = sorted(name for name in package.parts if re.fullmatch(r"xl/charts/chart\d+\.xml", name))
    facts: Facts = {"charts": len(names)}
    for index, name in enumerate(names, start=1):
        facts.update({f"chart {index} {fact}": value for fact, value in _chart(package.xml(name)).items()})
    return facts


def _chart(root: Any) -> Facts:
    area = root.find(f"{_C}chart/{_C}plotArea")
    plot = next((node for node in area if node.tag.removeprefix(_C) in _PLOTS), None)
    if plot is None:
        return {"kind": "unknown"}
    kind = _PLOTS[plot.tag.removeprefix(_C)]
    direction = plot.find(f"{_C}barDir")
    if kind == "bar" and (direction is None or direction.get("val", "col") == "col"):
        kind = "column"
    legend = root.find(f"{_C}chart/{_C}legend/{_C}legendPos")
    has_legend = root.find(f"{_C}chart/{_C}legend") is not None
    return {
        "kind": kind,
        "title": _text(root.find(f"{_C}chart/{_C}title")),
        "axis titles": sorted(
            filter(
                None,
                (
                    _text(axis.find(f"{_C}title"))
                    for axis in area
                    if axis.tag.endswith("Ax") and axis.find(f"{_C}title") is not None
                ),
            )
        ),
        "values": [node.text.replace("$", "").replace("'", "") for node in plot.iter(f"{_C}f") if _is_values(node)],
        "categories": sorted(
            {node.text.replace("$", "").replace("'", "") for node in plot.iter(f"{_C}f") if _is_categories(node)}
        ),
        "legend": ("r" if legend is None else legend.get("val", "r")) if has_legend else "none",
    }


def _text(node: Any) -> str:
    return "" if node is None else "".join(part.text or "" for part in node.iter(f"{_A}t")).strip()


def _is_values(node: Any) -> bool:
    return any(parent.tag in (f"{_C}val", f"{_C}yVal") for parent in node.iterancestors())


def _is_categories(node: Any) -> bool:
    return any(parent.tag in (f"{_C}cat", f"{_C}xVal") for parent in node.iterancestors())
