"""V-trace: off-policy actor-critic with truncated importance weights along the trajectory (IMPALA, arXiv 1802.01561, section 4).

rho = min(rho_bar, w) and c = lam min(c_bar, w) with w = pi_p / pi_b of each token: value targets and advantages are those of the
policy at the start of the update, whichever policy sampled. The policy's gradient is rho (r + gamma v' - V) grad log pi.

Ours: tokens of a trajectory are one sequence (see `ppo`). Within an update of several minibatches the ratio to its start is
clipped as in PPO. Advantages are not normalised: a token with rho near 0 would get the average advantage of the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from computerrl.learner.algorithms.base import FirstLook, LossBatch, PolicyOutputs, TrainBatch
from computerrl.learner.algorithms.ppo import PPO, PPOOptions, token_rewards
from computerrl.learner.objective import advantages

if TYPE_CHECKING:
    import torch


class VTraceOptions(PPOOptions):
    """`learner.algorithm.options` of vtrace."""

    unused: ClassVar[frozenset[str]] = frozenset(
        {"negative_scale", "length_alpha", "gae_lambda", "critic_lambda", "correction_cap"}
    )

    correction: Literal["decoupled"] = "decoupled"
    """No other: the weights are in the advantages."""
    rho_bar: float = Field(1.0, gt=0)
    """Cap of the weight of a token's own error."""
    c_bar: float = Field(1.0, gt=0)
    """Cap of the weight with which later errors are traced back."""
    trace_lambda: float = Field(1.0, ge=0, le=1)
    """lambda of c."""


class VTrace(PPO):
    """See the module's docstring."""

    options_model = VTraceOptions
    options: VTraceOptions
    normalises = False

    def sequence_targets(self, batch: TrainBatch, look: FirstLook, members: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """(advantages, value targets) of one trajectory's tokens."""
        from computerrl.learner.objective.corrections import LOG_RATIO_LIMIT

        assert look.values is not None
        behavior_t = np.concatenate([batch.samples[i].behavior_logprobs for i in members]).astype(np.float64)
        start_t = np.concatenate([look.logprobs[i] for i in members]).astype(np.float64)
        options = self.options
        return advantages.vtrace(
            token_rewards(batch, members),
            np.concatenate([look.values[i] for i in members]).astype(np.float64),
            np.exp(np.minimum(start_t - behavior_t, LOG_RATIO_LIMIT)),
            gamma=options.gamma,
            lam=options.trace_lambda,
            rho_bar=options.rho_bar,
            c_bar=options.c_bar,
        )

    def _correction(self, outputs: PolicyOutputs, batch: LossBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """(log pi_p, 1): the weights are in the advantages already."""
        import torch

        proximal_M, _ = super()._correction(outputs, batch)
        return proximal_M, torch.ones_like(proximal_M)
