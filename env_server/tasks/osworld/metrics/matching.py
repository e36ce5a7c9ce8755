"""The small rule language that several metrics share: ``{"method": "eq", "ref": 3}`` against a value."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
_BOUNDS = {"[": operator.le, "(": operator.lt, "]": operator.le, ")": operator.lt}
_FLAGS = {"I": re.IGNORECASE, "IGNORECASE": re.IGNORECASE, "M": re.MULTILINE, "S": re.DOTALL, "X": re.VERBOSE}


class BadRule(ValueError):
    """The task file's rule means nothing."""


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
    such as ``range.[)`` over a reference of two numbers; or with two of ``le``, ``lt`` (``range.lelt``).
    """
    method, reference = str(rule["method"]), rule["ref"]
    if method in _COMPARISONS:
        return compare(method, value, reference)
    if method == "re" or method.startswith("re."):
        flags = re.NOFLAG
        for flag in method.split(".")[1:]:
            flags |= _FLAGS.get(flag.removeprefix("re."), re.NOFLAG)
        return re.search(str(reference), "" if value is None else str(value), flags) is not None
    if method.startswith("approx:"):
        return _close(value, reference, float(method.partition(":")[2]))
    if method in ("in", "not_in"):
        return (value in reference) == (method == "in")
    if method in ("str_list_eq", "str_set_eq"):
        found = [part.strip() for part in str(value).split(",")]
        return found == list(reference) if method == "str_list_eq" else set(found) == set(reference)
    if method.startswith("range."):
        return _in_range(value, reference, method.removeprefix("range."))
    raise BadRule(f"unknown method {method!r}")


def _close(value: Any, reference: Any, tolerance: float) -> bool:
    try:
        return abs(float(value) - float(reference)) <= tolerance
    except (TypeError, ValueError):
        return False


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
