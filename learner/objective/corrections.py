"""Importance corrections for tokens sampled by an older or differently rounded policy. Pure tensor functions.

All take per-token log-probs and give per-token weights without gradient.
Shape legend: M tokens of whole steps. behavior_logprobs: of the distribution that sampled; proximal_logprobs: of the learner's
weights at the start of the update; current_logprobs: of the weights being trained.
"""

from __future__ import annotations

import torch

LOG_RATIO_LIMIT = 20.0
"""Bound of abs(log ratio) before it is exponentiated, as in verl, OpenRLHF, SkyRL and slime. At e^20 every cap, clip and mask has
long decided; float32 overflows at e^88, and infinity times a masked token's 0 would lose the batch."""


def bounded(log_ratio_M: torch.Tensor) -> torch.Tensor:
    """[M] ``log_ratio_M`` within `LOG_RATIO_LIMIT`; beyond, its gradient is 0."""
    return log_ratio_M.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def importance_weights(proximal_logprobs_M: torch.Tensor, behavior_logprobs_M: torch.Tensor) -> torch.Tensor:
    """[M] w = pi_p / pi_b, without gradient."""
    return torch.exp(bounded(proximal_logprobs_M.detach() - behavior_logprobs_M.detach()))


def truncated(weights_M: torch.Tensor, *, cap: float) -> torch.Tensor:
    """[M] min(w, C): the weight of the decoupled objective (AReaL, arXiv 2505.24298, equation 5), bounded as in truncated
    importance sampling: C 1 (DART, arXiv 2509.23866) to 2 (slime, verl). AReaL's code has the bound 5, and by default drops the
    tokens beyond it; here they keep the weight C (its action "clamp")."""
    return weights_M.clamp(max=cap)


def icepop(weights_M: torch.Tensor, *, low: float, high: float) -> torch.Tensor:
    """[M] w where low <= w <= high, else 0: tokens on which sampler and learner disagree do not train (IcePop, of Ring-1T,
    arXiv 2510.18855; 0.5 and 2 as in prime-rl and others)."""
    return torch.where((weights_M >= low) & (weights_M <= high), weights_M, torch.zeros_like(weights_M))


def geometric_mask(weights_M: torch.Tensor, step_M: torch.Tensor, *, low: float, high: float) -> torch.Tensor:
    """[M] w in steps whose geometric mean of w lies within ``low``..``high``, else 0: a step whose tokens drifted as a whole does
    not train at all (the geometric sequence mask of verl and others, 0.99 and 1.01; a step is the sequence: ours).

    ``step_M`` [M] int64: which step a token belongs to, 0, 0, 1, ...
    """
    mean_M = torch.exp(step_means(torch.log(weights_M), step_M))
    return torch.where((mean_M >= low) & (mean_M <= high), weights_M, torch.zeros_like(weights_M))


def step_sums(values_M: torch.Tensor, step_M: torch.Tensor) -> torch.Tensor:
    """[M] for each token the sum of ``values_M`` over its step."""
    # No more steps than tokens: room for so many is made without asking the device for their number.
    return torch.zeros_like(values_M).index_add(0, step_M, values_M).index_select(0, step_M)


def step_means(values_M: torch.Tensor, step_M: torch.Tensor) -> torch.Tensor:
    """[M] for each token the mean of ``values_M`` over its step."""
    return step_sums(values_M, step_M) / step_sums(torch.ones_like(values_M), step_M)


def loglinear_proximal(current_logprobs_M: torch.Tensor, behavior_logprobs_M: torch.Tensor, age_M: torch.Tensor) -> torch.Tensor:
    """[M] log pi_p without a forward pass: log pi_b + alpha (log pi_t - log pi_b), without gradient.

    alpha = (v_p - v_b) / (v_t - v_b) per token, where the update leads from version v_p to v_t = v_p + 1 and ``age_M`` is
    v_p - v_b: alpha = age / (age + 1). At age 0 the proximal policy is the one that sampled.
    """
    alpha = age_M / (age_M + 1.0)
    behavior = behavior_logprobs_M.detach()
    return behavior + alpha * (current_logprobs_M.detach() - behavior)
