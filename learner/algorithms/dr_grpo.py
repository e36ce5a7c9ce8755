"""Dr.GRPO: advantages are divided by no deviation and terms by no length (arXiv 2503.20783).

A = r - mean of its group, and every token has the same constant weight. Ours: samples are steps, not whole answers, and the
objective is the decoupled one of `grpo`.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from computerrl.learner.algorithms.grpo import GRPO, GRPOOptions
from computerrl.learner.algorithms.step_table import StepTable
from computerrl.learner.objective.advantages import centred
from computerrl.learner.objective.aggregation import Aggregation


class DrGRPOOptions(GRPOOptions):
    """`learner.algorithm.options` of dr_grpo."""

    aggregation: Aggregation = "constant"
    aggregation_constant: float | None = Field(1000.0, gt=0)
    """Every token counts 1 / this (ours: about the action tokens of a batch, so that the gradient is as long as a mean's)."""


class DrGRPO(GRPO):
    """See the module's docstring."""

    options_model = DrGRPOOptions

    def advantages(self, rewards_n: np.ndarray, table: StepTable) -> np.ndarray:
        """[n] reward minus the mean of its group."""
        return table.per_group(lambda rewards, _: centred(rewards), rewards_n)
