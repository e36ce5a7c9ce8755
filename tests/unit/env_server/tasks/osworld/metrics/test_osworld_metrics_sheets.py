"""Workbooks as tasks really have them: formulas nobody computed, parts in any order, chart sheets, odd answer positions."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from openpyxl.chart import BarChart, Reference
from openpyxl.formatting.rule import CellIsRule
from openpyxl.styles import Font, GradientFill, PatternFill
from openpyxl.worksheet.datavalidation import DataValidation

from computerrl.env_server.tasks.osworld.metrics import metric
from computerrl.env_server.tasks.osworld.metrics.files import BrokenFile
from computerrl.env_server.tasks.osworld.metrics.matching import BadRule, matches
from computerrl.env_server.tasks.osworld.metrics.sheets import answer_ranges
from tests.support.data.extreme_files import book

PAIR = {"sheet_idx0": 0, "sheet_idx1": "EI0"}


def _book(place: Path, cells: dict[str, Any], edit: Callable[[Any], Any] | None = None) -> str:
    book = openpyxl.Workbook()
    for address, value in cells.items():
        book.active[address] = value
    if edit is not None:
        edit(book)
    book.save(place)
    return str(place)


def _table(found: str, gold: str | None, **rule: Any) -> float:
    return metric("compare_table")(found, gold, rules=[rule])


# --- expected workbooks without computed values ----------------------------------------------------------------------


FUZZY = {"type": "sheet_fuzzy", **PAIR, "rules": [{"range": ["C1:C2"], "type": "exact_match"}]}


@pytest.mark.parametrize(
    "judge",
    [
        lambda found, gold: _table(found, gold, type="sheet_data", **PAIR),
        lambda found, gold: _table(found, gold, **FUZZY),
        lambda found, gold: metric("compare_spreadsheet")(found, gold, answer_position="C1"),
        lambda found, gold: metric("compare_spreadsheet")(found, gold, answer_position="A1,C1:C2"),
        lambda found, gold: metric("compare_spreadsheet")(found, gold, answer_position="C:C"),
    ],
)
@pytest.mark.parametrize("answer", [3, None])
def test_gold_formula_without_value_is_the_tasks_fault(judge: Any, answer: int | None, tmp_path: Path) -> None:
    gold = _book(tmp_path / "gold.xlsx", {"A1": 1, "B1": 2, "C1": "=A1+B1"})
    found = _book(tmp_path / "found.xlsx", {"A1": 1, "B1": 2, "C1": answer})
    with pytest.raises(BrokenFile, match="Sheet!C1") as fault:
        judge(found, gold)
    assert fault.value.path == Path(gold)


@pytest.mark.parametrize(
    "judge",
    [
        lambda found, gold: _table(found, gold, type="sheet_data", **PAIR),
        lambda found, gold: _table(found, gold, **FUZZY),
        lambda found, gold: metric("compare_spreadsheet")(found, gold, answer_position="C1"),
    ],
)
@pytest.mark.parametrize("answer", [3, 0])
def test_gold_formula_with_a_stand_in_for_its_value_is_the_tasks_fault(judge: Any, answer: int, tmp_path: Path) -> None:
    """XlsxWriter stores 0 for every formula, and asks applications to compute all of them when they open the file."""
    gold = _book(tmp_path / "gold.xlsx", {"A1": 1, "B1": 2, "C1": "=A1+B1"})
    _store_zeros(gold)
    with pytest.raises(BrokenFile, match="Sheet!C1"):
        judge(_book(tmp_path / "found.xlsx", {"A1": 1, "B1": 2, "C1": answer}), gold)


@pytest.mark.parametrize(("other", "computed_later"), [("7", True), ("0", False)])
def test_gold_formula_whose_value_is_zero_has_a_value(other: str, computed_later: bool, tmp_path: Path) -> None:
    """Other formulas with values show that the file was computed, and so does a file that asks for no computation."""
    gold = _book(tmp_path / "gold.xlsx", {"A1": 1, "B1": "=A1-A1", "C1": "=A1+6"})
    _store_zeros(gold, last=other, computed_later=computed_later)
    found = _book(tmp_path / "found.xlsx", {"A1": 1, "B1": 0, "C1": int(other)})
    assert _table(found, gold, type="sheet_data", **PAIR) == 1.0


def _store_zeros(place: str, *, last: str = "0", computed_later: bool = True) -> None:
    """Store 0 as the value of every formula, ``last`` as that of the last one."""
    with zipfile.ZipFile(place) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    first, _, end = re.sub(rb"<v ?/>|<v></v>", b"<v>0</v>", parts["xl/worksheets/sheet1.xml"]).rpartition(b"<v>0</v>")
    parts["xl/worksheets/sheet1.xml"] = first + b"<v>" + last.encode() + b"</v>" + end
    if not computed_later:
        parts["xl/workbook.xml"] = parts["xl/workbook.xml"].replace(b'fullCalcOnLoad="1"', b"")
    with zipfile.ZipFile(place, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)


def test_gold_formula_elsewhere_does_not_matter(tmp_path: Path) -> None:
    gold = _book(tmp_path / "gold.xlsx", {"A1": 1, "Z9": "=A1"})
    found = _book(tmp_path / "found.xlsx", {"A1": 1})
    assert metric("compare_spreadsheet")(found, gold, answer_position="A1:B3") == 1.0
    assert _table(found, gold, type="sheet_fuzzy", **PAIR, rules=[{"range": ["A1"], "type": "exact_match"}]) == 1.0


def _with_stored(place: Path, source: str, cell: str) -> str:
    """The workbook with another XML for its cell B1."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(place, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename == "xl/worksheets/sheet1.xml":
                data, count = re.subn(rb'<c r="B1">.*?</c>', cell.encode(), data)
                assert count == 1
            new.writestr(info.filename, data)
    return str(place)


def test_gold_formula_with_empty_text_as_value_has_a_value(tmp_path: Path) -> None:
    source = _book(tmp_path / "source.xlsx", {"A1": 1, "B1": "=A1"})
    gold = _with_stored(tmp_path / "gold.xlsx", source, '<c r="B1" t="str"><f>A1</f><v></v></c>')
    found = _book(tmp_path / "found.xlsx", {"A1": 1})
    assert _table(found, gold, type="sheet_data", **PAIR) == 1.0


def test_answer_formula_without_value_is_an_empty_answer(tmp_path: Path) -> None:
    gold, found = _book(tmp_path / "gold.xlsx", {"A1": 3}), _book(tmp_path / "found.xlsx", {"A1": "=1+2"})
    assert _table(found, gold, type="sheet_data", **PAIR) == 0.0


# --- sheets and their parts ------------------------------------------------------------------------------------------


def _renumbered(place: Path, source: str) -> str:
    """The workbook with its only sheet in sheet3.xml."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(place, "w") as new:
        for info in old.infolist():
            new.writestr(info.filename.replace("sheet1.xml", "sheet3.xml"), old.read(info).replace(b"sheet1.xml", b"sheet3.xml"))
    return str(place)


EVERY_PAIR_RULE = [
    {"type": "sheet_data"},
    {"type": "freeze"},
    {"type": "sparkline"},
    {"type": "filter"},
    {"type": "chart", "chart_props": ["type", "anchor", "width", "xdir"]},
    {"type": "style", "props": ["bgcolor", "font_bold"]},
    {"type": "row_props", "props": ["hidden"]},
    {"type": "col_props", "props": ["hidden"]},
    {"type": "pivot_table", "pivot_props": ["name"]},
]


@pytest.mark.parametrize("rule", EVERY_PAIR_RULE, ids=lambda rule: str(rule["type"]))
def test_compare_table_part_number_means_nothing(rule: dict[str, Any], tmp_path: Path) -> None:
    plain = _book(tmp_path / "plain.xlsx", {"A1": 1})
    assert _table(_renumbered(tmp_path / "found.xlsx", plain), plain, **rule, **PAIR) == 1.0


def _chart_sheet(book: Any) -> None:
    chart = BarChart()
    chart.add_data(Reference(book.worksheets[0], min_col=1, min_row=1, max_row=1))
    book.create_chartsheet("Chart").add_chart(chart)


@pytest.mark.parametrize("rule", EVERY_PAIR_RULE, ids=lambda rule: str(rule["type"]))
def test_compare_table_chart_sheet_is_a_sheet_without_cells(rule: dict[str, Any], tmp_path: Path) -> None:
    with_chart = _book(tmp_path / "chart.xlsx", {"A1": 1}, _chart_sheet)
    assert _table(with_chart, with_chart, **rule, sheet_idx0=1, sheet_idx1="EI1") == 1.0


def test_compare_table_chart_sheet_chart_and_no_cells_count(tmp_path: Path) -> None:
    with_chart = _book(tmp_path / "chart.xlsx", {"A1": 1}, _chart_sheet)
    plain = _book(tmp_path / "plain.xlsx", {"A1": 1}, lambda book: book.create_sheet("Chart"))
    assert _table(plain, with_chart, type="chart", sheet_idx0=1, sheet_idx1="EI1") == 0.0
    assert _table(with_chart, with_chart, type="sheet_data", sheet_idx0=1, sheet_idx1="EI0") == 0.0
    assert metric("compare_spreadsheet")(with_chart, plain, answer_position="Chart!A1") == 1.0


# --- values and styles -----------------------------------------------------------------------------------------------


def test_sheet_data_truth_is_not_one(tmp_path: Path) -> None:
    gold = _book(tmp_path / "gold.xlsx", {"A1": True})
    for value, same in ((True, 1.0), (1, 0.0), ("TRUE", 0.0), (False, 0.0)):
        assert _table(_book(tmp_path / "found.xlsx", {"A1": value}), gold, type="sheet_data", **PAIR) == same


@pytest.mark.parametrize(
    ("kind", "found", "wanted", "same"),
    [
        ("includes", "a b", "b", 1.0),
        ("includes", 50, 5, 0.0),
        ("includes", "x", None, 0.0),
        ("includes", None, None, 1.0),
        ("included_by", None, "x", 0.0),
        ("included_by", 5, 50, 0.0),
        ("included_by", "b", "a b", 1.0),
        ("exact_match", 5, 5.0, 1.0),
        ("exact_match", None, "None", 0.0),
        ("fuzzy_match", None, None, 1.0),
    ],
)
def test_sheet_fuzzy_numbers_and_empty_cells(kind: str, found: Any, wanted: Any, same: float, tmp_path: Path) -> None:
    one, other = _book(tmp_path / "found.xlsx", {"A1": found}), _book(tmp_path / "gold.xlsx", {"A1": wanted})
    assert _table(one, other, type="sheet_fuzzy", **PAIR, rules=[{"range": ["A1"], "type": kind}]) == same


@pytest.mark.parametrize("prop", ["font_color", "font_bold", "font_name", "number_format"])
def test_style_of_empty_cells_only_fill_counts(prop: str, tmp_path: Path) -> None:
    def styled(book: Any) -> None:
        book.active["B2"].font = Font(color="FFFF0000", bold=True, name="Arial")
        book.active["B2"].number_format = "0.00"

    def filled(book: Any) -> None:
        book.active["B2"].fill = PatternFill("solid", fgColor="FFFF0000")

    plain = _book(tmp_path / "plain.xlsx", {"A1": 1})
    rule = {"type": "style", "props": [prop, "bgcolor"], **PAIR}
    assert _table(_book(tmp_path / "styled.xlsx", {"A1": 1}, styled), plain, **rule) == 1.0
    assert _table(_book(tmp_path / "filled.xlsx", {"A1": 1}, filled), plain, **rule) == 0.0


# --- rules and positions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranges", "same"),
    [
        ("D2:D29", True),
        ("D2:D30", True),
        ("D2:D1048576", True),
        ("D2:D10 D11:D40", True),
        ("D1:D29", False),
        ("D2:D28", False),
        ("D2:D10 D12:D40", False),
        ("C2:D29", False),
        ("D:D", False),
        ("D2:D29 F1", False),
    ],
)
def test_spreadsheet_range_covers_one_and_lies_in_the_other(ranges: str, same: bool) -> None:
    assert matches(ranges, {"method": "spreadsheet_range", "ref": ["D2:D29", "D2:D1048576"]}) is same


@pytest.mark.parametrize("text", ['"Pass,Fail,Held"', "Pass,Fail,Held", "'Held,Pass,Fail'", '"Pass, Fail,Held"'])
def test_str_set_eq_quotes_of_the_list_do_not_count(text: str) -> None:
    assert matches(text, {"method": "str_set_eq", "ref": ["Pass", "Fail", "Held"]})
    assert not matches(text, {"method": "str_set_eq", "ref": ["Pass", "Fail"]})


@pytest.mark.parametrize(("cells", "same"), [("D2:D29", 1.0), ("D2:D20", 0.0)])
def test_data_validation_list_over_a_range(cells: str, same: float, tmp_path: Path) -> None:
    def validated(book: Any) -> None:
        one = DataValidation(type="list", formula1='"Held,Pass,Fail"', showErrorMessage=True)
        one.add(cells)
        book.active.add_data_validation(one)

    props = {
        "ranges": {"method": "spreadsheet_range", "ref": ["D2:D29", "D2:D1048576"]},
        "formula1": {"method": "str_set_eq", "ref": ["Pass", "Fail", "Held"]},
        "showErrorMessage": {"method": "eq", "ref": True},
    }
    found = _book(tmp_path / "found.xlsx", {"A1": 1}, validated)
    assert _table(found, None, type="data_validation", sheet_idx=0, dv_props=[props]) == same


@pytest.mark.parametrize(
    ("position", "ranges"),
    [
        ("worksheet2'!C3:C6", [("worksheet2", "C3:C6")]),
        ("'T_Data!A1:AB700','NY_Data!A1:AB30'", [("T_Data", "A1:AB700"), ("NY_Data", "A1:AB30")]),
        ("'Sheet1'!A1:'Sheet1'!B2", None),
        ("'a,b'!A1,c3:d4", [("a,b", "A1"), ("First", "C3:D4")]),
        ("'it''s'!A1", [("it's", "A1")]),
        ("'A1:B2'", [("First", "A1:B2")]),
        ("'Data' ! A1:B2, Data! C3", [("Data", "A1:B2"), ("Data", "C3")]),
        ("Data!2:5,A:C", [("Data", "2:5"), ("First", "A:C")]),
        ("", None),
        ("'Data'!", None),
        ("A1,nothing", None),
    ],
)
def test_answer_ranges_odd_quotes_are_read(position: str, ranges: list[tuple[str, str]] | None) -> None:
    if ranges is None:
        with pytest.raises(BadRule, match="no list of ranges"):
            answer_ranges(position, "First")
    else:
        assert answer_ranges(position, "First") == ranges


def test_compare_spreadsheet_unknown_sheet_is_the_tasks_fault(tmp_path: Path) -> None:
    book = _book(tmp_path / "book.xlsx", {"A1": 1})
    assert metric("compare_spreadsheet")(book, book, answer_position="sheet!A1") == 1.0
    with pytest.raises(BadRule, match="Other"):
        metric("compare_spreadsheet")(book, book, answer_position="Other!A1")


@pytest.mark.parametrize(
    ("cells", "whole"),
    [
        ("A1:B3", "A1:B3"),
        ("B3:A1", "A1:B3"),
        ("A3:B1", "A1:B3"),
        ("$B$1:$A$3", "A1:B3"),
        ("3:1", "A1:XFD3"),
        ("B:A", "A1:B1048576"),
    ],
)
def test_range_given_from_any_corner_holds_its_cells(cells: str, whole: str, tmp_path: Path) -> None:
    gold = _book(tmp_path / "gold.xlsx", {"A1": 1, "B3": 2})
    found = _book(tmp_path / "found.xlsx", {"A1": 1, "B3": 3})
    fuzzy = {"type": "sheet_fuzzy", **PAIR, "rules": [{"range": [cells], "type": "exact_match"}]}
    for answer, same in ((gold, 1.0), (found, 0.0)):
        assert metric("compare_spreadsheet")(answer, gold, answer_position=cells) == same
        assert _table(answer, gold, **fuzzy) == same
    assert matches(whole, {"method": "spreadsheet_range", "ref": [cells, cells]})
    assert matches(cells, {"method": "spreadsheet_range", "ref": [whole, whole]})


def test_compare_spreadsheet_whole_column_more_rows_count(tmp_path: Path) -> None:
    gold = _book(tmp_path / "gold.xlsx", {"A1": 1, "A2": 2})
    found = _book(tmp_path / "found.xlsx", {"A1": 1, "A2": 2, "A9": 3})
    assert metric("compare_spreadsheet")(found, gold, answer_position="A1:A5") == 1.0
    assert metric("compare_spreadsheet")(found, gold, answer_position="A:A") == 0.0


def test_style_black_fill_is_not_no_fill(tmp_path: Path) -> None:
    def filled(book: Any) -> None:
        book.active["A1"].fill = PatternFill("solid", fgColor="FF000000")

    def gradient(book: Any) -> None:
        book.active["A1"].fill = GradientFill(stop=("FF0000", "0000FF"))

    plain, emptied = _book(tmp_path / "plain.xlsx", {"A1": 1, "A2": 2}), _book(tmp_path / "emptied.xlsx", {"A1": 1})
    rule = {"type": "style", "props": ["bgcolor"], **PAIR}
    assert _table(_book(tmp_path / "filled.xlsx", {"A1": 1, "A2": 2}, filled), plain, **rule) == 0.0
    assert _table(_book(tmp_path / "gradient.xlsx", {"A1": 1, "A2": 2}, gradient), plain, **rule) == 0.0
    assert _table(emptied, plain, **rule) == 1.0
    fill_type = {**rule, "props": ["fill_type"]}
    assert _table(_book(tmp_path / "gradient.xlsx", {"A1": 1, "A2": 2}, gradient), plain, **fill_type) == 0.0


@pytest.mark.parametrize(("value", "coloured"), [(30, True), (30.5, True), (5, False), ("30", False), (True, False)])
def test_style_condition_over_numbers_whole_or_not(value: Any, coloured: bool, tmp_path: Path) -> None:
    def condition(book: Any) -> None:
        rule = CellIsRule("greaterThan", ["10"], fill=PatternFill(bgColor="FFFF0000"))
        book.active.conditional_formatting.add("A1", rule)

    plain, found = _book(tmp_path / "plain.xlsx", {"A1": value}), _book(tmp_path / "found.xlsx", {"A1": value}, condition)
    assert _table(found, plain, type="style", props=["bgcolor"], **PAIR) == float(not coloured)


_FILTERS = {
    "nothing": "",
    "values": "<filters><filter val='a'/></filters>",
    "other values": "<filters><filter val='b'/></filters>",
    "blanks too": "<filters blank='1'><filter val='a'/></filters>",
    "dates": "<filters><dateGroupItem year='2024' dateTimeGrouping='year'/></filters>",
    "other dates": "<filters><dateGroupItem year='2023' dateTimeGrouping='year'/></filters>",
    "both": "<customFilters and='1'><customFilter operator='greaterThan' val='1'/><customFilter val='5'/></customFilters>",
    "either": "<customFilters><customFilter operator='greaterThan' val='1'/><customFilter val='5'/></customFilters>",
    "top 10": "<top10 val='10'/>",
    "top 5": "<top10 val='5'/>",
    "last 5": "<top10 val='5' top='0'/>",
    "top 5 %": "<top10 val='5' percent='1'/>",
    "above the mean": "<dynamicFilter type='aboveAverage'/>",
    "below the mean": "<dynamicFilter type='belowAverage'/>",
    "colour of cells": "<colorFilter dxfId='0'/>",
    "colour of text": "<colorFilter dxfId='0' cellColor='0'/>",
    "icon": "<iconFilter iconSet='3Arrows' iconId='1'/>",
}


def test_filter_all_that_a_column_shows_counts(tmp_path: Path) -> None:
    def filtered(name: str) -> str:
        place = tmp_path / f"{name}.xlsx"
        column = f"<filterColumn colId='0'>{_FILTERS[name]}</filterColumn>"
        place.write_bytes(book(after=f"<autoFilter ref='A1:B9'>{column}</autoFilter>"))
        return str(place)

    places = {name: filtered(name) for name in _FILTERS}
    for one in places:
        for other in places:
            assert _table(places[one], places[other], type="filter", **PAIR) == float(one == other), (one, other)


def test_filter_of_one_condition_needs_no_connection(tmp_path: Path) -> None:
    for name, given in {"one": "and='1'", "other": ""}.items():
        column = f"<filterColumn colId='0'><customFilters {given}><customFilter val='5'/></customFilters></filterColumn>"
        (tmp_path / name).write_bytes(book(after=f"<autoFilter ref='A1:B9'>{column}</autoFilter>"))
    assert _table(str(tmp_path / "one"), str(tmp_path / "other"), type="filter", **PAIR) == 1.0
