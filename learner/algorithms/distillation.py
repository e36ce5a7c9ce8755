"""On-policy distillation: the policy samples, and a frozen teacher judges each of its tokens.

The update minimises the reverse KL per token in the states that the policy itself visits: KL(pi || pi_teacher) given all tokens
before. With a_t sampled by the policy, log pi(a_t) - log pi_teacher(a_t) is an unbiased estimate of it, and its gradient is that
of a policy gradient with the advantage A_t = log pi_teacher(a_t) - log pi_p(a_t). No token counts for those before it (discount
0), there is no baseline of a group, and the outcome of an episode plays no part.

Sources:
  GKD (Agarwal et al. 2024, "On-Policy Distillation of Language Models", arXiv 2306.13649) with lambda 1 and the reverse KL, and
    no gradient through sampling. It sums over the vocabulary; here one sampled token stands for the sum.
  MiniLLM (Gu et al. 2024, arXiv 2306.08543, section 2.2): the single-step part of its gradient. Discount 0 leaves out the
    long-term part.
  "On-Policy Distillation" (Thinking Machines Lab 2025): the advantage of each sampled token, discount 0. There log pi_p is the
    sampler's, which is ``correction: none`` here.

Ours: tokens of older policies are corrected as in `grpo`, and r is clipped. log pi_p is that of the weights at the start of the
update, so a policy that equals its teacher has no gradient, however its sampler rounded. A_t is kept within -20 and 20.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field

from computerrl.common.config import LearnerConfig
from computerrl.learner.algorithms.base import LossBatch, LossResult, PolicyOutputs
from computerrl.learner.algorithms.grpo import GRPO, GRPOOptions
from computerrl.learner.algorithms.step_table import StepTable
from computerrl.learner.objective.aggregation import Aggregation

if TYPE_CHECKING:
    import torch


class DistillationOptions(GRPOOptions):
    """`learner.algorithm.options` of distillation."""

    unused: ClassVar[frozenset[str]] = frozenset(
        {"kl_beta", "kl_estimator", "advantage_delta", "negative_scale", "imitation_weight", "format_penalty", "masks", "kl_cov"}
    )

    teacher: str = Field(min_length=1)
    """Teacher, as `model.name`: the folder of a language model with the policy's tokenizer (`common.models.teacher`)."""
    aggregation: Aggregation = "token_mean"


class Distillation(GRPO):
    """See the module's docstring."""

    options_model = DistillationOptions
    options: DistillationOptions
    pays_outcomes = False

    def __init__(self, options: Mapping[str, Any], learner: LearnerConfig) -> None:
        super().__init__(options, learner)
        self.needs = self.needs | {"reference_logprobs"}

    def advantages(self, rewards_n: np.ndarray, table: StepTable) -> np.ndarray:
        """[n] 1: every step teaches. `loss` multiplies it by the advantages of the tokens, which need the teacher's pass."""
        return np.ones(len(rewards_n))

    def loss(self, outputs: PolicyOutputs, batch: LossBatch) -> LossResult:
        """As `GRPO.loss`, with the advantages A_t. The metric `reference_kl` is the KL to the teacher."""
        return super().loss(outputs, replace(batch, advantage_M=batch.advantage_M * self._token_advantages(outputs, batch)))

    def _token_advantages(self, outputs: PolicyOutputs, batch: LossBatch) -> torch.Tensor:
        """[M] log pi_teacher - log pi_p, without gradient."""
        from computerrl.learner.objective.corrections import bounded

        assert outputs.reference_logprobs_M is not None
        proximal_M, _ = self._correction(outputs, batch)
        return bounded(outputs.reference_logprobs_M - proximal_M).detach()
