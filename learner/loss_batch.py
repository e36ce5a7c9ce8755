"""Steps of a prepared batch as tensors, as an algorithm's loss takes them.

Shape legend: M action tokens of the steps at hand, step after step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from learner.algorithms import LossBatch, TrainBatch
from learner.transfers import to_device

_CPU = torch.device("cpu")


def make_loss_batch(batch: TrainBatch, members: Sequence[int], *, device: torch.device = _CPU) -> LossBatch:
    """The steps ``members`` of ``batch``, in that order: what belongs to a step repeated for each of its tokens."""
    chosen = list(members)
    steps = [batch.samples[i] for i in chosen]
    lengths = [len(step.action_tokens) for step in steps]
    age_M = batch.version - np.concatenate([step.policy_versions for step in steps])
    advantage_M = np.repeat(batch.advantage_S[chosen], lengths)
    if batch.token_advantages is not None:
        advantage_M = np.concatenate([batch.token_advantages[i] for i in chosen])

    arrays = {
        "step_M": np.repeat(np.arange(len(steps)), lengths),
        "advantage_M": advantage_M,
        "token_weight_M": np.repeat(batch.token_weight_S[chosen], lengths),
        "behavior_logprobs_M": np.concatenate([step.behavior_logprobs for step in steps]),
        "age_M": np.maximum(age_M, 0).astype(np.float32),
        "is_replayed_M": np.repeat(batch.replayed_S[chosen], lengths),
        "is_present_M": age_M == 0,
    }
    for name, values in (("value_target_M", batch.value_targets), ("start_logprobs_M", batch.start_logprobs)):
        if values is not None:
            arrays[name] = np.concatenate([values[i] for i in chosen])
    return LossBatch(**to_device(arrays, device))
