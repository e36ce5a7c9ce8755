"""What the agent writes as cells, ranges, columns and rows of Calc, and how cells are shown to it. Pure: no UNO."""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..process import DocumentError
from .sheet import MAX_COLUMNS, MAX_ROWS, cell_index, cell_text, column_name

MAX_RESULT_CHARS = 1500
"""About what an agent's next prompt can carry."""
_MAX_SHOWN_CELL_CHARS = 100
_NO_SUCH_NAME = re.compile(r"[\[\]*?:/\\]")
_MAX_SHEET_NAME_CHARS = 31
"""Excel's limit: a longer name would be cut in the saved file."""
_SHEET_REFERENCE = re.compile(r""""(?:[^"]|"")*"|\$?(?P<name>'(?:[^']|'')+'|[\w.]+)!(?=\$?[A-Za-z0-9])""")
_SECONDS_PER_DAY = 86_400

Value = str | float
"""What a cell holds: a formula's value, dates and errors as text."""


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangle of cells, 0-based, both ends in it."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def num_rows(self) -> int:
        return self.bottom - self.top + 1

    @property
    def num_columns(self) -> int:
        return self.right - self.left + 1

    @property
    def num_cells(self) -> int:
        return self.num_rows * self.num_columns

    @property
    def name(self) -> str:
        """Such as ``A1:B2``, ``A1`` for one cell."""
        first, last = f"{column_name(self.left)}{self.top + 1}", f"{column_name(self.right)}{self.bottom + 1}"
        return first if first == last else f"{first}:{last}"

    def cut(self, other: Area | None) -> Area | None:
        """The cells that lie in both."""
        if other is None:
            return None
        left, top = max(self.left, other.left), max(self.top, other.top)
        right, bottom = min(self.right, other.right), min(self.bottom, other.bottom)
        return Area(left, top, right, bottom) if left <= right and top <= bottom else None


def column_index(name: str) -> int:
    """0 for A, 26 for AA. Raises `DocumentError`."""
    letters = name.strip().lstrip("$")
    if not re.fullmatch(r"[A-Za-z]{1,3}", letters):
        raise DocumentError(f'{name!r} is no column: write its letters, like "B"')
    return cell_index(f"{letters}1")[1]


def row_index(number: int) -> int:
    """0 for row 1. Raises `DocumentError`."""
    if not 1 <= number <= MAX_ROWS:
        raise DocumentError(f"there is no row {number}: rows count from 1 to {MAX_ROWS}")
    return number - 1


def split_sheet(text: str) -> tuple[str | None, str]:
    """Sheet (None: the active one) and range of ``Sheet2.A1:B3``, ``Sheet2!A1`` or ``'My sheet'.A1``."""
    match = re.fullmatch(r"(?:(.+)[.!])?([^.!]*)", text.strip(), flags=re.DOTALL)
    if match is None or match[1] is None:
        return None, text.strip()
    name = match[1].removeprefix("$")
    if len(name) > 2 and name[0] == name[-1] == "'":
        name = name[1:-1].replace("''", "'")
    return name, match[2]


def parse_area(text: str) -> Area:
    """``A1``, ``A1:C9``, the columns ``A:C`` or the rows ``2:5``. Raises `DocumentError`."""
    first, colon, last = text.partition(":")
    try:
        if colon and re.fullmatch(r"\s*\$?[A-Za-z]+\s*", first):
            left, right = sorted((column_index(first), column_index(last)))
            return Area(left, 0, right, MAX_ROWS - 1)
        if colon and re.fullmatch(r"\s*\$?[0-9]+\s*", first):
            top, bottom = sorted((_row_of(first), _row_of(last)))
            return Area(0, top, MAX_COLUMNS - 1, bottom)
        (top, left), (bottom, right) = cell_index(first), cell_index(last if colon else first)
    except DocumentError as error:
        raise DocumentError(f'{text!r} is no range, such as "A1:C9": {error}') from error
    return Area(min(left, right), min(top, bottom), max(left, right), max(top, bottom))


def with_calc_references(formula: str, sheet_names: Sequence[str]) -> str:
    """``=Sheet2!A1`` as Calc writes it, ``=Sheet2.A1``; text in quotes and Calc's own ``!`` between ranges stay."""
    known = {name.lower() for name in sheet_names}

    def written(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None or name.strip("'").replace("''", "'").lower() not in known:
            return match[0]
        return f"${name}."

    return _SHEET_REFERENCE.sub(written, formula)


def parse_columns(text: str) -> list[tuple[int, int]]:
    """First and last column of each part of ``A:C, F``. Raises `DocumentError`."""
    return [_sorted_pair(*map(column_index, part)) for part in _parts(text)]


def parse_rows(text: str) -> list[tuple[int, int]]:
    """First and last row of each part of ``1:10, 12``. Raises `DocumentError`."""
    return [_sorted_pair(*map(_row_of, part)) for part in _parts(text)]


def check_sheet_name(name: str) -> None:
    """Raise `DocumentError` for what cannot be a sheet's name."""
    if not name or _NO_SUCH_NAME.search(name) or name[0] == "'" or name[-1] == "'" or not name.isprintable():
        raise DocumentError(f"{name!r} cannot be a sheet's name: not empty, none of []*?:/\\, no ' at an end")
    if len(name) > _MAX_SHEET_NAME_CHARS:
        raise DocumentError(f"a sheet's name has at most {_MAX_SHEET_NAME_CHARS} characters, {name!r} has {len(name)}")


def finite(value: float) -> float:
    """``value`` as a cell can hold it. Raises `DocumentError` for numbers that are too large."""
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise DocumentError("the number is too large for a cell")
    return number


def runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of neighbours: 1, 2, 5 gives (1, 2), (5, 5)."""
    start = end = None
    for number in sorted(set(numbers)):
        if start is None or end is None or number != end + 1:
            if start is not None and end is not None:
                yield start, end
            start = number
        end = number
    if start is not None and end is not None:
        yield start, end


def day_text(serial: float, first_day: datetime.date, *, with_date: bool, with_time: bool) -> str:
    """A date or time as ISO text; ``serial`` counts days since ``first_day``. Out of the calendar: the number."""
    try:
        moment = datetime.datetime.combine(first_day, datetime.time()) + datetime.timedelta(
            seconds=round(serial * _SECONDS_PER_DAY)
        )
    except OverflowError:
        return cell_text(serial)
    if with_date:
        return moment.isoformat(" ") if with_time else moment.date().isoformat()
    return moment.time().isoformat() if 0 <= serial < 1 else cell_text(serial)


def cut_text(text: str, *, max_chars: int = MAX_RESULT_CHARS) -> str:
    """``text``, cut at ``max_chars``; what is left out is counted."""
    return text if len(text) <= max_chars else f"{text[:max_chars]}... {len(text) - max_chars} more characters"


def list_text(values: Sequence[Value], *, max_chars: int = MAX_RESULT_CHARS) -> str:
    """``values`` as a list, cut at ``max_chars``; what is left out is counted."""
    shown: list[str] = []
    num_chars = 0
    for value in values:
        item = (
            json.dumps(_clipped(value, 2 * _MAX_SHOWN_CELL_CHARS), ensure_ascii=False)
            if isinstance(value, str)
            else cell_text(value)
        )
        num_chars += len(item) + 2
        if num_chars > max_chars:
            return f"[{', '.join(shown)}, ... {len(values) - len(shown)} more]"
        shown.append(item)
    return f"[{', '.join(shown)}]"


def table_text(rows: Sequence[Sequence[Value]], area: Area, *, max_chars: int = MAX_RESULT_CHARS) -> str:
    """The upper left of ``area``, whose first cells are ``rows``: column letters, row numbers, tabs; the rest is counted."""
    num_columns = _num_fitting_columns(rows, max_chars // 3)
    lines = ["\t".join(["", *(column_name(area.left + i) for i in range(num_columns))])]
    num_chars = len(lines[0])
    for number, row in enumerate(rows, area.top + 1):
        line = "\t".join([str(number), *map(_one_line, row[:num_columns])])
        num_chars += len(line) + 1
        if num_chars > max_chars and len(lines) > 1:
            break
        lines.append(line)
    num_left_rows, num_left_columns = area.num_rows - (len(lines) - 1), area.num_columns - num_columns
    if num_left_rows:
        lines.append(f"... {num_left_rows} more rows, to row {area.bottom + 1}")
    if num_left_columns:
        lines.append(f"... {num_left_columns} more columns, to column {column_name(area.right)}")
    return "\n".join(lines)


def _num_fitting_columns(rows: Sequence[Sequence[Value]], max_chars: int) -> int:
    """As many columns as keep a row of medium length within ``max_chars``, at least one."""
    num_columns = len(rows[0])
    width = 0
    for column in range(num_columns):
        lengths = sorted(len(_one_line(row[column])) for row in rows[:20])
        width += max(lengths[len(lengths) // 2], 1) + 1
        if width > max_chars and column:
            return column
    return num_columns


def _one_line(value: Value) -> str:
    text = value if isinstance(value, str) else cell_text(value)
    return _clipped(text, _MAX_SHOWN_CELL_CHARS).replace("\n", "\\n").replace("\t", "\\t")


def _clipped(text: str, num_chars: int) -> str:
    return text if len(text) <= num_chars else f"{text[: num_chars - 3]}..."


def _row_of(text: str) -> int:
    digits = text.strip().lstrip("$")
    if not re.fullmatch(r"[0-9]{1,9}", digits):
        raise DocumentError(f'{text!r} is no row: write its number, like "3"')
    return row_index(int(digits))


def _parts(text: str) -> Iterator[tuple[str, str]]:
    for part in text.split(","):
        first, colon, last = part.partition(":")
        yield first, last if colon else first


def _sorted_pair(first: int, last: int) -> tuple[int, int]:
    return min(first, last), max(first, last)
