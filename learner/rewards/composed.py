"""The rewards of a run, weighed and added.

    broker ─► begin(group) ─► ... ─► pay(groups): total_reward of each trajectory ─► algorithm

Where one rollout of a group has no score of a reward, the whole group does without that reward: its rollouts stay comparable, and
what nobody knows never counts as 0. The evaluator's success alone, weight 1, is what algorithms take without any reward.
"""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace
from pydantic import ValidationError

from computerrl.common import log
from computerrl.common.config import RewardConfig
from computerrl.common.errors import ComputerRLError, ConfigError, Problem
from computerrl.common.messages import Trajectory, TrajectoryGroup
from computerrl.common.plugins import load_named, option_problems, registered
from computerrl.learner.rewards.base import Reward, RewardSetting, RewardUnknown

ENTRY_POINT_GROUP = "computerrl.rewards"
"""Other packages register `name = module:Class` here."""
REWARDS: dict[str, str] = {
    "evaluator": "computerrl.learner.rewards.plain:Evaluator",
    "length": "computerrl.learner.rewards.plain:Length",
    "step": "computerrl.learner.rewards.plain:Steps",
    "judge": "computerrl.learner.rewards.judge:Judge",
    "milestones": "computerrl.learner.rewards.milestones:Milestones",
}
"""Name -> `module:Class`."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """One entry of `learner.rewards`."""

    name: str
    weight: float
    reward: Reward


class Rewards:
    """See the module's docstring."""

    def __init__(self, parts: Sequence[Weighed]) -> None:
        self._parts = tuple(parts)

    @property
    def wants_facts(self) -> bool:
        """Does a reward need to know which facts of its task an episode has brought about?"""
        return any(part.reward.wants_facts for part in self._parts)

    @classmethod
    def of(cls, configs: Sequence[RewardConfig], setting: RewardSetting, *, algorithm: object) -> Rewards:
        """The rewards that ``configs`` names. Raises `ConfigError` when one cannot be made, or ``algorithm`` reads none."""
        if _is_plain(configs):
            return cls(())
        if not getattr(algorithm, "pays_outcomes", False):
            reason = f"{type(algorithm).__name__} does not read the rewards of episodes"
            raise ConfigError([Problem("learner.rewards", reason, "leave it out, or take another learner.algorithm.name")])
        parts = [Weighed(one.name, one.weight, _make(one, place, setting)) for place, one in enumerate(configs)]
        names = [part.name for part in parts]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError([Problem("learner.rewards", f"{', '.join(twice)} is there twice", "name each reward once")])
        alone = [part.name for part in parts if not part.reward.may_be_alone]
        if alone and not any(part.name == "evaluator" and part.weight > 0 for part in parts):
            step = "add the reward evaluator, or set options.alone: true, which pays for what the judge says and nothing else"
            raise ConfigError([Problem("learner.rewards", f"{alone[0]} is the only reward", step)])
        return cls(parts)

    def begin(self, group: TrajectoryGroup) -> None:
        """``group`` has come: slow rewards begin."""
        if group.kind == "training":
            for part in self._parts:
                for trajectory in group.trajectories:
                    part.reward.begin(trajectory)

    def pay(self, groups: Sequence[TrajectoryGroup]) -> tuple[list[TrajectoryGroup], dict[str, float]]:
        """``groups`` with the total reward of each trajectory, and figures of the rewards."""
        if not self._parts:
            return list(groups), {}
        paid: list[TrajectoryGroup] = []
        unknown: Counter[str] = Counter()
        known: dict[str, list[float]] = {part.name: [] for part in self._parts}
        for group in groups:
            scores = {part.name: scored for part in self._parts if (scored := _scores(part, group, unknown)) is not None}
            totals = [
                sum(part.weight * scores[part.name][i] for part in self._parts if part.name in scores)
                for i in range(len(group.trajectories))
            ]
            for name, values in scores.items():
                known[name] += values
            parts = [part for part in self._parts if part.name in scores]
            made = [
                replace(one, total_reward=float(total), earned_before=_earned_before(parts, one))
                for one, total in zip(group.trajectories, totals, strict=True)
            ]
            paid.append(replace(group, trajectories=tuple(made)))
        if unknown:
            log.get_logger().warning("reward.unknown", reasons=dict(unknown))
        trajectories = [one for group in groups for one in group.trajectories]
        metrics = {f"reward_{name.rpartition(':')[2]}": sum(values) / len(values) for name, values in known.items() if values}
        metrics["rewards_unknown"] = float(sum(unknown.values()))
        for part in self._parts:
            metrics |= part.reward.metrics(trajectories)
        return paid, metrics

    def close(self) -> None:
        """The run ends."""
        for part in self._parts:
            part.reward.close()


def _scores(part: Weighed, group: TrajectoryGroup, unknown: Counter[str]) -> list[float] | None:
    """Scores of the trajectories of ``group``; None, and the reasons in ``unknown``, where one has none."""
    scores: list[float] = []
    for trajectory in group.trajectories:
        try:
            score = float(part.reward.score(trajectory))
            if not math.isfinite(score):
                raise ValueError(f"its score is {score}")
            scores.append(score)
        except RewardUnknown as error:
            unknown[f"{part.name}/{error.reason}"] += 1
        except ComputerRLError:
            raise
        except Exception as error:  # code of others may raise anything; the cause goes along
            reason = f"{part.name!r} cannot score {trajectory.trajectory_id}: {type(error).__name__}: {error}"
            raise ConfigError([Problem("learner.rewards", reason, "correct its score(trajectory)")]) from error
    return scores if len(scores) == len(group.trajectories) else None


def _earned_before(parts: Sequence[Weighed], trajectory: Trajectory) -> tuple[float, ...]:
    """See `Trajectory.earned_before`. Raises `ConfigError` for a reward that gives too few or too many."""
    found = [(part, values) for part in parts if (values := part.reward.earned_before(trajectory))]
    for part, values in found:
        if len(values) != len(trajectory.steps):
            of_steps = f"the {len(trajectory.steps)} steps of {trajectory.trajectory_id}"
            reason = f"{part.name!r} gives {len(values)} numbers for {of_steps}"
            raise ConfigError([Problem("learner.rewards", reason, "correct its earned_before(trajectory)")])
    weighed = [[part.weight * value for value in values] for part, values in found]
    return tuple(map(sum, zip(*weighed, strict=True)))


def _is_plain(configs: Sequence[RewardConfig]) -> bool:
    """Is it the evaluator's success alone?"""
    return len(configs) == 1 and configs[0] == RewardConfig()


def _make(config: RewardConfig, place: int, setting: RewardSetting) -> Reward:
    field = f"learner.rewards.{place}"
    made = _class_of(config.name, field=f"{field}.name")
    try:
        return made(config.options, setting)
    except ConfigError as error:
        raise ConfigError([Problem(f"{field}.{one.field}", one.reason, one.next_step) for one in error.problems]) from None
    except ValidationError as error:
        raise ConfigError(option_problems(error, field=f"{field}.options")) from None
    except Exception as error:  # code of others may raise anything; the cause goes along
        step = "derive the class from computerrl.learner.rewards:Reward; its constructor gets (options, setting)"
        raise ConfigError([Problem(field, f"{config.name!r} cannot be made: {type(error).__name__}: {error}", step)]) from error


def _class_of(name: str, *, field: str) -> Any:
    if name in REWARDS:
        return load_named(REWARDS[name], field=field, what="Class")
    found = registered(name, group=ENTRY_POINT_GROUP)
    if found is not None:
        return found
    if ":" in name:
        return load_named(name, field=field, what="Class")
    near = difflib.get_close_matches(name, REWARDS, n=1)
    step = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(REWARDS)}, or module:Class"
    raise ConfigError([Problem(field, f"no reward {name!r}", step)])
