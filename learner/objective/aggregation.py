"""Weights with which terms per token become one objective; every choice favours some length. Pure numpy, no torch.

Shape legend: n steps.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

Aggregation = Literal["computerrl", "token_mean", "step_mean", "trajectory_mean", "trajectory_step_mean", "constant"]


def token_weights(
    aggregation: Aggregation,
    *,
    num_tokens_n: np.ndarray,
    trajectory_n: np.ndarray,
    group_n: np.ndarray,
    constant: float | None = None,
) -> np.ndarray:
    """[n] float64: what each token of step n counts in the objective, sum over tokens of weight * term.

    The weights are made from all steps that were sampled, before anything is masked or left out, so that masking never
    raises what the remaining tokens count. ``trajectory_n`` and ``group_n`` are ids unique in the batch.

    computerrl       mean over groups of (1 / sum_i L_i) sum_ij of the step's token mean (ComputerRL equation 4)
    token_mean       1 / number of tokens in the batch
    step_mean        mean over steps of the step's token mean
    trajectory_mean  mean over trajectories of the trajectory's token mean (favours short trajectories)
    trajectory_step_mean
                     mean over trajectories of the mean over their steps of the step's token mean (M-GRPO)
    constant         1 / ``constant`` (Dr.GRPO: no length enters)
    """
    num_tokens = np.asarray(num_tokens_n, dtype=np.float64)
    if aggregation == "token_mean":
        return np.full_like(num_tokens, 1.0 / num_tokens.sum())
    if aggregation == "step_mean":
        return 1.0 / (num_tokens * len(num_tokens))
    if aggregation == "constant":
        if constant is None:
            raise ValueError("aggregation 'constant' needs its constant")
        return np.full_like(num_tokens, 1.0 / constant)
    if aggregation == "trajectory_mean":
        _, trajectory = np.unique(trajectory_n, return_inverse=True)
        sizes = np.bincount(trajectory, weights=num_tokens)
        return 1.0 / (sizes[trajectory] * len(sizes))
    if aggregation == "trajectory_step_mean":
        _, trajectory, num_steps = np.unique(trajectory_n, return_inverse=True, return_counts=True)
        return 1.0 / (num_tokens * num_steps[trajectory] * len(num_steps))
    _, group, counts = np.unique(group_n, return_inverse=True, return_counts=True)
    return 1.0 / (num_tokens * counts[group] * len(counts))
