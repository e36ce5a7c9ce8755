"""What masks and KL-Cov do to a batch after the first look; `learner.objective.masks` decides which tokens they concern."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from computerrl.learner.algorithms.base import FirstLook, LeftOut, TrainBatch
from computerrl.learner.algorithms.grpo_options import GRPOOptions
from computerrl.learner.objective.masks import MASKS, BatchTokens, covariant


def masked(batch: TrainBatch, look: FirstLook, options: GRPOOptions, rng: np.random.Generator) -> TrainBatch:
    """``batch`` with advantage 0 for tokens that a mask leaves out, and with the penalties of KL-Cov. A step of which no token is
    left is left out, unless something else of the loss needs it. ``look``: of all samples of ``batch``."""
    lengths = [len(step.action_tokens) for step in batch.samples]
    per_step = [np.full(length, advantage) for length, advantage in zip(lengths, batch.advantage_S, strict=True)]
    tokens = BatchTokens(
        logprobs_m=_joined(look.logprobs),
        behavior_logprobs_m=_joined([step.behavior_logprobs for step in batch.samples]),
        entropy_m=_joined(look.entropy),
        advantages_m=_joined(batch.token_advantages or per_step),
        step_m=np.repeat(np.arange(len(lengths)), lengths),
    )
    if not np.isfinite(tokens.logprobs_m + tokens.entropy_m).all():
        return batch  # The guard of the optimizer step has to see what is not finite.
    keep_m = np.ones(len(tokens.step_m), dtype=bool)
    for name, number in options.masks.items():
        keep_m &= MASKS[name](tokens, number, rng)
    ends = np.cumsum(lengths)[:-1]
    advantages_m = np.where(keep_m, tokens.advantages_m, 0.0).astype(np.float32)
    batch = replace(
        batch,
        token_advantages=tuple(np.split(advantages_m, ends)),
        metrics={**batch.metrics, "masked_fraction": float(np.mean(~keep_m))},
    )
    if options.kl_cov > 0:
        penalties_m = options.kl_cov_beta * (covariant(tokens, options.kl_cov) & keep_m)
        batch = replace(batch, drift_penalties=tuple(np.split(penalties_m.astype(np.float32), ends)))
    if options.kl_beta > 0 or batch.value_targets is not None:
        return batch
    return without(batch, look, np.bincount(tokens.step_m, weights=keep_m) > 0, reason="not_chosen")


def without(batch: TrainBatch, look: FirstLook, keep_S: np.ndarray, *, reason: LeftOut) -> TrainBatch:
    """``batch`` of the steps ``keep_S`` [S] bool alone. The entropy of the others stays in the estimate of the batch's."""
    kept, gone = np.flatnonzero(keep_S), np.flatnonzero(~keep_S & ~batch.replayed_S)
    return replace(
        batch.subset(kept, reason=reason),
        left_out_nll=batch.left_out_nll + float(sum(look.entropy[i].sum(dtype=np.float64) for i in gone)),
        left_out_tokens=batch.left_out_tokens + sum(len(look.entropy[i]) for i in gone),
        metrics={**batch.metrics, "num_steps_computed": float(len(kept))},
    )


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays).astype(np.float64)
