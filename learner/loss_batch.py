"""Steps of a prepared batch as tensors, as an algorithm's loss takes them.

Shape legend: M action tokens of the steps at hand, step after step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from learner.algorithms import LossBatch, TrainBatch

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

    def of_tokens(values: tuple[np.ndarray, ...] | None) -> torch.Tensor | None:
        return None if values is None else torch.from_numpy(np.concatenate([values[i] for i in chosen])).to(device)

    return LossBatch(
        step_M=torch.from_numpy(np.repeat(np.arange(len(steps)), lengths)).to(device),
        advantage_M=torch.from_numpy(advantage_M).to(device),
        token_weight_M=torch.from_numpy(np.repeat(batch.token_weight_S[chosen], lengths)).to(device),
        behavior_logprobs_M=torch.from_numpy(np.concatenate([step.behavior_logprobs for step in steps])).to(device),
        age_M=torch.from_numpy(np.maximum(age_M, 0).astype(np.float32)).to(device),
        is_replayed_M=torch.from_numpy(np.repeat(batch.replayed_S[chosen], lengths)).to(device),
        is_present_M=torch.from_numpy(age_M == 0).to(device),
        value_target_M=of_tokens(batch.value_targets),
        start_logprobs_M=of_tokens(batch.start_logprobs),
    )
