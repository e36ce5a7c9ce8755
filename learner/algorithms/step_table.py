"""All steps of a batch as columns, from which algorithms compute: trajectory, group, age, number of tokens. Pure numpy, no torch.

Shape legend: n steps of the batch, group after group, trajectory after trajectory, in order of playing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from computerrl.common.messages import Step, Trajectory, TrajectoryGroup
from computerrl.learner.algorithms.base import LeftOut, StepKey
from computerrl.learner.objective.ages import PolicyAges


@dataclass(frozen=True, slots=True)
class StepTable:
    """One row for each step."""

    steps: tuple[Step, ...]
    trajectories: tuple[Trajectory, ...]
    families: tuple[str, ...]
    """In the order in which they appear."""
    trajectory_n: np.ndarray
    """int, into ``trajectories``."""
    group_n: np.ndarray
    """int, numbered from 0 in the batch."""
    family_n: np.ndarray
    """int, into ``families``."""
    position_n: np.ndarray
    """int, place of the step in its trajectory as that came, from 0."""
    steps_left_n: np.ndarray
    """int, steps that followed in the trajectory as it came."""
    success_n: np.ndarray
    """bool, the trajectory's."""
    format_n: np.ndarray
    """bool, the step's own."""
    num_tokens_n: np.ndarray
    """int, action tokens, at least 1."""
    age_n: np.ndarray
    """int, age of the step's oldest token, in updates."""
    whole_n: np.ndarray
    """bool: sampled by a policy, with a finite log-prob and a version for every action token."""
    replayed_n: np.ndarray
    """bool: out of a memory, not fresh from the broker."""

    @classmethod
    def of(
        cls,
        groups: Sequence[TrajectoryGroup],
        *,
        ages: PolicyAges,
        came: Sequence[TrajectoryGroup] | None = None,
        replayed: Collection[str] = frozenset(),
    ) -> StepTable:
        """Rows of ``groups``, whose steps are as old as ``ages`` says.

        ``came``: the groups of the batch as the broker delivered them, of which ``groups`` may be copies; None: ``groups``.
        ``replayed``: ids of the trajectories that are out of a memory. One that came with the batch is never replayed.
        Raises `ValueError` for a step of a trajectory that came which is not among those that came.
        """
        delivered = {one.trajectory_id: one for group in (groups if came is None else came) for one in group.trajectories}
        memory = frozenset(replayed) - delivered.keys()
        owners = [(g, trajectory) for g, group in enumerate(groups) for trajectory in group.trajectories]
        lengths = [len(trajectory.steps) for _, trajectory in owners]
        steps = tuple(step for _, trajectory in owners for step in trajectory.steps)
        positions = np.array([place for _, one in owners for place in _places(one, delivered)], dtype=np.int64)
        names = list(dict.fromkeys(trajectory.task.family for _, trajectory in owners))

        def spread(values: Sequence[int] | Sequence[bool], dtype: type) -> np.ndarray:
            return np.repeat(np.array(values, dtype=dtype), lengths)

        return cls(
            steps=steps,
            trajectories=tuple(trajectory for _, trajectory in owners),
            families=tuple(names),
            trajectory_n=spread(range(len(owners)), np.int64),
            group_n=spread([g for g, _ in owners], np.int64),
            family_n=spread([names.index(trajectory.task.family) for _, trajectory in owners], np.int64),
            position_n=positions,
            steps_left_n=spread([len(_as_it_came(one, delivered)) - 1 for _, one in owners], np.int64) - positions,
            success_n=spread([trajectory.success for _, trajectory in owners], np.bool_),
            format_n=np.array([step.format_ok for step in steps], dtype=np.bool_),
            num_tokens_n=np.array([max(1, len(step.action_tokens)) for step in steps], dtype=np.int64),
            age_n=np.array([ages.oldest(step) for step in steps], dtype=np.int64),
            whole_n=np.array([_is_whole(step) for step in steps], dtype=np.bool_),
            replayed_n=spread([trajectory.trajectory_id in memory for _, trajectory in owners], np.bool_),
        )

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def earned_T(self) -> np.ndarray:
        """[trajectories] float64: rewards of the episodes (`learner.rewards`): without others, 1 for a success and else 0."""
        return np.array([earned(one) for one in self.trajectories], dtype=np.float64)

    @property
    def earned_n(self) -> np.ndarray:
        """[n] float64, the trajectory's reward."""
        return self.of_trajectory(self.earned_T.tolist())

    @property
    def returns_n(self) -> np.ndarray:
        """[n] float64, the part of the trajectory's reward that was not earned before the step."""
        before = [one.earned_before for one in self.trajectories]
        both = zip(self.trajectory_n.tolist(), self.position_n.tolist(), strict=True)
        return self.earned_n - np.array([before[i][place] if before[i] else 0.0 for i, place in both], dtype=np.float64)

    @property
    def keys(self) -> list[tuple[int, int]]:
        """[n] (index into ``trajectories``, place in that trajectory)."""
        return list(zip(self.trajectory_n.tolist(), self.position_n.tolist(), strict=True))

    def named(self, chosen_n: np.ndarray, reason: LeftOut) -> dict[StepKey, LeftOut]:
        """``reason`` for each of the steps ``chosen_n`` [n] bool, by name."""
        keys = self.keys
        return {(self.trajectories[keys[i][0]].trajectory_id, keys[i][1]): reason for i in np.flatnonzero(chosen_n)}

    @property
    def both_outcomes_n(self) -> np.ndarray:
        """[n] bool: steps of groups with a rollout that succeeded and one that did not."""
        solved, failed = (self.group_n[self.success_n == outcome] for outcome in (True, False))
        return np.isin(self.group_n, np.intersect1d(solved, failed))

    def per_group(self, rule: Callable[[np.ndarray, np.ndarray], np.ndarray], values_n: np.ndarray) -> np.ndarray:
        """[n] ``rule(values, trajectories)`` of each group's steps."""
        found_n = np.zeros(len(self))
        for group in np.unique(self.group_n):
            members = self.group_n == group
            found_n[members] = rule(values_n[members], self.trajectory_n[members])
        return found_n

    def of_trajectory(self, values: Sequence[float]) -> np.ndarray:
        """[n] float64: ``values``, one for each of ``trajectories``, for each of their steps."""
        return np.asarray(values, dtype=np.float64)[self.trajectory_n] if len(self) else np.zeros(0)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The rollouts that a batch is made of."""

    groups: Sequence[TrajectoryGroup]
    """The groups that came or copies of them, with some rollouts left out or added from a memory."""
    replayed: frozenset[str] = frozenset()
    """Ids of the trajectories that are out of a memory."""

    def not_chosen(self, came: Sequence[TrajectoryGroup]) -> frozenset[str]:
        """Ids of the trajectories of ``came`` that are not among ``groups``."""
        return frozenset(_ids(came)) - frozenset(_ids(self.groups))

    def left_out(self, came: Sequence[TrajectoryGroup], table: StepTable) -> dict[StepKey, LeftOut]:
        """Steps of chosen trajectories of ``came`` that are not in ``table``, the table of ``groups``."""
        gone = self.not_chosen(came)
        kept = {(table.trajectories[i].trajectory_id, place) for i, place in table.keys}
        return {
            (one.trajectory_id, place): "not_chosen"
            for group in came
            for one in group.trajectories
            for place in range(len(one.steps))
            if one.trajectory_id not in gone and (one.trajectory_id, place) not in kept
        }


def earned(trajectory: Trajectory) -> float:
    """Reward of an episode."""
    return float(trajectory.success) if trajectory.total_reward is None else trajectory.total_reward


def _ids(groups: Sequence[TrajectoryGroup]) -> list[str]:
    return [trajectory.trajectory_id for group in groups for trajectory in group.trajectories]


def _as_it_came(trajectory: Trajectory, delivered: Mapping[str, Trajectory]) -> tuple[Step, ...]:
    """Steps of ``trajectory`` before an algorithm changed it; its own if it is out of a memory."""
    return delivered.get(trajectory.trajectory_id, trajectory).steps


def _places(trajectory: Trajectory, delivered: Mapping[str, Trajectory]) -> list[int]:
    """Place of each step of ``trajectory``, which may be a changed copy, in that trajectory as it was ``delivered``.

    A step is found by its tokens, log-probs and versions. Equal steps are taken in their order. A step with another prompt
    keeps its place if the copy has as many steps.
    """
    came = _as_it_came(trajectory, delivered)
    free, places = set(range(len(came))), []
    for place, step in enumerate(trajectory.steps):
        order = [place, *range(place), *range(place + 1, len(came))] if place < len(came) else range(len(came))
        found = next((i for i in order if i in free and _holds_the_same(step, came[i])), None)
        if found is None:
            found = next((i for i in order if _holds_the_same(step, came[i])), None)
        if found is None and len(trajectory.steps) == len(came):
            found = place
        if found is None:
            raise ValueError(
                f"trajectory {trajectory.trajectory_id}: step {place} of {len(trajectory.steps)} is not among the {len(came)} "
                "that came; an algorithm that rewrites prompts must keep the number of steps"
            )
        free.discard(found)
        places.append(found)
    return places


def acts_the_same(one: Step, other: Step) -> bool:
    """Are the action's tokens, log-probs and versions equal?"""
    return all(
        np.array_equal(getattr(one, name), getattr(other, name), equal_nan=name == "behavior_logprobs")
        for name in ("action_tokens", "policy_versions", "behavior_logprobs")
    )


def _holds_the_same(one: Step, other: Step) -> bool:
    """Are prompt and action equal?"""
    return acts_the_same(one, other) and np.array_equal(one.prompt_tokens, other.prompt_tokens)


def batch_metrics(
    groups: Sequence[TrajectoryGroup],
    table: StepTable,
    rewards_n: np.ndarray,
    advantage_n: np.ndarray,
    *,
    trains_n: np.ndarray,
    age_bound: float,
) -> dict[str, float]:
    """Figures of a batch before any forward pass. ``groups``: as they came; ``trains_n``: steps that may train."""
    fresh_n = ~table.replayed_n
    num_groups = int(table.group_n.max()) + 1 if len(table) else 0
    signal_n = [advantage_n[table.group_n == group].any() for group in range(num_groups)]
    return {
        **_age_metrics(table.age_n[trains_n & fresh_n]),
        "success": _mean([trajectory.success for group in groups for trajectory in group.trajectories]),
        "reward": _mean(rewards_n),
        "format_ok": _mean(table.format_n),
        "num_groups": float(len(groups)),
        "num_trajectories": float(sum(len(group.trajectories) for group in groups)),
        "num_steps": float(len(table)),
        "num_steps_too_old": float((table.whole_n & fresh_n & (table.age_n > age_bound)).sum()),
        "num_steps_malformed": float((~table.whole_n).sum()),
        "num_steps_replayed": float(table.replayed_n.sum()),
        "num_groups_without_signal": float(len(groups) - sum(signal_n)),
    }


def _age_metrics(age_n: np.ndarray) -> dict[str, float]:
    """Ages of the steps that may train; zeros when there are none."""
    if not age_n.size:
        return {"policy_age_min": 0.0, "policy_age_mean": 0.0, "policy_age_max": 0.0}
    return {
        "policy_age_min": float(age_n.min()),
        "policy_age_mean": float(age_n.mean()),
        "policy_age_max": float(age_n.max()),
    }


def _mean(values: Sequence[bool] | np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else 0.0


def _is_whole(step: Step) -> bool:
    num_tokens = len(step.action_tokens)
    return bool(
        num_tokens
        and len(step.prompt_tokens)
        and len(step.behavior_logprobs) == num_tokens
        and len(step.policy_versions) == num_tokens
        and np.isfinite(step.behavior_logprobs).all()
    )
