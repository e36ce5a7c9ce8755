"""Complete groups on their way to the learner, numbered in order of completion. Pure.

Groups below ``cursor`` are covered by a checkpoint on disk and forgotten here. Groups below ``decided`` were trained or given up
when the learner announced its version; ``decided`` falls back when the learner restarts from its checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from computerrl.broker.orders.order_state import plain_task
from computerrl.common.errors import ProtocolError
from computerrl.common.messages import TaskRef, Trajectory, TrajectoryGroup


@dataclass(slots=True)
class _Waiting:
    group: TrajectoryGroup
    fetched: bool = False


@dataclass(slots=True)
class _Returning:
    """A group of a snapshot, and those of its trajectories that were restored."""

    group: TrajectoryGroup
    num_trajectories: int
    trajectories: list[Trajectory] = field(default_factory=list)


class DeliveryQueue:
    """Groups that are complete and not yet forgotten."""

    def __init__(self) -> None:
        self.cursor = 0
        self.decided = 0
        self.next_seq = 0
        self._waiting: dict[int, _Waiting] = {}
        """Unforgotten groups by sequence number."""
        self._num_decided: Counter[str] = Counter()
        """Number of unforgotten groups below ``decided``, by order; every request for an assignment reads it."""
        self._returning: dict[str, _Returning] = {}
        """Groups whose trajectories follow the snapshot, by group id."""

    def put(self, group: TrajectoryGroup) -> None:
        """Add a group. Numbers have no gaps, except while a snapshot is restored."""
        assert group.group_seq not in self._waiting and group.group_seq >= self.cursor
        self._waiting[group.group_seq] = _Waiting(group)
        self.next_seq = max(self.next_seq, group.group_seq + 1)
        if group.group_seq < self.decided:
            self._num_decided[group.order_id] += 1

    def fetch(self, group_seq: int) -> tuple[TrajectoryGroup | None, bool]:
        """The group (None: not complete yet), and whether this is its first delivery by this process. Raises `ProtocolError`."""
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

    def is_consumed(self, group_seq: int) -> bool:
        """Whether all groups below ``group_seq`` are forgotten. Raises `ProtocolError` when not all of them were completed."""
        if group_seq > self.next_seq:
            raise ProtocolError(f"groups below {group_seq} were reported as consumed, but only {self.next_seq} were completed")
        return group_seq <= self.cursor

    def consume(self, group_seq: int) -> list[tuple[TrajectoryGroup, bool]]:
        """Forget all groups below ``group_seq``; returns them with whether each had been fetched. Raises as `is_consumed`."""
        if self.is_consumed(group_seq):
            return []
        self._move(max(self.decided, group_seq))
        gone = [self._waiting.pop(seq) for seq in range(self.cursor, group_seq)]
        for waiting in gone:
            self._num_decided[waiting.group.order_id] -= 1
        self.cursor = group_seq
        return [(waiting.group, waiting.fetched) for waiting in gone]

    def num_decided(self, order_id: str) -> int:
        """Unforgotten groups of this order below ``decided``."""
        return self._num_decided[order_id]

    def groups(self, *, fetched: bool | None = None) -> Iterator[TrajectoryGroup]:
        """Unforgotten groups in order. ``fetched`` selects those that a learner has or has not fetched; None selects all."""
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
        """Gauges of `Status`."""
        return {
            "groups_waiting": sum(1 for _ in self.groups(fetched=False)),
            "groups_unconsumed": sum(1 for _ in self.groups()),
            "group_seq_next": self.next_seq,
            "group_seq_consumed": self.cursor,
        }

    # --- snapshots

    def snapshot(self) -> dict[str, Any]:
        """Everything but the trajectories, as plain values."""
        complete = [_plain(group) for group in self.groups()]
        return {"cursor": self.cursor, "decided": self.decided, "next_seq": self.next_seq, "complete": complete}

    def restore(self, value: dict[str, Any]) -> None:
        """Continue, in a new queue, from a value that `snapshot` returned; `put_back` adds the trajectories."""
        self.cursor, self.decided, self.next_seq = value["cursor"], value["decided"], value["next_seq"]
        for seq, group_id, order_id, kind, task, num_trajectories, num_given_up in value["complete"]:
            group = TrajectoryGroup(seq, group_id, order_id, kind, TaskRef(*task), (), num_given_up)
            if num_trajectories:
                self._returning[group.group_id] = _Returning(group, num_trajectories)
            else:
                self.put(group)

    @property
    def is_whole(self) -> bool:
        """Whether every group of the snapshot has all of its trajectories."""
        return not self._returning

    def put_back(self, trajectory: Trajectory) -> bool:
        """Put a trajectory into its group of the snapshot; returns False when it belongs to none."""
        returning = self._returning.get(trajectory.group_id)
        if returning is None:
            return False
        returning.trajectories.append(trajectory)
        if len(returning.trajectories) == returning.num_trajectories:
            del self._returning[trajectory.group_id]
            self.put(replace(returning.group, trajectories=tuple(returning.trajectories)))
        return True


def _plain(group: TrajectoryGroup) -> list[Any]:
    """Everything but the trajectories."""
    task, num_trajectories = plain_task(group.task), len(group.trajectories)
    return [group.group_seq, group.group_id, group.order_id, group.kind, task, num_trajectories, group.num_given_up]
