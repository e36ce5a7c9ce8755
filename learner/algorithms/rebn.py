"""REINFORCE with return batch normalisation (GEM, arXiv 2510.01051, section 3.2).

A = (G - mean) / (std + delta) over all steps of the batch, where G is a step's discounted return. Groups have no role, so
``learner.group_size`` may be 2. Ours: a trajectory earns its reward at its last step, so G = gamma ** (steps that follow) *
success, and 0 for a badly formed step; the objective is the decoupled, clipped one of `grpo`.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from computerrl.learner.algorithms.grpo import GRPO, GRPOOptions
from computerrl.learner.algorithms.step_table import StepTable
from computerrl.learner.objective.advantages import discounted_returns, normalised_by, step_rewards


class ReBNOptions(GRPOOptions):
    """`learner.algorithm.options` of rebn."""

    gamma: float = Field(0.9, gt=0, le=1)
    """Discount of a step (0.9 in the paper's multi-turn runs)."""


class ReBN(GRPO):
    """See the module's docstring."""

    options_model = ReBNOptions
    options: ReBNOptions

    def rewards(self, table: StepTable) -> np.ndarray:
        """[n] the return of each step."""
        earned_n = step_rewards(earned=table.earned_n, format_ok=table.format_n)
        penalty_n = self.options.format_penalty * ~table.format_n
        return discounted_returns(earned_n, table.steps_left_n, gamma=self.options.gamma) - penalty_n

    def advantages(self, rewards_n: np.ndarray, table: StepTable) -> np.ndarray:
        """[n] returns, normalised over the batch."""
        return normalised_by(rewards_n, weights=np.ones(len(table)), delta=self.options.advantage_delta)
