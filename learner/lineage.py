"""How far apart two policy versions are, when a learner died in between and went on from a checkpoint.

Version numbers are never used twice: after a crash at version 14 with a checkpoint of version 10, training goes on as
version 15 with the weights of 10, and groups sampled by versions 9, 10, ... 14 are trained again or for the first time. By
number alone a step of version 9 would be 6 old and masked, although its weights are one update away. So ages are counted
in updates between the weights:

    number      8  9  10  11  12  13  14 | 15  16
    position    8  9  10   9   8   7   6 | 10  11      dead versions (11-14) lie as far off as the updates that made them

Pure arithmetic over a list of breaks that the checkpoint carries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from common.messages import Step, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class Break:
    """A restart: version ``resumed_at`` has the weights of ``base``; versions between them are dead."""

    base: int
    resumed_at: int


class Lineage:
    """Positions of versions along the surviving line of updates."""

    def __init__(self, breaks: Sequence[Break] = ()) -> None:
        self.breaks = tuple(breaks)

    def resumed(self, *, base: int, resumed_at: int) -> Lineage:
        """The lineage after a restart from a checkpoint of version ``base``."""
        return Lineage((*self.breaks, Break(base, resumed_at)))

    def position(self, version: int) -> int:
        """Where ``version``'s weights lie; the age of version w at version v is position(v) - position(w)."""
        skipped = 0
        for item in self.breaks:
            if version <= item.base:
                break
            if version < item.resumed_at:
                return item.base - skipped - (version - item.base)
            skipped += item.resumed_at - item.base
        return version - skipped

    def translate(self, group: TrajectoryGroup) -> TrajectoryGroup:
        """``group`` with positions in place of version numbers: what an algorithm shall compute ages from."""
        if not self.breaks:
            return group
        trajectories = tuple(
            dataclasses.replace(trajectory, steps=tuple(self._translate_step(step) for step in trajectory.steps))
            for trajectory in group.trajectories
        )
        return dataclasses.replace(group, trajectories=trajectories)

    def _translate_step(self, step: Step) -> Step:
        positions = np.array([self.position(int(version)) for version in step.policy_versions], dtype=np.int32)
        return dataclasses.replace(step, policy_versions=positions)

    def to_json(self) -> list[list[int]]:
        """JSON-ready."""
        return [[item.base, item.resumed_at] for item in self.breaks]

    @classmethod
    def from_json(cls, breaks: Sequence[Sequence[int]]) -> Lineage:
        """Back from `to_json`."""
        return cls([Break(int(base), int(resumed_at)) for base, resumed_at in breaks])
