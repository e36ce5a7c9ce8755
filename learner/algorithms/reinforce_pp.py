"""REINFORCE++ with a group baseline: advantages are normalised over the whole batch (arXiv 2501.03262):
A = (r - mean of its group) / (std over the batch + delta).

A group that is nearly always solved is not amplified by its own small deviation. Ours: samples are steps, not whole answers, each
counted once (the paper, verl, OpenRLHF and NeMo-RL weight mean and deviation by tokens). There is no second centring, which in
verl gives groups without a signal an advantage. The objective is the decoupled, clipped one of `grpo`. The paper's KL, estimated
by k2, is off unless `kl_beta` is given.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from computerrl.learner.algorithms.grpo import GRPO, GRPOOptions
from computerrl.learner.algorithms.step_table import StepTable
from computerrl.learner.objective.advantages import batch_normalised, centred


class ReinforcePlusPlusOptions(GRPOOptions):
    """`learner.algorithm.options` of reinforce_pp."""

    kl_estimator: Literal["k1", "k2", "k3", "low_var"] = "k2"


class ReinforcePlusPlus(GRPO):
    """See the module's docstring."""

    options_model = ReinforcePlusPlusOptions

    def advantages(self, rewards_n: np.ndarray, table: StepTable) -> np.ndarray:
        """[n] (r - mean of its group) / (std over the batch + delta)."""
        centred_n = table.per_group(lambda rewards, _: centred(rewards), rewards_n)
        return batch_normalised(centred_n, delta=self.options.advantage_delta)
