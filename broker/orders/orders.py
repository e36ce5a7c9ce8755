"""One rollout order: its groups, which slot is free, assigned or filled, and how much credit is left. Pure.

A group is a number of slots of one task. A slot is free (in the queue), assigned (somebody plays it, until a deadline) or filled
(its trajectory is on disk, or it was given up), and is filled once. Complete groups leave for the core's delivery queue.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import msgspec

from computerrl.broker.orders import curriculum
from computerrl.broker.orders.curriculum import RecentResults, group_size_limits
from computerrl.broker.orders.task_source import Draw, TaskSource
from computerrl.common.messages import GroupDrawn, RolloutOrder, SlotGivenUp, TaskRef, Trajectory

_MAX_UNFINISHED_SLOTS = 1 << 15
"""Slots of incomplete groups that trajectories may make known: grants of a broker that was killed before they came back."""
_MAX_RETURNS = {"task_failed": 3, "desktop_broken": 10}
"""A slot that came back so often for one of these reasons is given up: it would be handed out before all others, for ever. Other
reasons say nothing about its task, and a broken host gives back what others can play."""

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
    size: int
    """Slots."""
    max_steps: int
    """Actions of its episodes at most: the same for all of a group, so that its baseline compares like with like."""
    filled: dict[int, Trajectory] = field(default_factory=dict)
    given_up: set[int] = field(default_factory=set)
    """Slots that count as filled without a trajectory."""
    returns: Counter[tuple[int, str]] = field(default_factory=Counter)
    """How often a slot came back for which reason; forgotten by a restart."""
    policy_versions: set[int] = field(default_factory=set)
    """Of the steps in ``filled``."""

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """By index."""
        return tuple(self.filled[index] for index in sorted(self.filled))

    @property
    def complete(self) -> bool:
        return len(self.filled) + len(self.given_up) >= self.size


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

    def __init__(self, order: RolloutOrder, results: RecentResults, *, groups_per_batch: int) -> None:
        """``results``: what a curriculum goes by."""
        self.order = order
        self.groups_per_batch = groups_per_batch
        self.closed = False
        self.source = TaskSource(order, results)
        self._results = results
        self.finished = FinishedNumbers()
        self.groups: dict[int, Group] = {}
        self.grants: dict[Slot, Grant] = {}
        """In the order they were given, which is that of their deadlines."""
        self.num_pending = 0
        """Trajectories that wait for the rest of their group."""
        self.num_consumed = 0
        """Groups that the learner's checkpoint covers."""
        self._free: deque[Slot] = deque()
        self._slots_of: dict[str, dict[Slot, None]] = {}
        """Incarnation -> what it was granted: requests ask for one of thousands of actors."""

    # --- questions

    @property
    def done(self) -> bool:
        """Nothing will come any more."""
        return self.closed or (self.source.num_groups is not None and len(self.finished) >= self.source.num_groups)

    @property
    def has_free_slot(self) -> bool:
        """Is there anything to hand out?"""
        return not self.closed and (bool(self._free) or self.source.has(self.source.num_drawn))

    @property
    def next_task(self) -> TaskRef | None:
        """The task of the slot that `grant` would hand out, None when there is none."""
        if not self.has_free_slot:
            return None
        return self.groups[self._free[0][0]].task if self._free else self.source.next().task

    def has_credit(self, *, num_trained: int, eta: int) -> bool:
        """May another training episode start? In a group begun before, always; another group begins only while

        ``begun < trained + (eta + 1) * groups_per_batch``, counted from the start of the order: AReaL's
        ``submitted <= (version + eta + 1) * batch`` in groups, whatever their sizes, where a version may have trained more than
        a batch (`learner.recipe.pacing`), or nothing that counts (a learner that fell back to a checkpoint goes on at a higher
        number). ``num_trained``: groups whose fate the learner had decided when it announced its version.
        """
        return bool(self._free) or self.source.num_drawn < num_trained + (eta + 1) * self.groups_per_batch

    def undrawn(self) -> GroupDrawn | None:
        """The group that must be on disk before the next slot can be handed out; None when none must."""
        if self._free or self.source.is_static:
            return None
        draw = self.source.next()
        return GroupDrawn(self.order.order_id, self.source.num_drawn, draw.task, draw.group_size)

    @property
    def versions_in_flight(self) -> set[int]:
        """Policy versions of what is being played or waits for the rest of its group."""
        playing = {grant.policy_version for grant in self.grants.values()}
        return playing.union(*(group.policy_versions for group in self.groups.values()))

    def slots_of(self, incarnation: str) -> tuple[Slot, ...]:
        """What ``incarnation`` plays, in the order it was granted."""
        return tuple(self._slots_of.get(incarnation, ()))

    def task(self, number: int) -> TaskRef:
        """Of an incomplete group, or of one that a broker killed since may have drawn."""
        return self.groups[number].task if number in self.groups else self.source.ahead(number).task

    def group_id(self, number: int) -> str:
        return f"{self.order.order_id}/{number}"

    def is_filled(self, slot: Slot) -> bool:
        """Has this slot's trajectory been taken, or given up?"""
        number, index = slot
        if number not in self.groups:
            return number in self.finished
        group = self.groups[number]
        return index in group.filled or index in group.given_up

    def is_plausible(self, slot: Slot) -> bool:
        """Can this slot have been handed out, perhaps by a broker that was killed since?"""
        number, index = slot
        group = self.groups.get(number)
        num_slots = group.size if group is not None else group_size_limits(self.order)[1]
        reach = self.source.num_drawn
        if self.source.is_static:
            reach = max(reach, reach - len(self.groups) + _MAX_UNFINISHED_SLOTS // self.order.group_size)
        return 0 <= index < num_slots and self.source.has(number) and number < reach

    # --- changes

    def grant(self, *, incarnation: str, request_id: str, deadline: float, policy_version: int) -> Slot:
        """Hand out the next slot: returned ones first, then the rest of the group begun last, then a new group."""
        if not self._free:
            assert self.source.is_static
            self._open_next(self.source.next())
        slot = self._free.popleft()
        self.grants[slot] = Grant(incarnation, request_id, deadline, policy_version)
        self._slots_of.setdefault(incarnation, {})[slot] = None
        return slot

    def open(self, drawn: GroupDrawn) -> None:
        """The next group, as its record says; nothing when that was done before, or the order was closed meanwhile."""
        assert drawn.number <= self.source.num_drawn
        if not self.closed and drawn.number == self.source.num_drawn:
            self._open_next(Draw(drawn.task, drawn.group_size))

    def release(self, slot: Slot) -> None:
        """A grant ended without a trajectory: the slot is the next to go out."""
        if self._end_grant(slot) and not self.is_filled(slot):
            self._free.appendleft(slot)

    def release_if_held(self, slot: Slot, *, incarnation: str) -> None:
        """The same, unless somebody else plays the slot."""
        grant = self.grants.get(slot)
        if grant is not None and grant.incarnation == incarnation:
            self.release(slot)

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

    def take_back(self, slot: Slot, reason: str) -> SlotGivenUp | None:
        """Release a slot that could not be played; what must be on disk instead when that happened too often."""
        group = self.groups[slot[0]]
        group.returns[slot[1], reason] += 1
        if group.returns[slot[1], reason] >= _MAX_RETURNS.get(reason, math.inf):
            return SlotGivenUp(self.order.order_id, *slot, reason)
        self.release(slot)
        return None

    def fill(self, slot: Slot, trajectory: Trajectory) -> Group | None:
        """Take a trajectory into its free or assigned slot; the group when that completes it."""
        group = self._occupy(slot)
        group.filled[slot[1]] = trajectory
        self.num_pending += 1
        group.policy_versions.update(step.min_policy_version for step in trajectory.steps)
        return self._completed(group)

    def give_up(self, slot: Slot) -> Group | None:
        """Go on without the trajectory of a free or assigned slot; the group when that completes it."""
        group = self._occupy(slot)
        group.given_up.add(slot[1])
        return self._completed(group)

    def _occupy(self, slot: Slot) -> Group:
        """Take a slot that is free or assigned; its group."""
        while slot[0] >= self.source.num_drawn:
            self._open_next(self.source.next())
        if not self._end_grant(slot) and slot in self._free:
            self._free.remove(slot)
        return self.groups[slot[0]]

    def _completed(self, group: Group) -> Group | None:
        if not group.complete:
            return None
        del self.groups[group.number]
        self.num_pending -= len(group.filled)
        self.finished.add(group.number)
        return group

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

    def _open_next(self, draw: Draw) -> None:
        self._add(self._group(self.source.num_drawn, draw.task, draw.group_size))
        self.source.take(draw)

    def _group(self, number: int, task: TaskRef, size: int, *, given_up: Sequence[int] = ()) -> Group:
        max_steps = curriculum.max_steps(self.order, number, task.family, self._results)
        return Group(number, task, size, max_steps, given_up=set(given_up))

    def _add(self, group: Group) -> None:
        self.groups[group.number] = group
        self._free.extend((group.number, index) for index in range(group.size) if index not in group.given_up)

    # --- snapshots

    def snapshot(self) -> dict[str, Any]:
        """All but the trajectories, as plain values."""
        return {
            "order": msgspec.to_builtins(self.order),
            "groups_per_batch": self.groups_per_batch,
            "closed": self.closed,
            "source": self.source.snapshot(),
            "groups": [
                [group.number, plain_task(group.task), group.size, sorted(group.given_up)] for group in self.groups.values()
            ],
            "finished": [self.finished.watermark, sorted(self.finished.above)],
            "num_consumed": self.num_consumed,
        }

    @classmethod
    def restore(cls, value: dict[str, Any], results: RecentResults) -> OrderState:
        """From what `snapshot` gave; every slot of an unfinished group is free again."""
        order = msgspec.convert(value["order"], RolloutOrder)
        state = cls(order, results, groups_per_batch=value["groups_per_batch"])
        state.closed = value["closed"]
        state.source.restore(value["source"])
        state.finished = FinishedNumbers(*value["finished"])
        state.num_consumed = value["num_consumed"]
        for number, task, size, given_up in value["groups"]:
            state._add(state._group(number, TaskRef(*task), size, given_up=given_up))
        return state

    def pending(self) -> Iterator[Trajectory]:
        """Trajectories of incomplete groups."""
        for group in self.groups.values():
            yield from group.filled.values()


def plain_task(task: TaskRef) -> list[Any]:
    """Arguments of `TaskRef`, for snapshots, which hold thousands."""
    return [task.family, task.seed, task.split]
