"""The lineage of policy versions: positions, whose differences are numbers of updates across restarts from checkpoints.

Version numbers are never used twice: after a crash at version 14 with a checkpoint of version 10, training goes on as
version 15 with the weights of 10 and takes the same groups in the same order again. By number alone a step of version 9 would
then be 6 old and masked, although the weights are one update apart. So ages are differences of positions:

    number      8  9  10  11  12  13  14 | 15  16  17
    position    8  9  10  11  12  13  14 | 10  11  12      11 (discarded) and 16 were trained from 10 on the same batch

Breaks are on disk before an actor can sample with the version that they begin: a learner that dies again before its next
checkpoint would otherwise take that version for a later one than it is. All are kept, those of discarded versions too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from computerrl.common.run_files.run_folder import write_atomically
from computerrl.learner.objective.ages import PolicyAges


@dataclass(frozen=True, slots=True)
class Break:
    """A restart: version ``resumed_at`` has the weights of ``base``; the versions between them are discarded."""

    base: int
    resumed_at: int


class Lineage:
    """Positions of policy versions, of the surviving line of updates and of discarded ones."""

    def __init__(self, breaks: Sequence[Break] = ()) -> None:
        """``breaks``: all restarts, in their order."""
        self.breaks = tuple(breaks)
        positions: list[int] = []
        for number, item in enumerate(self.breaks):
            before = tuple(one.resumed_at for one in self.breaks[:number])
            positions.append(PolicyAges(item.base, before, tuple(positions)).position)
        self._resumed_at = tuple(item.resumed_at for item in self.breaks)
        self._positions = tuple(positions)

    def resumed(self, *, base: int, resumed_at: int) -> Lineage:
        """The lineage after a restart from a checkpoint of version ``base``."""
        return Lineage((*self.breaks, Break(base, resumed_at)))

    def ages(self, version: int) -> PolicyAges:
        """Ages for a learner that trains the weights of ``version``."""
        return PolicyAges(version, self._resumed_at, self._positions)

    def position(self, version: int) -> int:
        """Place of the weights of ``version``; the age of version w at version v is position(v) - position(w)."""
        return self.ages(version).position

    def store(self, path: Path) -> None:
        """Write the breaks to disk; they are durable on return."""
        write_atomically(path, json.dumps([[item.base, item.resumed_at] for item in self.breaks]).encode())

    @classmethod
    def load(cls, path: Path) -> Lineage:
        """The lineage that was stored last; one without breaks when there is no file."""
        if not path.exists():
            return cls()
        return cls([Break(int(base), int(resumed_at)) for base, resumed_at in json.loads(path.read_text())])
