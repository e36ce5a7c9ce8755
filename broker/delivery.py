"""Complete groups on their way to the learner, numbered in order of completion. Pure.

``cursor``: groups below it are covered by a checkpoint on disk and forgotten here. ``position``: the first group the learner has
not taken, as far as it has shown; falls back when it restarts from its checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from common.errors import ProtocolError
from common.messages import TrajectoryGroup


@dataclass(slots=True)
class _Waiting:
    group: TrajectoryGroup
    fetched: bool = False


class DeliveryQueue:
    """Groups that are complete and not yet forgotten."""

    def __init__(self, *, cursor: int = 0) -> None:
        self.cursor = cursor
        self.position = cursor
        self.next_seq = cursor
        self._waiting: dict[int, _Waiting] = {}
        self._taken: Counter[str] = Counter()
        """Order -> trajectories in unforgotten groups before ``position``; every request for an assignment asks."""

    def put(self, group: TrajectoryGroup) -> None:
        """Take a group in; numbers come without gaps, except while a compacted journal is replayed."""
        assert group.group_seq not in self._waiting and group.group_seq >= self.cursor
        self._waiting[group.group_seq] = _Waiting(group)
        self.next_seq = max(self.next_seq, group.group_seq + 1)

    def fetch(self, group_seq: int) -> tuple[TrajectoryGroup | None, bool]:
        """The group (None: not complete yet), and whether this is its first delivery by this process."""
        if group_seq < self.cursor:
            raise ProtocolError(f"group {group_seq} was asked for, but all below {self.cursor} were reported as consumed")
        if group_seq > self.next_seq:
            reason = f"group {group_seq} was asked for, but only {self.next_seq} groups were ever completed"
            raise ProtocolError(f"{reason}: journal and checkpoint are not of the same run")
        waiting = self._waiting.get(group_seq)
        if waiting is None:
            self._move(group_seq)
            return None, False
        first, waiting.fetched = not waiting.fetched, True
        self._move(group_seq + 1)
        return waiting.group, first

    def consume(self, group_seq: int) -> list[tuple[TrajectoryGroup, bool]]:
        """Forget all groups below ``group_seq``; returns them with whether each had been fetched."""
        if group_seq > self.next_seq:
            raise ProtocolError(f"groups below {group_seq} were reported as consumed, but only {self.next_seq} were completed")
        self._move(max(self.position, group_seq))
        gone = [self._waiting.pop(seq) for seq in range(self.cursor, group_seq)]
        for waiting in gone:
            self._taken[waiting.group.order_id] -= len(waiting.group.trajectories)
        self.cursor = max(self.cursor, group_seq)
        return [(waiting.group, waiting.fetched) for waiting in gone]

    def num_taken(self, order_id: str) -> int:
        """Trajectories of this order in unforgotten groups before ``position``."""
        return self._taken[order_id]

    def groups(self, *, fetched: bool | None = None) -> Iterator[TrajectoryGroup]:
        """Unforgotten groups in order; only those fetched by a learner, or not, when asked."""
        for seq in sorted(self._waiting):
            if fetched is None or self._waiting[seq].fetched == fetched:
                yield self._waiting[seq].group

    def _move(self, position: int) -> None:
        for seq in range(self.position, position):
            group = self._waiting[seq].group
            self._taken[group.order_id] += len(group.trajectories)
        for seq in range(position, self.position):
            group = self._waiting[seq].group
            self._taken[group.order_id] -= len(group.trajectories)
        self.position = position
