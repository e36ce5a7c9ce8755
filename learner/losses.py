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
