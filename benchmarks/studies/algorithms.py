"""Algorithms side by side: one task set, one cloned policy to begin with, equal desktop steps.

Each has the options and task settings of its file in configs/algorithms, except settings that would compare something else:
learning rate, temperature, batch (four groups) and minibatches are the same for all. GRPO-RoC samples groups of sixteen and
trains on eight of each, DAPO samples on until enough groups teach something: at equal steps they have fewer updates, which is
the cost of their choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from computerrl import PACKAGE
from computerrl.benchmarks.studies import _arms
from computerrl.benchmarks.studies._designs import WIDER, Arm, Comparison
from computerrl.benchmarks.studies._plots import curves, figure
from computerrl.benchmarks.studies._statistics import Record, by_arm, mean_and_error, mean_of, means

FILES = {
    "step-level GRPO": "computerrl",
    "decoupled GRPO": "grpo",
    "DART": "dart",
    "AgentRL": "agentrl",
    "AdaGRPO": "adagrpo",
    "ARPO": "arpo",
    "GRPO-RoC": "grpo_roc",
    "RLOO": "rloo",
    "DAPO": "dapo",
}
SAME = {"optimizer", "num_minibatches", "groups_per_batch", "recipe", "entropulse"}
"""Parts of those files' sections `learner` that stay as they are in desktop.yaml."""
TEMPERATURE = 0.7


def _arm(name: str, file: str) -> Arm:
    tree: dict[str, Any] = yaml.safe_load((PACKAGE / "configs" / "algorithms" / f"{file}.yaml").read_text(encoding="utf-8"))
    learner = {key: value for key, value in tree["learner"].items() if key not in SAME}
    algorithm = learner.pop("algorithm")
    options = {**algorithm.get("options", {}), "temperature": TEMPERATURE}
    others = {f"{part}.{key}": value for part in ("tasks", "actor") for key, value in tree.get(part, {}).items()}
    of_learner = {f"learner.{key}": value for key, value in learner.items()}
    return Arm(name, {**of_learner, **others, "learner.algorithm": {"name": algorithm["name"], "options": options}})


ARMS = tuple(_arm(name, file) for name, file in FILES.items())


def table(cells: Sequence[Record]) -> str:
    """A line per algorithm, the one with the highest success first."""
    successes = {arm.name: [cell["success"] or 0.0 for cell in cells if cell["arm"] == arm.name] for arm in ARMS}
    ranked = sorted((name for name in successes if successes[name]), key=lambda name: -mean_and_error(successes[name])[0])
    columns = {
        "held-out success": means("success"),
        "training success, mean of the way": means(lambda cell: mean_of(cell, "success")),
        "updates": means("num_updates", ".0f"),
        "entropy at the end": means(lambda cell: cell["updates"][-1]["entropy"], ".2f"),
        "different solutions per success": means("distinct_solutions", ".2f"),
        "steps per success": means("steps_per_success", ".2f"),
        "seconds of RL": means("rl_s", ".0f"),
    }
    return by_arm(ranked, cells, columns) + "\nMean and standard error over seeds, at equal desktop steps.\n"


def draw(path: Path, cells: Sequence[Record]) -> None:
    """Learning curves, and held-out success: bars have their curves' colours, so nine names need not cover the curves."""
    drawing, (left, right) = figure(2)
    names = [arm.name for arm in ARMS if any(cell["arm"] == arm.name for cell in cells)]
    curves(left, cells, names, x="rl_env_steps", y="success")
    left.get_legend().remove()
    colors = [line.get_color() for line in left.get_lines()]
    found = [mean_and_error([cell["success"] or 0.0 for cell in cells if cell["arm"] == name]) for name in names]
    right.barh(range(len(names)), [mean for mean, _ in found], xerr=[error for _, error in found], capsize=2, color=colors)
    cloned = [cell["success_cloned"] for cell in cells if cell.get("success_cloned") is not None]
    if cloned:
        right.axvline(mean_and_error(cloned)[0], color="black", linestyle=":", label="cloned")
        right.legend(fontsize="small", loc="lower right", bbox_to_anchor=(1.0, 1.0))  # above: bars reach every corner
    right.set_yticks(range(len(names)), names)
    right.invert_yaxis()
    right.set(xlabel="held-out success")
    right.grid(alpha=0.3, axis="x")
    drawing.savefig(path, dpi=110)


STUDY = Comparison(
    name="algorithms",
    title="Algorithms side by side",
    question=__doc__ or "",
    arms=ARMS,
    num_seeds=3,
    settings={**WIDER, "learner.recipe.max_rl_env_steps": 2000},
    table=table,
    draw=draw,
    limits=(
        "Which algorithm is best: published learning rates and sizes differ by orders of magnitude, and one setting suits some.",
        "What memories (DART, AdaGRPO, ARPO) give where successes are rare: here nearly all succeed at times from the start.",
        "Differences of less than twice the errors shown; three seeds do not tell more.",
    ),
    quick_arms=("DART", "AgentRL"),
)
run = partial(_arms.run, STUDY)
