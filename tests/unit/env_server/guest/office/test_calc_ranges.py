"""What an agent may write as ranges of Calc, and how cells are shown to it."""

from __future__ import annotations

import datetime
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computerrl.env_server.guest.office.calc import ranges
from computerrl.env_server.guest.office.calc.format import number_format
from computerrl.env_server.guest.office.calc.objects import names_around
from computerrl.env_server.guest.office.calc.ranges import Area
from computerrl.env_server.guest.office.process import DocumentError

LAST_ROW, LAST_COLUMN = 1_048_575, 16_383


@pytest.mark.parametrize(
    ("text", "area"),
    [
        ("B3", Area(1, 2, 1, 2)),
        ("a1:c9", Area(0, 0, 2, 8)),
        ("$C$9:$A$1", Area(0, 0, 2, 8)),
        (" AA1 : AB2 ", Area(26, 0, 27, 1)),
        ("C:A", Area(0, 0, 2, LAST_ROW)),
        ("2:5", Area(0, 1, LAST_COLUMN, 4)),
        ("XFD1048576", Area(LAST_COLUMN, LAST_ROW, LAST_COLUMN, LAST_ROW)),
    ],
)
def test_parse_area_of_a_range_is_its_corners(text: str, area: Area) -> None:
    assert ranges.parse_area(text) == area


@pytest.mark.parametrize(
    "text", ["", "A", "5", "A1:", ":A1", "A1:B2:C3", "A0", "XFE1", "A1048577", "1:0", "A1:5", "A:5", "Ä1", "A1,B2"]
)
def test_parse_area_of_something_else_is_refused_with_the_text(text: str) -> None:
    with pytest.raises(DocumentError, match="is no range, such as"):
        ranges.parse_area(text)


@given(st.integers(0, LAST_COLUMN), st.integers(0, LAST_ROW), st.integers(0, LAST_COLUMN), st.integers(0, LAST_ROW))
def test_parse_area_reads_back_every_name(left: int, top: int, right: int, bottom: int) -> None:
    area = Area(min(left, right), min(top, bottom), max(left, right), max(top, bottom))
    assert ranges.parse_area(area.name) == area


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("A1:B2", (None, "A1:B2")),
        ("Sheet2.A1", ("Sheet2", "A1")),
        ("Sheet2!A1:B2", ("Sheet2", "A1:B2")),
        ("$'My sheet'.$A$1", ("My sheet", "$A$1")),
        ("'It''s 1.5'!B2", ("It's 1.5", "B2")),
        ("v1.2!B2", ("v1.2", "B2")),
    ],
)
def test_split_sheet_takes_the_sheet_off(text: str, parts: tuple[str | None, str]) -> None:
    assert ranges.split_sheet(text) == parts


@pytest.mark.parametrize(
    ("formula", "wanted"),
    [
        ("=Sheet2!A1+1", "=$Sheet2.A1+1"),
        ("=SUM('My sheet'!$A$1:B2,sheet2!C:C)", "=SUM($'My sheet'.$A$1:B2,$sheet2.C:C)"),
        ('=IF(A1="Sheet2!A1","a ""b"" Sheet2!B1",Sheet2!B1)', '=IF(A1="Sheet2!A1","a ""b"" Sheet2!B1",$Sheet2.B1)'),
        ("=A1:B2!B2:C3", "=A1:B2!B2:C3"),
        ("=Nope!A1", "=Nope!A1"),
        ("=$'It''s'!A1", "=$'It''s'.A1"),
    ],
)
def test_references_to_sheets_are_written_as_calc_reads_them(formula: str, wanted: str) -> None:
    assert ranges.with_calc_references(formula, ["Sheet2", "My sheet", "It's"]) == wanted


def test_columns_and_rows_of_a_list_are_spans() -> None:
    assert ranges.parse_columns("A:C, F,AB:AA") == [(0, 2), (5, 5), (26, 27)]
    assert ranges.parse_rows("1:10, 12") == [(0, 9), (11, 11)]
    for bad in ("", "A:", "1", "A;B", "ABCD", "XFE"):
        with pytest.raises(DocumentError, match=r"column|cell|sheet"):
            ranges.parse_columns(bad)
    for bad in ("", "A", "0", "1:", "1048577"):
        with pytest.raises(DocumentError, match="row"):
            ranges.parse_rows(bad)


@pytest.mark.parametrize("name", ["", "a/b", "a[1]", "what?", "'x", "x'", "a\nb", "x" * 32])
def test_sheet_names_that_no_file_can_hold_are_refused(name: str) -> None:
    with pytest.raises(DocumentError, match="sheet's name"):
        ranges.check_sheet_name(name)


@pytest.mark.parametrize("number", [10**400, float("inf"), float("nan")])
def test_numbers_too_large_for_a_cell_are_refused(number: float) -> None:
    with pytest.raises(DocumentError, match="too large"):
        ranges.finite(number)


@given(st.sets(st.integers(0, 40)))
def test_runs_cover_exactly_the_numbers(numbers: set[int]) -> None:
    found = list(ranges.runs(sorted(numbers)))
    assert {n for first, last in found for n in range(first, last + 1)} == numbers
    assert all(after[0] > before[1] + 1 for before, after in itertools.pairwise(found))


@pytest.mark.parametrize(
    ("serial", "with_date", "with_time", "text"),
    [
        (45296.0, True, False, "2024-01-05"),
        (45296.5, True, True, "2024-01-05 12:00:00"),
        (0.75, False, True, "18:00:00"),
        (1.5, False, True, "1.5"),
        (1e12, True, False, "1000000000000"),
    ],
)
def test_day_text_is_iso_or_the_number(serial: float, with_date: bool, with_time: bool, text: str) -> None:
    assert ranges.day_text(serial, datetime.date(1899, 12, 30), with_date=with_date, with_time=with_time) == text


def test_cut_text_says_how_much_is_left_out() -> None:
    assert ranges.cut_text("abc") == "abc"
    assert ranges.cut_text("x" * 1600) == f"{'x' * 1500}... 100 more characters"


def test_list_text_is_cut_and_says_how_many_are_left_out() -> None:
    assert ranges.list_text(["a", 1.0, 2.5, '"']) == '["a", 1, 2.5, "\\""]'
    long = ranges.list_text([float(n) for n in range(1000)], max_chars=100)
    assert len(long) < 120 and long.startswith("[0, 1, 2") and long.endswith("more]")
    num_shown = len(long.split(", ")) - 1
    assert f"... {1000 - num_shown} more]" in long


def test_table_text_is_cut_to_rows_and_columns_that_fit() -> None:
    rows: list[list[ranges.Value]] = [[f"r{r}c{c}" if c else float(r) for c in range(3)] for r in range(4)]
    assert ranges.table_text(rows[:2], Area(1, 4, 3, 5)) == "\tB\tC\tD\n5\t0\tr0c1\tr0c2\n6\t1\tr1c1\tr1c2"
    tall = ranges.table_text(rows * 100, Area(0, 0, 2, 9_999))
    assert len(tall) < 1600 and tall.endswith("more rows, to row 10000")
    wide = ranges.table_text([["x" * 300] * 50] * 3, Area(0, 0, 49, 2))
    assert len(wide) < 1700 and wide.endswith("more columns, to column AX")
    assert ranges.table_text([["a\tb\nc"]], Area(0, 0, 0, 0)) == "\tA\n1\ta\\tb\\nc"


@given(st.lists(st.lists(st.text(max_size=300), min_size=3, max_size=3), min_size=1, max_size=60))
def test_table_text_is_never_much_longer_than_allowed(rows: list[list[str]]) -> None:
    assert len(ranges.table_text(rows, Area(0, 0, 2, len(rows) - 1))) < 1700


@pytest.mark.parametrize(
    ("kind", "decimals", "code"),
    [
        ("general", None, "General"),
        ("number", None, "0.00"),
        ("number", 0, "0"),
        ("percentage", 1, "0.0%"),
        ("scientific", 3, "0.000E+00"),
        ("date", 2, "YYYY-MM-DD"),
        ("time", None, "HH:MM:SS"),
        ("fraction", 2, "# ??/??"),
        ("text", None, "@"),
        ("currency", 2, "[$$-409]#,##0.00;-[$$-409]#,##0.00"),
    ],
)
def test_number_format_is_the_usual_code(kind: str, decimals: int | None, code: str) -> None:
    assert number_format(kind, decimals) == code


@pytest.mark.parametrize("decimals", [-1, 21])
def test_number_format_with_impossible_decimals_is_refused(decimals: int) -> None:
    with pytest.raises(DocumentError, match="from 0 to 20"):
        number_format("number", decimals)


@pytest.mark.parametrize(
    ("rows", "is_scatter", "names"),
    [
        ([["city", "pop"], ["a", 1.0]], False, (True, True)),
        ([["", 2019.0], ["a", 1.0]], False, (True, True)),
        ([["x", "y"], [1.0, 2.0]], False, (True, False)),
        ([["x", "y"], [1.0, 2.0]], True, (True, False)),
        ([[1.0, 2.0], [3.0, 4.0]], False, (False, False)),
        ([["a", 1.0], ["b", 2.0]], False, (False, True)),
        ([["n"], [1.0]], False, (True, False)),
        ([["a", 1.0, 2.0]], False, (False, True)),
    ],
)
def test_names_around_numbers_are_found(rows: list[list[ranges.Value]], is_scatter: bool, names: tuple[bool, bool]) -> None:
    assert names_around(rows, is_scatter=is_scatter) == names
