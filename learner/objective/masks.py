"""Masks: tokens of a batch that do not train. Pure numpy, one table.

A mask is decided once per update, from the weights at its start (pi_p), over all tokens of the batch; what is masked keeps its
place in the denominators. So the mask is the same however a batch is cut into passes and minibatches. Where a source looks at the
weights being trained (pi_t), that is a difference, marked ours: within an update the objective bounds how far those move.

Shape legend: m tokens of the batch, step after step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

COVARIANCE_RANGE = (1.0, 5.0)
"""Covariances among which Clip-Cov draws (omega_low and omega_high in verl and in the paper's release)."""


@dataclass(frozen=True, slots=True)
class BatchTokens:
    """What masks are decided from."""

    logprobs_m: np.ndarray
    """log pi_p."""
    behavior_logprobs_m: np.ndarray
    """log pi_b, of the policy that sampled."""
    entropy_m: np.ndarray
    """Entropy of pi_p where the token was sampled."""
    advantages_m: np.ndarray
    step_m: np.ndarray
    """int; the step that a token belongs to, 0, 0, 1, ..."""

    @property
    def log_weights_m(self) -> np.ndarray:
        """log w = log pi_p - log pi_b."""
        return self.logprobs_m - self.behavior_logprobs_m

    def per_step(self, values_m: np.ndarray) -> np.ndarray:
        """[m] the sum of ``values_m`` over the token's step."""
        return np.bincount(self.step_m, weights=values_m)[self.step_m]

    @property
    def covariance_m(self) -> np.ndarray:
        """[m] (log pi_p - mean) (A - mean), means over the batch (arXiv 2505.22617): how much a token's update lowers entropy."""
        return (self.logprobs_m - self.logprobs_m.mean()) * (self.advantages_m - self.advantages_m.mean())


Mask = Callable[[BatchTokens, float, np.random.Generator], np.ndarray]
"""(tokens, the mask's number, draws) -> [m] bool, True for tokens that train."""


def m2po(tokens: BatchTokens, limit: float, rng: np.random.Generator) -> np.ndarray:
    """Without the tokens of largest (log w)^2, until the mean over the others is at most ``limit`` (M2PO, arXiv 2510.01161,
    algorithm 1; 0.04). Only tokens that a clip could concern are counted: w > 1 where A > 0, w < 1 where A < 0. Ours: pi_p."""
    del rng
    log_weights_m = tokens.log_weights_m
    counted = np.flatnonzero(log_weights_m * tokens.advantages_m > 0)
    squares = np.sort(log_weights_m[counted] ** 2)
    means = np.cumsum(squares) / np.arange(1, len(squares) + 1)
    # Means of ascending numbers ascend: the first that is too large ends what is kept.
    num_kept = int(np.searchsorted(means > limit, True))
    order = counted[np.argsort(log_weights_m[counted] ** 2, kind="stable")]
    keep_m = np.ones(len(log_weights_m), dtype=bool)
    keep_m[order[num_kept:]] = False
    return keep_m


def opsm(tokens: BatchTokens, limit: float, rng: np.random.Generator) -> np.ndarray:
    """Without the tokens with A < 0 of steps whose mean of log pi_b - log pi_p is above ``limit`` (off-policy sequence masking,
    DeepSeek-V3.2, arXiv 2512.02556): what failed, and has become rare already, teaches noise. Ours: pi_p."""
    del rng
    gap_m = -tokens.per_step(tokens.log_weights_m) / tokens.per_step(np.ones(len(tokens.step_m)))
    return ~((tokens.advantages_m < 0) & (gap_m > limit))


def sequence(tokens: BatchTokens, limit: float, rng: np.random.Generator) -> np.ndarray:
    """Steps whose product of w lies within 1 / ``limit`` and ``limit`` (the sequence mask of verl's rejection sampling, 2 there;
    a step is the sequence: ours)."""
    del rng
    return np.abs(tokens.per_step(tokens.log_weights_m)) <= np.log(limit)


def veto(tokens: BatchTokens, limit: float, rng: np.random.Generator) -> np.ndarray:
    """Steps without a token whose w is below ``limit`` (verl's veto, 1e-4): one token that the learner would hardly ever sample
    discredits its step."""
    del rng
    return tokens.per_step(tokens.log_weights_m < np.log(limit)) == 0


def top_entropy(tokens: BatchTokens, share: float, rng: np.random.Generator) -> np.ndarray:
    """The ``share`` of tokens of highest entropy (Wang et al., arXiv 2506.01939; 0.2): where the policy decides."""
    del rng
    return tokens.entropy_m >= np.quantile(tokens.entropy_m, 1 - share)


def clip_cov(tokens: BatchTokens, share: float, rng: np.random.Generator) -> np.ndarray:
    """Without a ``share`` of tokens, drawn among those of covariance within `COVARIANCE_RANGE` (Clip-Cov, Cui et al., arXiv
    2505.22617; 2e-4): what lowers entropy fastest is left out now and then. At least one where there are any."""
    low, high = COVARIANCE_RANGE
    candidates = np.flatnonzero((tokens.covariance_m > low) & (tokens.covariance_m < high))
    number = min(len(candidates), max(1, int(share * len(tokens.step_m))))
    keep_m = np.ones(len(tokens.step_m), dtype=bool)
    keep_m[rng.permutation(candidates)[:number]] = False
    return keep_m


MASKS: dict[str, Mask] = {
    "m2po": m2po,
    "opsm": opsm,
    "sequence": sequence,
    "veto": veto,
    "top_entropy": top_entropy,
    "clip_cov": clip_cov,
}
"""Name in the option `masks` -> the function."""
RANGES: dict[str, tuple[float, float]] = {
    "m2po": (0.0, np.inf),
    "opsm": (0.0, np.inf),
    "sequence": (1.0, np.inf),
    "veto": (0.0, 1.0),
    "top_entropy": (0.0, 1.0),
    "clip_cov": (0.0, 1.0),
}
"""Name -> bounds of its number, both excluded."""


def covariant(tokens: BatchTokens, share: float) -> np.ndarray:
    """[m] bool: the ``share`` of tokens of largest covariance, at least one (KL-Cov, arXiv 2505.22617)."""
    number = min(len(tokens.step_m), max(1, int(share * len(tokens.step_m))))
    chosen_m = np.zeros(len(tokens.step_m), dtype=bool)
    chosen_m[np.argsort(-tokens.covariance_m, kind="stable")[:number]] = True
    return chosen_m
