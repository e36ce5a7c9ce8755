"""Steps of a prepared batch as tensors, as an algorithm's loss takes them, and a look at what it gives back.

Shape legend: M action tokens of the steps at hand, step after step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from computerrl.learner.algorithms.base import LossBatch, LossResult, TrainBatch
from computerrl.learner.model.transfers import to_device

_CPU = torch.device("cpu")
_TRAINERS = frozenset({"loss", "entropy", "effective_samples", "demonstration_loss"})
"""Metrics that the trainer sums itself; Entropulse follows the entropy."""


def make_loss_batch(batch: TrainBatch, members: Sequence[int], *, device: torch.device = _CPU) -> LossBatch:
    """The steps ``members`` of ``batch``, in that order, with per-step values repeated for each token."""
    chosen = list(members)
    steps = [batch.samples[i] for i in chosen]
    lengths = [len(step.action_tokens) for step in steps]
    age_M = np.concatenate([batch.ages.of(step) for step in steps])
    advantage_M = np.repeat(batch.advantage_S[chosen], lengths).astype(np.float32)
    if batch.token_advantages is not None:
        advantage_M = np.concatenate([batch.token_advantages[i] for i in chosen]).astype(np.float32)

    arrays = {
        "step_M": np.repeat(np.arange(len(steps)), lengths),
        "advantage_M": advantage_M,
        "token_weight_M": np.repeat(batch.token_weight_S[chosen], lengths).astype(np.float32),
        "behavior_logprobs_M": np.concatenate([step.behavior_logprobs for step in steps]),
        "age_M": np.maximum(age_M, 0).astype(np.float32),
        "is_replayed_M": np.repeat(batch.replayed_S[chosen], lengths),
        "is_present_M": age_M == 0,
    }
    per_token = {
        "value_target_M": batch.value_targets,
        "drift_penalty_M": batch.drift_penalties,
        "start_logprobs_M": batch.start_logprobs,
    }
    for name, values in per_token.items():
        if values is not None:
            arrays[name] = np.concatenate([values[i] for i in chosen])
    return LossBatch(**to_device(arrays, device))


def check_loss(result: LossResult, *, num_tokens: int) -> None:
    """Raise `ValueError` when ``result``, of a pass of ``num_tokens`` action tokens, cannot be trained on. Looks at no value of a
    tensor: the host does not wait."""
    loss = result.loss
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise ValueError(f"its loss is {_shown(loss)}, not a tensor of one number: end with .sum()")
    if not loss.requires_grad:
        raise ValueError("its loss does not depend on outputs.logprobs_M: there is no gradient")
    weights = result.log_weights_M
    if weights is not None and (not isinstance(weights, torch.Tensor) or weights.shape != (num_tokens,)):
        raise ValueError(f"its log_weights_M is {_shown(weights)}, not a tensor of {num_tokens} numbers, one for each token")
    taken = sorted(_TRAINERS & result.metrics.keys())
    if taken:
        raise ValueError(f"its metrics have {', '.join(taken)}, which the trainer makes: take other names")
    for name, pair in result.metrics.items():
        if not (isinstance(pair, tuple) and len(pair) == 2 and all(map(_is_number, pair))):
            raise ValueError(f"its metric {name!r} is {_shown(pair)}, not (sum, count)")


def _is_number(value: object) -> bool:
    return value.numel() == 1 if isinstance(value, torch.Tensor) else isinstance(value, int | float)


def _shown(value: object) -> str:
    return f"a tensor {list(value.shape)}" if isinstance(value, torch.Tensor) else f"{value!r:.60}"
