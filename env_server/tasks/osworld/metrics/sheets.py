"""Metrics over tables as text, and the cell comparison of SpreadsheetBench that OfficeWorld uses."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from computerrl.env_server.tasks.osworld.metrics.files import opening, read_lines, read_package, read_table
from computerrl.env_server.tasks.osworld.metrics.general import Rules, score
from computerrl.env_server.tasks.osworld.metrics.matching import BadRule, corners
from computerrl.env_server.tasks.osworld.metrics.workbook_parts import require_values


def compare_csv(result: str, expected: str | Sequence[str], *, strict: bool = True, ignore_case: bool = False) -> float:
    """The same lines as one of the expected files. Not ``strict``: blanks around cells and empty rows do not count."""

    def lines(path: str) -> list[Any]:
        if strict:
            return [line.lower() for line in read_lines(path)] if ignore_case else read_lines(path)
        rows = ([cell.strip() for cell in row] for row in read_table(path))
        return [[cell.lower() for cell in row] if ignore_case else row for row in rows if any(row)]

    found = lines(result)
    return score(any(found == lines(path) for path in ([expected] if isinstance(expected, str) else expected)))


def compare_conference_city_in_order(result: str, rules: Rules) -> float:
    """Row by row, the third column of the first sheet names the expected city (or one of several spellings)."""
    sheet = open_workbook(result).worksheets[0]
    third = {row: cell.value for (row, column), cell in sheet._cells.items() if column == 3 and row > 1}
    found = [str(third[row]) for row in sorted(third) if third[row] is not None]
    wanted = rules["expected"]
    if len(found) != len(wanted):
        return 0.0
    choices = [[entry] if isinstance(entry, str) else entry for entry in wanted]
    return score(all(any(choice in city for choice in several) for city, several in zip(found, choices, strict=True)))


def open_workbook(path: str, *, formulas: bool = False) -> Any:
    """A workbook with the values that were last computed, or with formulas."""
    from computerrl.env_server.tasks.reading import workbooks

    package = read_package(path)
    with opening(path):
        workbook = workbooks.open_workbook(package, formulas=formulas)
    workbook.source_path, workbook.package = path, package
    return workbook


def worksheet(workbook: Any, title: str) -> Any:
    """A sheet by its title. A chart sheet is given as a sheet without cells that has its charts."""
    import openpyxl
    from openpyxl.chartsheet import Chartsheet

    sheet = workbook[title]
    if not isinstance(sheet, Chartsheet):
        return sheet
    blank = openpyxl.Workbook()
    blank.source_path, blank.package = workbook.source_path, workbook.package
    blank.active.part_name = sheet.part_name
    blank.active.title = title
    blank.active._charts = sheet._charts
    return blank.active


# --- SpreadsheetBench (arXiv 2406.14991), section 4: online-judge style comparison of the answer's cells ---------------


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
    same = True
    for named, cells in answer_ranges(answer_position, wanted.sheetnames[0]):
        title = _title(named, wanted.sheetnames)
        if title is None:
            raise BadRule(f"the answer position names the sheet {named!r}, and the expected workbook has none of that name")
        gold = worksheet(wanted, title)
        require_values(gold, Area(cells))
        ours = _title(title, found.sheetnames)
        same = same and ours is not None and _same_cells(worksheet(found, ours), gold, cells, style=style)
    return score(same)


def _title(name: str, titles: Sequence[str]) -> str | None:
    """The title that is ``name``, if need be without regard to capitals and outer blanks."""
    if name in titles:
        return name
    return next((title for title in titles if title.strip().lower() == name.strip().lower()), None)


def _same_cells(found: Any, wanted: Any, cells: str, *, style: bool) -> bool:
    area = Area(cells)
    # A cell that neither sheet has is empty in both.
    for row, column in sorted(place for place in {*found._cells, *wanted._cells} if place in area):
        one, other = found.cell(row, column), wanted.cell(row, column)
        if _benchmark_value(one.value) != _benchmark_value(other.value):
            return False
        if style and (_colour(one.fill.fgColor), _colour(one.font.color)) != (
            _colour(other.fill.fgColor),
            _colour(other.font.color),
        ):
            return False
    return True


class Area:
    """A range of cells; ``A:C`` and ``2:5`` are whole columns and rows."""

    def __init__(self, cells: str) -> None:
        left, top, right, bottom = corners(cells)
        self.rows, self.columns = range(top, bottom + 1), range(left, right + 1)

    def __contains__(self, place: object) -> bool:
        """Is this (row, column), or address such as ``B7``, a cell of the range?"""
        from openpyxl.utils.cell import coordinate_to_tuple

        row, column = coordinate_to_tuple(place) if isinstance(place, str) else place  # type: ignore[misc]
        return row in self.rows and column in self.columns


_CELLS = r"\$?[A-Za-z]{1,3}\$?\d+(?::\$?[A-Za-z]{1,3}\$?\d+)?|\$?[A-Za-z]{1,3}:\$?[A-Za-z]{1,3}|\$?\d+:\$?\d+"
_WELL_QUOTED = re.compile(rf"(?:'(?P<title>(?:[^']|'')+)'\s*!\s*|(?P<plain>[^'!,]+)!\s*)?(?P<cells>{_CELLS})")
_ANYHOW_QUOTED = re.compile(rf"'*(?:(?P<title>[^!]+?)'*!\s*)?'*(?P<cells>{_CELLS})'*")


def answer_ranges(position: str, first_sheet: str) -> list[tuple[str, str]]:
    """(sheet, range) of every part of an answer position; all parts count. Raises `BadRule` when one is no range.

    Published positions have quotes that are not closed, or that go around the range as well: these quotes mean nothing.
    """
    ranges = _split(position, _WELL_QUOTED, first_sheet) or _split(position, _ANYHOW_QUOTED, first_sheet)
    if not ranges:
        raise BadRule(f"{position!r} is no list of ranges of cells, such as 'Sheet1'!A1:B9,C3")
    return ranges


def _split(position: str, pattern: re.Pattern[str], first_sheet: str) -> list[tuple[str, str]]:
    """The parts between commas, each matched as a whole; nothing if one does not match. A title may hold commas."""
    ranges: list[tuple[str, str]] = []
    part = ""
    for piece in position.split(","):
        part = f"{part},{piece}" if part else piece
        match = pattern.fullmatch(part.strip())
        if match is not None:
            title = match["title"] or match.groupdict().get("plain") or first_sheet
            ranges.append((title.replace("''", "'").strip(), match["cells"].replace("$", "").upper()))
            part = ""
    return [] if part.strip() else ranges


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
        number = float(text)
    except ValueError:
        return text
    return round(number, 2) if math.isfinite(number) else text


def _colour(colour: Any) -> str:
    return str(colour.rgb) if colour is not None and isinstance(colour.rgb, str) else "00000000"
