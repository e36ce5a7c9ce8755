"""Metrics over workbooks, with files made here."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from openpyxl.chart import BarChart, LineChart, Reference
from openpyxl.formatting.rule import CellIsRule
from openpyxl.styles import Font, PatternFill
from openpyxl.worksheet.datavalidation import DataValidation

from computerrl.env_server.tasks.osworld.metrics import metric
from computerrl.env_server.tasks.osworld.metrics.files import BrokenFile
from computerrl.env_server.tasks.osworld.metrics.matching import BadRule
from computerrl.env_server.tasks.osworld.metrics.sheets import answer_ranges

Edit = Callable[[Any], None]


def _book(place: Path, edit: Edit | None = None) -> str:
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Data"
    for row in [["Name", "Price"], ["ink", 1.23456], ["pen", 2], ["cup", 30]]:
        sheet.append(row)
    if edit is not None:
        edit(sheet)
    book.save(place)
    return str(place)


def _chart(kind: type[Any], title: str) -> Edit:
    def edit(sheet: Any) -> None:
        chart = kind()
        chart.title = title
        chart.add_data(Reference(sheet, min_col=2, min_row=1, max_row=4), titles_from_data=True)
        chart.set_categories(Reference(sheet, min_col=1, min_row=2, max_row=4))
        sheet.add_chart(chart, "D2")

    return edit


def _set(**cells: Any) -> Edit:
    def edit(sheet: Any) -> None:
        for place, value in cells.items():
            sheet[place] = value

    return edit


def _attribute(path: str, value: Any) -> Edit:
    def edit(sheet: Any) -> None:
        holder = sheet
        *names, last = path.split(".")
        for name in names:
            holder = holder[name] if name.isupper() and not hasattr(holder, name) else getattr(holder, name)
        setattr(holder, last, value)

    return edit


def _row(number: int, hidden: bool) -> Edit:
    def edit(sheet: Any) -> None:
        sheet.row_dimensions[number].hidden = hidden

    return edit


def _column(letter: str) -> Edit:
    def edit(sheet: Any) -> None:
        sheet.column_dimensions[letter].hidden = True

    return edit


def _filter(value: str) -> Edit:
    def edit(sheet: Any) -> None:
        sheet.auto_filter.ref = "A1:B4"
        sheet.auto_filter.add_filter_column(0, [value])

    return edit


def _validation(text: str) -> Edit:
    def edit(sheet: Any) -> None:
        rule = DataValidation(type="list", formula1=text)
        sheet.add_data_validation(rule)
        rule.add("C2:C4")

    return edit


def _coloured(color: str) -> Edit:
    def edit(sheet: Any) -> None:
        sheet["B3"].fill = PatternFill("solid", fgColor=color)
        sheet["A1"].font = Font(bold=True)

    return edit


PAIR = {"sheet_idx0": 0, "sheet_idx1": "EI0"}
DV = {"sqref": {"method": "eq", "ref": "C2:C4"}, "formula1": {"method": "eq", "ref": '"a,b"'}}
RULES: list[tuple[dict[str, Any], Edit | None, Edit | None, Edit | None]] = [
    # rule, what makes the expected workbook, what makes one that passes, what makes a near miss
    ({"type": "sheet_name"}, None, _set(A9=1), _attribute("title", "Data2")),
    ({"type": "sheet_data", **PAIR}, None, _set(B2=1.23457), _set(B2=1.2344)),
    (
        {"type": "sheet_data", **PAIR},
        _set(C1="#DIV/0!"),
        _set(C1="#DIV/0!"),
        lambda sheet: setattr(sheet.cell(1, 3, "#DIV/0!"), "data_type", "s"),
    ),
    (
        {"type": "freeze", **PAIR},
        _attribute("freeze_panes", "A2"),
        _attribute("freeze_panes", "A2"),
        _attribute("freeze_panes", "B2"),
    ),
    (
        {"type": "chart", **PAIR, "chart_props": ["type", "title"]},
        _chart(BarChart, "Prices"),
        _chart(BarChart, "Prices"),
        _chart(LineChart, "Prices"),
    ),
    (
        {"type": "chart", **PAIR, "chart_props": ["title"]},
        _chart(BarChart, "Prices"),
        _chart(BarChart, "Prices"),
        _chart(BarChart, "P"),
    ),
    (
        {"type": "style", **PAIR, "props": ["bgcolor", "fgcolor", "font_bold"]},
        _coloured("FFFF0000"),
        _coloured("00FF0000"),
        _coloured("FF0000FF"),
    ),
    ({"type": "row_props", **PAIR, "props": ["hidden"]}, _row(3, hidden=True), _row(3, hidden=True), _row(4, hidden=True)),
    ({"type": "col_props", **PAIR, "props": ["hidden"]}, _column("B"), _column("B"), _column("A")),
    ({"type": "filter", **PAIR}, _filter("ink"), _filter("ink"), _filter("pen")),
    (
        {
            "type": "check_cell",
            "sheet_idx": "RNData",
            "coordinate": "B3",
            "props": {"bgcolor": {"method": "eq", "ref": "FF0000FF"}},
        },
        None,
        _coloured("000000FF"),
        _coloured("FF0000FE"),
    ),
    (
        {"type": "zoom", "sheet_idx": "RNData", "method": "eq", "ref": 260},
        None,
        _attribute("sheet_view.zoomScale", 260),
        _attribute("sheet_view.zoomScale", 60),
    ),
    ({"type": "data_validation", "sheet_idx": 0, "dv_props": [DV]}, None, _validation('"a,b"'), _validation('"a,b,c"')),
    (
        {"type": "check_cell", "sheet_idx": 0, "coordinate": "C1", "props": {"value": {"method": "eq", "ref": "x"}}},
        None,
        _set(C1="x"),
        _set(C1="y"),
    ),
    (
        {"type": "sheet_fuzzy", **PAIR, "rules": [{"range": ["A2:A4"], "type": "exact_match", "ignore_case": True}]},
        None,
        _set(A2="INK"),
        _set(A2="ink "),
    ),
    (
        {"type": "sheet_fuzzy", **PAIR, "rules": [{"range": ["A2"], "type": "fuzzy_match", "threshold": 60}]},
        None,
        _set(A2="inkl"),
        _set(A2="tea"),
    ),
]


@pytest.mark.parametrize(("rule", "gold", "passes", "misses"), RULES, ids=[case[0]["type"] for case in RULES])
def test_compare_table_rule_pass_and_near_miss(
    rule: dict[str, Any], gold: Edit | None, passes: Edit | None, misses: Edit | None, tmp_path: Path
) -> None:
    expected = _book(tmp_path / "gold.xlsx", gold)
    assert metric("compare_table")(_book(tmp_path / "good.xlsx", passes), expected, rules=[rule]) == 1.0
    if misses is not None:
        assert metric("compare_table")(_book(tmp_path / "bad.xlsx", misses), expected, rules=[rule]) == 0.0


def _pivot(*, row: int, hidden: bool = False) -> Edit:
    """A pivot table over the data; openpyxl keeps them but has no function that makes one."""
    from openpyxl.pivot import cache, fields, table

    def edit(sheet: Any) -> None:
        shared = cache.SharedItems(_fields=[fields.Text(v="ink"), fields.Text(v="pen")], containsString=True)
        names = [cache.CacheField(name=name, numFmtId=0, sharedItems=shared) for name in ("Name", "Price")]
        source = cache.CacheSource(type="worksheet", worksheetSource=cache.WorksheetSource(ref="A1:B4", sheet="Data"))
        definition = cache.CacheDefinition(cacheSource=source, cacheFields=names, id="rId1")
        definition.records = table_records()
        items = [table.FieldItem(x=0), table.FieldItem(x=1, h=hidden)]
        whole = table.TableDefinition(
            name="Pivot",
            cacheId=1,
            dataCaption="Values",
            location=table.Location(ref="E1:F4", firstHeaderRow=1, firstDataRow=1, firstDataCol=1),
            pivotFields=[table.PivotField(axis="axisRow", items=items), table.PivotField(dataField=True)],
            rowFields=[table.RowColField(x=row)],
            dataFields=[table.DataField(fld=1, subtotal="sum")],
        )
        whole.cache = definition
        sheet.add_pivot(whole)

    def table_records() -> Any:
        from openpyxl.pivot.record import RecordList

        return RecordList()

    return edit


@pytest.mark.parametrize(("prop", "other"), [("row_fields", _pivot(row=1)), ("filter", _pivot(row=0, hidden=True))])
def test_compare_table_pivot_table_fields_and_hidden_entries(prop: str, other: Edit, tmp_path: Path) -> None:
    rule = {"type": "pivot_table", **PAIR, "pivot_props": [prop, "data_fields"]}
    gold = _book(tmp_path / "gold.xlsx", _pivot(row=0))
    assert metric("compare_table")(_book(tmp_path / "a.xlsx", _pivot(row=0)), gold, rules=[rule]) == 1.0
    assert metric("compare_table")(_book(tmp_path / "b.xlsx", other), gold, rules=[rule]) == 0.0
    assert metric("compare_table")(_book(tmp_path / "c.xlsx"), gold, rules=[rule]) == 0.0


def test_compare_table_sparklines_are_read_from_the_file(tmp_path: Path) -> None:
    import zipfile

    def with_sparkline(name: str, cells: str) -> str:
        plain = _book(tmp_path / "plain.xlsx")
        spaces = (
            'xmlns:x14="http://schemas.microsoft.com/office/spreadsheetml/2009/9/main" '
            'xmlns:xm="http://schemas.microsoft.com/office/excel/2006/main"'
        )
        line = f"<x14:sparkline><xm:f>Data!{cells}</xm:f><xm:sqref>D2</xm:sqref></x14:sparkline>"
        groups = f"<x14:sparklineGroup><x14:sparklines>{line}</x14:sparklines></x14:sparklineGroup>"
        extra = f'<extLst><ext {spaces} uri="x"><x14:sparklineGroups>{groups}</x14:sparklineGroups></ext></extLst></worksheet>'
        with zipfile.ZipFile(plain) as old, zipfile.ZipFile(tmp_path / name, "w") as new:
            for member in old.namelist():
                data = old.read(member)
                if member == "xl/worksheets/sheet1.xml":
                    data = data.replace(b"</worksheet>", extra.encode())
                new.writestr(member, data)
        return str(tmp_path / name)

    rule = {"type": "sparkline", **PAIR}
    gold = with_sparkline("gold.xlsx", "B2:B4")
    assert metric("compare_table")(with_sparkline("a.xlsx", "B2:B4"), gold, rules=[rule]) == 1.0
    assert metric("compare_table")(with_sparkline("b.xlsx", "B2:B3"), gold, rules=[rule]) == 0.0


def test_compare_table_sheet_print_reads_the_csv_beside_it(tmp_path: Path) -> None:
    found, gold = _book(tmp_path / "a.xlsx"), _book(tmp_path / "b.xlsx")
    (tmp_path / "a-Data.csv").write_text("Name,Price\nink,$1.23\n")
    (tmp_path / "b-Data.csv").write_text("Name,Price\nink,$1.23\n\n")
    rule = {"type": "sheet_print", "sheet_idx0": "RNData", "sheet_idx1": "ENData"}
    assert metric("compare_table")(found, gold, rules=[rule]) == 1.0
    (tmp_path / "a-Data.csv").write_text("Name,Price\nink,1.23\n")
    assert metric("compare_table")(found, gold, rules=[rule]) == 0.0


def test_compare_table_conditional_colours_count_as_colours(tmp_path: Path) -> None:
    def conditional(limit: str) -> Edit:
        def edit(sheet: Any) -> None:
            fill = PatternFill("solid", bgColor="FFFF0000")
            sheet.conditional_formatting.add("B2:B4", CellIsRule(operator="greaterThan", formula=[limit], fill=fill))

        return edit

    rule = {"type": "style", **PAIR, "props": ["bgcolor"]}
    gold = _book(tmp_path / "gold.xlsx", conditional("10"))
    assert metric("compare_table")(_book(tmp_path / "a.xlsx", conditional("20")), gold, rules=[rule]) == 1.0
    assert metric("compare_table")(_book(tmp_path / "b.xlsx", conditional("1")), gold, rules=[rule]) == 0.0


def test_compare_table_bad_inputs_are_told_apart(tmp_path: Path) -> None:
    good = _book(tmp_path / "a.xlsx")
    (tmp_path / "b.xlsx").write_bytes(b"no workbook")
    with pytest.raises(BrokenFile) as broken:
        metric("compare_table")(str(tmp_path / "b.xlsx"), good, rules=[{"type": "sheet_name"}])
    assert broken.value.path.name == "b.xlsx"
    with pytest.raises(BadRule):
        metric("compare_table")(good, good, rules=[{"type": "no_such"}])
    assert metric("compare_table")(good, good, rules=[{"type": "sheet_data", "sheet_idx0": "RN7", "sheet_idx1": "EI0"}]) == 0.0


def test_compare_spreadsheet_every_range_counts(tmp_path: Path) -> None:
    gold = _book(tmp_path / "gold.xlsx", _set(D1=datetime.datetime(2024, 1, 2)))
    close = _book(tmp_path / "a.xlsx", _set(B2=1.231, D1=datetime.datetime(2024, 1, 2), E9="free"))
    assert metric("compare_spreadsheet")(close, gold, answer_position="'Data'!A1:B4,'Data'!D1") == 1.0
    wrong = _book(tmp_path / "b.xlsx", _set(B2=1.5, D1=datetime.datetime(2024, 1, 2)))
    assert metric("compare_spreadsheet")(wrong, gold, answer_position="'Data'!A1:B4,'Data'!D1") == 0.0
    assert metric("compare_spreadsheet")(wrong, {"file": gold, "answer_position": "D1"}) == 1.0


def test_compare_spreadsheet_style_counts_where_the_name_says_so(tmp_path: Path) -> None:
    gold = _book(tmp_path / "1_CF_gold.xlsx", _coloured("FFFF0000"))
    assert metric("compare_spreadsheet")(_book(tmp_path / "a.xlsx", _coloured("FFFF0000")), gold, answer_position="B3") == 1.0
    assert metric("compare_spreadsheet")(_book(tmp_path / "b.xlsx"), gold, answer_position="B3") == 0.0


def test_answer_ranges_forms_all_read() -> None:
    assert answer_ranges("'My, Sheet'!A1:B2,C3, Other!$D$4", "First") == [
        ("My, Sheet", "A1:B2"),
        ("First", "C3"),
        ("Other", "D4"),
    ]
    assert answer_ranges("A:B", "S") == [("S", "A:B")]
    with pytest.raises(ValueError, match="no list of ranges"):
        answer_ranges("nothing here", "S")


def test_compare_conference_city_in_order_third_column(tmp_path: Path) -> None:
    def cities(*names: str) -> Edit:
        def edit(sheet: Any) -> None:
            for row, name in enumerate(names, start=2):
                sheet.cell(row=row, column=3, value=name)

        return edit

    rules = {"expected": [["Wien", "Vienna"], "Oslo"]}
    assert metric("compare_conference_city_in_order")(_book(tmp_path / "a.xlsx", cities("Vienna", "Oslo, NO")), rules) == 1.0
    assert metric("compare_conference_city_in_order")(_book(tmp_path / "b.xlsx", cities("Oslo", "Vienna")), rules) == 0.0
