"""Pictures of studies: learning curves with bands over seeds, and bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from computerrl.benchmarks.studies._designs import Bars, Curves
from computerrl.benchmarks.studies._statistics import Record, curve, mean_and_error

LABELS = {
    "rl_env_steps": "desktop steps of RL",
    "rl_s": "seconds of RL",
    "update": "updates",
    "success": "training success",
    "entropy": "entropy, nats per action token",
}
"""Field of an update -> label of an axis."""
_POINTS = 60


def draw(path: Path, cells: Sequence[Record], arms: Sequence[str], panels: Sequence[Curves | Bars]) -> None:
    """Write a plot with ``panels`` side by side, each with all ``arms``."""
    drawing, places = figure(len(panels))
    for axes, panel in zip(places, panels, strict=True):
        if isinstance(panel, Curves):
            curves(axes, cells, arms, x=panel.x, y=panel.y)
        else:
            bars(axes, cells, arms, panel.fields, label=panel.label)
    drawing.savefig(path, dpi=110)


def figure(num_axes: int) -> tuple[Any, list[Any]]:
    """A figure with ``num_axes`` axes side by side."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(5.2 * num_axes, 4.2), layout="constrained")
    return drawing, list(np.atleast_1d(drawing.subplots(1, num_axes)))


def curves(axes: Any, cells: Sequence[Record], arms: Sequence[str], *, x: str, y: str) -> None:
    """A curve for each arm: mean over seeds with its standard error, as far as all seeds of the arm go."""
    for name in arms:
        found = [curve(cell["updates"], x, y) for cell in cells if cell.get("arm") == name]
        found = [(xs, ys) for xs, ys in found if xs]
        if not found:
            continue
        places = np.linspace(max(xs[0] for xs, _ in found), max(min(xs[-1] for xs, _ in found), found[0][0][0]), _POINTS)
        table = np.array([np.interp(places, xs, ys) for xs, ys in found])
        means, errors = np.array([mean_and_error(column.tolist()) for column in table.T]).T
        axes.plot(places, means, label=name)
        axes.fill_between(places, means - errors, means + errors, alpha=0.2)
    axes.set(xlabel=LABELS[x], ylabel=LABELS[y])
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def bars(axes: Any, cells: Sequence[Record], arms: Sequence[str], fields: Sequence[str], *, label: str) -> None:
    """A group of bars for each of ``fields``, a bar for each arm; the lines on top are standard errors."""
    width = 0.8 / max(1, len(arms))
    for number, name in enumerate(arms):
        found = [
            mean_and_error([cell[field] for cell in cells if cell.get("arm") == name and cell.get(field) is not None] or [0.0])
            for field in fields
        ]
        places = [index - 0.4 + width * (number + 0.5) for index in range(len(fields))]
        axes.bar(places, [m for m, _ in found], width, yerr=[e for _, e in found], capsize=2, label=name)
    axes.set_xticks(range(len(fields)), [field.replace("_", " ") for field in fields], rotation=20, ha="right", fontsize="small")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3, axis="y")
    axes.legend(fontsize="small")
