"""Metrics over tables as text, and the cell comparison of SpreadsheetBench that OfficeWorld uses."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Any

from env_server.tasks.osworld.metrics.files import load, read_text
from env_server.tasks.osworld.metrics.general import Rules, score


def compare_csv(result: str, expected: str | Sequence[str], *, strict: bool = True, ignore_case: bool = False) -> float:
    """The same lines; of several expected files one must agree. Not ``strict``: blanks around lines and cells do not count."""

    def lines(path: str) -> list[str]:
        rows = read_text(path).splitlines()
        if not strict:
            rows = [",".join(cell.strip() for cell in row.split(",")) for row in rows if row.strip()]
        return [row.lower() for row in rows] if ignore_case else rows

    found = lines(result)
    return score(any(found == lines(path) for path in ([expected] if isinstance(expected, str) else expected)))


def compare_conference_city_in_order(result: str, rules: Rules) -> float:
    """Row by row, the third column of the first sheet names the expected city (or one of several spellings)."""
    sheet = open_workbook(result).worksheets[0]
    found = [str(row[2]) for row in sheet.iter_rows(min_row=2, values_only=True) if len(row) > 2 and row[2] is not None]
    wanted = rules["expected"]
    if len(found) != len(wanted):
        return 0.0
    choices = [[entry] if isinstance(entry, str) else entry for entry in wanted]
    return score(all(any(choice in city for choice in several) for city, several in zip(found, choices, strict=True)))


def open_workbook(path: str, *, formulas: bool = False) -> Any:
    """A workbook with the values that were last computed, or with formulas."""
    import openpyxl

    workbook = load(path, lambda place: openpyxl.load_workbook(place, data_only=not formulas))
    workbook.source_path = path
    return workbook


# --- SpreadsheetBench (arXiv 2406.14991), section 4: online-judge style comparison of the answer's cells ---------------

_RANGE = re.compile(
    r"(?:'(?P<quoted>(?:[^']|'')+)'!|(?P<plain>[^'!,]+)!)?'?(?P<cells>\$?[A-Z]{1,3}\$?\d*(?::\$?[A-Z]{1,3}\$?\d*)?)'?$"
)


def compare_spreadsheet(
    result: str, expected: Any, *, answer_position: str = "", instruction_type: str = "", check_style: bool = False, **_: Any
) -> float:
    """Every cell of every range of ``answer_position`` (``'Sheet1'!A1:B9,C3``) has the expected value.

    ``instruction_type`` (cell or sheet level) changes nothing: the position says what counts. ``check_style`` also compares fill
    and font colours; it is on by itself where a file's name has *CF* (conditional formats). The position may also come in
    ``expected`` as a mapping with ``file`` and ``answer_position``.
    """
    if isinstance(expected, Mapping):
        answer_position = answer_position or str(expected["answer_position"])
        expected = expected["file"]
    found, wanted = open_workbook(result), open_workbook(expected)
    style = check_style or "CF" in expected.rsplit("/", 1)[-1]
    for named, cells in answer_ranges(answer_position, wanted.sheetnames[0]):
        title = named if named in wanted.sheetnames else wanted.sheetnames[0]
        if title not in found.sheetnames:
            return 0.0
        for place in _cells(wanted[title], cells):
            one, other = found[title][place], wanted[title][place]
            if _benchmark_value(one.value) != _benchmark_value(other.value):
                return 0.0
            if style and (_colour(one.fill.fgColor), _colour(one.font.color)) != (
                _colour(other.fill.fgColor),
                _colour(other.font.color),
            ):
                return 0.0
    return 1.0


def answer_ranges(position: str, first_sheet: str) -> list[tuple[str, str]]:
    """(sheet, range) of every part of an answer position. All parts count. Raises `ValueError` when it is none."""
    ranges = []
    for part in re.split(r",(?=(?:[^']*'[^']*')*[^']*$)", position):
        text = part.strip()
        match = _RANGE.match(text)
        if match is None:
            raise ValueError(f"{text!r} is no range of cells")
        title = match["quoted"] or match["plain"] or first_sheet
        ranges.append((title.replace("''", "'").strip(), match["cells"].replace("$", "")))
    return ranges


def _cells(sheet: Any, cells: str) -> list[str]:
    """Addresses of a range; whole columns end at the sheet's last row."""
    low, _, high = cells.partition(":")
    high = high or low
    low = low if low[-1].isdigit() else f"{low}1"
    high = high if high[-1].isdigit() else f"{high}{sheet.max_row}"
    return [cell.coordinate for row in sheet[f"{low}:{high}"] for cell in row]


def _benchmark_value(value: Any) -> Any:
    """Numbers to two places, dates as the day's number, nothing and empty text alike."""
    from openpyxl.utils.datetime import to_excel

    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return round(float(value), 2)
    if isinstance(value, datetime.datetime):
        return round(float(to_excel(value)), 0)
    if isinstance(value, datetime.time):
        return str(value)[:-3]
    text = str(value)
    try:
        return round(float(text), 2)
    except ValueError:
        return text


def _colour(colour: Any) -> str:
    return str(colour.rgb) if colour is not None and isinstance(colour.rgb, str) else "00000000"
