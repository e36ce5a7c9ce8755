"""When RL has had enough: the recipe's limits on updates, time, steps and success. Pure."""

from __future__ import annotations

from common.config import RecipeConfig
from learner.state import LoopState


def reason_to_end_rl(state: LoopState, limits: RecipeConfig) -> str:
    """Which limit is reached, empty when none."""
    if state.update >= limits.max_updates:
        return f"{state.update} updates done"
    if limits.max_rl_s is not None and state.rl_s >= limits.max_rl_s:
        return f"time for RL used ({state.rl_s:.0f} s)"
    if limits.max_rl_env_steps is not None and state.rl_env_steps >= limits.max_rl_env_steps:
        return f"{state.rl_env_steps:,} desktop steps of RL done"
    ema = state.success_ema
    if limits.target_success is not None and ema is not None and ema >= limits.target_success:
        return f"success EMA {ema:.3f} reached {limits.target_success}"
    return ""


def budget_used(state: LoopState, limits: RecipeConfig) -> float:
    """Share of the budget (updates, time or steps, whichever is furthest) that is spent."""
    by_time = state.rl_s / limits.max_rl_s if limits.max_rl_s else 0.0
    by_steps = state.rl_env_steps / limits.max_rl_env_steps if limits.max_rl_env_steps else 0.0
    return max(by_time, by_steps, state.update / limits.max_updates if limits.max_updates else 1.0)
