"""Rewards to advantages. Pure numpy on what a group of trajectories of one task earned; no tensors of the model.

Shape legend: n steps of one group, all trajectories together (of the batch where it says so).
"""

from __future__ import annotations

import numpy as np


def step_rewards(*, success: np.ndarray, format_ok: np.ndarray, format_penalty: float = 0.0) -> np.ndarray:
    """[n] float64: 1 where the step's trajectory succeeded and the step is well formed, else 0 (ComputerRL section 3.3);
    badly formed steps lose ``format_penalty`` besides.

    ``success`` [n] bool is the trajectory's, repeated for each of its steps; ``format_ok`` [n] bool is the step's own.
    """
    good = np.asarray(success, dtype=bool) & np.asarray(format_ok, dtype=bool)
    return good.astype(np.float64) - format_penalty * ~np.asarray(format_ok, dtype=bool)


def group_advantages(rewards: np.ndarray, *, delta: float) -> np.ndarray:
    """[n] float64: (r - mean) / (std + delta) over all step rewards of the group (ComputerRL equation 3; population std).

    All zero when every reward is the same: such a group teaches nothing.
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    if not rewards.size or np.ptp(rewards) == 0.0:
        return np.zeros_like(rewards)
    return (rewards - rewards.mean()) / (rewards.std() + delta)


def centred(rewards: np.ndarray) -> np.ndarray:
    """[n] float64: r - mean over all step rewards of the group (Dr.GRPO, arXiv 2503.20783: dividing by the deviation favours
    tasks that are nearly always, or nearly never, solved)."""
    rewards = np.asarray(rewards, dtype=np.float64)
    return np.zeros_like(rewards) if not rewards.size or np.ptp(rewards) == 0.0 else rewards - rewards.mean()


def leave_one_out(rewards: np.ndarray, trajectory: np.ndarray) -> np.ndarray:
    """[n] float64: r - mean of the step rewards of the group's other trajectories (RLOO, arXiv 2402.14740, with the steps
    of a trajectory together in place of one sample). ``trajectory`` [n]: whose step it is.

    All zero when there is no other trajectory or every reward is the same.
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    if not rewards.size or np.ptp(rewards) == 0.0:
        return np.zeros_like(rewards)
    _, owner, counts = np.unique(trajectory, return_inverse=True, return_counts=True)
    if len(counts) == 1:
        return np.zeros_like(rewards)
    sums = np.bincount(owner, weights=rewards)
    baselines = (rewards.sum() - sums) / (len(rewards) - counts)
    return rewards - baselines[owner]


def batch_normalised(advantages: np.ndarray, *, delta: float) -> np.ndarray:
    """[n] float64: A / (std + delta), std over all steps of the batch (REINFORCE++, arXiv 2501.03262). Not centred
    once more: what has no signal in its group keeps the advantage 0. All zero when nothing differs."""
    advantages = np.asarray(advantages, dtype=np.float64)
    return advantages / (advantages.std() + delta) if advantages.any() else advantages
