"""API-GUI against mouse and keyboard alone, on spreadsheets and texts: steps per success, and success.

ComputerRL's first claim is its action space: an agent that may call applications besides using mouse and keyboard needs a
third of the steps. Here the same families, instances and checkers are played both ways (`tasks.actions`). Each arm clones
demonstrations of its own kind, as many of both, and then learns by RL for equal desktop steps; episodes may have 20 actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from computerrl.benchmarks.studies._arms import Comparison
from computerrl.benchmarks.studies._plots import bars, curves, figure
from computerrl.benchmarks.studies._runs import WIDER, Arm, Record
from computerrl.benchmarks.studies._study import by_arm, markdown, means, with_error

ARMS = (Arm("API-GUI", {"tasks.actions": "api_gui"}), Arm("GUI only", {"tasks.actions": "gui"}))
FAMILIES = (
    "calc-set-cell",
    "forge-calc-column-total",
    "forge-calc-compute-column",
    "forge-writer-replace-name",
    "forge-writer-align",
    "forge-writer-capitals",
)
NUM_SEEDS = 2
# Two groups an update: episodes of mouse and keyboard are long, and there would be few updates.
SETTINGS = {
    **WIDER,
    "tasks.families": FAMILIES,
    "tasks.max_steps": 20,
    "learner.recipe.demos_per_family": 16,
    "learner.groups_per_batch": 2,
    "learner.recipe.max_rl_env_steps": 2000,
    "learner.recipe.eval_episodes_per_family": 15,
    "actor.max_new_tokens": 40,
}
LIMITS = (
    "An agent that finds its own way: both arms begin with scripted demonstrations, and keep their manner.",
    "Work for which there is no call, or no keyboard way: the families are those that have both.",
    "Large models: one of 135M parameters copies what it was shown, and counts badly.",
)


def table(cells: Sequence[Record]) -> str:
    """A line per arm, and one per family."""
    columns = {
        "steps of a demonstration": means(lambda cell: cell.get("demonstration_steps"), ".2f"),
        "steps per success, at the end of RL": means(lambda cell: cell["steps_per_success"], ".2f"),
        "success cloned": means(lambda cell: cell.get("success_cloned")),
        "after RL": means(lambda cell: cell["success"]),
        "seconds of RL": means(lambda cell: cell["rl_s"], ".0f"),
    }
    families = sorted({name for cell in cells for name in cell["families"]})
    of_family = [
        [name, *(with_error([cell["families"].get(name) for cell in cells if cell["arm"] == arm.name], ".2f") for arm in ARMS)]
        for name in families
    ]
    heads = ["family, success after RL", *(arm.name for arm in ARMS)]
    arms = by_arm([arm.name for arm in ARMS], cells, columns)
    return f"{arms}\n{markdown(heads, of_family)}\nMean and standard error over seeds; held-out instances.\n"


def draw(path: Path, cells: Sequence[Record]) -> None:
    """Learning curves, and steps per success beside those of demonstrations."""
    drawing, (left, right) = figure(2)
    names = [arm.name for arm in ARMS]
    curves(left, cells, names, x="rl_env_steps", y="success", labels=("desktop steps of RL", "training success"))
    bars(right, cells, names, ("demonstration_steps", "steps_per_success"), label="actions")
    drawing.savefig(path, dpi=110)


STUDY = Comparison(
    name="api_gui",
    title="API-GUI against mouse and keyboard alone",
    question=__doc__ or "",
    arms=ARMS,
    num_seeds=NUM_SEEDS,
    settings=SETTINGS,
    table=table,
    draw=draw,
    limits=LIMITS,
    own_cloning=True,
)
run = STUDY.run
