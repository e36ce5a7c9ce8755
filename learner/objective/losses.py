"""Policy-gradient terms and KL estimators. Pure tensor functions; signs as in the papers (to be maximised).

Shape legend: M action tokens of all steps, step after step.
"""

from __future__ import annotations

import torch

from computerrl.learner.objective.corrections import bounded

KL_LIMIT = 10.0
"""Largest k3 of one token, as in verl and AReaL: exp(d) of a token that the reference likes far better would outweigh all
others."""
KL_WEIGHT_LIMIT = 5.0
"""Largest weight pi_t / pi_b of a token in the gradient of the KL term (ours)."""


def clipped_surrogate(
    ratio_M: torch.Tensor, advantages_M: torch.Tensor, *, eps_low: float, eps_high: float, dual_clip: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """S(r, A) = min(r A, clip(r, 1 - eps_low, 1 + eps_high) A) and where a clip decided, both [M] (PPO; DAPO's clip-higher
    when the two eps differ). With ``dual_clip`` c, max(S, c A) where A < 0 (dual-clip PPO, arXiv 1912.09729, equation 5)."""
    plain = ratio_M * advantages_M
    clipped = ratio_M.clamp(1.0 - eps_low, 1.0 + eps_high) * advantages_M
    surrogate, decided = torch.minimum(plain, clipped), clipped < plain
    if dual_clip is not None:
        floor = dual_clip * advantages_M
        lifted = (advantages_M < 0) & (surrogate < floor)
        surrogate, decided = torch.where(lifted, floor, surrogate), decided | lifted
    return surrogate, decided.detach()


def cispo(
    ratio_M: torch.Tensor, advantages_M: torch.Tensor, logprobs_M: torch.Tensor, *, eps_high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """sg(clip(r, 0, 1 + eps_high)) A log pi_t and where the clip decided, both [M] (CISPO, arXiv 2506.13585).

    Tokens beyond the clip go on training, with a bounded weight; a plain clip would drop them.
    """
    weight = ratio_M.detach().clamp(max=1.0 + eps_high)
    return weight * advantages_M * logprobs_M, (ratio_M.detach() > 1.0 + eps_high)


def within_total_variation(
    logprobs_M: torch.Tensor, behavior_logprobs_M: torch.Tensor, advantages_M: torch.Tensor, *, limit: float
) -> torch.Tensor:
    """[M] bool: False where pi_t is already more than ``limit`` away from pi_b in the direction that A pushes (the binary
    total-variation mask of DPPO, divergence proximal policy optimization; 0.2 is prime-rl's): what would go on moving away does
    not train, what would come back does."""
    moved = torch.exp(logprobs_M.detach()) - torch.exp(behavior_logprobs_M)
    return ~(moved * torch.sign(advantages_M) > limit)


def kl_k1(reference_logprobs_M: torch.Tensor, logprobs_M: torch.Tensor) -> torch.Tensor:
    """[M] -d with d = log pi_ref - log pi_t: unbiased, high variance, may be negative."""
    return -bounded(reference_logprobs_M - logprobs_M)


def kl_k2(reference_logprobs_M: torch.Tensor, logprobs_M: torch.Tensor) -> torch.Tensor:
    """[M] d^2 / 2: biased, low variance."""
    return bounded(reference_logprobs_M - logprobs_M).square() / 2


def kl_k3(reference_logprobs_M: torch.Tensor, logprobs_M: torch.Tensor) -> torch.Tensor:
    """[M] exp(d) - d - 1, at most `KL_LIMIT`: unbiased up to that, low variance, never negative. Its own gradient is 0 beyond
    the limit (d above 2.6 or below -11)."""
    difference = bounded(reference_logprobs_M - logprobs_M)
    return (torch.exp(difference) - difference - 1).clamp(max=KL_LIMIT)


KL_ESTIMATORS = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3, "low_var": kl_k3}
"""By the names of Schulman, "Approximating KL divergence"; `low_var` is verl's name of k3."""


def kl_term(
    reference_logprobs_M: torch.Tensor, logprobs_M: torch.Tensor, behavior_logprobs_M: torch.Tensor, *, estimator: str
) -> torch.Tensor:
    """[M] KL(pi_t || pi_ref) by ``estimator``, as a term to be minimised over tokens that pi_b sampled.

    An estimate of a KL is no estimate of its gradient: the expected gradient of k1 is 0, that of k3 is another one. So the value
    alone is the estimator's. The gradient is w (log pi_t - log pi_ref) grad log pi_t with w = min(pi_t / pi_b,
    `KL_WEIGHT_LIMIT`): that of the KL in expectation, of pi_t / pi_b times k3 too, and of k2 on policy. `low_var` is the
    exception: k3 with its own gradient, as in code that puts k3 into the loss.
    """
    value_M = KL_ESTIMATORS[estimator](reference_logprobs_M, logprobs_M)
    if estimator == "low_var":
        return value_M
    current_M = logprobs_M.detach()
    weight_M = torch.exp(bounded(current_M - behavior_logprobs_M)).clamp(max=KL_WEIGHT_LIMIT)
    slope_M = -weight_M * bounded(reference_logprobs_M - current_M)
    return value_M.detach() + slope_M * (logprobs_M - current_M)
