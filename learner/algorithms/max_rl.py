"""MaxRL: maximum-likelihood reinforcement learning (arXiv 2602.02710). A = (R - mean) / mean over the outcomes of a group.

The gradient of the expected outcome weighs a task by nothing, that of the log-likelihood of solving it by 1 / p. Dividing by the
mean outcome of the group, an estimate of p, gives the latter up to the order of the group's size: a success among many failures
counts most. GRPO divides by sqrt(p (1 - p)) instead, Dr.GRPO by nothing. A group that never succeeds has no signal.

Ours: a mean over tokens, and the decoupled, clipped objective of `grpo`; on policy that is the paper's policy gradient.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from computerrl.learner.algorithms.m_grpo import MGRPO, MGRPOOptions
from computerrl.learner.objective.advantages import relative_to_mean
from computerrl.learner.objective.aggregation import Aggregation


class MaxRLOptions(MGRPOOptions):
    """`learner.algorithm.options` of max_rl."""

    unused: ClassVar[frozenset[str]] = frozenset({"format_penalty", "advantage_delta"})

    aggregation: Aggregation = "token_mean"


class MaxRL(MGRPO):
    """See the module's docstring."""

    options_model = MaxRLOptions

    def compared(self, outcomes: np.ndarray) -> np.ndarray:
        """[trajectories of a group] outcome over the mean outcome, less 1."""
        return relative_to_mean(outcomes)
