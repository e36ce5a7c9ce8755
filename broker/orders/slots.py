"""The slots of one order's incomplete groups. Pure.

A group is a number of slots of one task. A slot is free (in the queue), granted (an actor plays it, until a deadline) or filled
(its trajectory is durable, or it was given up). Each slot is filled once. A group leaves the table when its last slot is filled.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile

from computerrl.common.messages import TaskRef, Trajectory

Slot = tuple[int, int]
"""(group number, index in the group)"""
_GROUP_NUMBER = re.compile(r"0|[1-9][0-9]{0,11}")


def group_id(order_id: str, number: int) -> str:
    """Id of an order's group."""
    return f"{order_id}/{number}"


def assignment_id(order_id: str, slot: Slot) -> str:
    """Id of the assignment that plays ``slot``, and of the trajectory that fills it."""
    number, index = slot
    return f"{group_id(order_id, number)}/{index}"


def slot_of(trajectory: Trajectory) -> Slot | None:
    """The slot that a trajectory names, None when its ids contradict each other."""
    order_id, _, number = trajectory.group_id.rpartition("/")
    if order_id != trajectory.order_id or not _GROUP_NUMBER.fullmatch(number):
        return None
    slot = int(number), trajectory.index
    return slot if trajectory.trajectory_id == assignment_id(order_id, slot) else None


@dataclass(frozen=True, slots=True)
class Grant:
    """Right of one actor to play a slot. Grants are not in the journal: a restarted broker knows none."""

    incarnation: str
    request_id: str
    deadline: float
    policy_version: int
    """Policy version that the actor's engine had loaded when it requested the slot."""


@dataclass(slots=True)
class Group:
    """An incomplete group."""

    number: int
    task: TaskRef
    size: int
    """Number of slots."""
    max_steps: int
    """Maximum number of actions per episode. It is the same for the whole group, so that its baseline compares like with like."""
    filled: dict[int, Trajectory] = field(default_factory=dict)
    given_up: set[int] = field(default_factory=set)
    """Indexes of slots that count as filled without a trajectory."""
    returns: Counter[tuple[int, str]] = field(default_factory=Counter)
    """Number of times a slot was returned, by index and reason; a restart forgets it."""
    policy_versions: set[int] = field(default_factory=set)
    """Policy versions of the steps in ``filled``."""

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """Trajectories of the filled slots, by index."""
        return tuple(self.filled[index] for index in sorted(self.filled))

    @property
    def complete(self) -> bool:
        """Whether every slot is filled or given up."""
        return len(self.filled) + len(self.given_up) >= self.size


class FinishedNumbers:
    """A set of integers that fills up from 0, kept as a watermark and the members above it."""

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


class Grants(Mapping[Slot, Grant]):
    """Grants by slot, in the order in which they were made, which is that of their deadlines."""

    def __init__(self) -> None:
        self._grants: dict[Slot, Grant] = {}
        self._slots_of: dict[str, dict[Slot, None]] = {}
        """Slots by incarnation: a request concerns one of thousands of actors."""

    def __getitem__(self, slot: Slot) -> Grant:
        return self._grants[slot]

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._grants)

    def __len__(self) -> int:
        return len(self._grants)

    def slots_of(self, incarnation: str) -> tuple[Slot, ...]:
        """Slots granted to ``incarnation``, oldest first."""
        return tuple(self._slots_of.get(incarnation, ()))

    def overdue(self, now: float) -> list[Slot]:
        """Slots whose deadline has passed, oldest first."""
        return list(takewhile(lambda slot: now >= self._grants[slot].deadline, self._grants))

    def add(self, slot: Slot, grant: Grant) -> None:
        """Grant a slot."""
        self._grants[slot] = grant
        self._slots_of.setdefault(grant.incarnation, {})[slot] = None

    def end(self, slot: Slot) -> bool:
        """End the grant of ``slot``; returns False when there is none."""
        grant = self._grants.pop(slot, None)
        if grant is None:
            return False
        slots = self._slots_of[grant.incarnation]
        del slots[slot]
        if not slots:
            del self._slots_of[grant.incarnation]
        return True

    def clear(self) -> None:
        """End all grants."""
        self._grants.clear()
        self._slots_of.clear()


class SlotTable:
    """Incomplete groups, the state of their slots, and the numbers of the complete groups."""

    def __init__(self) -> None:
        self.groups: dict[int, Group] = {}
        self.grants = Grants()
        self.finished = FinishedNumbers()
        """Numbers of the groups that are complete."""
        self.num_pending = 0
        """Number of trajectories in incomplete groups."""
        self._free: deque[Slot] = deque()

    @property
    def free(self) -> tuple[Slot, ...]:
        """Free slots in the order in which they are granted."""
        return tuple(self._free)

    @property
    def next_free(self) -> Slot | None:
        """Slot that `grant` would grant, None when no slot is free."""
        return self._free[0] if self._free else None

    @property
    def policy_versions(self) -> set[int]:
        """Policy versions of granted slots and of the trajectories in incomplete groups."""
        playing = {grant.policy_version for grant in self.grants.values()}
        return playing.union(*(group.policy_versions for group in self.groups.values()))

    def pending(self) -> Iterator[Trajectory]:
        """Trajectories of incomplete groups."""
        for group in self.groups.values():
            yield from group.filled.values()

    def is_filled(self, slot: Slot) -> bool:
        """Whether this slot has its trajectory or was given up."""
        number, index = slot
        if number not in self.groups:
            return number in self.finished
        group = self.groups[number]
        return index in group.filled or index in group.given_up

    def add(self, group: Group) -> None:
        """Add a group. Those of its slots that are not given up become free."""
        self.groups[group.number] = group
        self._free.extend((group.number, index) for index in range(group.size) if index not in group.given_up)

    def grant(self, grant: Grant) -> Slot:
        """Grant the next free slot: returned ones come first, then those of the oldest group."""
        slot = self._free.popleft()
        self.grants.add(slot, grant)
        return slot

    def release(self, slot: Slot) -> None:
        """End a grant without a trajectory; the slot becomes the next one to be granted."""
        if self.grants.end(slot) and not self.is_filled(slot):
            self._free.appendleft(slot)

    def release_if_held(self, slot: Slot, *, incarnation: str) -> None:
        """Release a slot unless another process holds it."""
        grant = self.grants.get(slot)
        if grant is not None and grant.incarnation == incarnation:
            self.release(slot)

    def release_all(self, incarnation: str) -> int:
        """Release every slot granted to ``incarnation``; returns their number."""
        slots = self.grants.slots_of(incarnation)
        for slot in reversed(slots):
            self.release(slot)
        return len(slots)

    def expire(self, now: float) -> list[Slot]:
        """Release and return every slot whose deadline has passed."""
        slots = self.grants.overdue(now)
        for slot in reversed(slots):
            self.release(slot)
        return slots

    def fill(self, slot: Slot, trajectory: Trajectory) -> Group | None:
        """Put a trajectory into its free or granted slot; returns the group when that completes it."""
        group = self._occupy(slot)
        group.filled[slot[1]] = trajectory
        self.num_pending += 1
        group.policy_versions.update(step.min_policy_version for step in trajectory.steps)
        return self._completed(group)

    def give_up(self, slot: Slot) -> Group | None:
        """Go on without the trajectory of a free or granted slot; returns the group when that completes it."""
        group = self._occupy(slot)
        group.given_up.add(slot[1])
        return self._completed(group)

    def clear(self) -> int:
        """Remove all incomplete groups; returns the number of their trajectories."""
        num_dropped, self.num_pending = self.num_pending, 0
        self.groups.clear()
        self.grants.clear()
        self._free.clear()
        return num_dropped

    def _occupy(self, slot: Slot) -> Group:
        """End the free or granted state of a slot; returns its group."""
        if not self.grants.end(slot) and slot in self._free:
            self._free.remove(slot)
        return self.groups[slot[0]]

    def _completed(self, group: Group) -> Group | None:
        if not group.complete:
            return None
        del self.groups[group.number]
        self.num_pending -= len(group.filled)
        self.finished.add(group.number)
        return group
