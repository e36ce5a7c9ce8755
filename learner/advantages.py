"""Rewards to advantages. Pure numpy on what a group of trajectories of one task earned; no tensors of the model.

Shape legend: n steps of one group, all trajectories together.
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
