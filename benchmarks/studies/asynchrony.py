"""Asynchronous against synchronous training: the same desktops, cores and updates; throughput, success, ages, idle time.

Synchronous: `broker.eta` 0, no rollout of the next batch begins before the update is done and its weights are out. Asynchronous:
eta 1 (the default: one batch ahead) and eta 4. Everything else is the same: the cloned policy that all begin with, tasks,
batches, number of updates. Equal updates: success on held-out instances at the end. Equal wall time: what each arm had reached
when the fastest arm of its seed was done, by its training success then.

AReaL (arXiv 2505.24298) reports 2.77 times the speed of a synchronous system at equal success, on GPUs of their own for
generation and training. Here both share two threads of one core, so that whatever one does not use the other can take: what is
gained is the time when nothing of the two could run, and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from computerrl.benchmarks.studies._arms import Comparison
from computerrl.benchmarks.studies._plots import bars, curves, figure
from computerrl.benchmarks.studies._runs import Arm, Record, at_equal_time, mean_of
from computerrl.benchmarks.studies._study import by_arm, means

ARMS = (
    Arm("synchronous", {"broker.eta": 0}),
    Arm("asynchronous, eta 1", {"broker.eta": 1}),
    Arm("asynchronous, eta 4", {"broker.eta": 4, "learner.max_age": 8}),
)
NUM_SEEDS = 3
SETTINGS = {"learner.recipe.max_updates": 24, "learner.recipe.max_rl_env_steps": None}
LIMITS = (
    "Generation, training and desktops on hardware of their own, where a synchronous system leaves whole GPUs idle.",
    "Long episodes: here they have at most four actions, so that a batch has hardly any stragglers.",
    "Whether eta 4 costs success in long runs: ages stay near 1, since one batch is hardly ever ready before the one before it "
    "is trained.",
)


def table(cells: Sequence[Record]) -> str:
    """A line per arm."""
    columns = {
        "env steps/s": means(lambda cell: cell["rl_env_steps"] / cell["rl_s"], ".2f"),
        "seconds of RL": means(lambda cell: cell["rl_s"], ".0f"),
        "held-out success, equal updates": means(lambda cell: cell["success"]),
        "training success, equal time": means(at_equal_time(cells)),
        "mean age trained": means(lambda cell: mean_of(cell, "policy_age_mean"), ".2f"),
        "greatest": lambda mine: str(max(cell["max_policy_age_trained"] for cell in mine)),
        "learner waits": means(lambda cell: cell["learner_waiting"], ".0%"),
        "episode slots wait": means(lambda cell: cell["slots_waiting"], ".0%"),
        "generate": means(lambda cell: cell["slots_generating"], ".0%"),
        "on the desktop": means(lambda cell: cell["slots_on_desktop"], ".0%"),
    }
    text = by_arm([arm.name for arm in ARMS], cells, columns)
    return text + "\nMean and standard error over seeds. Shares are of RL's time.\n"


def draw(path: Path, cells: Sequence[Record]) -> None:
    """Training success over time and over updates, and where the time went."""
    drawing, (left, middle, right) = figure(3)
    names = [arm.name for arm in ARMS]
    curves(left, cells, names, x="rl_s", y="success", labels=("seconds of RL", "training success"))
    curves(middle, cells, names, x="update", y="success", labels=("updates", "training success"))
    stages = ("learner_training", "slots_generating", "slots_on_desktop", "slots_waiting")
    bars(right, cells, names, stages, label="share of RL's time")
    drawing.savefig(path, dpi=110)


STUDY = Comparison(
    name="asynchrony",
    title="Asynchronous against synchronous",
    question=__doc__ or "",
    arms=ARMS,
    num_seeds=NUM_SEEDS,
    settings=SETTINGS,
    table=table,
    draw=draw,
    limits=LIMITS,
    quick_arms=[ARMS[0].name, ARMS[1].name],
)
run = STUDY.run
