"""The slot table of an order: each slot is free, granted or filled, and is filled once."""

from __future__ import annotations

import pytest

from computerrl.broker.orders.slots import Grant, Group, Slot, SlotTable, assignment_id, slot_of
from computerrl.common.messages import TaskRef
from tests.support.data.broker_data import assignment, trajectory_for

TASK = TaskRef("web-click-button", 1, "training")


@pytest.fixture
def table() -> SlotTable:
    made = SlotTable()
    made.add(Group(0, TASK, size=3, max_steps=5))
    return made


def grant(table: SlotTable, incarnation: str, deadline: float = 10.0) -> Slot:
    return table.grant(Grant(incarnation, "", deadline, policy_version=0))


def test_released_slots_are_granted_again_in_their_old_order(table: SlotTable) -> None:
    assert [grant(table, "a"), grant(table, "a"), grant(table, "b")] == [(0, 0), (0, 1), (0, 2)]
    assert table.next_free is None and table.release_all("a") == 2
    assert table.free == ((0, 0), (0, 1)) and table.grants.slots_of("a") == () and table.grants.slots_of("b") == ((0, 2),)


def test_only_grants_past_their_deadline_expire(table: SlotTable) -> None:
    early, late = grant(table, "a", 10.0), grant(table, "a", 20.0)
    assert table.expire(9.0) == [] and table.expire(10.0) == [early]
    assert table.next_free == early and [*table.grants] == [late]


def test_slot_is_released_only_by_its_holder(table: SlotTable) -> None:
    slot = grant(table, "a")
    table.release_if_held(slot, incarnation="b")
    assert slot in table.grants
    table.release_if_held(slot, incarnation="a")
    assert slot not in table.grants and table.next_free == slot


def test_group_is_returned_when_its_last_slot_is_filled_or_given_up(table: SlotTable) -> None:
    slot = grant(table, "a")
    assert table.fill(slot, trajectory_for(assignment(index=0))) is None and table.num_pending == 1
    assert table.give_up((0, 1)) is None and table.is_filled((0, 1)) and not table.is_filled((0, 2))
    group = table.fill((0, 2), trajectory_for(assignment(index=2)))
    assert group is not None and [one.index for one in group.trajectories] == [0, 2] and group.given_up == {1}
    assert table.num_pending == 0 and 0 in table.finished and not table.groups and not table.free


def test_cleared_table_counts_what_it_drops(table: SlotTable) -> None:
    table.fill(grant(table, "a"), trajectory_for(assignment(index=0)))
    grant(table, "a")
    assert table.clear() == 1
    assert not table.groups and not table.grants and not table.free and table.num_pending == 0


def test_slot_of_a_trajectory_is_that_of_its_ids() -> None:
    made = trajectory_for(assignment(number=7, index=1))
    assert slot_of(made) == (7, 1) and made.trajectory_id == assignment_id(made.order_id, (7, 1))
