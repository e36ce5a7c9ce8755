"""DAPO: clip-higher, a mean over tokens, and only groups that teach something (arXiv 2503.14476).

Clipping less above (0.28 for 0.2) slows the loss of entropy. Groups whose rollouts all scored the same have no place in the mean;
the paper samples others in their place until the batch is full, here the batch is smaller then (ours). No KL. Ours besides: steps
in place of whole answers, and the decoupled correction of `grpo`. Answers are not cut softly by length: actions are short.
"""

from __future__ import annotations

import numpy as np

from learner.aggregation import Aggregation
from learner.algorithms.grpo import GRPO, GRPOOptions
from learner.step_table import StepTable


class DAPOOptions(GRPOOptions):
    """`learner.algorithm.options` of dapo."""

    aggregation: Aggregation = "token_mean"


class DAPO(GRPO):
    """See the module's docstring."""

    options_model = DAPOOptions

    def counted(self, advantage_n: np.ndarray, table: StepTable) -> np.ndarray:
        """[n] bool: steps of groups with a signal."""
        return np.isin(table.group_n, table.group_n[advantage_n != 0.0])
