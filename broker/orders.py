"""One rollout order: its groups, which slot is free, assigned or filled, and how much credit is left. Pure.

A group is ``group_size`` slots of one task. A slot is free (in the queue), assigned (somebody plays it, until a deadline) or
filled (its trajectory is on disk), and is filled once. Complete groups leave this file for the core's delivery queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from typing import Any

from broker.task_source import TaskSource
from common.messages import RolloutOrder, TaskRef, Trajectory

_MAX_UNFINISHED_SLOTS = 1 << 15
"""Slots of incomplete groups that trajectories may make known: grants of a broker that was killed before they came back."""

Slot = tuple[int, int]
"""(group number, index in the group)"""


@dataclass(slots=True)
class Grant:
    """Somebody plays a slot."""

    incarnation: str
    request_id: str
    deadline: float
    policy_version: int
    """Loaded in the actor's engine when it asked. Grants are not in the journal: a restarted broker knows none."""


@dataclass(slots=True)
class Group:
    """An incomplete group."""

    number: int
    task: TaskRef
    filled: dict[int, Trajectory] = field(default_factory=dict)
    policy_versions: set[int] = field(default_factory=set)
    """Of the steps in ``filled``."""


class FinishedNumbers:
    """A set of integers that fills up from 0, kept as a watermark and what lies above it."""

    def __init__(self, watermark: int = 0, above: tuple[int, ...] | list[int] = ()) -> None:
        self.watermark = watermark
        self.above = set(above)

    def __contains__(self, number: int) -> bool:
        return 0 <= number < self.watermark or number in self.above

    def add(self, number: int) -> None:
        self.above.add(number)
        while self.watermark in self.above:
            self.above.remove(self.watermark)
            self.watermark += 1

    def __len__(self) -> int:
        return self.watermark + len(self.above)


class OrderState:
    """One order's slots."""

    def __init__(self, order: RolloutOrder, *, start_version: int, batch_size: int) -> None:
        """``batch_size``: trajectories per policy version (B). ``start_version``: the policy version when it was placed."""
        self.order = order
        self.start_version = start_version
        self.batch_size = batch_size
        self.closed = False
        self.source = TaskSource(order)
        self.finished = FinishedNumbers()
        self.groups: dict[int, Group] = {}
        self.grants: dict[Slot, Grant] = {}
        """In the order they were given, which is that of their deadlines."""
        self.num_pending = 0
        """Trajectories that wait for the rest of their group."""
        self.num_consumed = 0
        """Trajectories in groups that the learner's checkpoint covers."""
        self._next_group = 0
        self._free: deque[Slot] = deque()
        self._slots_of: dict[str, dict[Slot, None]] = {}
        """Incarnation -> what it was granted: requests ask for one of thousands of actors."""

    # --- questions

    @property
    def num_filled(self) -> int:
        """Slots filled, in complete and incomplete groups."""
        return len(self.finished) * self.order.group_size + self.num_pending

    @property
    def done(self) -> bool:
        """Nothing will come any more."""
        return self.closed or (self.source.num_groups is not None and len(self.finished) >= self.source.num_groups)

    @property
    def has_free_slot(self) -> bool:
        """Is there anything to hand out?"""
        return not self.closed and (bool(self._free) or self.source.has(self._next_group))

    @property
    def next_task(self) -> TaskRef | None:
        """The task of the slot that `grant` would hand out, None when there is none."""
        if not self.has_free_slot:
            return None
        return self.source.task(self._free[0][0] if self._free else self._next_group)

    def has_credit(self, *, num_trained: int, eta: int) -> bool:
        """May another training episode start?

        ``submitted <= trained + (eta + 1) * batch``, counted from the start of the order: AReaL's
        ``submitted <= (version + eta + 1) * batch``, where a version may have trained more than a batch (`learner.pacing`), or
        nothing that counts (a learner that fell back to a checkpoint goes on at a higher number). ``num_trained``: trajectories
        whose fate the learner had decided when it announced its version.
        """
        return self.num_filled + len(self.grants) < num_trained + (eta + 1) * self.batch_size

    @property
    def versions_in_flight(self) -> set[int]:
        """Policy versions of what is being played or waits for the rest of its group."""
        playing = {grant.policy_version for grant in self.grants.values()}
        return playing.union(*(group.policy_versions for group in self.groups.values()))

    def slots_of(self, incarnation: str) -> tuple[Slot, ...]:
        """What ``incarnation`` plays, in the order it was granted."""
        return tuple(self._slots_of.get(incarnation, ()))

    def group_id(self, number: int) -> str:
        return f"{self.order.order_id}/{number}"

    def is_filled(self, slot: Slot) -> bool:
        """Has this slot's trajectory been taken?"""
        number, index = slot
        return number in self.finished or (number in self.groups and index in self.groups[number].filled)

    def is_plausible(self, slot: Slot) -> bool:
        """Can this slot have been handed out, perhaps by a broker that was killed since?"""
        number, index = slot
        in_range = 0 <= index < self.order.group_size and self.source.has(number)
        num_complete = self._next_group - len(self.groups)
        return in_range and number < max(self._next_group, num_complete + _MAX_UNFINISHED_SLOTS // self.order.group_size)

    # --- changes

    def grant(self, *, incarnation: str, request_id: str, deadline: float, policy_version: int) -> Slot:
        """Hand out the next slot: returned ones first, then the rest of the group begun last, then a new group."""
        if not self._free:
            self._draw()
        slot = self._free.popleft()
        self.grants[slot] = Grant(incarnation, request_id, deadline, policy_version)
        self._slots_of.setdefault(incarnation, {})[slot] = None
        return slot

    def release(self, slot: Slot) -> None:
        """A grant ended without a trajectory: the slot is the next to go out."""
        if self._end_grant(slot) and not self.is_filled(slot):
            self._free.appendleft(slot)

    def release_all(self, incarnation: str) -> int:
        """Release all that ``incarnation`` was granted; returns how many."""
        slots = self.slots_of(incarnation)
        for slot in reversed(slots):
            self.release(slot)
        return len(slots)

    def expire(self, now: float) -> list[Slot]:
        """Release all grants whose deadline has passed."""
        slots = list(takewhile(lambda slot: now >= self.grants[slot].deadline, self.grants))
        for slot in reversed(slots):
            self.release(slot)
        return slots

    def fill(self, slot: Slot, trajectory: Trajectory) -> list[Trajectory] | None:
        """Take a trajectory into its free or assigned slot; the whole group's when that completes it."""
        number, index = slot
        while number >= self._next_group:
            self._draw()
        if not self._end_grant(slot) and slot in self._free:
            self._free.remove(slot)
        group = self.groups[number]
        group.filled[index] = trajectory
        self.num_pending += 1
        group.policy_versions.update(step.min_policy_version for step in trajectory.steps)
        if len(group.filled) < self.order.group_size:
            return None
        del self.groups[number]
        self.num_pending -= self.order.group_size
        self.finished.add(number)
        return [group.filled[place] for place in sorted(group.filled)]

    def close(self) -> int:
        """No more work; returns how many trajectories of incomplete groups are given up."""
        num_dropped, self.num_pending = self.num_pending, 0
        self.closed = True
        self.groups.clear()
        self.grants.clear()
        self._slots_of.clear()
        self._free.clear()
        return num_dropped

    def _end_grant(self, slot: Slot) -> bool:
        """Forget who plays ``slot``; False when nobody does."""
        grant = self.grants.pop(slot, None)
        if grant is None:
            return False
        slots = self._slots_of[grant.incarnation]
        del slots[slot]
        if not slots:
            del self._slots_of[grant.incarnation]
        return True

    def _draw(self) -> None:
        self._open_group(self._next_group)
        self._next_group += 1

    def _open_group(self, number: int) -> None:
        self.groups[number] = Group(number, self.source.task(number))
        self._free.extend((number, index) for index in range(self.order.group_size))

    # --- snapshots

    def snapshot(self) -> dict[str, Any]:
        """All but the trajectories, as plain values."""
        return {
            "order": {**asdict(self.order), "families": list(self.order.families)},
            "start_version": self.start_version,
            "batch_size": self.batch_size,
            "closed": self.closed,
            "next_group": self._next_group,
            "finished": [self.finished.watermark, sorted(self.finished.above)],
            "num_consumed": self.num_consumed,
        }

    @classmethod
    def restore(cls, value: dict[str, Any]) -> OrderState:
        """From what `snapshot` gave; every slot of an unfinished group is free again."""
        order = RolloutOrder(**value["order"])
        state = cls(order, start_version=value["start_version"], batch_size=value["batch_size"])
        state.closed = value["closed"]
        state.finished = FinishedNumbers(*value["finished"])
        state.num_consumed = value["num_consumed"]
        state._next_group = value["next_group"]
        if not state.closed:
            for number in range(state._next_group):
                if number not in state.finished:
                    state._open_group(number)
        return state

    def pending(self) -> Iterator[Trajectory]:
        """Trajectories of incomplete groups."""
        for group in self.groups.values():
            yield from group.filled.values()
