"""Rewards to advantages. Pure numpy on what a group of trajectories of one task earned; no tensors of the model.

Shape legend: n steps of one group, all trajectories together (of the batch where it says so).
"""

from __future__ import annotations

import math

import numpy as np


def step_rewards(*, earned: np.ndarray, format_ok: np.ndarray, format_penalty: float = 0.0) -> np.ndarray:
    """[n] float64: what the step's trajectory earned where the step is well formed, else 0 (ComputerRL section 3.3, where a
    success earns 1); badly formed steps lose ``format_penalty`` besides, and keep what is below 0.

    ``earned`` [n] is the trajectory's, repeated for each of its steps; ``format_ok`` [n] bool is the step's own.
    """
    earned, format_ok = np.asarray(earned, dtype=np.float64), np.asarray(format_ok, dtype=bool)
    return np.where(format_ok, earned, np.minimum(earned, 0.0)) - format_penalty * ~format_ok


_ROUNDING = 1e-9
"""Difference of rewards, relative to the largest, below which they are the same number computed in two ways."""


def all_alike(values: np.ndarray) -> bool:
    """Are ``values`` the same, but for rounding? Of none too."""
    return not values.size or bool(np.ptp(values) <= _ROUNDING * np.abs(values).max())


def group_advantages(rewards: np.ndarray, *, delta: float) -> np.ndarray:
    """[n] float64: (r - mean) / (std + delta) over all step rewards of the group (ComputerRL equation 3; population std).

    All zero when every reward is the same: such a group teaches nothing.
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    if all_alike(rewards):
        return np.zeros_like(rewards)
    return (rewards - rewards.mean()) / (rewards.std() + delta)


def centred(rewards: np.ndarray) -> np.ndarray:
    """[n] float64: r - mean over all step rewards of the group (Dr.GRPO, arXiv 2503.20783: dividing by the deviation favours
    tasks that are nearly always, or nearly never, solved)."""
    rewards = np.asarray(rewards, dtype=np.float64)
    return np.zeros_like(rewards) if all_alike(rewards) else rewards - rewards.mean()


def relative_to_mean(rewards: np.ndarray) -> np.ndarray:
    """[n] float64: (r - mean) / mean (MaxRL, arXiv 2602.02710). All zero when every reward is the same, or when their
    mean is not above 0."""
    rewards = np.asarray(rewards, dtype=np.float64)
    if all_alike(rewards) or rewards.mean() <= 0:
        return np.zeros_like(rewards)
    return rewards / rewards.mean() - 1


def leave_one_out(rewards: np.ndarray, trajectory: np.ndarray) -> np.ndarray:
    """[n] float64: r - mean of the step rewards of the group's other trajectories (RLOO, arXiv 2402.14740, with the steps
    of a trajectory together in place of one sample). ``trajectory`` [n]: whose step it is.

    All zero when there is no other trajectory or every reward is the same.
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    if all_alike(rewards):
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


def discounted_returns(outcomes_n: np.ndarray, steps_left_n: np.ndarray, *, gamma: float) -> np.ndarray:
    """[n] float64: gamma ** (steps that follow) * what the trajectory earned at its end."""
    return np.asarray(outcomes_n, dtype=np.float64) * gamma ** np.asarray(steps_left_n, dtype=np.float64)


def normalised_by(values: np.ndarray, *, weights: np.ndarray, delta: float) -> np.ndarray:
    """[n] float64: (v - mean) / (std + delta) with mean and deviation over ``weights`` (tokens of a step, say). All zero when
    nothing differs."""
    values, weights = np.asarray(values, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    if all_alike(values):
        return np.zeros_like(values)
    mean = np.average(values, weights=weights)
    return (values - mean) / (np.sqrt(np.average((values - mean) ** 2, weights=weights)) + delta)


def off_policy_optimal_baseline(rewards_T: np.ndarray, log_weights_T: np.ndarray, score_norms_T: np.ndarray) -> float:
    """b = sum w^2 g^2 R / sum w^2 g^2 over the trajectories of a group (VCPO, arXiv 2602.17616: with it the gradient
    sum w (R - b) grad log pi has the smallest variance). ``log_weights_T``: log w, ``score_norms_T``: g, the norm of
    grad log pi. NaN when a number is not finite or all weights are 0; the reward itself when all are equal.
    """
    if all_alike(rewards_T):
        return float(rewards_T[0])
    # b is the same for all multiples of w: the largest is made 1, so that none overflows.
    weights_T = (np.exp(log_weights_T - log_weights_T.max()) * score_norms_T) ** 2
    total = weights_T.sum()
    return float((weights_T * rewards_T).sum() / total) if total > 0 else math.nan


def generalised_advantages(rewards_t: np.ndarray, values_t: np.ndarray, *, gamma: float, lam: float) -> np.ndarray:
    """[t] float64: A_t = sum_k (gamma lam)^k (r_{t+k} + gamma V_{t+k+1} - V_{t+k}), the value after the last being 0 (GAE,
    arXiv 1506.02438, equation 16)."""
    advantages_t, following, next_value = np.zeros(len(rewards_t)), 0.0, 0.0
    for t in reversed(range(len(rewards_t))):
        following = rewards_t[t] + gamma * next_value - values_t[t] + gamma * lam * following
        advantages_t[t], next_value = following, values_t[t]
    return advantages_t


def length_adaptive_lambda(num_tokens: int, *, alpha: float) -> float:
    """1 - 1 / (alpha * num_tokens), at least 0 (VAPO, arXiv 2504.05118, equation 7)."""
    return max(0.0, 1.0 - 1.0 / (alpha * num_tokens)) if num_tokens else 0.0


def vtrace(
    rewards_t: np.ndarray, values_t: np.ndarray, weights_t: np.ndarray, *, gamma: float, lam: float, rho_bar: float, c_bar: float
) -> tuple[np.ndarray, np.ndarray]:
    """(advantages, targets), both [t] float64: V-trace (IMPALA, arXiv 1802.01561, section 4.1) with
    rho = min(rho_bar, w) and c = lam min(c_bar, w); the value after the last is 0.

    targets v_t = V_t + rho_t (r_t + gamma V_{t+1} - V_t) + gamma c_t (v_{t+1} - V_{t+1});
    advantages rho_t (r_t + gamma v_{t+1} - V_t).
    """
    rho_t, c_t = np.minimum(rho_bar, weights_t), lam * np.minimum(c_bar, weights_t)
    advantages_t, targets_t = np.zeros(len(rewards_t)), np.zeros(len(rewards_t))
    next_value = next_target = 0.0
    for t in reversed(range(len(rewards_t))):
        delta = rho_t[t] * (rewards_t[t] + gamma * next_value - values_t[t])
        targets_t[t] = values_t[t] + delta + gamma * c_t[t] * (next_target - next_value)
        advantages_t[t] = rho_t[t] * (rewards_t[t] + gamma * next_target - values_t[t])
        next_value, next_target = values_t[t], targets_t[t]
    return advantages_t, targets_t
