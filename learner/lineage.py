"""How many updates lie between two policy versions, when a learner died in between and went on from a checkpoint.

Version numbers are never used twice: after a crash at version 14 with a checkpoint of version 10, training goes on as
version 15 with the weights of 10 and takes the same groups in the same order again. By number alone a step of version 9 would
then be 6 old and masked, although the weights are one update apart. So ages are differences of positions:

    number      8  9  10  11  12  13  14 | 15  16  17
    position    8  9  10  11  12  13  14 | 10  11  12      11 (dead) and 16 were trained from 10 on the same batch

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
        return version - sum(item.resumed_at - item.base for item in self.breaks if version >= item.resumed_at)

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
