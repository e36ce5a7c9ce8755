"""AdaGRPO: shorter successes earn more, and earlier successes are replayed (MobileRL, arXiv 2509.18119, section 2.3).

Shortest-path adjustment: a success of T steps earns 1 - alpha (T - T_min) / T, where T_min is the length of the shortest success
of its group (among fresh rollouts). Positive replay: a share gamma of the rollouts that a group trains on comes from a memory of
the ``memory_size`` shortest successes of each task: q = gamma * memory + (1 - gamma) * fresh. Failure curriculum:
`tasks.curriculum.name: cool_down`.

Ours: alpha, gamma and the size of the memory are not published. A task's memory is its family's. Stored successes, drawn at
random, join a group in which some rollout failed, before advantages are computed. The correction is the decoupled one of `grpo`;
for an old success it is bounded and applied token by token, so it does not account for states that have become rarer since.
"""

from __future__ import annotations

import math

import numpy as np
from pydantic import Field

from computerrl.common.messages import Trajectory
from computerrl.learner.algorithms.replaying import ReplayingGRPO, ReplayingOptions
from computerrl.learner.algorithms.step_table import StepTable


class AdaGRPOOptions(ReplayingOptions):
    """`learner.algorithm.options` of adagrpo."""

    alpha: float = Field(0.5, ge=0, le=1)
    """Weight of detours: the share of its reward that a success loses for them (ours)."""
    gamma: float = Field(0.2, ge=0, lt=1)
    """Share of stored successes in a group in which some rollout failed (ours)."""
    memory_size: int = Field(16, ge=1)
    """Number of the shortest successes kept of each task (kappa; ours)."""


class AdaGRPO(ReplayingGRPO):
    """See the module's docstring."""

    options_model = AdaGRPOOptions
    options: AdaGRPOOptions
    keep = "shortest"

    def replay(
        self, trajectories: tuple[Trajectory, ...], kept: tuple[Trajectory, ...], rng: np.random.Generator
    ) -> tuple[Trajectory, ...]:
        """A group's rollouts with stored successes besides, unless all succeeded."""
        if all(one.success for one in trajectories):
            return trajectories
        share = self.options.gamma / (1 - self.options.gamma)
        wanted = max(round(share * len(trajectories)), math.ceil(share))
        return (*trajectories, *(kept[i] for i in rng.permutation(len(kept))[:wanted]))

    def rewards(self, table: StepTable) -> np.ndarray:
        """[n] success, less what its detours cost."""
        length_n = table.of_trajectory([len(trajectory.steps) for trajectory in table.trajectories])
        # Successes of the memory are of other instances: no detour is seen in them.
        fresh_n = table.success_n & ~table.replayed_n
        succeeded_n = np.where(fresh_n, length_n, np.inf)
        shortest_n = table.per_group(lambda lengths, _: np.full(len(lengths), lengths.min()), succeeded_n)
        detour_n = np.where(fresh_n, (length_n - shortest_n) / np.maximum(length_n, 1.0), 0.0)
        rewards_n = super().rewards(table)
        # A penalty is no reward: it is not smaller after a detour.
        return rewards_n - np.maximum(rewards_n, 0.0) * self.options.alpha * detour_n
