"""Workbooks."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openpyxl
from openpyxl.chart import BarChart, LineChart, Reference, ScatterChart, Series
from openpyxl.formatting.rule import CellIsRule
from openpyxl.styles import Font, PatternFill
from openpyxl.worksheet.datavalidation import DataValidation
from openpyxl.worksheet.hyperlink import Hyperlink

from tests.oracle.pairs import Judge, Pair, broken, each_alone, each_with_base, write

Edit = Callable[[Any], Any]
ROWS = [["Name", "Price", "City"], ["ink", 1.23456, "Rome"], ["pen", 2, "Bern"], ["cup", 30, "Oslo"]]


def book(*edits: Edit) -> Callable[[Path], Any]:
    """Writes a workbook of one sheet of four rows, edited."""

    def write_book(place: Path) -> None:
        workbook = openpyxl.Workbook()
        sheet = workbook.active
        sheet.title = "Data"
        for row in ROWS:
            sheet.append(row)
        for edit in edits:
            edit(sheet)
        workbook.save(place)

    return write_book


def put(**cells: Any) -> Edit:
    """Values by their places."""

    def edit(sheet: Any) -> None:
        for place, value in cells.items():
            sheet[place] = value

    return edit


def look(place: str, **facts: Any) -> Edit:
    """Properties of a cell."""

    def edit(sheet: Any) -> None:
        for name, value in facts.items():
            setattr(sheet[place], name, value)

    return edit


def chart(kind: type[Any], title: str | None, column: int = 2, anchor: str = "E2", legend: str | None = "r") -> Edit:
    """A chart of a column."""

    def edit(sheet: Any) -> None:
        one = kind()
        one.title = title
        if legend is None:
            one.legend = None
        else:
            one.legend.position = legend
        values = Reference(sheet, min_col=column, min_row=1, max_row=4)
        names = Reference(sheet, min_col=1, min_row=2, max_row=4)
        if kind is ScatterChart:
            one.series.append(Series(values, names))
        else:
            one.add_data(values, titles_from_data=True)
            one.set_categories(names)
        sheet.add_chart(one, anchor)

    return edit


def validation(cells: str, formula: str = '"a,b"', **facts: Any) -> Edit:
    """A list of choices."""

    def edit(sheet: Any) -> None:
        one = DataValidation(type="list", formula1=formula, **facts)
        one.add(cells)
        sheet.add_data_validation(one)

    return edit


def dimension(kind: str, key: Any, **facts: Any) -> Edit:
    """Properties of a row or a column."""

    def edit(sheet: Any) -> None:
        for name, value in facts.items():
            setattr(getattr(sheet, f"{kind}_dimensions")[key], name, value)

    return edit


def _filter(*values: str) -> Edit:
    def edit(sheet: Any) -> None:
        sheet.auto_filter.ref = "A1:C4"
        if values:
            sheet.auto_filter.add_filter_column(0, list(values))

    return edit


def _attribute(name: str, value: Any) -> Edit:
    return lambda sheet: setattr(sheet, name, value)


RED = PatternFill("solid", fgColor="FFFF0000")
RED_IN_CONDITION = PatternFill(bgColor="FFFF0000")
BOOKS: dict[str, Any] = {
    "base": book(),
    "text": book(put(A2="ink!")),
    "fifth place": book(put(B2=1.23457)),
    "third place": book(put(B2=1.2356)),
    "whole number": book(put(B3=2.0)),
    "number as text": book(put(B3="2")),
    "truth": book(put(B3=True)),
    "one": book(put(B3=1)),
    "date": book(put(B3=datetime.datetime(2024, 1, 2))),
    "empty cell": book(put(B3=None)),
    "N/A": book(put(B3="N/A")),
    "blanks": book(put(A2=" ink ")),
    "row more": book(put(A5="tin", B5=4)),
    "column more": book(put(D1="x", D2=1)),
    "formula": book(put(B5="=B3+B4")),
    "other title": book(_attribute("title", "Data2")),
    "sheet more": book(lambda sheet: sheet.parent.create_sheet("More")),
    "chart sheet": book(lambda sheet: sheet.parent.create_chartsheet("Chart")),
    "frozen": book(_attribute("freeze_panes", "A2")),
    "frozen otherwise": book(_attribute("freeze_panes", "B2")),
    "zoom": book(lambda sheet: setattr(sheet.sheet_view, "zoomScale", 150)),
    "bold": book(look("A1", font=Font(bold=True))),
    "coloured text": book(look("A1", font=Font(color="FFFF0000"))),
    "coloured text, no alpha": book(look("A1", font=Font(color="00FF0000"))),
    "theme colour": book(look("A1", font=Font(color=openpyxl.styles.colors.Color(theme=1)))),
    "filled": book(look("B2", fill=RED)),
    "filled, no alpha": book(look("B2", fill=PatternFill("solid", fgColor="00FF0000"))),
    "empty cell filled": book(look("F9", fill=RED)),
    "empty cell bold": book(look("F9", font=Font(bold=True, color="FFFF0000"))),
    "number format": book(look("B2", number_format="0.00")),
    "format of a text": book(look("A2", number_format="0.00")),
    "font": book(look("A1", font=Font(name="Arial", size=14, italic=True, underline="single"))),
    "link": book(look("A1", hyperlink="https://a.b/")),
    "inner link": book(lambda sheet: setattr(sheet["A1"], "hyperlink", Hyperlink(ref="A1", location="Data!B2"))),
    "merged": book(lambda sheet: sheet.merge_cells("E1:F2")),
    "condition": book(
        lambda sheet: sheet.conditional_formatting.add("B2:B4", CellIsRule("greaterThan", ["10"], fill=RED_IN_CONDITION))
    ),
    "other condition": book(
        lambda sheet: sheet.conditional_formatting.add("B2:B4", CellIsRule("lessThan", ["10"], fill=RED_IN_CONDITION))
    ),
    "column chart": book(chart(BarChart, "Prices")),
    "column chart, other title": book(chart(BarChart, "Price")),
    "column chart, other place": book(chart(BarChart, "Prices", anchor="G8")),
    "column chart, no legend": book(chart(BarChart, "Prices", legend=None)),
    "line chart": book(chart(LineChart, "Prices")),
    "scatter chart": book(chart(ScatterChart, "Prices")),
    "two charts": book(chart(BarChart, "Prices"), chart(LineChart, None, column=3)),
    "choices": book(validation("C2:C4")),
    "choices, part of the range": book(validation("C2:C3")),
    "choices, wider range": book(validation("C2:C400")),
    "choices, other order": book(validation("C2:C4", '"b,a"')),
    "choices, other": book(validation("C2:C4", '"a,c"')),
    "choices twice": book(validation("C2:C4"), validation("D2:D4")),
    "choices, with a message": book(validation("C2:C4", showErrorMessage=True, error="no")),
    "hidden row": book(dimension("row", 3, hidden=True)),
    "high row": book(dimension("row", 3, height=40)),
    "hidden column": book(dimension("column", "B", hidden=True)),
    "wide column": book(dimension("column", "B", width=40)),
    "filter": book(_filter("ink")),
    "filter without choice": book(_filter()),
    "other filter": book(_filter("pen", "cup")),
    "error": book(put(B3="#DIV/0!")),
    "error as text": book(put(B3="#DIV/0!"), look("B3", data_type="s")),
}
PAIR = {"sheet_idx0": 0, "sheet_idx1": "EI0"}
PROPS = [
    "number_format",
    "font_name",
    "font_color",
    "font_bold",
    "font_italic",
    "font_underline",
    "font_size",
    "fill_type",
    "bgcolor",
    "fgcolor",
    "hyperlink",
    "merge",
]
WIDTH = ["width", "hidden"]
RULES: dict[str, dict[str, Any]] = {
    "sheet_name": {"type": "sheet_name"},
    "sheet_data": {"type": "sheet_data", **PAIR},
    "sheet_data, 2 places": {"type": "sheet_data", **PAIR, "precision": 2},
    "freeze": {"type": "freeze", **PAIR},
    "filter": {"type": "filter", **PAIR},
    "sparkline": {"type": "sparkline", **PAIR},
    "chart": {"type": "chart", **PAIR, "chart_props": ["type", "title", "legend"]},
    "chart, title": {"type": "chart", **PAIR, "chart_props": ["title", "xtitle", "ytitle"]},
    "row_props": {"type": "row_props", **PAIR, "props": ["hidden"]},
    "col_props": {"type": "col_props", **PAIR, "props": WIDTH},
    **{f"style {name}": {"type": "style", **PAIR, "props": [name]} for name in PROPS},
    "fuzzy": {"type": "sheet_fuzzy", **PAIR, "rules": [{"range": ["A1:C4"], "type": "exact_match", "ignore_case": True}]},
    "fuzzy, includes": {"type": "sheet_fuzzy", **PAIR, "rules": [{"range": ["A2:B4"], "type": "includes"}]},
    "fuzzy, included by": {"type": "sheet_fuzzy", **PAIR, "rules": [{"range": ["A2:B4"], "type": "included_by"}]},
    "fuzzy, likeness": {"type": "sheet_fuzzy", **PAIR, "rules": [{"range": ["A2:A4"], "type": "fuzzy_match", "threshold": 80}]},
    "second sheet": {"type": "sheet_data", "sheet_idx0": 1, "sheet_idx1": "EI0"},
    "by name": {"type": "sheet_data", "sheet_idx0": "RNData", "sheet_idx1": "EI0"},
}
ABOUT = {
    "sheet_name": "sheet|title",
    "sheet_data": "text|place|number|truth|one|date|cell|blanks|more|formula|N/A",
    "freeze": "frozen",
    "filter": "filter",
    "chart": "chart",
    "sparkline": "chart sheet",
    "row_props": "row",
    "col_props": "column",
    "style number_format": "format|truth|date|text",
    "style font_name": "font|bold",
    "style font_color": "coloured|theme|bold",
    "style font_bold": "bold|font",
    "style font_italic": "font",
    "style font_underline": "font",
    "style font_size": "font|bold",
    "style fill_type": "filled",
    "style bgcolor": "filled|condition|cell",
    "style fgcolor": "filled|condition",
    "style merge": "merged",
    "style hyperlink": "link",
    "fuzzy": "text|number|truth|one|blanks|cell|N/A",
    "second sheet": "sheet",
    "by name": "title",
    "validation": "choices",
    "value": "number|truth|one|cell",
    "bold": "bold",
    "colour": "filled",
    "zoom": "zoom",
}
"""Rule -> pattern of the workbooks that it is about."""
ALONE: dict[str, dict[str, Any]] = {
    "zoom": {"type": "zoom", "sheet_idx": 0, "method": "gt", "ref": 120},
    "validation": {
        "type": "data_validation",
        "sheet_idx": 0,
        "dv_props": [
            {
                "ranges": {"method": "spreadsheet_range", "ref": ["C2:C4", "C2:C1048576"]},
                "type": {"method": "eq", "ref": "list"},
                "formula1": {"method": "str_set_eq", "ref": ["a", "b"]},
            }
        ],
    },
    "validation, text": {"type": "data_validation", "sheet_idx": 0, "dv_props": [{"formula1": {"method": "eq", "ref": '"a,b"'}}]},
    "value": {"type": "check_cell", "sheet_idx": 0, "coordinate": "B3", "props": {"value": {"method": "eq", "ref": 2}}},
    "close value": {
        "type": "check_cell",
        "sheet_idx": 0,
        "coordinate": "B2",
        "props": {"value": {"method": "approx:0.001", "ref": 1.2346}},
    },
    "text": {"type": "check_cell", "sheet_idx": 0, "coordinate": "A2", "props": {"value": {"method": "re", "ref": "^ink$"}}},
    "bold": {"type": "check_cell", "sheet_idx": 0, "coordinate": "A1", "props": {"font_bold": {"method": "eq", "ref": True}}},
    "colour": {
        "type": "check_cell",
        "sheet_idx": 0,
        "coordinate": "B2",
        "props": {"bgcolor": {"method": "eq", "ref": "FFFF0000"}},
    },
}


def books(folder: Path) -> Iterator[Pair]:
    """`compare_table` rule by rule, and lists of cities."""
    book()(folder / "whole.xlsx")
    files = write(folder / "books", ".xlsx", {**BOOKS, **broken((folder / "whole.xlsx").read_bytes())})
    yield from each_with_base(
        [
            Judge("compare_table", {"rules": [rule]}, word=name, about=ABOUT.get(name.split(",")[0], "title"))
            for name, rule in RULES.items()
        ],
        files,
        every=40,
    )
    for one, other in (("error as text", "error"), ("error", "error as text")):
        yield Pair("compare_table", f"{one} = {other}", (files[one], files[other]), {"rules": [RULES["sheet_data"]]})
    for pair in each_alone(
        [Judge("compare_table", word=name, about=ABOUT.get(name.split(",")[0], "title")) for name in ALONE], files, every=20
    ):
        name = pair.kind.rpartition("(")[2].rstrip(")")
        yield Pair(pair.metric, pair.kind, (pair.args[0], None), {"rules": [ALONE[name]]})
    cities = [["No", "Name", "City"], *([number, f"c{number}", f"City {number}"] for number in range(1, 22))]
    places = {}
    for word, change in {"right": None, "one wrong": (3, "Oslo"), "one empty": (3, None), "longer": (3, "in City 3, X")}.items():
        workbook = openpyxl.Workbook()
        for row in cities:
            workbook.active.append(row)
        if change is not None:
            workbook.active.cell(change[0] + 1, 3).value = change[1]
        places[word] = str(folder / f"cities-{word}.xlsx")
        workbook.save(places[word])
    expected = [["City 1", "First"], *(f"City {number}" for number in range(2, 22))]
    yield from each_alone([Judge("compare_conference_city_in_order", rules={"expected": expected})], places)
