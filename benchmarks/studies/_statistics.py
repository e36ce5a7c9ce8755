"""Statistics of a study's results: means and standard errors, learning curves, tables and their columns. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

Record = dict[str, Any]
Value = Callable[[Record], float | None]
"""A figure of one result; None: the result has none."""
Column = Callable[[Sequence[Record], Sequence[Record]], str]
"""(results of one arm, results of all arms) -> cell of a table."""


NO_FIGURE = "–"
"""Cell of a table whose results have no such figure."""


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error; the error of a single value is 0."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return statistics.mean(values), error


def with_error(values: Iterable[float | None], form: str = ".3f") -> str:
    """`0.912 ± 0.011`: mean and standard error of the known values; a single value has no error."""
    known = [value for value in values if value is not None]
    if not known:
        return NO_FIGURE
    mean, error = mean_and_error(known)
    return f"{mean:{form}} ± {error:{form.lstrip('+')}}" if len(known) > 1 else f"{mean:{form}}"


# --- tables --------------------------------------------------------------------------------------------------------------


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def by_arm(names: Iterable[str], cells: Sequence[Record], columns: Mapping[str, Column]) -> str:
    """A table with a line for each arm that has results. ``columns``: heading -> column; one without any figure is left out."""
    found = {name: mine for name in names if (mine := [cell for cell in cells if cell.get("arm") == name])}
    filled = {heading: [column(mine, cells) for mine in found.values()] for heading, column in columns.items()}
    shown = {heading: texts for heading, texts in filled.items() if set(texts) != {NO_FIGURE}}
    rows = [[name, *(texts[place] for texts in shown.values())] for place, name in enumerate(found)]
    return markdown(["arm", *shown], rows)


def means(value: str | Value, form: str = ".3f") -> Column:
    """The column with mean and standard error of a figure (a field's name, or a function of a result) over an arm's results."""
    get = (lambda cell: cell.get(value)) if isinstance(value, str) else value
    return lambda mine, cells: with_error([get(cell) for cell in mine], form)


def total(name: str) -> Column:
    """The column with the sum of a field over an arm's results."""
    return lambda mine, cells: str(sum(cell[name] for cell in mine))


def greatest(name: str) -> Column:
    """The column with the greatest value of a field among an arm's results."""
    return lambda mine, cells: str(max(cell[name] for cell in mine))


def against(arm: str, compare: Callable[[Record, Record], float], form: str = ".3f") -> Column:
    """The column with mean and standard error of ``compare(result, result of ``arm`` with the same seed)``."""

    def column(mine: Sequence[Record], cells: Sequence[Record]) -> str:
        others = {cell["seed"]: cell for cell in cells if cell["arm"] == arm}
        return with_error([compare(cell, others[cell["seed"]]) for cell in mine], form)

    return column


def success_at_equal_time(mine: Sequence[Record], cells: Sequence[Record]) -> str:
    """The column with the training success that an arm had reached when the fastest arm of its seed was done."""
    success = at_equal_time(cells)
    return with_error([success(cell) for cell in mine])


# --- learning curves -----------------------------------------------------------------------------------------------------


def curve(updates: Sequence[Record], x: str, y: str, *, window: int = 5) -> tuple[list[float], list[float]]:
    """(x, y) over updates; y is the mean of the last ``window`` updates that have one."""
    xs: list[float] = []
    ys: list[float] = []
    recent: list[float] = []
    for update in updates:
        if update.get(y) is None:
            continue
        recent = [*recent, float(update[y])][-window:]
        xs.append(float(update[x]))
        ys.append(sum(recent) / len(recent))
    return xs, ys


def pooled_curve(updates: Sequence[Record], families: Collection[str], *, window: int) -> tuple[list[float], list[float]]:
    """(desktop steps of RL, training success): mean over groups of ``families`` in the last ``window`` updates, where there are
    any. A window that meets every family equally often does not go up and down with the families that are played."""
    xs: list[float] = []
    ys: list[float] = []
    for number, update in enumerate(updates):
        recent = updates[max(0, number + 1 - window) : number + 1]
        found = [share for one in recent for name, share in (one["success_by_family"] or {}).items() if name in families]
        if found and number + 1 >= window:
            xs.append(float(update["rl_env_steps"]))
            ys.append(sum(found) / len(found))
    return xs, ys


def at(updates: Sequence[Record], x: str, y: str, where: float, *, window: int = 5) -> float | None:
    """``y``, smoothed as by `curve`, at the last update whose ``x`` is at most ``where``; None before the first."""
    values = [value for place, value in zip(*curve(updates, x, y, window=window), strict=True) if place <= where]
    return values[-1] if values else None


def at_equal_time(cells: Sequence[Record]) -> Value:
    """Training success of a result at the moment when the fastest of its seed was done."""
    shortest = {seed: min(cell["rl_s"] for cell in cells if cell["seed"] == seed) for seed in {cell["seed"] for cell in cells}}
    return lambda cell: at(cell["updates"], "rl_s", "success", shortest[cell["seed"]])


def mean_of(cell: Record, name: str) -> float:
    """Mean of a figure over the updates that have one; 0 without any."""
    values = [update[name] for update in cell["updates"] if update.get(name) is not None]
    return sum(values) / len(values) if values else 0.0
