"""Figures of an update and of a run: which steps were trained, and the fields of metrics lines. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from computerrl.common.messages import Status, Trajectory, TrajectoryGroup
from computerrl.learner.accounts.ledger import AgeSpan, Ledger, Outcome
from computerrl.learner.algorithms.base import LeftOut, StepKey, TrainBatch
from computerrl.learner.recipe import recipe
from computerrl.learner.recipe.pacing import Cut
from computerrl.learner.recipe.state import LoopState, Tally

LOGGED = (
    "update",
    "phase",
    "policy_version",
    "success",
    "entropy",
    "policy_age_mean",
    "policy_age_max",
    "train_s",
    "wait_s",
    "stall_s",
)
"""Fields of an update that go into the log too."""

SUMMARY_LOGGED = ("num_updates", "num_entropulse_phases", "num_trajectories_lost", "max_policy_age_trained", "success_after_rl")


class TrainedSteps:
    """The trained trajectories of a batch, and the ages of their steps."""

    def __init__(self, batch: TrainBatch, *, age_bound: float, skipped: Collection[int] = frozenset()) -> None:
        """``skipped``: places in the batch of samples whose optimizer step was not done."""
        self._batch = batch
        keys, fresh = batch.step_keys, np.flatnonzero(~batch.replayed_S).tolist()
        self._places = {keys[place]: place for place in fresh if place not in skipped}
        """Place in the batch of each step that came for this update and was trained."""
        self._skipped = {keys[place] for place in fresh if place in skipped}
        self._age_bound = age_bound
        self.ages = [batch.ages.oldest(batch.samples[place]) for place in self._places.values()]
        """Ages of the steps that came for this update, in updates; steps out of an algorithm's memory are not among them."""
        self.num_steps_by_age = {str(age): self.ages.count(age) for age in sorted(set(self.ages))}
        self.num_steps = len(batch.samples) - len(skipped)

    @property
    def num_trajectories(self) -> int:
        """Trajectories that came for this update and of which a step was trained."""
        return len({trajectory_id for trajectory_id, _ in self._places})

    @property
    def max_age_trained(self) -> int:
        return max(self.ages, default=0)

    def outcomes(
        self, taken: Sequence[TrajectoryGroup], groups: Sequence[TrajectoryGroup]
    ) -> tuple[list[list[Outcome]], dict[str, AgeSpan]]:
        """(outcome of every trajectory of every taken group, ages of the trajectories that were in the batch).

        ``groups``: those of the batch; other groups among ``taken`` came too late.
        """
        in_batch = {group.group_seq for group in groups}
        outcomes: list[list[Outcome]] = []
        ages: dict[str, AgeSpan] = {}
        for group in taken:
            if group.kind == "demonstration":
                outcomes.append(["demonstrated"] * len(group.trajectories))
                continue
            if group.group_seq not in in_batch:
                outcomes.append(["phase_closed"] * len(group.trajectories))
                continue
            outcomes.append([self._outcome(trajectory) for trajectory in group.trajectories])
            # What was not chosen was not masked for its age either.
            ages |= {
                trajectory.trajectory_id: self._span(trajectory)
                for trajectory, outcome in zip(group.trajectories, outcomes[-1], strict=True)
                if outcome != "not_chosen"
            }
        return outcomes, ages

    def advantages(self, groups: Iterable[TrajectoryGroup]) -> dict[str, list[float | None]]:
        """Trajectory -> advantage of each step, the mean over its tokens; None: the step was not trained."""
        return {
            trajectory.trajectory_id: [self._advantage(key) for key in _keys(trajectory)]
            for group in groups
            for trajectory in group.trajectories
        }

    def _advantage(self, key: StepKey) -> float | None:
        place = self._places.get(key)
        if place is None:
            return None
        batch = self._batch
        found = batch.advantage_S[place] if batch.token_advantages is None else batch.token_advantages[place]
        return round(float(np.mean(found)), 4)

    def _outcome(self, trajectory: Trajectory) -> Outcome:
        keys = _keys(trajectory)
        if any(key in self._places for key in keys):
            return "trained"
        if any(key in self._skipped for key in keys):
            return "skipped"
        if trajectory.trajectory_id in self._batch.not_chosen:
            return "not_chosen"
        reasons = Counter(self._batch.left_out[key] for key in keys if key in self._batch.left_out)
        if reasons:
            return reasons.most_common(1)[0][0]
        if not trajectory.steps:
            return "no_signal"
        return "too_old" if all(age > self._age_bound for age in self._ages_of(trajectory)) else "not_chosen"

    def _span(self, trajectory: Trajectory) -> AgeSpan:
        ages, masked = self._ages_of(trajectory), []
        left_out: dict[LeftOut, tuple[int, int]] = {}
        for step, age, key in zip(trajectory.steps, ages, _keys(trajectory), strict=True):
            reason = self._batch.left_out.get(key)
            if key in self._places or key in self._skipped or reason == "no_signal":
                continue  # It was free to train.
            if reason is None and age > self._age_bound:
                masked.append(len(step.action_tokens))
                continue
            reason = reason or "not_chosen"
            num_steps, num_tokens = left_out.get(reason, (0, 0))
            left_out[reason] = (num_steps + 1, num_tokens + len(step.action_tokens))
        return AgeSpan(min(ages, default=0), max(ages, default=0), len(masked), sum(masked), left_out)

    def _ages_of(self, trajectory: Trajectory) -> list[int]:
        return [self._batch.ages.oldest(step) for step in trajectory.steps]


def _keys(trajectory: Trajectory) -> list[StepKey]:
    return [(trajectory.trajectory_id, place) for place in range(len(trajectory.steps))]


@dataclass(frozen=True, slots=True)
class Update:
    """One RL update that has been made."""

    cut: Cut
    waited_s: float
    """Time since the update before it."""
    tally: Tally
    """Outcomes of the batch's rollouts."""
    trained: TrainedSteps
    metrics: Mapping[str, float]
    """The trainer's."""
    entropy: float | None
    """Mean token entropy of what came for this update; None when the batch holds nothing but replays."""


def update_fields(state: LoopState, update: Update, *, status: Status | None, ledger: Ledger) -> dict[str, Any]:
    """The `update` line of metrics.jsonl, as far as state, trainer and broker know it."""
    metrics, trained, tally, cut = update.metrics, update.trained, update.tally, update.cut
    counters = status.counters if status is not None else {}
    refused = {name.removeprefix("rejected/"): n for name, n in counters.items() if name.startswith("rejected/")}
    ages = trained.ages or [0]
    waste = ledger.waste.figures()
    fields: dict[str, Any] = {
        **metrics,
        "phase": state.phase,
        "update": state.update,
        "policy_version": state.policy_version,
        "success": tally.success,
        "success_ema": state.success_ema,
        "success_by_family": tally.rates(),
        "rollouts_by_family": {name: episodes for name, (_, episodes) in sorted(tally.families.items())},
        "entropy": metrics.get("entropy", 0.0),
        "policy_age_min": metrics.get("policy_age_min", min(ages)),
        "policy_age_mean": metrics.get("policy_age_mean", sum(ages) / len(ages)),
        "policy_age_max": metrics.get("policy_age_max", max(ages)),
        "num_steps_by_age": trained.num_steps_by_age,
        "num_trajectories_trained": trained.num_trajectories,
        "num_steps_trained": trained.num_steps,
        "trained": bool(trained.num_steps),
        "wait_s": update.waited_s,
        "stall_s": cut.stall_s,
        "stall_end": cut.stall_end,
        "drops": {**refused, **ledger.drops},
        "waste": waste,
        "length_ks": waste["within_bound"]["length_ks"],
        "family_tv": waste["within_bound"]["family_tv"],
        "env_steps": state.env_steps,
        "rl_env_steps": state.rl_env_steps,
        "env_steps_per_s": state.env_steps / state.run_s if state.run_s > 0 else 0.0,
        "episodes": state.episodes,
        "run_s": state.run_s,
        "rl_s": state.rl_s,
        "broker": {**counters, **(status.gauges if status is not None else {})},
    }
    for name in ("train_s", "trained_tokens_per_s", "num_tokens", "padded_tokens_ratio", "loss", "kl", "grad_norm"):
        fields.setdefault(name, 0.0)
    fields.setdefault("clip_fraction", 0.0)
    fields.setdefault("num_trajectories", tally.num_episodes)
    fields.setdefault("num_steps", trained.num_steps)
    return fields


def gauges(fields: Mapping[str, Any]) -> dict[str, float]:
    """The learner's heartbeat figures out of an update line."""
    names = {
        "success": "success",
        "entropy": "entropy",
        "age_min": "policy_age_min",
        "age_mean": "policy_age_mean",
        "age_max": "policy_age_max",
        "trained_tokens_per_s": "trained_tokens_per_s",
        "train_s": "train_s",
        "wait_s": "wait_s",
        "stall_s": "stall_s",
    }
    return {f"learner/{short}": float(fields[name]) for short, name in names.items()}


def summary_fields(
    state: LoopState, ledger: Ledger, *, status: Status | None, num_rounds: int, num_restarts: int, families: Sequence[str]
) -> dict[str, Any]:
    """The `summary` line: everything a report needs from the learner."""
    counters = status.counters if status is not None else {}

    def success(name: str) -> float | None:
        return state.evaluations[name]["success"] if name in state.evaluations else None

    return {
        "success_before": success(recipe.EVAL_BEFORE),
        "success_after_bc": success(recipe.EVAL_AFTER_CLONING),
        "success_after_rl": success(recipe.EVAL_AFTER_RL),
        "evaluations": state.evaluations,
        "families": list(families),
        "policy_version": state.policy_version,
        "num_updates": state.update,
        "num_entropulse_phases": num_rounds,
        "env_steps": state.env_steps,
        "rl_env_steps": state.rl_env_steps,
        "env_steps_per_s": state.env_steps / state.run_s if state.run_s > 0 else 0.0,
        "episodes": state.episodes,
        "run_s": state.run_s,
        "rl_s": state.rl_s,
        "phase_seconds": state.phase_seconds,
        "trajectories": ledger.counts,
        "drops": ledger.drops,
        "waste": ledger.waste.figures(),
        "stall_s": state.stall_s,
        "num_trajectories_lost": ledger.num_lost(counters) if status is not None else None,
        "max_policy_age_trained": ledger.max_age_trained,
        "num_steps_masked": ledger.num_steps_masked,
        "num_restarts": num_restarts,
        "broker": dict(counters),
    }
