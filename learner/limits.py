"""How long the parts of a run may take: the recipe's limits on updates, time, steps and success. Pure.

    0 s            cloning, evaluations                RL            last evaluation      report
    |--------------------------------------------|=================|-----------------|------| max_run_s
    start of the run (start-up included)                           rl_ends_s         evaluation_ends_s
"""

from __future__ import annotations

from common.config import LearnerConfig, RecipeConfig
from learner import recipe
from learner.state import LoopState

EVALUATION_SHARES = {recipe.EVAL_BEFORE: 0.1, recipe.EVAL_AFTER_CLONING: 0.12, recipe.EVAL_AFTER_RL: 0.25}
"""Part of `max_run_s` that each evaluation may take: what is left for RL on a slow machine decides what there is to evaluate."""

EVALUATION_RESERVE = 0.9
"""Expected ratio of the last evaluation's seconds per episode to those of the one before. The end of a short evaluation, with
fewer and fewer desktops playing, weighs more; policies that fail play longer (0.69 to 1.06 in twelve runs on two AVX2 cores, 0.86
in the mean). Where the ratio is too low, the last evaluation ends with the episodes that it has."""

_PATIENCE = 1.5
"""Evaluations that were planned to fit may take this much longer than planned."""

CLOSING_START_UPS = 0.3
"""Last checkpoint, end of all processes and report take this part of what the start took (3 of 20 s on two AVX2 cores) ..."""

MIN_CLOSING_S = 6.0
"""... and at least so long."""


def closing_s(state: LoopState) -> float:
    """Seconds kept free at the end of the run."""
    return max(MIN_CLOSING_S, CLOSING_START_UPS * state.start_s)


def planned_episodes(name: str, wanted: int, *, num_episodes_each: int, state: LoopState, limits: RecipeConfig) -> int:
    """Episodes per family of evaluation ``name``: ``wanted``, or fewer where the budget has no room.
    ``num_episodes_each``: episodes that one per family comes to."""
    # A check of an Entropulse round has no share: before and after play the same few episodes.
    if limits.max_run_s is None or state.episode_s is None or not wanted or name not in EVALUATION_SHARES:
        return wanted
    fitting = EVALUATION_SHARES[name] * limits.max_run_s / (state.episode_s * num_episodes_each)
    return max(1, min(wanted, int(fitting)))


def rl_ends_s(state: LoopState, limits: RecipeConfig, *, num_evaluated: int) -> float | None:
    """`LoopState.run_s` at which RL has to end so that ``num_evaluated`` episodes can still be played; None: never."""
    if limits.max_run_s is None:
        return None
    return limits.max_run_s - closing_s(state) - EVALUATION_RESERVE * num_evaluated * (state.episode_s or 0.0)


def evaluation_ends_s(name: str, state: LoopState, limits: RecipeConfig, *, began_s: float) -> float | None:
    """`LoopState.run_s` at which evaluation ``name`` ends with the episodes that it has; None: never. The last one has all
    the time that is left, the others ``_PATIENCE`` times their share."""
    if limits.max_run_s is None:
        return None
    end_s = limits.max_run_s - closing_s(state)
    return end_s if name == recipe.EVAL_AFTER_RL else min(end_s, began_s + _PATIENCE * EVALUATION_SHARES[name] * limits.max_run_s)


def reason_to_end_rl(state: LoopState, limits: RecipeConfig, *, num_evaluated: int) -> str:
    """Which limit is reached, empty when none."""
    if state.update >= limits.max_updates:
        return f"{state.update} updates done"
    ends_s = rl_ends_s(state, limits, num_evaluated=num_evaluated)
    if ends_s is not None and state.run_s + _update_s(state) >= ends_s:
        return f"{state.run_s:.0f} of {limits.max_run_s:.0f} s used, the rest is for the last evaluation"
    if limits.max_rl_s is not None and state.rl_s >= limits.max_rl_s:
        return f"time for RL used ({state.rl_s:.0f} s)"
    if limits.max_rl_env_steps is not None and state.rl_env_steps >= limits.max_rl_env_steps:
        return f"{state.rl_env_steps:,} desktop steps of RL done"
    ema = state.success_ema
    if limits.target_success is not None and ema is not None and ema >= limits.target_success:
        return f"success EMA {ema:.3f} reached {limits.target_success}"
    return ""


def _update_s(state: LoopState) -> float:
    """What an update has taken on the average: one that begins has to end in time too."""
    return _updates_s(state) / state.update if state.update else 0.0


def _updates_s(state: LoopState) -> float:
    """Spent on RL without its supervised rounds."""
    return state.rl_s - state.round_s


def samples_of_round(state: LoopState, learner: LearnerConfig) -> int | None:
    """Steps of the next Entropulse round that its part of RL's time has room for; None: not known yet."""
    if not state.sft_sample_s:
        return None
    time_s = learner.entropulse.max_time_share * _updates_s(state)
    return max(1, int(time_s / (state.sft_sample_s * max(1, learner.entropulse.epochs))))


def budget_used(state: LoopState, limits: RecipeConfig, *, num_evaluated: int) -> float:
    """Share of RL's budget (updates, time or steps, whichever is furthest) that is spent; supervised rounds are no part of it."""
    ends_s = rl_ends_s(state, limits, num_evaluated=num_evaluated)
    own_s = _updates_s(state)
    by_run = own_s / max(own_s, own_s + ends_s - state.run_s, 1e-9) if ends_s is not None else 0.0
    by_time = own_s / max(own_s, limits.max_rl_s - state.round_s) if limits.max_rl_s else 0.0
    by_steps = state.rl_env_steps / limits.max_rl_env_steps if limits.max_rl_env_steps else 0.0
    return max(by_run, by_time, by_steps, state.update / limits.max_updates if limits.max_updates else 1.0)
