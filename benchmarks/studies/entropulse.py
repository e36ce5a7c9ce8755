"""Entropulse against continued RL, and against a reset of the reference alone, at equal desktop steps and at equal time.

ComputerRL (section 3.4) lets RL pause when entropy has collapsed, trains one round on successes of all its updates, and goes on
from there. Such a round does two things: it trains, and it makes the present policy the new reference of the KL term (and starts
the optimizer anew). The paper has no control that does the second alone; here is one. All arms begin with the same cloned policy
and have the same KL term (k3, beta 0.01, ours: with the published 3e-4 a reset would hardly be felt). The round comes at half of
the steps and nowhere else (our own trigger is off), so that all seeds have it at the same place; a round's own training costs no
desktop steps, but time.

Published (14B, OSWorld): first RL phase 42.0, Entropulse 41.5, second RL phase 45.8.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from computerrl.benchmarks.studies._arms import Comparison
from computerrl.benchmarks.studies._plots import curves, figure
from computerrl.benchmarks.studies._runs import Arm, Record, at_equal_time
from computerrl.benchmarks.studies._study import by_arm, means

_ROUND = {
    "learner.entropulse.enabled": True,
    "learner.entropulse.force_after_fraction": 0.5,
    "learner.entropulse.max_phases": 1,
    "learner.entropulse.max_samples": 192,
    "learner.entropulse.lr": 1e-4,
    "learner.entropulse.min_updates": 1_000_000,
}
ARMS = (
    Arm("continued RL"),
    Arm("Entropulse", _ROUND),
    Arm("reset alone", {**_ROUND, "learner.entropulse.epochs": 0}),
)
NUM_SEEDS = 5
PART = 500
"""Desktop steps before the round, after it, and at the end, whose entropy is told."""
SETTINGS = {"learner.algorithm.options.kl_beta": 0.01, "learner.recipe.max_rl_env_steps": 3000}
LIMITS = (
    "Collapse as in runs of days: 3,000 steps lower the entropy, but a policy of four families explores little anyway.",
    "What the trigger of our own (entropy and success flat) would do: the round is placed at half of the steps.",
    "Other sizes of the KL term, of the round, or of its learning rate.",
)


def table(cells: Sequence[Record]) -> str:
    """A line per arm."""
    continued = {cell["seed"]: cell["success"] for cell in cells if cell["arm"] == ARMS[0].name}
    columns = {
        "held-out success, equal steps": means(lambda cell: cell["success"]),
        "difference to continued RL, seed by seed": means(lambda cell: cell["success"] - continued[cell["seed"]], "+.3f"),
        "training success, equal time": means(at_equal_time(cells)),
        "entropy before the round": means(lambda cell: _entropy(cell, _round_at(cell) - PART, _round_at(cell))),
        "after it": means(lambda cell: _entropy(cell, _round_at(cell), _round_at(cell) + PART)),
        "at the end": means(lambda cell: _entropy(cell, cell["rl_env_steps"] - PART, cell["rl_env_steps"])),
        "different solutions per success": means(lambda cell: cell["distinct_solutions"]),
        "seconds": means(lambda cell: cell["rl_s"], ".0f"),
    }
    return (
        f"{by_arm([arm.name for arm in ARMS], cells, columns)}\nMean and standard error of {len(continued)} seeds. Entropy: nats "
        f"per action token, over {PART} desktop steps each; continued RL's are those around its middle. Different solutions: of "
        "a group's successes in the last quarter, the share of scripts that differ.\n"
    )


def _round_at(cell: Record) -> float:
    """Desktop steps after which the round came; half of all where there was none."""
    before = [update["rl_env_steps"] for update in cell["updates"] if update["phase"] == cell["updates"][0]["phase"]]
    return before[-1] if len(before) < len(cell["updates"]) else cell["rl_env_steps"] / 2


def _entropy(cell: Record, low: float, high: float) -> float | None:
    """Mean over updates in that part of the steps."""
    inside = [update["entropy"] for update in cell["updates"] if low < update["rl_env_steps"] <= high]
    found = [entropy for entropy in inside if entropy is not None]
    return sum(found) / len(found) if found else None


def draw(path: Path, cells: Sequence[Record]) -> None:
    """Training success and entropy over steps, and success over time."""
    drawing, (left, middle, right) = figure(3)
    names = [arm.name for arm in ARMS]
    curves(left, cells, names, x="rl_env_steps", y="success", labels=("desktop steps of RL", "training success"))
    curves(middle, cells, names, x="rl_env_steps", y="entropy", labels=("desktop steps of RL", "entropy, nats per action token"))
    curves(right, cells, names, x="rl_s", y="success", labels=("seconds of RL", "training success"))
    drawing.savefig(path, dpi=110)


STUDY = Comparison(
    name="entropulse",
    title="Entropulse, continued RL, and the control",
    question=__doc__ or "",
    arms=ARMS,
    num_seeds=NUM_SEEDS,
    settings=SETTINGS,
    table=table,
    draw=draw,
    limits=LIMITS,
    quick_arms=[ARMS[0].name, ARMS[2].name],
)
run = STUDY.run
