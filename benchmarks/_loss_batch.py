"""Steps of a prepared batch as an algorithm's loss takes them, for what runs the algorithms without the trainer.

Shape legend: M action tokens of the steps at hand, step after step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from learner.algorithms import LossBatch, TrainBatch


def loss_batch(batch: TrainBatch, members: Sequence[int]) -> LossBatch:
    """The steps ``members`` of ``batch``, in that order: what belongs to a step repeated for each of its tokens."""
    chosen = list(members)
    steps = [batch.samples[i] for i in chosen]
    lengths = [len(step.action_tokens) for step in steps]
    age_M = batch.version - np.concatenate([step.policy_versions for step in steps])
    return LossBatch(
        step_M=torch.from_numpy(np.repeat(np.arange(len(steps)), lengths)),
        advantage_M=torch.from_numpy(np.repeat(batch.advantage_S[chosen], lengths)),
        token_weight_M=torch.from_numpy(np.repeat(batch.token_weight_S[chosen], lengths)),
        behavior_logprobs_M=torch.from_numpy(np.concatenate([step.behavior_logprobs for step in steps])),
        age_M=torch.from_numpy(np.maximum(age_M, 0).astype(np.float32)),
    )
