"""GRPO with a grounding reward beside the outcome: actions are paid for where they point.

The papers train on screenshots whose element is annotated, with such a reward alone: GUI-R1 and UI-R1 (point in box), GUI-G1 (hit
and box), GUI-G² (Gaussian), SE-GUI (hit and distance); `learner.objective.grounding` has the formulas and the sources. Here the
element is the one at which the family's demonstrator would point, for as long as the episode follows its demonstration. It is
recorded in training episodes (`Step.target`), and no prompt shows it.

The advantage of a step is outcome_weight * A(outcome) + grounding_weight * A(grounding). The first is GRPO's over all steps of
the group. The second is the same formula over those steps of the group whose target is known, and 0 for the others. The sum of
two advantages is ours: a step without target, such as typing or `done()`, is then judged by the outcome alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field

from computerrl.common.config import LearnerConfig
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.messages import Step, TrajectoryGroup
from computerrl.common.plugins import load_named
from computerrl.learner.algorithms.base import TrainBatch
from computerrl.learner.algorithms.grpo import GRPO, GRPOOptions
from computerrl.learner.algorithms.step_table import StepTable
from computerrl.learner.objective.advantages import group_advantages
from computerrl.learner.objective.ages import PolicyAges
from computerrl.learner.objective.grounding import REWARDS, GroundingReward, step_reward


class GroundingOptions(GRPOOptions):
    """`learner.algorithm.options` of grounding."""

    reward: str = "point_in_box"
    """point_in_box, gaussian, distance, continuous or box_overlap (`learner.objective.grounding`), or module:function."""
    outcome_weight: float = Field(1.0, ge=0)
    """Weight of the advantage of the outcome; the papers have none."""
    grounding_weight: float = Field(1.0, ge=0)
    """Weight of the advantage of the grounding reward. 0: plain GRPO, and the demonstrators are not asked."""


class Grounding(GRPO):
    """See the module's docstring."""

    options_model = GroundingOptions
    options: GroundingOptions

    def __init__(self, options: Mapping[str, Any], learner: LearnerConfig) -> None:
        super().__init__(options, learner)
        self._reward = reward_named(self.options.reward, field="learner.algorithm.options.reward")
        self.wants_targets = self.options.grounding_weight > 0

    def advantages(self, rewards_n: np.ndarray, table: StepTable) -> np.ndarray:
        """[n] of the outcome plus of the grounding reward."""
        advantage_n = self.options.outcome_weight * super().advantages(rewards_n, table)
        earned_n = self._earned(table.steps)
        known_n = ~np.isnan(earned_n)
        for group in np.unique(table.group_n[known_n]):
            members = np.flatnonzero(known_n & (table.group_n == group))
            own = group_advantages(earned_n[members], delta=self.options.advantage_delta)
            advantage_n[members] += self.options.grounding_weight * own
        return advantage_n

    def prepare(self, groups: Sequence[TrajectoryGroup], *, ages: PolicyAges) -> TrainBatch:
        """As GRPO's, with the share of steps whose target is known and the mean reward of these."""
        batch = super().prepare(groups, ages=ages)
        earned_n = self._earned([step for group in groups for one in group.trajectories for step in one.steps])
        known_n = earned_n[~np.isnan(earned_n)]
        metrics = {
            "target_known": len(known_n) / max(1, len(earned_n)),
            "grounding_reward": float(known_n.mean()) if len(known_n) else 0.0,
        }
        return replace(batch, metrics={**batch.metrics, **metrics})

    def _earned(self, steps: Sequence[Step]) -> np.ndarray:
        """[n] grounding rewards, NaN where no target is known."""
        found = [step_reward(step, self._reward) for step in steps]
        return np.array([np.nan if earned is None else earned for earned in found], dtype=np.float64)


def reward_named(name: str, *, field: str) -> GroundingReward:
    """A name in `REWARDS`, or `module:function` of another package. Raises `ConfigError`, which names ``field``."""
    if name in REWARDS:
        return REWARDS[name]
    if ":" not in name:
        step = f"use one of {', '.join(REWARDS)}, or module:function"
        raise ConfigError([Problem(field, f"no grounding reward {name!r}", step)])
    found = load_named(name, field=field, what="function")
    if not callable(found):
        raise ConfigError([Problem(field, f"{name!r} is no function", "give a function (point, target) -> number")])
    return found
