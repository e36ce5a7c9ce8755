"""The common base of algorithms that replay successes out of a memory; no algorithm by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from msgspec.structs import replace
from pydantic import Field

from computerrl.common.config import LearnerConfig
from computerrl.common.messages import Trajectory, TrajectoryGroup
from computerrl.learner.algorithms.grpo import GRPO, GRPOOptions
from computerrl.learner.algorithms.step_table import Chosen
from computerrl.learner.objective.ages import PolicyAges
from computerrl.learner.objective.memory import SuccessMemory


class ReplayingOptions(GRPOOptions):
    """`learner.algorithm.options` of an algorithm with a memory."""

    memory_size: int = Field(8, ge=1)
    """Number of successes kept of each task."""


class ReplayingGRPO(GRPO):
    """GRPO whose groups may get successes out of a memory, by `replay`. They join before advantages are computed."""

    options_model: type[ReplayingOptions] = ReplayingOptions
    options: ReplayingOptions
    keep: Literal["newest", "shortest"] = "newest"
    """Successes that stay in the memory when there are more than ``memory_size``."""

    def __init__(self, options: Mapping[str, Any], learner: LearnerConfig) -> None:
        super().__init__(options, learner)
        self.memory = SuccessMemory(per_family=self.options.memory_size, keep=self.keep)

    def replay(
        self, trajectories: tuple[Trajectory, ...], kept: tuple[Trajectory, ...], rng: np.random.Generator
    ) -> tuple[Trajectory, ...]:
        """The rollouts of a group to train on, out of ``trajectories``, which came, and ``kept``, the memory's (at least one)."""
        raise NotImplementedError

    def choose(self, groups: Sequence[TrajectoryGroup], *, ages: PolicyAges) -> Chosen:
        """The groups after `replay`. Raises `ValueError` when it returns a trajectory that neither came nor is in the memory."""
        rng = self.generator(ages)
        made: list[TrajectoryGroup] = []
        replayed: set[str] = set()
        for group in groups:
            kept = self.memory.of(group.task.family)
            members = self.replay(group.trajectories, kept, rng) if kept else group.trajectories
            stored = {one.trajectory_id for one in kept}
            others = {one.trajectory_id for one in members} - {one.trajectory_id for one in group.trajectories}
            if others - stored:
                names = ", ".join(sorted(others - stored))
                raise ValueError(f"replay() gave {names}: neither came nor is in the memory; a copy keeps its trajectory_id")
            replayed |= others
            made.append(replace(group, trajectories=members))
        return Chosen(made, frozenset(replayed))

    def remember(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Keep the successes of ``groups``."""
        for group in groups:
            for trajectory in group.trajectories:
                self.memory.add(trajectory)
