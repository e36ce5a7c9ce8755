"""VCPO: less variance from stale rollouts (arXiv 2602.17616), by shorter steps on batches of few effective samples, and by the
baseline that minimises the variance of the gradient.

A = (R - b) / (std + delta) with the outcome R of a trajectory and b = sum w^2 g^2 R / sum w^2 g^2 over the trajectories of its
group that train. w is the product of the weights pi_p / pi_b of a trajectory's tokens, g the norm of the gradient of its
log-probability (the off-policy optimal baseline). On trajectories of equal w and g that is GRPO's mean. The learning rate is
multiplied by sqrt(ESS / n), see `lr_scaling`. A mean over trajectories of their tokens' means, as in the release.

The gradient norms cost a forward and a backward pass over each trajectory of a group with both outcomes.

Ours: the decoupled correction of `grpo`, token by token (the release has one truncated weight for a trajectory).
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np

from computerrl.learner.algorithms.base import FirstLook, TrainBatch
from computerrl.learner.algorithms.m_grpo import MGRPO, MGRPOOptions
from computerrl.learner.algorithms.step_table import StepTable
from computerrl.learner.objective.advantages import off_policy_optimal_baseline
from computerrl.learner.objective.aggregation import Aggregation


class VCPOOptions(MGRPOOptions):
    """`learner.algorithm.options` of vcpo."""

    unused: ClassVar[frozenset[str]] = frozenset({"format_penalty", "negative_scale", "imitation_weight"})

    aggregation: Aggregation = "trajectory_mean"
    lr_scaling: Literal["none", "effective_samples"] = "effective_samples"


class VCPO(MGRPO):
    """See the module's docstring."""

    options_model = VCPOOptions
    wants_look = True
    wants_scores = True

    def rewards(self, table: StepTable) -> np.ndarray:
        """[n] the trajectory's outcome."""
        return table.earned_n

    def refine(self, batch: TrainBatch, look: FirstLook) -> TrainBatch:
        """``batch`` with the optimal baseline in place of the mean of each group."""
        assert look.score_norms_T is not None
        both = zip(look.logprobs, batch.samples, strict=True)
        log_weights_S = [(present - step.behavior_logprobs).sum(dtype=np.float64) for present, step in both]
        log_weights_T = np.bincount(batch.trajectory_S, weights=log_weights_S, minlength=len(batch.trajectory_ids))
        advantage_S = batch.advantage_S.copy()
        for group in np.unique(batch.group_S):
            members = np.flatnonzero(batch.group_S == group)
            owners, first, owner_of = np.unique(batch.trajectory_S[members], return_index=True, return_inverse=True)
            outcomes = batch.reward_S[members[first]].astype(np.float64)
            baseline = off_policy_optimal_baseline(outcomes, log_weights_T[owners], look.score_norms_T[owners])
            # Without a number the mean stays: the guard of the optimizer step has to see what is not finite.
            if np.isfinite(baseline):
                advantage_S[members] = ((outcomes - baseline) / (outcomes.std() + self.options.advantage_delta))[owner_of]
        return super().refine(replace(batch, advantage_S=advantage_S), look)
