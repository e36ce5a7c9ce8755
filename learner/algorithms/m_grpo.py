"""M-GRPO: GRPO for many turns (WebAgent-R1, arXiv 2505.16421, section 2.3): a mean over trajectories of the mean over their
actions of the mean over an action's tokens.

A long trajectory has the weight of a short one, a long action that of a short one. The advantage of a trajectory compares its
outcome with those of its group, and every step has its trajectory's advantage. The paper's dynamic compression of the context
(placeholders for old observations) needs nothing here: prompts hold the actions and results of earlier turns, never their
observations, and a step is trained on the prompt it was sampled with. Clip 0.2.

Ours: the decoupled correction of `grpo`; a badly formed step has no other reward. The release differs from the paper: sample
deviation, and the loss mean of TRL in place of the means over trajectories and actions.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from computerrl.learner.algorithms.grpo import GRPO, GRPOOptions
from computerrl.learner.algorithms.step_table import StepTable
from computerrl.learner.objective.advantages import group_advantages
from computerrl.learner.objective.aggregation import Aggregation


class MGRPOOptions(GRPOOptions):
    """`learner.algorithm.options` of m_grpo."""

    unused: ClassVar[frozenset[str]] = frozenset({"format_penalty"})

    eps_high: float = Field(0.2, gt=0)
    aggregation: Aggregation = "trajectory_step_mean"


class MGRPO(GRPO):
    """See the module's docstring."""

    options_model = MGRPOOptions

    def advantages(self, rewards_n: np.ndarray, table: StepTable) -> np.ndarray:
        """[n] of the trajectory's outcome among those of its group."""
        del rewards_n

        def of_group(outcomes: np.ndarray, owner: np.ndarray) -> np.ndarray:
            _, first, index = np.unique(owner, return_index=True, return_inverse=True)
            return self.compared(outcomes[first])[index]

        return table.per_group(of_group, table.earned_n)

    def compared(self, outcomes: np.ndarray) -> np.ndarray:
        """[trajectories of a group] the advantage of each, from what all of them earned."""
        return group_advantages(outcomes, delta=self.options.advantage_delta)
