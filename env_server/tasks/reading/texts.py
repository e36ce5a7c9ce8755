"""Texts: JSON and YAML of bounded size, and likeness of bounded cost."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from computerrl.env_server.tasks.reading import limits
from computerrl.env_server.tasks.reading.limits import Budget, within


def json_of(text: str) -> Any:
    """JSON. Raises `ValueError` when it is none, nests too deeply or holds too many values."""
    within("bytes of JSON", len(text), limits.MAX_JSON_BYTES)
    # Every value but the first stands behind one of these.
    within("values of JSON", text.count(",") + text.count("[") + text.count("{"), limits.MAX_JSON_VALUES)
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("the JSON nests too deeply") from error


def literal_of(text: str) -> Any:
    """A Python literal, as programs print values. Raises `ValueError` when it is none."""
    within("bytes of a literal", len(text), limits.MAX_LITERAL_BYTES)
    try:
        return ast.literal_eval(text.strip())
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(f"no literal: {error}") from error


def yaml_of(text: str) -> Any:
    """YAML. Raises `ValueError` when it is none. Aliases count as what they stand for, since readers walk them as such."""
    import yaml

    within("bytes of YAML", len(text), limits.MAX_YAML_BYTES)
    try:
        # The loader in C ends the process on values that nest deeply.
        value = yaml.load(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"no YAML: {error}") from error
    _count(value, Budget("values of YAML", limits.MAX_JSON_VALUES), 0)
    return value


_MAX_DEPTH = 200


def _count(value: Any, budget: Budget, depth: int) -> None:
    budget.spend()
    within("levels of YAML", depth, _MAX_DEPTH)
    if isinstance(value, Mapping):
        for entry in value.values():
            _count(entry, budget, depth + 1)
    elif isinstance(value, (list, tuple, set)):
        for entry in value:
            _count(entry, budget, depth + 1)


def is_found(pattern: str, text: str, flags: int = 0) -> bool:
    """Does a task's pattern match somewhere in a text?"""
    return re.search(pattern, text[: within("characters to search", len(text), limits.MAX_SEARCHED)], flags) is not None


def likeness(found: str, wanted: str) -> float:
    """How alike two texts are, 0 to 1: twice their longest common subsequence over both lengths."""
    from rapidfuzz.distance import LCSseq

    if found == wanted:
        return 1.0
    begins = _common(found, wanted)
    one, other = found[begins:], wanted[begins:]
    ends = _common(one[::-1], other[::-1])
    one, other = one[: len(one) - ends], other[: len(other) - ends]
    within("pairs of characters to compare", len(one) * len(other), limits.MAX_COMPARED)
    return 2 * (begins + ends + LCSseq.similarity(one, other)) / (len(found) + len(wanted))


def _common(first: str, second: str) -> int:
    """Number of letters with which both begin."""
    differs = (place for place, (one, other) in enumerate(zip(first, second, strict=False)) if one != other)
    return next(differs, min(len(first), len(second)))


def line_likeness(found: Sequence[str], wanted: Sequence[str]) -> float:
    """How alike two sequences of lines are, 0 to 1, by their longest common blocks (Ratcliff and Metzener 1988)."""
    import difflib

    num_equal = Counter(wanted)
    work = Budget("pairs of equal lines to compare", limits.MAX_COMPARED_LINES)

    class Matcher(difflib.SequenceMatcher[str]):
        """Counts what each search for a block looks at, before it looks."""

        def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None) -> difflib.Match:
            end = len(found) if ahi is None else ahi
            work.spend(sum(1 + num_equal[line] for line in found[alo:end]))
            return super().find_longest_match(alo, ahi, blo, bhi)

    if list(found) == list(wanted):
        return 1.0
    return Matcher(a=found, b=wanted, autojunk=False).ratio()
