"""`compare_table`: a list of rules over two workbooks. What each rule reads of a sheet is in `sheet_facts`."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from computerrl.env_server.tasks.osworld.metrics.files import read_table
from computerrl.env_server.tasks.osworld.metrics.general import Rules
from computerrl.env_server.tasks.osworld.metrics.matching import BadRule, matches, whole_number
from computerrl.env_server.tasks.osworld.metrics.sheets import Area, open_workbook, worksheet
from computerrl.env_server.tasks.osworld.metrics.workbook_parts import require_values
from computerrl.env_server.tasks.reading.texts import likeness


class _Side:
    """One workbook, opened twice on demand: with computed values and with everything else."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self._values: Any = None
        self._whole: Any = None

    def _existing(self) -> str:
        if self.path is None:
            raise BadRule("the rule reads the expected workbook, but the task has none")
        return self.path

    @property
    def values(self) -> Any:
        """With the values that were last computed."""
        if self._values is None:
            self._values = open_workbook(self._existing())
        return self._values

    @property
    def whole(self) -> Any:
        """With formulas, styles, charts and so on."""
        if self._whole is None:
            self._whole = open_workbook(self._existing(), formulas=True)
        return self._whole


class _Missing(Exception):
    """The agent's workbook has no such sheet."""


class _Books:
    """The two sides, and sheets by the rules' names for them."""

    def __init__(self, result: str, expected: str | None) -> None:
        self.result, self.expected = _Side(result), _Side(expected)

    def title(self, index: int | str) -> tuple[_Side, str]:
        """Side and title of ``3`` or ``RI3`` (the result's sheet by number), ``RNname``, ``EI0``, ``ENname``."""
        text = f"RI{index}" if isinstance(index, int) else index
        if text[:2] not in ("RI", "RN", "EI", "EN"):
            raise BadRule(f"unknown sheet {index!r}")
        side = self.result if text[0] == "R" else self.expected
        titles = side.whole.sheetnames
        name = text[2:]
        if text[1] == "I":
            name = titles[int(name)] if int(name) < len(titles) else ""
        if name not in titles:
            if side is self.result:
                raise _Missing(text)
            raise BadRule(f"the expected workbook has no sheet {text!r}")
        return side, name

    def values(self, index: int | str, places: Container[str] | None = None) -> Any:
        """A sheet with values. Raises `BrokenFile` if an expected one lacks some (of the cells ``places``)."""
        side, name = self.title(index)
        sheet = worksheet(side.values, name)
        if side is self.expected:
            require_values(sheet, places)
        return sheet

    def whole(self, index: int | str) -> Any:
        """A sheet with everything."""
        side, name = self.title(index)
        return worksheet(side.whole, name)


def compare_table(result: str, expected: str | None = None, *, rules: Sequence[Rules], **_: Any) -> float:
    """Every rule of ``rules`` holds between (or in) the two workbooks; see `_RULES` for the types."""
    books = _Books(result, expected)
    _ = books.result.whole
    for rule in rules:
        if rule["type"] not in _RULES:
            raise BadRule(f"compare_table has no rule {rule['type']!r}")
        try:
            if not _RULES[rule["type"]](books, rule):
                return 0.0
        except _Missing:
            return 0.0
    return 1.0


# --- contents --------------------------------------------------------------------------------------------------------


def _sheet_names(books: _Books, rule: Rules) -> bool:
    return bool(books.result.whole.sheetnames == books.expected.whole.sheetnames)


def _sheet_data(books: _Books, rule: Rules) -> bool:
    """The same values, numbers to ``precision`` places; empty rows and columns at the end do not count."""
    from computerrl.env_server.tasks.osworld.metrics.sheet_facts import grid

    precision = whole_number(rule.get("precision", 4))
    return grid(books.values(rule["sheet_idx0"]), precision) == grid(books.values(rule["sheet_idx1"]), precision)


def _sheet_print(books: _Books, rule: Rules) -> bool:
    """The same cells as they are shown, by the CSV files that lie beside the workbooks as ``STEM-SHEET.csv``."""

    def lines(index: int | str) -> list[list[str]]:
        side, name = books.title(index)
        place = Path(str(side.path))
        rows = [[cell.strip() for cell in row] for row in read_table(place.with_name(f"{place.stem}-{name}.csv"))]
        rows = [[cell.lower() for cell in row] for row in rows] if rule.get("ignore_case") else rows
        while rows and not any(rows[-1]):
            rows.pop()
        return rows

    return lines(rule["sheet_idx0"]) == lines(rule["sheet_idx1"])


def _sheet_fuzzy(books: _Books, rule: Rules) -> bool:
    """Cells of ranges agree as each range's own rule says."""
    areas = [(Area(area), part) for part in rule["rules"] for area in part["range"]]
    one, other = books.values(rule["sheet_idx0"]), books.values(rule["sheet_idx1"], _AnyOf([area for area, _ in areas]))
    # A cell that neither sheet has is empty in both.
    stored = {*one._cells, *other._cells}
    parts = {place: part for area, part in areas for place in stored if place in area}
    return all(_fuzzy_cell(one.cell(*place).value, other.cell(*place).value, part) for place, part in parts.items())


class _AnyOf:
    """The cells of several ranges."""

    def __init__(self, areas: Sequence[Area]) -> None:
        self._areas = areas

    def __contains__(self, place: object) -> bool:
        return any(place in area for area in self._areas)


def _fuzzy_cell(found: Any, wanted: Any, rule: Rules) -> bool:
    if found is None or wanted is None:
        # Any text includes the empty one, and no answer is no part of an answer.
        return found is None and wanted is None
    one, other = _cleaned(found, rule), _cleaned(wanted, rule)
    kind = rule["type"]
    if kind == "includes":
        return other in one
    if kind == "included_by":
        return one in other
    if kind == "fuzzy_match":
        return 100 * likeness(one, other) >= rule.get("threshold", 85)
    if kind == "exact_match":
        return one == other
    raise BadRule(f"sheet_fuzzy has no type {kind!r}")


def _stored(value: Any) -> str:
    """A cell's value as text. Numbers and dates have one decimal at least: "5.0" is no part of "50.0", but "5" is of "50"."""
    from openpyxl.utils.datetime import to_excel

    if isinstance(value, (datetime.datetime, datetime.date, datetime.time, datetime.timedelta)):
        value = to_excel(value)
    return str(float(value)) if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def _cleaned(value: Any, rule: Rules) -> str:
    text = _stored(value)
    for old, new in rule.get("normalization", []):
        text = text.replace(old, new)
    if rule.get("trim_leadings"):
        text = text.lstrip(rule["trim_leadings"])
    if rule.get("trim_trailings"):
        text = text.rstrip(rule["trim_trailings"])
    if rule.get("ignore_chars"):
        text = "".join(char for char in text if char not in rule["ignore_chars"])
    return text.lower() if rule.get("ignore_case") else text


def _check_cell(books: _Books, rule: Rules) -> bool:
    """Properties of one cell, each against a rule."""
    from computerrl.env_server.tasks.osworld.metrics.sheet_facts import cell_fact

    values, whole = books.values(rule["sheet_idx"], {rule["coordinate"]}), books.whole(rule["sheet_idx"])
    cell, value = whole[rule["coordinate"]], values[rule["coordinate"]].value
    return all(matches(cell_fact(cell, name, value=value), wanted) for name, wanted in rule["props"].items())


# --- everything else -------------------------------------------------------------------------------------------------


def _same(fact: Callable[..., Any], argument: str = "") -> Callable[[_Books, Rules], bool]:
    """A rule that reads the same fact of both sheets; ``argument`` names the rule's list of properties."""

    def check(books: _Books, rule: Rules) -> bool:
        extra = (rule.get(argument, []),) if argument else ()
        return bool(fact(books.whole(rule["sheet_idx0"]), *extra) == fact(books.whole(rule["sheet_idx1"]), *extra))

    return check


def _fact(name: str) -> Callable[..., Any]:
    def read(*args: Any) -> Any:
        from computerrl.env_server.tasks.osworld.metrics import sheet_facts, sheet_objects, workbook_parts

        modules = {"charts": sheet_objects, "pivots": sheet_objects, "sparklines": workbook_parts}
        return getattr(modules.get(name, sheet_facts), name)(*args)

    return read


def _zoom(books: _Books, rule: Rules) -> bool:
    return matches(books.whole(rule["sheet_idx"]).sheet_view.zoomScale or 100, rule)


def _data_validation(books: _Books, rule: Rules) -> bool:
    """Every validation meets an entry of ``dv_props``, and every entry is met."""
    found = _fact("validations")(books.whole(rule["sheet_idx"]))
    wanted = rule["dv_props"]

    def meets(one: Rules, entry: Rules) -> bool:
        return all(matches(one.get(key), part) for key, part in entry.items())

    return all(any(meets(one, entry) for entry in wanted) for one in found) and all(
        any(meets(one, entry) for one in found) for entry in wanted
    )


_RULES: Mapping[str, Callable[[_Books, Rules], bool]] = {
    "sheet_name": _sheet_names,
    "sheet_data": _sheet_data,
    "sheet_print": _sheet_print,
    "sheet_fuzzy": _sheet_fuzzy,
    "check_cell": _check_cell,
    "zoom": _zoom,
    "data_validation": _data_validation,
    "freeze": _same(_fact("frozen")),
    "sparkline": _same(_fact("sparklines")),
    "filter": _same(_fact("filters")),
    "chart": _same(_fact("charts"), "chart_props"),
    "style": _same(_fact("styles"), "props"),
    "row_props": _same(_fact("rows"), "props"),
    "col_props": _same(_fact("columns"), "props"),
    "pivot_table": _same(_fact("pivots"), "pivot_props"),
}
"""Rule type -> check. Rules over two sheets name them ``sheet_idx0`` and ``sheet_idx1``, over one ``sheet_idx``."""
