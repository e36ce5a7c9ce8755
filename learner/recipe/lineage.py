"""How many updates lie between two policy versions, when a learner died in between and went on from a checkpoint.

Version numbers are never used twice: after a crash at version 14 with a checkpoint of version 10, training goes on as
version 15 with the weights of 10 and takes the same groups in the same order again. By number alone a step of version 9 would
then be 6 old and masked, although the weights are one update apart. So ages are differences of positions:

    number      8  9  10  11  12  13  14 | 15  16  17
    position    8  9  10  11  12  13  14 | 10  11  12      11 (dead) and 16 were trained from 10 on the same batch

Breaks are on disk before anybody can sample with the version that they begin: a learner that dies again before its next
checkpoint would otherwise take that version for a later one than it is. All are kept, those of dead versions too.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from computerrl.common.messages import Step, TrajectoryGroup
from computerrl.common.run_files.run_folder import write_atomically


@dataclass(frozen=True, slots=True)
class Break:
    """A restart: version ``resumed_at`` has the weights of ``base``; versions between them are dead."""

    base: int
    resumed_at: int


class Lineage:
    """Positions of versions, of the surviving line of updates and of those that ended."""

    def __init__(self, breaks: Sequence[Break] = ()) -> None:
        """``breaks``: all there were, in their order."""
        self.breaks = tuple(breaks)
        self._starts = [item.resumed_at for item in self.breaks]
        self._positions: list[int] = []
        for item in self.breaks:
            self._positions.append(self.position(item.base))

    def resumed(self, *, base: int, resumed_at: int) -> Lineage:
        """The lineage after a restart from a checkpoint of version ``base``."""
        return Lineage((*self.breaks, Break(base, resumed_at)))

    def position(self, version: int) -> int:
        """Where ``version``'s weights lie; the age of version w at version v is position(v) - position(w)."""
        number = bisect.bisect_right(self._starts, version) - 1
        return version if number < 0 else self._positions[number] + version - self._starts[number]

    def translate(self, group: TrajectoryGroup) -> TrajectoryGroup:
        """``group`` with positions in place of version numbers: what an algorithm shall compute ages from."""
        if not self.breaks:
            return group
        trajectories = tuple(
            replace(trajectory, steps=tuple(self._translate_step(step) for step in trajectory.steps))
            for trajectory in group.trajectories
        )
        return replace(group, trajectories=trajectories)

    def _translate_step(self, step: Step) -> Step:
        positions = np.array([self.position(int(version)) for version in step.policy_versions], dtype=np.int32)
        return replace(step, policy_versions=positions)

    def store(self, path: Path) -> None:
        """Make it durable."""
        write_atomically(path, json.dumps([[item.base, item.resumed_at] for item in self.breaks]).encode())

    @classmethod
    def load(cls, path: Path) -> Lineage:
        """What was stored last; without breaks when nothing was."""
        if not path.exists():
            return cls()
        return cls([Break(int(base), int(resumed_at)) for base, resumed_at in json.loads(path.read_text())])
