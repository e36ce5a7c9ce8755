"""Stale rollouts on real desktops: naive GRPO against the decoupled objective, with weights handed out later and later.

The language model of all studies learns on real desktops. With eta 0 a batch begins when the one before has been trained
and its weights have arrived (`broker.eta` 0); with eta 1 one batch is under way; beyond, actors get weights only after every
eta-th update (`learner.publish_every_updates`), so that what is trained is up to eta versions old. Batches are small (two
groups of eight), so that there are enough updates for sixteen versions to pass. Nothing is masked (`learner.staleness.mode:
admit`). naive takes all tokens for the present policy's (correction `none`); decoupled is the default. Everything else is the
same, the cloned policy that all begin with included.

AReaL's table (arXiv 2505.24298, AIME24, naive / decoupled): eta 0 42.0; 1 41.8 / 42.1; 2 40.0 / 41.8; 4 23.3 / 42.2; 8 35.7 /
41.0; 16 35.8 / 38.7. `computerrl study staleness` has the same on a task so small that seeds are many.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from computerrl.benchmarks.studies import _arms
from computerrl.benchmarks.studies._designs import WIDER, Arm, Comparison
from computerrl.benchmarks.studies._plots import curves, figure
from computerrl.benchmarks.studies._statistics import Record, markdown, mean_and_error, mean_of, with_error

ETAS = (0, 1, 2, 4, 8, 16)
CORRECTIONS = {"naive": "none", "decoupled": "decoupled"}


def _name(variant: str, eta: int) -> str:
    return f"{variant}, eta {eta}"


def _arm(variant: str, eta: int) -> Arm:
    settings = {
        "broker.eta": min(eta, 1),
        "learner.publish_every_updates": max(eta, 1),
        "learner.algorithm.options.correction": CORRECTIONS[variant],
    }
    return Arm(_name(variant, eta), settings)


# On policy both are the same.
ARMS = (
    Arm("on policy, eta 0", _arm("decoupled", 0).settings),
    *(_arm(variant, eta) for eta in ETAS[1:] for variant in CORRECTIONS),
)


def _of(cells: Sequence[Record], variant: str, eta: int) -> list[Record]:
    name = ARMS[0].name if eta == 0 else _name(variant, eta)
    return [cell for cell in cells if cell["arm"] == name]


def _on_the_way(cell: Record) -> float:
    return mean_of(cell, "success")


def table(cells: Sequence[Record]) -> str:
    """A line per eta."""
    rows = []
    for eta in ETAS:
        found = [_of(cells, variant, eta) for variant in CORRECTIONS]
        if not any(found):
            continue
        ages = [mean_of(cell, "policy_age_mean") for mine in found for cell in mine]
        greatest = max(cell["max_policy_age_trained"] for mine in found for cell in mine)
        rows.append(
            [
                str(eta),
                f"{mean_and_error(ages)[0]:.1f}",
                str(greatest),
                *(with_error([cell["success"] for cell in mine]) for mine in found),
                *(with_error([_on_the_way(cell) for cell in mine]) for mine in found),
            ]
        )
    headings = [
        "eta",
        "mean age trained",
        "greatest",
        *(f"{name}: held-out success" for name in CORRECTIONS),
        *(f"{name}: success on the way" for name in CORRECTIONS),
    ]
    return markdown(headings, rows) + "\nMean and standard error over seeds; on the way: training success, mean of all updates.\n"


def draw(path: Path, cells: Sequence[Record]) -> None:
    """Held-out success and success on the way over eta, and learning curves at the largest eta."""
    drawing, (left, middle, right) = figure(3)
    places = range(len(ETAS))
    for axes, value, label in (
        (left, lambda cell: cell["success"] or 0.0, "held-out success"),
        (middle, _on_the_way, "training success, on the way"),
    ):
        for variant in CORRECTIONS:
            found = [(at, [value(cell) for cell in _of(cells, variant, eta)]) for at, eta in zip(places, ETAS, strict=True)]
            points = [(at, *mean_and_error(values)) for at, values in found if values]
            where, means, errors = zip(*points, strict=True)
            axes.errorbar(where, means, yerr=errors, marker="o", capsize=3, label=variant)
        axes.set_xticks(list(places), [str(eta) for eta in ETAS])
        axes.set(xlabel="eta", ylabel=label)
        axes.grid(alpha=0.3)
        axes.legend()
    names = [ARMS[0].name, *(_name(variant, ETAS[-1]) for variant in CORRECTIONS)]
    curves(right, cells, names, x="rl_env_steps", y="success")
    drawing.savefig(path, dpi=110)


STUDY = Comparison(
    name="staleness_desktops",
    title="Stale rollouts on real desktops",
    question=__doc__ or "",
    arms=ARMS,
    num_seeds=2,
    settings={
        **WIDER,
        "learner.groups_per_batch": 2,
        "learner.staleness.mode": "admit",
        "learner.recipe.max_rl_env_steps": 2000,
        "learner.optimizer.lr": 3e-5,
    },
    table=table,
    draw=draw,
    limits=(
        "More seeds than two: differences of less than twice the errors shown are noise.",
        "Long training: an eta of 16 has had new weights three times when the steps are used up.",
        "Ages as a busy cluster makes them, where each token's differs; here whole stretches of updates share one.",
    ),
    quick_arms=(ARMS[-2].name, ARMS[-1].name),
)
run = partial(_arms.run, STUDY)
