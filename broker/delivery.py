"""Complete groups on their way to the learner, numbered in order of completion. Pure.

``cursor``: groups below it are covered by a checkpoint on disk and forgotten here. ``position``: the first group the learner has
not taken, as far as it has shown; falls back when it restarts from its checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from common.errors import ProtocolError
from common.messages import Trajectory, TrajectoryGroup


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
        """Order -> unforgotten groups before ``position``; every request for an assignment asks."""
        self._returning: dict[str, tuple[int, int]] = {}
        """Group id -> number and size of those whose trajectories follow the snapshot."""
        self._returned: dict[str, list[Trajectory]] = {}

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
            self._taken[waiting.group.order_id] -= 1
        self.cursor = max(self.cursor, group_seq)
        return [(waiting.group, waiting.fetched) for waiting in gone]

    def num_taken(self, order_id: str) -> int:
        """Unforgotten groups of this order before ``position``."""
        return self._taken[order_id]

    def groups(self, *, fetched: bool | None = None) -> Iterator[TrajectoryGroup]:
        """Unforgotten groups in order; only those fetched by a learner, or not, when asked."""
        for seq in sorted(self._waiting):
            if fetched is None or self._waiting[seq].fetched == fetched:
                yield self._waiting[seq].group

    def gauges(self) -> dict[str, int]:
        """For `Status`."""
        return {
            "groups_waiting": sum(1 for _ in self.groups(fetched=False)),
            "groups_unconsumed": sum(1 for _ in self.groups()),
            "group_seq_next": self.next_seq,
            "group_seq_consumed": self.cursor,
        }

    def _move(self, position: int) -> None:
        for seq in range(self.position, position):
            self._taken[self._waiting[seq].group.order_id] += 1
        for seq in range(position, self.position):
            self._taken[self._waiting[seq].group.order_id] -= 1
        self.position = position

    # --- compaction

    def snapshot(self) -> dict[str, Any]:
        """All but the trajectories, as plain values."""
        complete = {group.group_id: [group.group_seq, len(group.trajectories)] for group in self.groups()}
        return {"cursor": self.cursor, "next_seq": self.next_seq, "complete": complete}

    @classmethod
    def restore(cls, value: dict[str, Any]) -> DeliveryQueue:
        """From what `snapshot` gave; `put_back` brings the trajectories."""
        queue = cls(cursor=value["cursor"])
        queue.next_seq = value["next_seq"]
        queue._returning = {group_id: (seq, size) for group_id, (seq, size) in value["complete"].items()}
        return queue

    @property
    def is_whole(self) -> bool:
        """Are the trajectories of all groups of the snapshot back?"""
        return not self._returning

    def put_back(self, trajectory: Trajectory) -> bool:
        """Take back a member of a group of the snapshot; False when it is of none."""
        if trajectory.group_id not in self._returning:
            return False
        group_seq, size = self._returning[trajectory.group_id]
        members = self._returned.setdefault(trajectory.group_id, [])
        members.append(trajectory)
        if len(members) == size:
            del self._returned[trajectory.group_id], self._returning[trajectory.group_id]
            self.put(
                TrajectoryGroup(
                    group_seq, trajectory.group_id, trajectory.order_id, trajectory.kind, trajectory.task, tuple(members)
                )
            )
        return True
