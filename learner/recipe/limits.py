"""Limits of the parts of a run: the recipe's limits on updates, time, steps and success. Pure.

0 s            cloning, evaluations                RL            last evaluation      report
|--------------------------------------------|=================|-----------------|------| max_run_s
start of the run (start-up included)                           rl_ends_s         evaluation_ends_s
"""

from __future__ import annotations

from collections.abc import Sequence

from computerrl.common.config import LearnerConfig, RecipeConfig
from computerrl.learner.recipe import recipe
from computerrl.learner.recipe.state import LoopState, Pace

EVALUATION_SHARES = {recipe.EVAL_BEFORE: 0.1, recipe.EVAL_AFTER_CLONING: 0.12, recipe.EVAL_AFTER_RL: 0.25}
"""Part of `max_run_s` that each evaluation may take: what is left for RL on a slow machine decides what there is to evaluate."""

_PATIENCE = 1.5
"""Evaluations that were planned to fit may take this much longer than planned."""

CLOSING_START_UPS = 0.2
"""Last checkpoint, end of all processes and report take this part of what the start took (3 of 20 s on two AVX2 cores) ..."""

MIN_CLOSING_S = 6.0
"""... and at least so long."""


def pace(ends_s: Sequence[float], *, num_playing: int) -> Pace:
    """Pace of an evaluation whose episodes ended ``ends_s`` after its start, ascending, at most ``num_playing`` at the same time.

    What lies between the first and the last ``num_playing`` ends is the steady part: beginning and end, where fewer play, weigh
    more in a short evaluation than in a long one. From 42 episodes of the cloned policy it foretold the length of six last
    evaluations of 140 to -3 to 19 % (two AVX2 cores). Where nothing lies between, the whole counts as steady.
    """
    num_steady = len(ends_s) - 2 * num_playing
    if num_steady < num_playing:
        return Pace(ends_s[-1] / len(ends_s), 0.0)
    episode_s = (ends_s[-num_playing - 1] - ends_s[num_playing - 1]) / num_steady
    return Pace(episode_s, max(0.0, ends_s[-1] - len(ends_s) * episode_s))


def closing_s(state: LoopState) -> float:
    """Seconds kept free at the end of the run."""
    return max(MIN_CLOSING_S, CLOSING_START_UPS * state.start_s)


def planned_episodes(name: str, wanted: int, *, num_episodes_each: int, state: LoopState, limits: RecipeConfig) -> int:
    """Episodes per family of evaluation ``name``: ``wanted``, or fewer where the budget has no room.
    ``num_episodes_each``: episodes that one per family comes to."""
    # A check of an Entropulse round has no share: before and after play the same few episodes.
    if limits.max_run_s is None or state.pace is None or not wanted or name not in EVALUATION_SHARES:
        return wanted
    left_s = EVALUATION_SHARES[name] * limits.max_run_s - state.pace.ramp_s
    return max(1, min(wanted, int(left_s / max(state.pace.episode_s * num_episodes_each, 1e-9))))


def rl_ends_s(state: LoopState, limits: RecipeConfig, *, num_evaluated: int) -> float | None:
    """`LoopState.run_s` at which RL has to end so that ``num_evaluated`` episodes can still be played; None: never."""
    if limits.max_run_s is None:
        return None
    return limits.max_run_s - closing_s(state) - (state.pace.of(num_evaluated) if state.pace else 0.0)


def evaluation_ends_s(name: str, state: LoopState, limits: RecipeConfig, *, began_s: float) -> float | None:
    """`LoopState.run_s` at which evaluation ``name`` ends with the episodes that it has; None: never. The last one has all
    the time that is left, the others ``_PATIENCE`` times their share."""
    if limits.max_run_s is None:
        return None
    end_s = limits.max_run_s - closing_s(state)
    return end_s if name == recipe.EVAL_AFTER_RL else min(end_s, began_s + _PATIENCE * EVALUATION_SHARES[name] * limits.max_run_s)


def reason_to_end_rl(state: LoopState, limits: RecipeConfig, *, num_evaluated: int) -> str:
    """The limit that is reached, in words; empty when none is."""
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
    """Mean time of an update: an update that begins has to end in time too."""
    return _updates_s(state) / state.update if state.update else 0.0


def _updates_s(state: LoopState) -> float:
    """Time spent on RL without its supervised rounds."""
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


def time_left_s(state: LoopState, limits: RecipeConfig, *, num_evaluated: int) -> float | None:
    """Estimated seconds until the run's end, the last evaluation of ``num_evaluated`` episodes included; None while nothing is
    known."""
    if state.phase == recipe.DONE:
        return 0.0
    evaluation_s = state.pace.of(num_evaluated) if state.pace else 0.0
    tally = state.tallies.get(recipe.EVAL_AFTER_RL)
    if tally is not None:
        return None if state.pace is None else max(0, num_evaluated - tally.num_episodes) * state.pace.episode_s
    estimates = []
    if limits.max_run_s is not None:
        estimates.append(limits.max_run_s - state.run_s - evaluation_s)
    if limits.max_rl_s is not None:
        estimates.append(limits.max_rl_s - state.rl_s)
    if state.update >= 1 and limits.max_updates:
        estimates.append((limits.max_updates - state.update) * state.rl_s / state.update)
    if state.rl_env_steps and limits.max_rl_env_steps:
        estimates.append((limits.max_rl_env_steps - state.rl_env_steps) * state.rl_s / state.rl_env_steps)
    if not estimates:
        return None
    return max(0.0, min(estimates)) + evaluation_s
