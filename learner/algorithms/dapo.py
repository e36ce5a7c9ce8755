"""DAPO: clip-higher, a mean over tokens, and only groups that teach something (arXiv 2503.14476).

A higher upper clip (0.28 for 0.2) slows the loss of entropy. Groups that all solved or all failed have no place in the mean;
other groups are sampled in their place until the batch is full (dynamic sampling). No KL.

Ours: at most ``(broker.eta + 1)`` batches are sampled for one, since the staleness bound allows no more in flight. Samples are
steps, not whole answers. The correction is the decoupled one of `grpo`. There is no soft length penalty: actions are short.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from computerrl.common.messages import TrajectoryGroup
from computerrl.learner.algorithms.grpo import GRPO, GRPOOptions
from computerrl.learner.algorithms.step_table import StepTable
from computerrl.learner.objective.aggregation import Aggregation


class DAPOOptions(GRPOOptions):
    """`learner.algorithm.options` of dapo."""

    eps_high: float = Field(0.28, gt=0)
    aggregation: Aggregation = "token_mean"


class DAPO(GRPO):
    """See the module's docstring."""

    options_model = DAPOOptions

    def teaches(self, group: TrajectoryGroup) -> bool:
        """Neither all solved nor all failed (the paper's equation 11), of the rollouts that got to act."""
        return len({trajectory.success for trajectory in group.trajectories if trajectory.steps}) > 1

    def advantages(self, rewards_n: np.ndarray, table: StepTable) -> np.ndarray:
        """[n] those of GRPO in groups with both outcomes. In others a badly formed step would make some."""
        return super().advantages(rewards_n, table) * table.both_outcomes_n

    def counted(self, advantage_n: np.ndarray, table: StepTable) -> np.ndarray:
        """[n] bool: steps of groups with both outcomes, and of those that ``imitation_weight`` gives an advantage."""
        return table.both_outcomes_n | np.isin(table.group_n, table.group_n[advantage_n != 0.0])
