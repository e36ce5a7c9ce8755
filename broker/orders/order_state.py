"""One rollout order: the groups it draws, the slots of those that are incomplete, and its credit. Pure.

Complete groups leave for the broker's delivery queue.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from computerrl.broker.orders import curriculum
from computerrl.broker.orders.curriculum import RecentResults, group_size_limits
from computerrl.broker.orders.slots import FinishedNumbers, Grant, Group, Slot, SlotTable
from computerrl.broker.orders.task_source import Draw, TaskSource
from computerrl.common.messages import GroupDrawn, RolloutOrder, SlotGivenUp, TaskRef, Trajectory

_MAX_UNFINISHED_SLOTS = 1 << 15
"""Slots of incomplete groups that trajectories may make known: grants of a broker that was killed before they came back."""
_MAX_RETURNS = {"task_failed": 3, "desktop_broken": 10}
"""Number of returns, by reason, after which a slot is given up: it would be granted before all others, for ever. Other reasons
show nothing about its task, and a broken host returns slots that other hosts can play."""


class OrderState:
    """State of one order."""

    def __init__(self, order: RolloutOrder, results: RecentResults, *, groups_per_batch: int) -> None:
        """``results``: outcomes that the order's curriculum depends on."""
        self.order = order
        self.groups_per_batch = groups_per_batch
        self.closed = False
        self.source = TaskSource(order, results)
        self.slots = SlotTable()
        self.num_consumed = 0
        """Number of groups that the learner's checkpoint covers."""
        self._results = results

    # --- questions

    @property
    def done(self) -> bool:
        """Whether the order is closed or all of its groups are complete."""
        return self.closed or (self.source.num_groups is not None and len(self.slots.finished) >= self.source.num_groups)

    @property
    def has_free_slot(self) -> bool:
        """Whether a slot is free, or another group can be drawn."""
        return not self.closed and (self.slots.next_free is not None or self.source.has(self.source.num_drawn))

    @property
    def next_task(self) -> TaskRef | None:
        """The task of the slot that `grant` would grant, None when there is none."""
        if not self.has_free_slot:
            return None
        free = self.slots.next_free
        return self.slots.groups[free[0]].task if free is not None else self.source.next().task

    def has_credit(self, *, num_trained: int, eta: int) -> bool:
        """Whether another training episode may start. In a group begun before, always; another group begins only while

        ``begun < trained + (eta + 1) * groups_per_batch``, counted from the start of the order: AReaL's
        ``submitted <= (version + eta + 1) * batch`` in groups, whatever their sizes, where a version may have trained more than
        a batch (`learner.recipe.pacing`), or nothing that counts (a learner that fell back to a checkpoint goes on at a higher
        number). ``num_trained``: groups whose outcome the learner had decided when it announced its version.
        """
        in_begun_group = self.slots.next_free is not None
        return in_begun_group or self.source.num_drawn < num_trained + (eta + 1) * self.groups_per_batch

    def undrawn(self) -> GroupDrawn | None:
        """The record that must be durable before the next slot can be granted; None when no record is needed."""
        if self.slots.next_free is not None or self.source.is_static:
            return None
        draw = self.source.next()
        return GroupDrawn(self.order.order_id, self.source.num_drawn, draw.task, draw.group_size)

    def task(self, number: int) -> TaskRef:
        """The task of an incomplete group, or of one that a killed broker may have drawn."""
        groups = self.slots.groups
        return groups[number].task if number in groups else self.source.ahead(number).task

    def is_plausible(self, slot: Slot) -> bool:
        """Whether this slot can have been granted, perhaps by a broker that was killed since."""
        number, index = slot
        group = self.slots.groups.get(number)
        num_slots = group.size if group is not None else group_size_limits(self.order)[1]
        reach = self.source.num_drawn
        if self.source.is_static:
            reach = max(reach, reach - len(self.slots.groups) + _MAX_UNFINISHED_SLOTS // self.order.group_size)
        return 0 <= index < num_slots and self.source.has(number) and number < reach

    # --- changes

    def grant(self, grant: Grant) -> Slot:
        """Grant the next slot. A new group is begun when no slot is free."""
        if self.slots.next_free is None:
            assert self.source.is_static
            self._begin_next(self.source.next())
        return self.slots.grant(grant)

    def begin_group(self, drawn: GroupDrawn) -> None:
        """Begin the next group as its record states; no effect when that was done before, or the order was closed meanwhile."""
        assert drawn.number <= self.source.num_drawn
        if not self.closed and drawn.number == self.source.num_drawn:
            self._begin_next(Draw(drawn.task, drawn.group_size))

    def return_slot(self, slot: Slot, reason: str) -> SlotGivenUp | None:
        """Release a slot that could not be played; after too many returns, the record that must be durable instead."""
        returns = self.slots.groups[slot[0]].returns
        returns[slot[1], reason] += 1
        if returns[slot[1], reason] >= _MAX_RETURNS.get(reason, math.inf):
            return SlotGivenUp(self.order.order_id, *slot, reason)
        self.slots.release(slot)
        return None

    def fill(self, slot: Slot, trajectory: Trajectory) -> Group | None:
        """Put a trajectory into its free or granted slot; returns the group when that completes it."""
        self._begin_through(slot[0])
        return self.slots.fill(slot, trajectory)

    def give_up(self, slot: Slot) -> Group | None:
        """Go on without the trajectory of a free or granted slot; returns the group when that completes it."""
        self._begin_through(slot[0])
        return self.slots.give_up(slot)

    def close(self) -> int:
        """Start nothing more; returns the number of trajectories of incomplete groups, which are dropped."""
        self.closed = True
        return self.slots.clear()

    def _begin_through(self, number: int) -> None:
        # A broker that was killed may have begun groups of which this one knows only the trajectories.
        while number >= self.source.num_drawn:
            self._begin_next(self.source.next())

    def _begin_next(self, draw: Draw) -> None:
        self._add_group(self.source.num_drawn, draw.task, draw.group_size)
        self.source.take(draw)

    def _add_group(self, number: int, task: TaskRef, size: int, *, given_up: Sequence[int] = ()) -> None:
        max_steps = curriculum.max_steps(self.order, number, task.family, self._results)
        self.slots.add(Group(number, task, size, max_steps, given_up=set(given_up)))

    # --- snapshots

    def snapshot(self) -> dict[str, Any]:
        """Everything but the trajectories, as plain values."""
        groups, finished = self.slots.groups.values(), self.slots.finished
        return {
            "order": msgspec.to_builtins(self.order),
            "groups_per_batch": self.groups_per_batch,
            "closed": self.closed,
            "source": self.source.snapshot(),
            "groups": [[group.number, plain_task(group.task), group.size, sorted(group.given_up)] for group in groups],
            "finished": [finished.watermark, sorted(finished.above)],
            "num_consumed": self.num_consumed,
        }

    @classmethod
    def restore(cls, value: dict[str, Any], results: RecentResults) -> OrderState:
        """The order of a value that `snapshot` returned; every slot of an incomplete group is free again."""
        order = msgspec.convert(value["order"], RolloutOrder)
        state = cls(order, results, groups_per_batch=value["groups_per_batch"])
        state.closed = value["closed"]
        state.source.restore(value["source"])
        state.slots.finished = FinishedNumbers(*value["finished"])
        state.num_consumed = value["num_consumed"]
        for number, task, size, given_up in value["groups"]:
            state._add_group(number, TaskRef(*task), size, given_up=given_up)
        return state


def plain_task(task: TaskRef) -> list[Any]:
    """Arguments of `TaskRef`, for snapshots, which hold thousands."""
    return [task.family, task.seed, task.split]
