"""What must hold after every event, recounted from scratch; and a core that checks it and can tell its story."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from computerrl.broker.core import BrokerCore
from computerrl.broker.events import Effect, Event, MessageReceived, Persist
from computerrl.common.messages import GroupDrawn


def check(core: BrokerCore) -> None:
    """Raises `AssertionError`."""
    counters = core.counters
    assert counters["received"] == counters["delivered"] + counters["held"] + counters["rejected"], counters
    reasons = sum(value for name, value in counters.items() if name.startswith("rejected/"))
    assert counters["rejected"] == reasons, counters
    pending = sum(state.slots.num_pending for state in core.orders)
    waiting = sum(len(group.trajectories) for group in core.delivery.groups(fetched=False))
    assert counters["held"] == pending + waiting, (counters, pending, waiting)
    numbers = [group.group_seq for group in core.delivery.groups()]
    assert numbers == list(range(core.delivery.cursor, core.delivery.next_seq)), numbers
    decided = Counter(group.order_id for group in core.delivery.groups() if group.group_seq < core.delivery.decided)
    for state in core.orders:
        assert core.delivery.num_decided(state.order.order_id) == decided[state.order.order_id]
        assert state.slots.num_pending == sum(len(group.filled) for group in state.slots.groups.values())
        held_by = {(slot, name) for name, slots in state.slots.grants._slots_of.items() for slot in slots}
        assert held_by == {(slot, grant.incarnation) for slot, grant in state.slots.grants.items()}, state.order.order_id
        deadlines = [grant.deadline for grant in state.slots.grants.values()]
        assert deadlines == sorted(deadlines), deadlines
        slots = [(number, index) for number, group in state.slots.groups.items() for index in range(group.size)]
        filled = [(group.number, index) for group in state.slots.groups.values() for index in (*group.filled, *group.given_up)]
        places = Counter([*state.slots.free, *state.slots.grants, *filled])
        assert places == Counter(slots), (state.order.order_id, places, slots)
        # Every group is complete, or its slots are there.
        if not state.closed:
            assert len(state.slots.finished) + len(state.slots.groups) == state.source.num_drawn, state.order.order_id


def check_admission(core: BrokerCore, num_drawn_before: Mapping[str, int], effects: Sequence[Effect]) -> None:
    """Another group begins only within the design's bound: ``drawn <= trained + (eta + 1) * groups_per_batch``."""
    drawn = {state.order.order_id: state.source.num_drawn for state in core.orders}
    drawn |= {one.message.order_id: one.message.number + 1 for one in effects if _draws(one)}
    for order_id, num_drawn in drawn.items():
        state = core.orders[order_id]
        if state.order.kind == "training" and num_drawn > num_drawn_before[order_id]:
            groups = [group for group in core.delivery.groups() if group.order_id == order_id]
            decided = sum(group.group_seq < core.delivery.decided for group in groups)
            bound = state.num_consumed + decided + (core.assignments.eta + 1) * state.groups_per_batch
            assert num_drawn <= bound, (order_id, num_drawn, bound)


def _draws(effect: Effect) -> TypeGuard[Persist]:
    return isinstance(effect, Persist) and isinstance(effect.message, GroupDrawn)


class CheckedCore(BrokerCore):
    """Checks after every event; on a violation the error tells the last events."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        story = self.__dict__.setdefault("story", [])
        num_drawn = {state.order.order_id: state.source.num_drawn for state in self.orders}
        effects = super().handle(event, now)
        story.append((now, event, effects))
        del story[:-30]
        replaying = not self.delivery.is_whole or type(event).__name__ in ("StateRestored", "TrajectoryRestored")
        if not replaying:
            try:
                check(self)
                if isinstance(event, MessageReceived):
                    check_admission(self, num_drawn, effects)
            except AssertionError as error:
                lines = [f"{when:.1f} {str(what)[:200]} -> {str(then)[:200]}" for when, what, then in story]
                raise AssertionError("\n".join([str(error), *lines])) from error
        return effects
