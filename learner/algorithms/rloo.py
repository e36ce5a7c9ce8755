"""RLOO: the baseline of a step is the mean reward of the group's other trajectories (arXiv 2402.14740):
A_ij = r_ij - mean of r over the steps of all trajectories but i.

Not divided by a deviation. Ours: samples are steps, and the objective is the decoupled, clipped one of `grpo`; on policy that is
the paper's plain policy gradient.
"""

from __future__ import annotations

import numpy as np

from computerrl.learner.algorithms.grpo import GRPO
from computerrl.learner.algorithms.step_table import StepTable
from computerrl.learner.objective.advantages import leave_one_out


class RLOO(GRPO):
    """See the module's docstring."""

    def advantages(self, rewards_n: np.ndarray, table: StepTable) -> np.ndarray:
        """[n] reward minus the mean of the group's other trajectories."""
        return table.per_group(leave_one_out, rewards_n)
