"""Complete groups on their way to the learner, numbered in order of completion. Pure.

``cursor``: groups below it are covered by a checkpoint on disk and forgotten here. ``decided``: groups below it were trained or
given up when the learner announced its version; falls back when the learner restarts from its checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from computerrl.broker.orders.orders import plain_task
from computerrl.common.errors import ProtocolError
from computerrl.common.messages import TaskRef, Trajectory, TrajectoryGroup


@dataclass(slots=True)
class _Waiting:
    group: TrajectoryGroup
    fetched: bool = False


@dataclass(slots=True)
class _Returning:
    """A group of a snapshot, and those of its trajectories that are back."""

    group: TrajectoryGroup
    num_trajectories: int
    trajectories: list[Trajectory] = field(default_factory=list)


class DeliveryQueue:
    """Groups that are complete and not yet forgotten."""

    def __init__(self, *, cursor: int = 0) -> None:
        self.cursor = cursor
        self.decided = cursor
        self.next_seq = cursor
        self._waiting: dict[int, _Waiting] = {}
        self._num_decided: Counter[str] = Counter()
        """Groups by order, of unforgotten ones; every request for an assignment asks."""
        self._returning: dict[str, _Returning] = {}
        """By group id: those whose trajectories follow the snapshot."""

    def put(self, group: TrajectoryGroup) -> None:
        """Take a group in; numbers come without gaps, except while a snapshot is restored."""
        assert group.group_seq not in self._waiting and group.group_seq >= self.cursor
        self._waiting[group.group_seq] = _Waiting(group)
        self.next_seq = max(self.next_seq, group.group_seq + 1)
        if group.group_seq < self.decided:
            self._num_decided[group.order_id] += 1

    def fetch(self, group_seq: int) -> tuple[TrajectoryGroup | None, bool]:
        """The group (None: not complete yet), and whether this is its first delivery by this process."""
        if group_seq < self.cursor:
            raise ProtocolError(f"group {group_seq} was asked for, but all below {self.cursor} were reported as consumed")
        if group_seq > self.next_seq:
            reason = f"group {group_seq} was asked for, but only {self.next_seq} groups were ever completed"
            raise ProtocolError(f"{reason}: journal and checkpoint are not of the same run")
        waiting = self._waiting.get(group_seq)
        if waiting is None:
            return None, False
        first, waiting.fetched = not waiting.fetched, True
        return waiting.group, first

    def decide(self, group_seq: int) -> None:
        """The learner announced a version: groups below ``group_seq`` are trained or given up."""
        self._move(min(max(self.cursor, group_seq), self.next_seq))

    def consume(self, group_seq: int) -> list[tuple[TrajectoryGroup, bool]]:
        """Forget all groups below ``group_seq``; returns them with whether each had been fetched."""
        if group_seq > self.next_seq:
            raise ProtocolError(f"groups below {group_seq} were reported as consumed, but only {self.next_seq} were completed")
        self._move(max(self.decided, group_seq))
        gone = [self._waiting.pop(seq) for seq in range(self.cursor, group_seq)]
        for waiting in gone:
            self._num_decided[waiting.group.order_id] -= 1
        self.cursor = max(self.cursor, group_seq)
        return [(waiting.group, waiting.fetched) for waiting in gone]

    def num_decided(self, order_id: str) -> int:
        """Unforgotten groups of this order below ``decided``."""
        return self._num_decided[order_id]

    def groups(self, *, fetched: bool | None = None) -> Iterator[TrajectoryGroup]:
        """Unforgotten groups in order; only those fetched by a learner, or not, when asked."""
        for seq in sorted(self._waiting):
            if fetched is None or self._waiting[seq].fetched == fetched:
                yield self._waiting[seq].group

    def _move(self, decided: int) -> None:
        # A group that is not there yet, while a snapshot is restored, is counted when it comes.
        for sign, seqs in ((1, range(self.decided, decided)), (-1, range(decided, self.decided))):
            for seq in seqs:
                if seq in self._waiting:
                    self._num_decided[self._waiting[seq].group.order_id] += sign
        self.decided = decided

    def gauges(self) -> dict[str, int]:
        """For `Status`."""
        return {
            "groups_waiting": sum(1 for _ in self.groups(fetched=False)),
            "groups_unconsumed": sum(1 for _ in self.groups()),
            "group_seq_next": self.next_seq,
            "group_seq_consumed": self.cursor,
        }

    # --- snapshots

    def snapshot(self) -> dict[str, Any]:
        """All but the trajectories, as plain values."""
        complete = [_plain(group) for group in self.groups()]
        return {"cursor": self.cursor, "decided": self.decided, "next_seq": self.next_seq, "complete": complete}

    @classmethod
    def restore(cls, value: dict[str, Any]) -> DeliveryQueue:
        """From what `snapshot` gave; `put_back` brings the trajectories."""
        queue = cls(cursor=value["cursor"])
        queue.decided, queue.next_seq = value["decided"], value["next_seq"]
        for seq, group_id, order_id, kind, task, num_trajectories, num_given_up in value["complete"]:
            group = TrajectoryGroup(seq, group_id, order_id, kind, TaskRef(*task), (), num_given_up)
            if num_trajectories:
                queue._returning[group.group_id] = _Returning(group, num_trajectories)
            else:
                queue.put(group)
        return queue

    @property
    def is_whole(self) -> bool:
        """Are the trajectories of all groups of the snapshot back?"""
        return not self._returning

    def put_back(self, trajectory: Trajectory) -> bool:
        """Take back a member of a group of the snapshot; False when it is of none."""
        returning = self._returning.get(trajectory.group_id)
        if returning is None:
            return False
        returning.trajectories.append(trajectory)
        if len(returning.trajectories) == returning.num_trajectories:
            del self._returning[trajectory.group_id]
            self.put(replace(returning.group, trajectories=tuple(returning.trajectories)))
        return True


def _plain(group: TrajectoryGroup) -> list[Any]:
    """All of it but the trajectories."""
    task, num_trajectories = plain_task(group.task), len(group.trajectories)
    return [group.group_seq, group.group_id, group.order_id, group.kind, task, num_trajectories, group.num_given_up]
