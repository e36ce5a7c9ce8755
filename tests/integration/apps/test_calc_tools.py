"""The agent's API of Calc on a real desktop: every method's effect in the saved workbook, every method's refusals."""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Callable

import openpyxl
import pytest

from computerrl.common.actions.tables.calc import TABLE
from computerrl.env_server.drivers.guest_driver import GuestDriver
from tests.support.data.calc_refusals import REFUSALS
from tests.support.data.calc_workbook import HEADER, Calc
from tests.support.desktops import SharedDesktops


@pytest.fixture(scope="module")
def desktop(shared_desktops: SharedDesktops) -> GuestDriver:
    return shared_desktops.get("core").driver


@pytest.fixture(scope="module")
def calc(desktop: GuestDriver) -> Calc:
    return Calc(desktop)


# --- one function per method: what it does ---


def set_cell(calc: Calc) -> None:
    calc.do('set_cell("B2", 5)')
    calc.do('set_cell("F2", "=SUM(B2,B3)*2")')
    calc.do('set_cell("F3", "=Notes.B2&\\"!\\"")')
    calc.do('set_cell("Notes!AB3", "text")')
    calc.do('set_cell("F4", "12.5")')
    calc.do('set_cell("F5", "2024-05-06")')
    calc.do('set_cell("F6", "=Data!B2+1")')
    assert "#DIV/0!" in calc.do('set_cell("F7", "=1/0")')
    formulas, values = calc.saved(), calc.loaded(values=True)
    assert formulas["Data"]["F2"].value == "=SUM(B2,B3)*2"
    found = [values["Data"][f"F{row}"].value for row in range(2, 7)]
    assert found == [30, "x!", 12.5, datetime.datetime(2024, 5, 6), 6]
    assert values["Data"]["B2"].value == 5 and values["Notes"]["AB3"].value == "text"


def get_cell(calc: Calc) -> None:
    cells = {"A2": "pear", "B3": "10", "C2": "2.5", "D2": "2024-01-05", "AZ99": ""}
    assert {cell: calc.do(f'get_cell("{cell}")') for cell in cells} == cells
    assert calc.do('get_cell("Notes.B2")') == "x"
    calc.do('set_cell("F2", "=NA()")')
    assert calc.do('get_cell("F2")') == "#N/A"
    calc.do('set_cell("F3", "=REPT(\\"x\\";1600)")')
    assert calc.do('get_cell("F3")').endswith("... 100 more characters")


def save(calc: Calc) -> None:
    calc.do('set_cell("A1", "changed")')
    assert calc.do("save()") == "saved in/data.xlsx"
    assert openpyxl.load_workbook(io.BytesIO(calc.file("in/data.xlsx")))["Data"]["A1"].value == "changed"


def env_info(calc: Calc) -> None:
    lines = calc.do("env_info()").splitlines()
    assert lines[:3] == ["Data, used range A1:E5", "\tA\tB\tC\tD\tE", "1\tName\tQty\tPrice\tDay\tKind"]
    assert lines[4] == "3\tleek\t10\t0.75\t2024-02-06\tN/A" and len(lines) == 7
    calc.do('set_column_values("A", [' + ", ".join(["7"] * 500) + "])")
    text = calc.do("env_info()")
    assert "more rows, to row 501" in text and len(text) <= 1600
    calc.do('switch_active_sheet("New")')
    assert calc.do("env_info()") == "New is empty"


def get_workbook_info(calc: Calc) -> None:
    lines = calc.do("get_workbook_info()").splitlines()
    assert lines[0] == "path: in/data.xlsx" and lines[1] == "name: data.xlsx"
    assert lines[2] == "sheets: Data (A1:E5), Notes (B2), Closed (A1)" and lines[3] == "active sheet: Data"


def get_column_data(calc: Calc) -> None:
    assert calc.do('get_column_data("B")') == 'B1:B5: ["Qty", 3, 10, 2, 7]'
    assert calc.do('get_column_data("d")').startswith('D1:D5: ["Day", "2024-01-05"')
    assert calc.do('get_column_data("ABC")') == "[]"
    calc.do('set_column_values("AA", [' + ", ".join(["1234"] * 300) + "])")
    text = calc.do('get_column_data("AA")')
    assert text.startswith('AA1:AA301: ["", 1234') and text.endswith(" more]") and len(text) <= 1600


def switch_active_sheet(calc: Calc) -> None:
    assert calc.do('switch_active_sheet("notes")') == "Notes is active"
    assert calc.saved().active.title == "Notes"
    assert calc.do('switch_active_sheet("New one")') == "New one is active, a new sheet"
    assert calc.saved().sheetnames == ["Data", "Notes", "Closed", "New one"]


def rename_sheet(calc: Calc) -> None:
    calc.do('rename_sheet("Data", "data")')
    calc.do('rename_sheet("Notes", "Zettel 1")')
    assert calc.saved().sheetnames == ["data", "Zettel 1", "Closed"]


def copy_sheet(calc: Calc) -> None:
    assert calc.do('copy_sheet("Data")') == "Data_2 is a copy of Data"
    calc.do('copy_sheet("Notes", "Again")')
    workbook = calc.saved()
    assert workbook.sheetnames == ["Data", "Data_2", "Notes", "Again", "Closed"]
    assert workbook["Data_2"]["A3"].value == "leek" and workbook["Again"]["B2"].value == "x"


def reorder_sheets(calc: Calc) -> None:
    assert calc.do('reorder_sheets("Data", 1)') == "sheets: Notes, Data, Closed"
    assert calc.do('reorder_sheets("Data", 2)') == "sheets: Notes, Closed, Data"
    calc.do('reorder_sheets("Closed", 0)')
    assert calc.saved().sheetnames == ["Closed", "Notes", "Data"]


def set_column_values(calc: Calc) -> None:
    assert calc.do('set_column_values("F", ["a", 1, 2.5, "=1+1", "007"])') == "wrote F2:F6"
    calc.do('set_column_values("AB", [9], start_index=1)')
    assert calc.column("F") == [None, "a", 1, 2.5, "=1+1", "007"]
    assert calc.column("AB")[0] == 9


def transpose_range(calc: Calc) -> None:
    assert calc.do('transpose_range("A1:D3", "Notes.D5")') == "wrote Notes.D5:F8".replace("Notes.", "")
    sheet = calc.saved(values=True)["Notes"]
    rows = [[cell.value for cell in row] for row in sheet["D5:F8"]]
    days = [datetime.datetime(2024, 1, 5), datetime.datetime(2024, 2, 6)]
    assert rows == [["Name", "pear", "leek"], ["Qty", 3, 10], ["Price", 2.5, 0.75], ["Day", *days]]


def sort_column(calc: Calc) -> None:
    calc.do('sort_column("B")')
    assert calc.column("B") == ["Qty", 2, 3, 7, 10]
    calc.do('sort_column("A", ascending=False, start_index=3)')
    assert calc.column("A") == ["Name", "pear", "leek", "kale", "apple"]
    assert calc.column("C") == ["Price", 2.5, 0.75, 1.25, 3]
    calc.do('merge_cells("A1:A2")')
    assert "merged cells" in calc.refusal('sort_column("A")')


def reorder_columns(calc: Calc) -> None:
    calc.do('set_cell("F2", "=B2*C2")')
    calc.do('adjust_column_width("B", width=7)')
    calc.do('reorder_columns(["B", "A", "E", "C", "D"])')
    assert calc.column("A")[:2] == ["Qty", 3] and calc.column("B")[:2] == ["Name", "pear"]
    sheet = calc.saved()["Data"]
    assert [cell.value for cell in sheet[1]][:5] == ["Qty", "Name", "Kind", "Price", "Day"]
    assert sheet["F2"].value == "=A2*D2" and sheet["E2"].number_format == "yyyy\\-mm\\-dd"
    assert sheet.column_dimensions["A"].width > 27 > sheet.column_dimensions["B"].width
    calc.do('reorder_columns(["E", "A"])')
    assert [cell.value for cell in calc.saved()["Data"][1]][:5] == ["Day", "Name", "Kind", "Price", "Qty"]


def hide_row_data(calc: Calc) -> None:
    calc.do('set_cell("F5", "=NA()")')
    assert calc.do("hide_row_data()") == "hid 2 rows: [3, 5]"
    assert calc.do("hide_row_data(2)") == "hid 1 rows: [4]"
    assert calc.do('hide_row_data("fru")') == "hid 0 rows, none has 'fru'"
    sheet = calc.saved()["Data"]
    assert [row for row in range(1, 7) if sheet.row_dimensions[row].hidden] == [3, 4, 5]


def merge_cells(calc: Calc) -> None:
    calc.do('merge_cells("B8:D9")')
    assert [str(area) for area in calc.saved()["Data"].merged_cells.ranges] == ["B8:D9"]


def highlight_range(calc: Calc) -> None:
    calc.do('highlight_range("A2:B3")')
    calc.do('highlight_range("C:C", 16711680)')
    calc.do('highlight_range("D2", "green")')
    sheet = calc.saved()["Data"]
    assert [sheet[cell].fill.fgColor.rgb for cell in ("A2", "B3", "C4", "D2")] == ["FFFFFF00", "FFFFFF00", "FFFF0000", "FF00FF00"]
    assert sheet["A4"].fill.fill_type is None


def format_range(calc: Calc) -> None:
    calc.do('format_range("A1:E1", background_color="#112233", font_color="FF0000", bold=True, alignment="center")')
    calc.do('format_range("B1", bold=False)')
    sheet = calc.saved()["Data"]
    first, second = sheet["A1"], sheet["B1"]
    assert first.fill.fgColor.rgb == "FF112233" and first.font.color.rgb == "FFFF0000"
    assert first.font.bold and first.alignment.horizontal == "center"
    assert not second.font.bold and second.alignment.horizontal == "center"


def set_number_format(calc: Calc) -> None:
    expected = {
        ("number", None): "0.00",
        ("number", 0): "0",
        ("percentage", 1): "0.0%",
        ("scientific", None): "0.00E+00",
        ("date", None): "yyyy\\-mm\\-dd",
        ("time", None): "hh:mm:ss",
        ("text", None): "@",
        ("fraction", None): "# ?/?",
        ("general", None): "General",
    }
    for row, (kind, places) in enumerate(expected, 10):
        calc.do(f'set_cell("A{row}", 1.5)')
        calc.do(f'set_number_format("A{row}", "{kind}", {places})')
    calc.do('set_number_format("B2:B5", "currency")')
    calc.do('set_number_format("C2:C5", "accounting", 0)')
    sheet = calc.saved()["Data"]
    assert [sheet[f"A{row}"].number_format.lower() for row in range(10, 19)] == [code.lower() for code in expected.values()]
    assert sheet["B5"].number_format.startswith("[$$-409]#,##0.00") and "_([$$-409]* #,##0_)" in sheet["C2"].number_format


def adjust_column_width(calc: Calc) -> None:
    calc.do('set_cell("E7", "a text that is much longer than the column is wide")')
    calc.do('adjust_column_width("A:B, AA", width=5)')
    calc.do('adjust_column_width("E", autofit=True)')
    sizes = calc.saved()["Data"].column_dimensions
    assert 18 < sizes["A"].width < 32 and sizes["AA"].width == sizes["A"].width and sizes["E"].width > 35


def adjust_row_height(calc: Calc) -> None:
    calc.do('adjust_row_height("2:3, 5", height=2)')
    calc.do('adjust_row_height("3", autofit=True)')
    sizes = calc.saved()["Data"].row_dimensions
    assert sizes[2].height == sizes[5].height == pytest.approx(56.7, abs=0.5) and sizes[3].height < 20


def freeze_panes(calc: Calc) -> None:
    calc.do("freeze_panes(rows=1, columns=2)")
    assert calc.saved()["Data"].freeze_panes == "C2"
    calc.do("freeze_panes(rows=1)")
    pane = calc.saved()["Data"].sheet_view.pane
    assert (pane.xSplit, pane.ySplit, pane.topLeftCell) == (0, 1, "A2")
    calc.do("freeze_panes()")
    assert calc.saved()["Data"].freeze_panes is None


def set_zoom_level(calc: Calc) -> None:
    calc.do("set_zoom_level(150)")
    assert calc.saved()["Data"].sheet_view.zoomScale == 150


def set_validation_list(calc: Calc) -> None:
    calc.do('set_validation_list("E", ["fruit", "leaf", 3, "a b"])')
    (rule,) = calc.saved()["Data"].data_validations.dataValidation
    assert rule.type == "list" and rule.formula1 == '"fruit,leaf,3,a b"' and not rule.showDropDown
    assert "E2" in rule.sqref and "F2" not in rule.sqref


def create_pivot_table(calc: Calc) -> None:
    done = calc.do('create_pivot_table("Data", "Totals", ["Kind"], None, ["qty"], "sum")')
    assert done == "pivot table Totals at Totals.A1:B5; Totals is active"
    calc.do('create_pivot_table("Data", "Means", ["Kind"], ["Name"], ["Price", "Qty"], "average", "Notes!D4")')
    workbook, values = calc.saved(), calc.loaded(values=True)
    assert workbook.sheetnames == ["Data", "Notes", "Closed", "Totals"]
    (pivot,) = workbook["Totals"]._pivots
    assert pivot.name == "Totals" and [field.subtotal for field in pivot.dataFields] == ["sum"]
    (other,) = workbook["Notes"]._pivots
    assert [field.subtotal for field in other.dataFields] == ["average", "average"]
    totals = {row[0].value: row[1].value for row in values["Totals"]["A1:B5"]}
    assert {key: totals[key] for key in ("N/A", "fruit", "leaf")} == {"N/A": 10, "fruit": 5, "leaf": 7}


def create_chart(calc: Calc) -> None:
    kinds = {"bar": "barChart", "column": "barChart", "line": "lineChart", "pie": "pieChart", "area": "areaChart"}
    for kind in kinds:
        calc.do(f'create_chart("{kind}", "A1:B5", title="T {kind}")')
    calc.do('create_chart("scatter", "B1:C5", "Dots", "quantity", "price")')
    calc.do('transpose_range("A1:B5", "Notes.A4")')
    assert calc.do('create_chart("column", "Notes.A4:E5")').endswith("of A4:E5 on Notes")
    workbook = calc.saved()
    charts = workbook["Data"]._charts
    assert len(workbook["Notes"]._charts) == 1
    assert [chart.tagname for chart in charts] == [*kinds.values(), "scatterChart"]
    assert [chart.barDir for chart in charts[:2]] == ["bar", "col"]
    column, scatter = charts[1], charts[-1]
    (series,) = column.series
    assert series.val.numRef.f == "Data!$B$2:$B$5" and series.cat.strRef.f == "Data!$A$2:$A$5"
    assert series.tx.strRef.f == "Data!$B$1"
    (dots,) = scatter.series
    assert dots.xVal.numRef.f == "Data!$B$2:$B$5" and dots.yVal.numRef.f == "Data!$C$2:$C$5"
    assert [words(part) for part in (column.title, scatter.title, scatter.x_axis.title, scatter.y_axis.title)] == [
        "T column",
        "Dots",
        "quantity",
        "price",
    ]


def words(title: object) -> str:
    return "".join(run.t for paragraph in title.tx.rich.p for run in paragraph.r or [])


def set_chart_legend_position(calc: Calc) -> None:
    calc.do('create_chart("line", "A1:C5")')
    calc.do('create_chart("column", "A1:C5")')
    places = {"top": "t", "bottom": "b", "left": "l", "right": "r"}
    for place, letter in places.items():
        calc.do(f'set_chart_legend_position("{place}")')
        assert calc.saved()["Data"]._charts[1].legend.position == letter
    calc.do('set_chart_legend_position("none")')
    first, second = calc.saved()["Data"]._charts
    assert second.legend is None and first.legend is not None


def export_to_csv(calc: Calc) -> None:
    calc.do('set_cell("A2", "a, \\"b\\" ä")')
    assert calc.do("export_to_csv()") == "wrote in/data.csv"
    rows = list(csv.reader(io.StringIO(calc.file("in/data.csv").decode("utf-8"))))
    assert rows[0] == HEADER and rows[1] == ['a, "b" ä', "3", "2.5", "2024-01-05", "fruit"] and len(rows) == 5
    calc.do('switch_active_sheet("Notes")')
    calc.do("export_to_csv()")
    assert list(csv.reader(io.StringIO(calc.file("in/data.csv").decode("utf-8"))))[1] == ["", "x"]
    assert calc.desktop.get("folder_listing") == ["in/", "in/data.csv", "in/data.xlsx"]


def export_to_pdf(calc: Calc) -> None:
    assert calc.do("export_to_pdf()") == "wrote in/data.pdf"
    assert num_pages(calc.file("in/data.pdf")) == 3
    assert calc.do('export_to_pdf("out", ["Data", "Closed"])') == "wrote out.pdf"
    assert num_pages(calc.file("out.pdf")) == 2
    calc.do('export_to_pdf("in/one.pdf", sheets=["Notes"], open_after_export=True)')
    assert num_pages(calc.file("in/one.pdf")) == 1


def num_pages(pdf: bytes) -> int:
    assert pdf.startswith(b"%PDF-")
    return pdf.count(b"/Type/Page") - pdf.count(b"/Type/Pages")


EFFECTS: dict[str, Callable[[Calc], None]] = {
    check.__name__: check
    for check in (
        set_cell, get_cell, save, env_info, get_workbook_info, get_column_data, switch_active_sheet, rename_sheet, copy_sheet,
        reorder_sheets, set_column_values, transpose_range, sort_column, reorder_columns, hide_row_data, merge_cells,
        highlight_range, format_range, set_number_format, adjust_column_width, adjust_row_height, freeze_panes, set_zoom_level,
        set_validation_list, create_pivot_table, create_chart, set_chart_legend_position, export_to_csv, export_to_pdf,
    )
}  # fmt: skip


LOOKS = {
    "merge_cells",
    "highlight_range",
    "format_range",
    "set_number_format",
    "adjust_column_width",
    "adjust_row_height",
    "freeze_panes",
    "set_zoom_level",
    "set_validation_list",
}
"""None of them looks at what another one changes: one workbook does for all."""


def test_every_method_of_the_table_is_tried_here() -> None:
    methods = {spec.name.removeprefix("calc.") for spec in TABLE}
    assert methods == set(EFFECTS) == set(REFUSALS)


@pytest.mark.parametrize("method", EFFECTS)
def test_method_has_its_effect(calc: Calc, method: str) -> None:
    calc.open_for("looks" if method in LOOKS else method)
    EFFECTS[method](calc)


@pytest.mark.parametrize("method", [method for method, calls in REFUSALS.items() if calls])
def test_method_with_bad_arguments_says_what_is_wrong_and_changes_nothing(calc: Calc, method: str) -> None:
    calc.open_for("refusals")
    for call, message in REFUSALS[method].items():
        assert message in calc.refusal(call), call
    assert calc.desktop.healthy()
    lines = calc.do("get_workbook_info()").splitlines()
    assert lines[2:] == ["sheets: Data (A1:E5), Notes (B2), Closed (A1)", "active sheet: Data", "unsaved changes: no"]
