"""UI-S1: semi-online RL beside a demonstration (arXiv 2509.11543, section 3).

Training episodes are played beside the family's demonstrator. An action that equals the demonstrator's earns 1, and the episode
continues with the policy's own words in its history. Another action earns 0 and is patched: the demonstrator's is done in its
place, at most ``num_patches`` times. A step's return is sum_k gamma^k r over the steps up to and with the next mismatch, so that
steps before a patch get no credit for steps after it. A = A_episode + ``step_weight`` * A_step: the trajectory's sum of rewards
among its group's, and the step's return among those of the group's steps at the same place, both (x - mean) / (std + delta).
Groups in which the returns of first steps deviate by no more than ``min_std`` are dropped (the release's metric
`seq_future_reward`). KL 1e-4 (k3), clip 0.2.

Ours: the demonstration is played on a real desktop, by the scripted or recorded demonstrator. Actions match as a whole, name and
arguments. The correction is the decoupled one of `grpo`. A patched episode is no success, whatever the desktop shows. The release
(MobileAgent) differs from the paper: its A_episode normalises the reward of each step over all steps of the group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from computerrl.common.config import LearnerConfig
from computerrl.learner.algorithms.grpo import GRPO, GRPOOptions
from computerrl.learner.algorithms.step_table import StepTable
from computerrl.learner.objective.advantages import group_advantages


class UIS1Options(GRPOOptions):
    """`learner.algorithm.options` of ui_s1."""

    unused: ClassVar[frozenset[str]] = frozenset({"format_penalty"})

    eps_high: float = Field(0.2, gt=0)
    kl_beta: float = Field(1e-4, ge=0)
    num_patches: int = Field(2, ge=0)
    """Mismatches that are patched; the next one ends the episode."""
    gamma: float = Field(0.5, ge=0, le=1)
    """Discount of a step in a step's return."""
    step_weight: float = Field(1.0, ge=0)
    """Weight of the step's advantage beside the episode's."""
    min_std: float = Field(0.3, ge=0)
    """Groups in which the returns of the trajectories' first steps have no larger deviation do not train."""


class UIS1(GRPO):
    """See the module's docstring."""

    options_model = UIS1Options
    options: UIS1Options
    pays_outcomes = False

    def __init__(self, options: Mapping[str, Any], learner: LearnerConfig) -> None:
        super().__init__(options, learner)
        self.num_patches = self.options.num_patches

    def rewards(self, table: StepTable) -> np.ndarray:
        """[n] 1 where the action was the demonstrator's."""
        return np.array([bool(step.matched) for step in table.steps], dtype=np.float64)

    def advantages(self, rewards_n: np.ndarray, table: StepTable) -> np.ndarray:
        """[n] of the episode plus of the step."""
        delta = self.options.advantage_delta
        sums = np.bincount(table.trajectory_n, weights=rewards_n, minlength=len(table.trajectories))
        returns_n = step_returns(rewards_n, table.trajectory_n, gamma=self.options.gamma)
        advantage_n = np.zeros(len(table))
        for group in np.unique(table.group_n):
            members = np.flatnonzero(table.group_n == group)
            owners, first, owner_of = np.unique(table.trajectory_n[members], return_index=True, return_inverse=True)
            if returns_n[members[first]].std() <= self.options.min_std:
                continue
            advantage_n[members] = group_advantages(sums[owners], delta=delta)[owner_of]
            for position in np.unique(table.position_n[members]):
                same = members[table.position_n[members] == position]
                advantage_n[same] += self.options.step_weight * group_advantages(returns_n[same], delta=delta)
        return advantage_n

    def counted(self, advantage_n: np.ndarray, table: StepTable) -> np.ndarray:
        """[n] bool: steps of groups that are not dropped."""
        return np.isin(table.group_n, table.group_n[advantage_n != 0.0])


def step_returns(rewards_n: np.ndarray, trajectory_n: np.ndarray, *, gamma: float) -> np.ndarray:
    """[n] sum_k gamma^k r_{j+k} over the steps of the same trajectory up to and with the next mismatch (reward 0)."""
    returns_n = np.zeros(len(rewards_n))
    for j in reversed(range(len(rewards_n))):
        goes_on = j + 1 < len(rewards_n) and trajectory_n[j + 1] == trajectory_n[j] and rewards_n[j] > 0
        returns_n[j] = rewards_n[j] + (gamma * returns_n[j + 1] if goes_on else 0.0)
    return returns_n
