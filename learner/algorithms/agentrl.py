"""AgentRL: advantages are normalised within each task family, so that no family dominates (arXiv 2510.04206, section 3.3).

A' = (A - mean) / (std + delta), with mean and deviation over all token advantages of the family in the batch; A is the group's
advantage. An episode that ended abnormally loses ``abnormal_penalty``. G 8, sampling temperature 0.8.

Ours: a family is the paper's task. Groups without a signal are left out of mean and deviation and do not train; else the shift
alone would train them. Abnormal ends are those by a limit. Cross-policy sampling is done by the actors
(`actor.older_policy_every`): each token carries the version that sampled it, and the decoupled correction reads nothing else.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from computerrl.learner.algorithms.grpo import GRPO, GRPOOptions
from computerrl.learner.algorithms.step_table import StepTable
from computerrl.learner.objective.advantages import normalised_by

_ABNORMAL = ("step_limit", "time_limit", "invalid_limit")


class AgentRLOptions(GRPOOptions):
    """`learner.algorithm.options` of agentrl."""

    temperature: float = Field(0.8, gt=0)
    abnormal_penalty: float = Field(0.2, ge=0)
    """Taken from the reward of all steps of an episode that ended at a limit."""


class AgentRL(GRPO):
    """See the module's docstring."""

    options_model = AgentRLOptions
    options: AgentRLOptions

    def rewards(self, table: StepTable) -> np.ndarray:
        """[n] success, less the penalty."""
        abnormal_n = table.of_trajectory([trajectory.end_reason in _ABNORMAL for trajectory in table.trajectories])
        return super().rewards(table) - self.options.abnormal_penalty * abnormal_n

    def advantages(self, rewards_n: np.ndarray, table: StepTable) -> np.ndarray:
        """[n] the group's advantages, normalised over the tokens of the family."""
        advantage_n = super().advantages(rewards_n, table)
        signal_n = np.isin(table.group_n, table.group_n[advantage_n != 0.0])
        for family in range(len(table.families)):
            members = signal_n & (table.family_n == family)
            advantage_n[members] = normalised_by(
                advantage_n[members], weights=table.num_tokens_n[members], delta=self.options.advantage_delta
            )
        return advantage_n
