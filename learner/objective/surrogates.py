"""Objectives of a batch: what each token contributes before its importance correction. Pure tensor functions, one table.

r = pi_t / pi_p of a token, s the same of a step. With correction none pi_p is pi_b, the policy that sampled. A term is to be
maximised. Every function returns the term, with the graph, and the tokens whose term a clip, a mask or a bound decided.

Shape legend: M action tokens of whole steps, step after step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from computerrl.learner.objective import losses
from computerrl.learner.objective.corrections import bounded, step_means, step_sums


@dataclass(frozen=True, slots=True)
class Limits:
    """Numbers of the objectives; each reads its own (`learner.algorithms.grpo_options` says which)."""

    eps_low: float
    eps_high: float
    dual_clip: float | None
    tv_limit: float
    gate_temperatures: tuple[float, float]
    positive_kernel: tuple[float, float]
    negative_kernel: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Tokens:
    """What the objectives are computed from."""

    logprobs_M: torch.Tensor
    """log pi_t, with the graph."""
    proximal_logprobs_M: torch.Tensor
    """log pi_p."""
    behavior_logprobs_M: torch.Tensor
    """log pi_b."""
    advantages_M: torch.Tensor
    step_M: torch.Tensor
    """int64; the step that a token belongs to, 0, 0, 1, ..."""

    @property
    def log_ratio_M(self) -> torch.Tensor:
        """log r."""
        return self.logprobs_M - self.proximal_logprobs_M


Surrogate = Callable[[Tokens, Limits], tuple[torch.Tensor, torch.Tensor]]


def plain(tokens: Tokens, limits: Limits) -> tuple[torch.Tensor, torch.Tensor]:
    """r A: importance sampling without a clip, as M2PO (arXiv 2510.01161) and KL-Cov (arXiv 2505.22617) have it."""
    del limits
    return _ratio(tokens.log_ratio_M) * tokens.advantages_M, _none(tokens)


def clipped(tokens: Tokens, limits: Limits) -> tuple[torch.Tensor, torch.Tensor]:
    """S(r, A), see `losses.clipped_surrogate`."""
    return _clip(_ratio(tokens.log_ratio_M), tokens, limits)


def gspo(tokens: Tokens, limits: Limits) -> tuple[torch.Tensor, torch.Tensor]:
    """S(s, A) with s = exp(mean log r). The value is that of the step, the gradient each token's own: sg(s) pi_t / sg(pi_t)
    (GSPO-token, arXiv 2507.18071, equations 13 and 14)."""
    means_M = step_means(tokens.log_ratio_M.detach(), tokens.step_M)
    return _clip(_ratio(tokens.logprobs_M - tokens.logprobs_M.detach() + means_M), tokens, limits)


def gmpo(tokens: Tokens, limits: Limits) -> tuple[torch.Tensor, torch.Tensor]:
    """A times the geometric mean of the ratios of a step, each clipped on its own (GMPO, arXiv 2507.20673). The clip
    is one of log r, and has an effect where it makes the term smaller.

    As in `gspo`, the value is that of the step and the gradient each token's own, so that corrections may differ by token; in a
    step whose tokens weigh the same, both are the paper's.
    """
    log_ratio_M, sign_M = bounded(tokens.log_ratio_M), torch.sign(tokens.advantages_M)
    narrow_M = log_ratio_M.clamp(-limits.eps_low, limits.eps_high)
    decided_M = sign_M * narrow_M < sign_M * log_ratio_M
    kept_M = torch.where(decided_M, narrow_M, log_ratio_M)
    means_M = step_means(kept_M.detach(), tokens.step_M)
    return torch.exp(kept_M - kept_M.detach() + means_M) * tokens.advantages_M, decided_M.detach()


def cispo(tokens: Tokens, limits: Limits) -> tuple[torch.Tensor, torch.Tensor]:
    """sg(min(r, 1 + eps_high)) A log pi_t, see `losses.cispo`."""
    return losses.cispo(_ratio(tokens.log_ratio_M), tokens.advantages_M, tokens.logprobs_M, eps_high=limits.eps_high)


def dppo_tv(tokens: Tokens, limits: Limits) -> tuple[torch.Tensor, torch.Tensor]:
    """r A within a distance of pi_b, see `losses.within_total_variation`."""
    within_M = losses.within_total_variation(
        tokens.logprobs_M, tokens.behavior_logprobs_M, tokens.advantages_M, limit=limits.tv_limit
    )
    return torch.where(within_M, _ratio(tokens.log_ratio_M) * tokens.advantages_M, 0.0), ~within_M


def sapo(tokens: Tokens, limits: Limits) -> tuple[torch.Tensor, torch.Tensor]:
    """(4 / tau) sigmoid(tau (r - 1)) A, tau by the sign of A (SAPO, arXiv 2511.20347): a soft gate in place of
    a clip. At r = 1 its gradient is that of r A; it fades with the distance from there, faster where A < 0."""
    tau_M = _either(tokens.advantages_M > 0, *limits.gate_temperatures, like=tokens.advantages_M)
    gate_M = torch.sigmoid(tau_M * (_ratio(tokens.log_ratio_M) - 1)) * 4 / tau_M
    return gate_M * tokens.advantages_M, _none(tokens)


def vespo(tokens: Tokens, limits: Limits) -> tuple[torch.Tensor, torch.Tensor]:
    """sg(phi(W)) A log pi_t with W the product of the ratios of a step and phi(W) = W^k e^(lambda (1 - W)), (k, lambda) by the
    sign of A (VESPO, arXiv 2602.10693): a kernel that is 1 at W = 1 and fades on both sides, without a clip of single tokens."""
    log_weight_M = bounded(step_sums(bounded(tokens.log_ratio_M.detach()), tokens.step_M))
    (k_plus, rate_plus), (k_minus, rate_minus) = limits.positive_kernel, limits.negative_kernel
    is_good_M = tokens.advantages_M >= 0
    k_M = _either(is_good_M, k_plus, k_minus, like=log_weight_M)
    rate_M = _either(is_good_M, rate_plus, rate_minus, like=log_weight_M)
    kernel_M = torch.exp(k_M * log_weight_M + rate_M * (1 - torch.exp(log_weight_M)))
    return kernel_M * tokens.advantages_M * tokens.logprobs_M, _none(tokens)


def topr(tokens: Tokens, limits: Limits) -> tuple[torch.Tensor, torch.Tensor]:
    """sg(a) A log pi_t with a = 1 where A > 0, else min(W, 1), W the product of the ratios of a step (TOPR, tapered off-policy
    REINFORCE, arXiv 2503.14286): successes are learned as they are, failures the less the rarer they became."""
    del limits
    weight_M = torch.exp(bounded(step_sums(bounded(tokens.log_ratio_M.detach()), tokens.step_M)))
    taper_M = torch.where(tokens.advantages_M > 0, 1.0, weight_M.clamp(max=1.0))
    return taper_M * tokens.advantages_M * tokens.logprobs_M, (tokens.advantages_M < 0) & (weight_M > 1.0)


SURROGATES: dict[str, Surrogate] = {
    "clipped": clipped,
    "plain": plain,
    "gspo": gspo,
    "gmpo": gmpo,
    "cispo": cispo,
    "dppo_tv": dppo_tv,
    "sapo": sapo,
    "vespo": vespo,
    "topr": topr,
}
"""Value of the option `objective` -> the function."""


def _ratio(log_ratio_M: torch.Tensor) -> torch.Tensor:
    return torch.exp(bounded(log_ratio_M))


def _either(which_M: torch.Tensor, one: float, other: float, *, like: torch.Tensor) -> torch.Tensor:
    """[M] ``one`` where ``which_M`` is true, else ``other``, in the dtype of ``like``."""
    return torch.where(which_M, torch.full_like(like, one), torch.full_like(like, other))


def _clip(ratio_M: torch.Tensor, tokens: Tokens, limits: Limits) -> tuple[torch.Tensor, torch.Tensor]:
    return losses.clipped_surrogate(
        ratio_M, tokens.advantages_M, eps_low=limits.eps_low, eps_high=limits.eps_high, dual_clip=limits.dual_clip
    )


def _none(tokens: Tokens) -> torch.Tensor:
    return torch.zeros_like(tokens.advantages_M, dtype=torch.bool)
