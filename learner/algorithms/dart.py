"""DART: dynamic rollouts, stored successes for tasks that only fail, only uncertain steps train (arXiv 2509.23866, section 4).

    rollouts    G 8, fewer where success is frequent: `tasks.rollouts` (floor(9 / SR - 7)), with `tasks.curriculum`
    length cap  a task's longest success: `tasks.length_cap`
    all failed  one stored success of the task joins the group
    entropy     a group's steps with a mean token entropy below its 20th percentile do not train
    objective   clip 0.2 and 0.28, weights min(pi_p / pi_b, 1), KL 0.1 to the reference

The released code differs: GSPO with clip 0.1 and 0.28, no entropy filter, only groups with both outcomes
(`configs/algorithms/dart_release.yaml`), and a dual clip of 3 in its clipped objective (`dual_clip`).

Ours: a task's memory is its family's. The success is drawn at random from the newest ones. The entropy is that of the weights at
the start of the update, over the whole vocabulary. The gradient of the KL term is that of the KL (`kl_estimator`; the release
has `low_var`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from computerrl.common.messages import Trajectory
from computerrl.learner.algorithms.base import FirstLook, TrainBatch
from computerrl.learner.algorithms.masking import without
from computerrl.learner.algorithms.replaying import ReplayingGRPO, ReplayingOptions
from computerrl.learner.algorithms.step_table import StepTable


class DARTOptions(ReplayingOptions):
    """`learner.algorithm.options` of dart."""

    unused: ClassVar[frozenset[str]] = frozenset({"masks", "kl_cov"})

    eps_high: float = Field(0.28, gt=0)
    correction: Literal["decoupled", "tis", "icepop", "geometric", "none"] = "tis"
    correction_cap: float = Field(1.0, gt=0)
    kl_beta: float = Field(0.1, ge=0)
    entropy_percentile: float = Field(20.0, ge=0, lt=100)
    """Steps of a group below this percentile of mean token entropy do not train; 0: all do."""
    both_outcomes: bool = False
    """Only groups with a success and a failure have a place in the batch, for the KL term too (the released code)."""


class DART(ReplayingGRPO):
    """See the module's docstring."""

    options_model = DARTOptions
    options: DARTOptions

    @property
    def wants_look(self) -> bool:
        return self.options.entropy_percentile > 0

    def replay(
        self, trajectories: tuple[Trajectory, ...], kept: tuple[Trajectory, ...], rng: np.random.Generator
    ) -> tuple[Trajectory, ...]:
        """A group's rollouts, with a stored success besides when all failed."""
        if any(one.success for one in trajectories):
            return trajectories
        return (*trajectories, kept[rng.integers(len(kept))])

    def counted(self, advantage_n: np.ndarray, table: StepTable) -> np.ndarray:
        """[n] bool: all, or the steps of groups with both outcomes."""
        return table.both_outcomes_n if self.options.both_outcomes else super().counted(advantage_n, table)

    def refine(self, batch: TrainBatch, look: FirstLook) -> TrainBatch:
        """``batch`` without the surest steps of each group."""
        entropy_S = np.array([one.mean() for one in look.entropy])
        keep_S = np.ones(len(batch.samples), dtype=bool)
        for group in np.unique(batch.group_S):
            members = batch.group_S == group
            finite = entropy_S[members & np.isfinite(entropy_S)]
            if finite.size:
                # What is not finite stays: the guard of the optimizer step has to see it.
                keep_S[members] = ~(entropy_S[members] < np.percentile(finite, self.options.entropy_percentile))
        left = without(batch, look, keep_S, reason="too_sure")
        return replace(left, metrics={**left.metrics, "num_steps_too_sure": float((~keep_S).sum())})
