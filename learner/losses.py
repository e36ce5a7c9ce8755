"""Policy-gradient terms and KL estimators. Pure tensor functions; signs as in the papers (to be maximised).

Shape legend: M action tokens of all steps, step after step.
"""

from __future__ import annotations

import torch


def clipped_surrogate(
    ratio_M: torch.Tensor, advantages_M: torch.Tensor, *, eps_low: float, eps_high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """S(r, A) = min(r A, clip(r, 1 - eps_low, 1 + eps_high) A) and where the clip decided, both [M] (PPO; DAPO's clip-higher
    when the two eps differ)."""
    plain = ratio_M * advantages_M
    bounded = ratio_M.clamp(1.0 - eps_low, 1.0 + eps_high) * advantages_M
    return torch.minimum(plain, bounded), (bounded < plain).detach()


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
    return logprobs_M - reference_logprobs_M


def kl_k2(reference_logprobs_M: torch.Tensor, logprobs_M: torch.Tensor) -> torch.Tensor:
    """[M] d^2 / 2: biased, low variance."""
    return (reference_logprobs_M - logprobs_M).square() / 2


def kl_k3(reference_logprobs_M: torch.Tensor, logprobs_M: torch.Tensor) -> torch.Tensor:
    """[M] exp(d) - d - 1: unbiased, low variance, never negative ("low_var"; ComputerRL's choice)."""
    difference = reference_logprobs_M - logprobs_M
    return torch.exp(difference) - difference - 1


KL_ESTIMATORS = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}
"""By the names of Schulman, "Approximating KL divergence"."""
