"""Rows of the battery `gpu`: checks with a limit, speeds, and the reasons why there is none."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

Row = dict[str, Any]
"""Columns of `launch.commands.measure.COLUMNS`; missing ones count as None."""

GAP_GOALS = {"float32": 0.001, "bfloat16": 0.02}
"""Mean difference of log-probs of engine and learner in nats, by the type of their weights."""
_GAP_LIMIT = 5.0
"""Goals beyond which it is no rounding. Untrained answers to random prompts are the hardest: 0.064 on an H200."""


def checked(name: str, value: float, *, limit: float, unit: str = "", **more: Any) -> Row:
    """A figure that fails above ``limit``, and when it is no number."""
    has_passed = math.isfinite(value) and value <= limit
    row = {"name": name, "value": value, "unit": unit, "better": "lower", "target": limit, **more}
    if has_passed:
        return row | {"state": "passed"}
    return row | {"state": "failed", "reason": f"{value:.3g} is not within the limit of {limit:g}"}


def confirmed(name: str, value: float | None = None, unit: str = "", **more: Any) -> Row:
    """Something that was done as it should be; ``value``: for example its seconds."""
    return {"name": name, "value": value, "unit": unit, "better": "lower", "state": "passed", **more}


def unmeasured(name: str, state: Literal["failed", "not run"], reason: str) -> Row:
    """A line without a figure."""
    return {"name": name, "value": None, "unit": "", "state": state, "reason": reason}


def measured(name: str, values: Sequence[float], unit: str, *, better: Literal["lower", "higher"], **more: Any) -> Row:
    """The median of ``values`` and their range."""
    return {
        "name": name,
        "value": statistics.median(values),
        "unit": unit,
        "spread": max(values) - min(values),
        "better": better,
        **more,
    }


def gap_row(name: str, gaps: np.ndarray, *, goal: float) -> Row:
    """``gaps``: distances of log-probs of engine and learner, of each token. They may miss the goal; far beyond it they fail."""
    mean, maximum = float(gaps.mean()), float(gaps.max())
    row = {"name": name, "value": mean, "unit": "nats", "better": "lower", "target": goal, "state": "passed"}
    if mean <= _GAP_LIMIT * goal:  # False for what is no number
        return row | {"reason": f"mean of {len(gaps)} tokens, maximum {maximum:.3g}"}
    return row | {"state": "failed", "reason": f"{mean:.3g} is more than {_GAP_LIMIT:g} times the goal: no rounding"}


def told(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]
