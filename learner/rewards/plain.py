"""Rewards that are computed from the trajectory alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from computerrl.common.config.base import Section
from computerrl.common.messages import Trajectory
from computerrl.learner.rewards.base import Reward, RewardSetting


class EvaluatorOptions(Section):
    """`options` of the reward evaluator."""

    partial: bool = False
    """Whether partial credit counts, which some evaluators give. False: 1 for a success, else 0."""


class Evaluator(Reward):
    """The verdict of the task's evaluator."""

    def __init__(self, options: Mapping[str, Any], setting: RewardSetting) -> None:
        super().__init__(options, setting)
        self._options = EvaluatorOptions.model_validate(dict(options))

    def score(self, trajectory: Trajectory) -> float:
        return trajectory.reward if self._options.partial else float(trajectory.success)


class PenaltyOptions(Section):
    """`options` of the rewards length and step."""

    per: float = Field(1.0, gt=0)
    """Number of tokens, or of steps, that cost 1."""
    free: int = Field(0, ge=0)
    """Number that costs nothing."""
    only_successes: bool = True
    """Whether failures cost nothing. Else giving up early pays, wherever nothing is solved."""


class _Penalty(Reward):
    def __init__(self, options: Mapping[str, Any], setting: RewardSetting) -> None:
        super().__init__(options, setting)
        self._options = PenaltyOptions.model_validate(dict(options))

    def score(self, trajectory: Trajectory) -> float:
        options = self._options
        if options.only_successes and not trajectory.success:
            return 0.0
        return -max(0, self.count(trajectory) - options.free) / options.per

    def count(self, trajectory: Trajectory) -> int:
        """What costs."""
        raise NotImplementedError


class Length(_Penalty):
    """-1 for each ``per`` action tokens of the episode."""

    def count(self, trajectory: Trajectory) -> int:
        return sum(len(step.action_tokens) for step in trajectory.steps)


class Steps(_Penalty):
    """-1 for each ``per`` steps of the episode."""

    def count(self, trajectory: Trajectory) -> int:
        return len(trajectory.steps)
