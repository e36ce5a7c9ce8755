"""Stale rollouts: success after training on walks of policies eta updates old, naive GRPO against the decoupled objective.

A small policy learns a small task (`_walks.py`) with the project's own GRPO, once as if every token were on policy (correction
`none`: r = pi_t / pi_b), once with AReaL's decoupled objective (proximal policy recomputed at the start of each update), once
with the proximal policy interpolated (log-linear). Everything else is the same: seeds, tasks, number of updates, minibatches,
optimizer.

Before update v, walks begin under the policy of version v - eta and go on under that of v - eta // 2 from a step that each walk
draws: weights arrive in the middle of an episode, as they do at actors. Nothing is masked (`learner.staleness.mode: admit`).

AReaL's table (arXiv 2505.24298, AIME24, naive / decoupled): eta 0 42.0; 1 41.8 / 42.1; 2 40.0 / 41.8; 4 23.3 / 42.2; 8 35.7 /
41.0; 16 35.8 / 38.7. What is to be seen here is its order, not its numbers.
"""

from __future__ import annotations

import copy
import multiprocessing
import statistics
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from computerrl.benchmarks.studies._statistics import Record, markdown, mean_and_error
from computerrl.benchmarks.studies._study import Page, Study
from computerrl.benchmarks.studies._walks import MAX_STEPS, WalkPolicy, play
from computerrl.common.config import AlgorithmConfig, LearnerConfig
from computerrl.common.config.learner import StalenessConfig
from computerrl.common.messages import TrajectoryGroup
from computerrl.learner.algorithms import Algorithm, PolicyAges, PolicyOutputs, TrainBatch, make_algorithm
from computerrl.learner.training.loss_batch import make_loss_batch

ETAS = (0, 1, 2, 4, 8, 16)
_EPS_HIGH = 0.28
"""Clip-higher, ours; AReaL's runs have 0.2 on both sides."""
VARIANTS = {
    "naive": {"correction": "none", "eps_high": _EPS_HIGH},
    "decoupled": {"correction": "decoupled", "proximal": "recomputed", "eps_high": _EPS_HIGH},
    "decoupled, log-linear": {"correction": "decoupled", "proximal": "loglinear", "eps_high": _EPS_HIGH},
}
LIMITS = (
    "A language model, or desktops: `staleness_desktops` has both.",
    "AReaL's numbers: the task is another one, its order is what can be compared.",
    "Ages that spread more than from eta // 2 to eta.",
)
_EVALUATED_WALKS = 512
_NUM_PROCESSES = 2


@dataclass(frozen=True, slots=True)
class Settings:
    """Of all runs of a study."""

    num_seeds: int = 5
    num_updates: int = 300
    num_groups: int = 16
    group_size: int = 8
    num_minibatches: int = 16
    """Many small steps an update, as in PPO: naive loses because its clip counts from the policy that sampled."""
    lr: float = 1.5e-3
    max_grad_norm: float = 1.0
    evaluate_every: int = 20
    etas: tuple[int, ...] = ETAS


QUICK = Settings(num_seeds=2, num_updates=30, etas=(0, 4, 16))


@dataclass(frozen=True, slots=True)
class Run:
    """One training run."""

    variant: str
    eta: int
    seed: int
    curve: tuple[tuple[int, float], ...]
    """(updates, share of walks that reach the goal) of the policy of that moment, sampled."""
    clip_fraction: float
    """Mean over updates."""
    mean_age: float

    @property
    def on_the_way(self) -> float:
        """Mean of all evaluations: how soon it learns. In the end all variants have learned."""
        return statistics.mean(success for _, success in self.curve)

    @property
    def final(self) -> float:
        """Mean of the last two evaluations."""
        return statistics.mean(success for _, success in self.curve[-2:])


def run(folder: Path, *, quick: bool, num_seeds: int | None) -> None:
    """Write the study into ``folder``."""
    settings = QUICK if quick else Settings()
    settings = replace(settings, num_seeds=num_seeds or settings.num_seeds)
    study = Study(folder, name="staleness", settings={k: v for k, v in asdict(settings).items() if k != "num_seeds"})
    jobs = [(v, eta, seed, settings) for seed in range(settings.num_seeds) for eta in settings.etas for v in VARIANTS]
    missing = [job for job in jobs if study.kept(_key(job)) is None]
    with multiprocessing.get_context("spawn").Pool(_NUM_PROCESSES) as pool, study.progress(of=len(jobs)):
        for job, (one, took_s) in zip(missing, pool.imap(_train, missing), strict=True):
            study.keep(_key(job), {**asdict(one), "final": one.final}, took_s=took_s, of=len(jobs), show=_in_words)
    cells = [cell for job in jobs if (cell := study.kept(_key(job)))]
    runs = _runs(cells)
    page = Page(
        "Stale rollouts on the delayed-data task",
        __doc__ or "",
        table(runs, settings),
        lambda path: plot(path, runs, settings),
        LIMITS,
    )
    study.write(page, cells, quick=quick)


def _runs(cells: Sequence[Record]) -> list[Run]:
    return [Run(**{name: cell[name] for name in Run.__slots__}) for cell in cells]


def table_of(data: Mapping[str, Any]) -> str:
    """The table of ``data``, the contents of a data.json of this study."""
    runs = _runs(data["cells"])
    given = {**data["settings"], "etas": tuple(data["settings"]["etas"]), "num_seeds": len({one.seed for one in runs})}
    return table(runs, Settings(**given))


def _key(job: tuple[str, int, int, Settings]) -> str:
    variant, eta, seed, _ = job
    return f"{variant}, eta {eta}, seed {seed}"


def _in_words(cell: Record) -> str:
    return f"success {cell['final']:.3f}"


def _train(job: tuple[str, int, int, Settings]) -> tuple[Run, float]:
    began = time.perf_counter()
    return train(*job), time.perf_counter() - began


# --- training ------------------------------------------------------------------------------------------------------------


def train(variant: str, eta: int, seed: int, settings: Settings) -> Run:
    """One run. The same seed gives the same tasks and the same first policy, whatever variant and eta."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    policy = WalkPolicy()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=settings.lr, weight_decay=0.0)
    algorithm = make_algorithm(
        LearnerConfig(
            algorithm=AlgorithmConfig(name="grpo", options=VARIANTS[variant]),
            num_minibatches=settings.num_minibatches,
            staleness=StalenessConfig(mode="admit"),
        )
    )
    tasks, order = np.random.default_rng(seed), np.random.default_rng(seed + 1000)
    sampling = torch.Generator().manual_seed(seed + 2000)
    past: deque[WalkPolicy] = deque(maxlen=eta + 1)
    curve, clipped, ages = [], [], []
    for version in range(settings.num_updates):
        past.append(copy.deepcopy(policy))
        if version % settings.evaluate_every == 0:
            curve.append((version, evaluate(policy, seed)))
        groups = _stale_groups(past, version, settings, eta=eta, tasks=tasks, order=order, sampling=sampling)
        batch = algorithm.prepare(groups, ages=PolicyAges(version))
        clipped.append(_update(policy, optimizer, algorithm, batch, settings, order))
        ages.append(batch.metrics["policy_age_mean"])
    curve.append((settings.num_updates, evaluate(policy, seed)))
    return Run(variant, eta, seed, tuple(curve), float(np.mean(clipped)), float(np.mean(ages)))


def evaluate(policy: WalkPolicy, seed: int) -> float:
    """Share of walks, the same tasks every time, that reach the goal."""
    plan = np.zeros((_EVALUATED_WALKS, MAX_STEPS), dtype=np.int64)
    tasks, sampling = np.random.default_rng(9000 + seed), torch.Generator().manual_seed(9000 + seed)
    groups = play([policy], plan, versions=[0], group_size=1, tasks=tasks, sampling=sampling)
    return statistics.mean(group.trajectories[0].success for group in groups)


def step_plan(num_walks: int, order: np.random.Generator) -> np.ndarray:
    """[W, MAX_STEPS]: 0 (the older policy) up to a step that each walk draws, 1 (the newer one) from there; the draw may be past
    the end, then a walk sees no new weights."""
    switch = order.integers(1, MAX_STEPS + 1, num_walks)
    return (np.arange(MAX_STEPS)[None, :] >= switch[:, None]).astype(np.int64)


def _stale_groups(
    past: Sequence[WalkPolicy],
    version: int,
    settings: Settings,
    *,
    eta: int,
    tasks: np.random.Generator,
    order: np.random.Generator,
    sampling: torch.Generator,
) -> list[TrajectoryGroup]:
    # The first policies have no predecessors: version 0 stands in for them.
    versions = [max(0, version - eta), max(0, version - eta // 2)]
    policies = [past[len(past) - 1 - (version - v)] for v in versions]
    plan = step_plan(settings.num_groups * settings.group_size, order)
    return play(policies, plan, versions=versions, group_size=settings.group_size, tasks=tasks, sampling=sampling)


def _update(
    policy: WalkPolicy,
    optimizer: torch.optim.Optimizer,
    algorithm: Algorithm,
    batch: TrainBatch,
    settings: Settings,
    order: np.random.Generator,
) -> float:
    """One optimizer step per minibatch of whole groups, as `learner.training.trainer.Trainer.update` does it; returns the share
    of clipped tokens."""
    groups = order.permutation(np.unique(batch.group_S))
    parts = [np.flatnonzero(np.isin(batch.group_S, part)) for part in np.array_split(groups, settings.num_minibatches)]
    parts = [part for part in parts if len(part)]
    inputs = [(_tensor(batch, part, "prompt_tokens"), _tensor(batch, part, "action_tokens")) for part in parts]
    with torch.no_grad():
        proximal = [policy.logprobs(*given)[0].flatten() for given in inputs]
    clipped = tokens = 0.0
    for part, given, proximal_M in zip(parts, inputs, proximal, strict=True):
        logprobs, entropy = policy.logprobs(*given)
        outputs = PolicyOutputs(logprobs.flatten(), entropy.flatten(), proximal_M, None)
        result = algorithm.loss(outputs, make_loss_batch(batch, part.tolist()))
        optimizer.zero_grad()
        (result.loss * len(parts)).backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), settings.max_grad_norm)
        optimizer.step()
        total, count = result.metrics["clip_fraction"]
        clipped, tokens = clipped + float(total), tokens + count
    return clipped / tokens if tokens else 0.0


def _tensor(batch: TrainBatch, members: np.ndarray, name: str) -> torch.Tensor:
    return torch.from_numpy(np.stack([getattr(batch.samples[i], name) for i in members]).astype(np.int64))


# --- results -------------------------------------------------------------------------------------------------------------


def table(runs: Sequence[Run], settings: Settings) -> str:
    """Markdown: a line per eta, a column per variant, mean and standard error over seeds."""
    rows = []
    for eta in settings.etas:
        cells = []
        for variant in VARIANTS:
            mine = _of(runs, variant, eta)
            mean, error = mean_and_error([one.on_the_way for one in mine])
            final = statistics.mean(one.final for one in mine)
            clipped = statistics.mean(one.clip_fraction for one in mine)
            cells.append(f"{mean:.3f} ± {error:.3f} ({final:.3f}, {clipped:.1%})")
        age = statistics.mean(one.mean_age for one in runs if one.eta == eta)
        rows.append([str(eta), f"{age:.1f}", *cells])
    return markdown(["eta", "mean age", *VARIANTS], rows) + (
        f"\nSuccess on the way, mean of {settings.num_updates} updates, with the standard error of {settings.num_seeds} seeds; "
        "in brackets the success in the end, and the share of tokens clipped.\n"
    )


def _of(runs: Sequence[Run], variant: str, eta: int) -> list[Run]:
    return [one for one in runs if one.variant == variant and one.eta == eta]


def plot(path: Path, runs: Sequence[Run], settings: Settings) -> None:
    """Success on the way over eta, and the learning curves at the largest eta; bars and bands are standard errors."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    places = range(len(settings.etas))
    for variant in VARIANTS:
        found = [mean_and_error([one.on_the_way for one in _of(runs, variant, eta)]) for eta in settings.etas]
        left.errorbar(places, [m for m, _ in found], yerr=[e for _, e in found], marker="o", capsize=3, label=variant)
        curves = [one.curve for one in _of(runs, variant, settings.etas[-1])]
        points = [mean_and_error([curve[i][1] for curve in curves]) for i in range(len(curves[0]))]
        updates = [at for at, _ in curves[0]]
        means, errors = np.array(points).T
        right.plot(updates, means, label=variant)
        right.fill_between(updates, means - errors, means + errors, alpha=0.2)
    left.set_xticks(list(places), [str(eta) for eta in settings.etas])
    left.set(xlabel="eta (policy versions that walks lag behind)", ylabel=f"success, mean of {settings.num_updates} updates")
    right.set(xlabel="updates", ylabel="success", title=f"eta {settings.etas[-1]}")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.set_ylim(0, 1)
    left.legend()
    figure.savefig(path, dpi=110)
