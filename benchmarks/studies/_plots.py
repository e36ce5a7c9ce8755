"""Pictures of studies: learning curves with bands over seeds, and bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from computerrl.benchmarks.studies._runs import Record, curve
from computerrl.benchmarks.studies._study import mean_and_error

_POINTS = 60


def figure(num_axes: int) -> tuple[Any, list[Any]]:
    """A figure with so many axes side by side."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(5.2 * num_axes, 4.2), layout="constrained")
    return drawing, list(np.atleast_1d(drawing.subplots(1, num_axes)))


def curves(
    axes: Any, cells: Sequence[Record], names: Sequence[str], *, x: str, y: str, labels: tuple[str, str], key: str = "arm"
) -> None:
    """Mean over seeds with its standard error, as far as all seeds of an arm go."""
    for name in names:
        found = [curve(cell["updates"], x, y) for cell in cells if cell.get(key) == name]
        found = [(xs, ys) for xs, ys in found if xs]
        if not found:
            continue
        places = np.linspace(max(xs[0] for xs, _ in found), max(min(xs[-1] for xs, _ in found), found[0][0][0]), _POINTS)
        table = np.array([np.interp(places, xs, ys) for xs, ys in found])
        means, errors = np.array([mean_and_error(column.tolist()) for column in table.T]).T
        axes.plot(places, means, label=name)
        axes.fill_between(places, means - errors, means + errors, alpha=0.2)
    axes.set(xlabel=labels[0], ylabel=labels[1])
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def bars(
    axes: Any, cells: Sequence[Record], names: Sequence[str], fields: Sequence[str], *, label: str, key: str = "arm"
) -> None:
    """A group of bars for each of ``fields``, a bar for each name; the lines on top are standard errors."""
    width = 0.8 / max(1, len(names))
    for number, name in enumerate(names):
        found = [
            mean_and_error([cell[field] for cell in cells if cell.get(key) == name and cell.get(field) is not None] or [0.0])
            for field in fields
        ]
        places = [index - 0.4 + width * (number + 0.5) for index in range(len(fields))]
        axes.bar(places, [m for m, _ in found], width, yerr=[e for _, e in found], capsize=2, label=name)
    axes.set_xticks(range(len(fields)), [field.replace("_", " ") for field in fields], rotation=20, ha="right", fontsize="small")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3, axis="y")
    axes.legend(fontsize="small")
