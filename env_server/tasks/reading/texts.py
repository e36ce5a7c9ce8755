"""Texts: JSON and YAML of bounded size, and likeness of bounded cost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from env_server.tasks.reading import limits
from env_server.tasks.reading.limits import Budget, within


def json_of(text: str) -> Any:
    """JSON. Raises `ValueError` when it is none, nests too deeply or holds too many values."""
    within("bytes of JSON", len(text), limits.MAX_JSON_BYTES)
    # Every value but the first stands behind one of these.
    within("values of JSON", text.count(",") + text.count("[") + text.count("{"), limits.MAX_JSON_VALUES)
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("the JSON nests too deeply") from error


def yaml_of(text: str) -> Any:
    """YAML. Raises `ValueError` when it is none. Aliases count as what they stand for, since readers walk them as such."""
    import yaml

    within("bytes of YAML", len(text), limits.MAX_YAML_BYTES)
    try:
        value = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
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


def likeness(found: str, wanted: str) -> float:
    """How alike two texts are, 0 to 1: twice the longest common subsequence over both lengths."""
    from rapidfuzz import fuzz

    if found == wanted:
        return 1.0
    within("pairs of characters to compare", len(found) * len(wanted), limits.MAX_COMPARED)
    return float(fuzz.ratio(found, wanted)) / 100


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
