"""M-GRPO: GRPO for many turns (WebAgent-R1, arXiv 2505.16421, section 2.3): a mean over trajectories of the mean over their
actions of the mean over an action's tokens.

A long trajectory counts no more than a short one, a long action no more than a short one. The paper's dynamic compression of the
context (old observations give way to a placeholder) is done where prompts are made, and a step's prompt is trained as it was
sampled. Clip 0.2; ours: the decoupled correction of `grpo`.
"""

from __future__ import annotations

from pydantic import Field

from learner.aggregation import Aggregation
from learner.algorithms.grpo import GRPO, GRPOOptions


class MGRPOOptions(GRPOOptions):
    """`learner.algorithm.options` of m_grpo."""

    eps_high: float = Field(0.2, gt=0)
    aggregation: Aggregation = "trajectory_step_mean"


class MGRPO(GRPO):
    """See the module's docstring."""

    options_model = MGRPOOptions
