"""The small rule language that several metrics share: ``{"method": "eq", "ref": 3}`` against a value."""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from computerrl.env_server.tasks.reading.limits import MAX_RANGES, within
from computerrl.env_server.tasks.reading.texts import is_found

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_BOUNDS = {"[": operator.le, "(": operator.lt, "]": operator.le, ")": operator.lt}
_FLAGS = {"I": re.IGNORECASE, "IGNORECASE": re.IGNORECASE, "M": re.MULTILINE, "S": re.DOTALL, "X": re.VERBOSE}


class BadRule(ValueError):
    """The task file's rule means nothing."""


class _Rule(dict[str, Any]):
    """A mapping of a task file; a key that it lacks is the file's fault."""

    def __missing__(self, key: str) -> Any:
        raise BadRule(f"{key!r} is missing: given are {', '.join(map(repr, self)) or 'no fields'}")


def rule_of(value: Any) -> Any:
    """A value of a task file whose mappings raise `BadRule` for keys that they lack."""
    if isinstance(value, Mapping):
        return _Rule({key: rule_of(entry) for key, entry in value.items()})
    return [rule_of(entry) for entry in value] if isinstance(value, list) else value


def whole_number(value: Any) -> int:
    """A whole number of a task file. Raises `BadRule` for what is none."""
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise BadRule(f"{value!r:.80} is no whole number") from error


def require_arguments(function: Callable[..., Any], inputs: Iterable[Any], options: Mapping[str, Any]) -> None:
    """Raise `BadRule` where a task file gives a metric other inputs or options than it takes."""
    try:
        inspect.signature(function).bind(*inputs, **options)
    except TypeError as error:
        raise BadRule(str(error)) from error


def compare(name: str, value: Any, reference: Any) -> bool:
    """``value`` against ``reference`` by one of eq, ne, lt, le, gt, ge; values that have no order do not match."""
    if name not in _COMPARISONS:
        raise BadRule(f"unknown comparison {name!r}")
    try:
        return bool(_COMPARISONS[name](value, reference))
    except TypeError:
        return False


def matches(value: Any, rule: Mapping[str, Any]) -> bool:
    """Does ``value`` meet ``rule``?

    Methods: ``eq ne lt le gt ge``; ``re`` and ``re.FLAG...`` (found anywhere); ``approx:TOLERANCE``; ``in`` and ``not_in`` (the
    reference is a list); ``str_list_eq`` and ``str_set_eq`` (the value is comma-separated text); ``range.LR`` with brackets,
    such as ``range.[)`` over a reference of two numbers; or with two of ``le``, ``lt`` (``range.lelt``);
    ``spreadsheet_range`` (the value is a list of ranges of cells that covers the reference's first range and lies in its second).
    """
    method, reference = str(rule["method"]), rule["ref"]
    if method in _COMPARISONS:
        return compare(method, value, reference)
    if method == "re" or method.startswith("re."):
        flags = re.NOFLAG
        for flag in method.split(".")[1:]:
            flags |= _FLAGS.get(flag.removeprefix("re."), re.NOFLAG)
        return is_found(str(reference), "" if value is None else str(value), flags)
    if method.startswith("approx:"):
        return _close(value, reference, float(method.partition(":")[2]))
    if method in ("in", "not_in"):
        return (value in reference) == (method == "in")
    if method == "spreadsheet_range":
        least, most = (_rectangles(text) for text in reference)
        ranges = _rectangles(value)
        return _covers(ranges, least) and _covers(most, ranges)
    if method in ("str_list_eq", "str_set_eq"):
        # A list of choices stands in the file as one quoted text: "Pass,Fail".
        found = [part.strip() for part in str(value).strip("\"'").split(",")]
        return found == list(reference) if method == "str_list_eq" else set(found) == set(reference)
    if method.startswith("range."):
        return _in_range(value, reference, method.removeprefix("range."))
    raise BadRule(f"unknown method {method!r}")


def _close(value: Any, reference: Any, tolerance: float) -> bool:
    try:
        return abs(float(value) - float(reference)) <= tolerance
    except (TypeError, ValueError):
        return False


_Rectangle = tuple[int, int, int, int]
"""First column, first row, last column, last row."""


def _rectangles(ranges: Any) -> list[_Rectangle]:
    texts = str(ranges).replace(",", " ").split()
    return [corners(text) for text in texts[: within("ranges of cells", len(texts), MAX_RANGES)]]


def corners(cells: str) -> _Rectangle:
    """First column, first row, last column and last row of a range such as ``A1:B9``, ``A:C`` or ``2:5``, which may begin at any
    corner."""
    from openpyxl.utils.cell import range_boundaries

    left, top, right, bottom = range_boundaries(cells)
    across, down = (left or 1, right or MAX_COLUMN), (top or 1, bottom or MAX_ROW)
    return min(across), min(down), max(across), max(down)


MAX_ROW, MAX_COLUMN = 1_048_576, 16_384
"""Size of a sheet."""


def _covers(cover: Iterable[_Rectangle], area: Iterable[_Rectangle]) -> bool:
    """Is every cell of ``area`` in one of ``cover``'s rectangles?"""
    left_over = list(area)
    for rectangle in cover:
        left_over = [piece for part in left_over for piece in _without(part, rectangle)]
    return not left_over


def _without(part: _Rectangle, taken: _Rectangle) -> Iterator[_Rectangle]:
    """What is left of a rectangle: above, below, left and right of another."""
    left, top, right, bottom = part
    inner_left, inner_top = max(left, taken[0]), max(top, taken[1])
    inner_right, inner_bottom = min(right, taken[2]), min(bottom, taken[3])
    if inner_left > inner_right or inner_top > inner_bottom:
        yield part
        return
    pieces = (
        (left, top, right, inner_top - 1),
        (left, inner_bottom + 1, right, bottom),
        (left, inner_top, inner_left - 1, inner_bottom),
        (inner_right + 1, inner_top, right, inner_bottom),
    )
    yield from (piece for piece in pieces if piece[0] <= piece[2] and piece[1] <= piece[3])


def _in_range(value: Any, reference: Any, bounds: str) -> bool:
    low, high = reference
    if len(bounds) == 2 and bounds[0] in "[(" and bounds[1] in "])":
        left, right = _BOUNDS[bounds[0]], _BOUNDS[bounds[1]]
    elif len(bounds) == 4 and bounds[:2] in ("le", "lt") and bounds[2:] in ("le", "lt"):
        left, right = getattr(operator, bounds[:2]), getattr(operator, bounds[2:])
    elif len(bounds) == 2 and set(bounds) <= {"e", "t"}:
        left, right = getattr(operator, f"l{bounds[0]}"), getattr(operator, f"l{bounds[1]}")
    else:
        raise BadRule(f"unknown range {bounds!r}")
    try:
        return bool(left(low, value) and right(value, high))
    except TypeError:
        return False


def at(data: Any, keys: list[Any]) -> Any:
    """The value below ``data`` along ``keys``. Raises `LookupError` when there is none."""
    for key in keys:
        if isinstance(data, list) and isinstance(key, int):
            data = data[key]
        elif isinstance(data, Mapping):
            data = data[key]
        else:
            raise LookupError(key)
    return data
