"""A rollout that cannot be played does not hold up its group, its order or the run."""

from __future__ import annotations

import pytest

from computerrl.broker.journal.file import MemoryJournal
from computerrl.broker.service import BrokerService
from computerrl.common.messages import (
    Ack,
    Assignment,
    AssignmentRequest,
    AssignmentReturn,
    ErrorReply,
    GroupRequest,
    NoGroup,
    TrajectoryGroup,
    TrajectoryReceipt,
)
from tests.support.broker_invariants import CheckedCore
from tests.support.data.broker_data import Desk, core, order, trajectory_for


@pytest.fixture
def desk() -> Desk:
    return Desk(CheckedCore(run_id="r", eta=1, groups_per_batch=2, max_assignment_s=120.0, peer_timeout_s=15.0))


def fail(desk: Desk, num_times: int, *, reason: str = "task_failed") -> Assignment:
    """Take the next slot and give it back, so often; the last assignment."""
    for _ in range(num_times):
        granted = desk.assign()
        assert isinstance(granted, Assignment), granted
        assert desk.ask(AssignmentReturn(granted.assignment_id, "a", reason)) == Ack()
    return granted


def test_slot_that_fails_three_times_is_given_up_and_its_group_is_delivered_without_it(desk: Desk) -> None:
    desk.ask(order())
    failed = fail(desk, 3)
    (played,) = desk.play()
    assert (failed.assignment_id, played.assignment_id) == ("rl-1/0/0", "rl-1/0/1")
    group = desk.ask(GroupRequest(0))
    assert isinstance(group, TrajectoryGroup)
    assert [one.trajectory_id for one in group.trajectories] == ["rl-1/0/1"] and group.num_given_up == 1
    assert desk.core.counters["given_up"] == 1 and desk.core.counters["returned/task_failed"] == 3


def test_group_of_which_nothing_can_be_played_is_delivered_empty_and_the_order_ends(desk: Desk) -> None:
    desk.ask(order("eval", kind="evaluation", num_per_family=1, families=("calc-set-cell",)))
    fail(desk, 6)
    group = desk.ask(GroupRequest(0))
    assert isinstance(group, TrajectoryGroup) and group.trajectories == () and group.num_given_up == 2
    assert group.task.family == "calc-set-cell" and desk.core.orders["eval"].done
    assert desk.assign_all() == ([], "no_order")


@pytest.mark.parametrize(("reason", "num_times"), [("desktop_broken", 9), ("no_desktop", 30), ("peer_timeout", 30)])
def test_slots_that_come_back_for_what_is_not_their_tasks_fault_go_out_again(desk: Desk, reason: str, num_times: int) -> None:
    desk.ask(order())
    failed = fail(desk, num_times, reason=reason)
    (played,) = desk.play()
    assert played.assignment_id == failed.assignment_id and desk.core.counters["given_up"] == 0


def test_task_that_breaks_every_desktop_is_given_up(desk: Desk) -> None:
    desk.ask(order())
    fail(desk, 10, reason="desktop_broken")
    assert desk.core.counters["given_up"] == 1


def test_trajectory_that_comes_after_its_slot_was_given_up_is_refused(desk: Desk) -> None:
    desk.ask(order())
    late = fail(desk, 3)
    assert desk.ask(trajectory_for(late)) == TrajectoryReceipt(late.assignment_id, accepted=False, reason="duplicate")


def test_credit_counts_given_up_groups_as_it_does_others(desk: Desk) -> None:
    desk.ask(order())
    fail(desk, 6)
    granted, reason = desk.assign_all()
    assert reason == "staleness_bound" and [one.group_id for one in granted] == [f"rl-1/{n}" for n in (1, 1, 2, 2, 3, 3)]


def test_given_up_slots_and_empty_groups_survive_a_restart_and_a_snapshot() -> None:
    journal = MemoryJournal()
    service = BrokerService(core(), journal, clock=lambda: 0.0, segment_bytes=1500)
    service(order(), "learner-0:l")

    def fail_once(number: int) -> Assignment:
        granted = service(AssignmentRequest("a", 0, f"r{number}"), "actor-0:a")
        assert isinstance(granted, Assignment)
        assert service(AssignmentReturn(granted.assignment_id, "a", "task_failed"), "actor-0:a") == Ack()
        return granted

    for number in range(9):
        last = fail_once(number)
    assert last.assignment_id == "rl-1/1/0"
    before = service.core.snapshot()
    again = BrokerService(core(), journal, clock=lambda: 0.0, segment_bytes=1)
    assert {**again.core.snapshot(), "counters": {}} == {**before, "counters": {}}
    # The next record begins a segment with a snapshot, which is then all that a start reads.
    assert again(order("rl-2"), "learner-0:l") == Ack()
    third = BrokerService(core(), journal, clock=lambda: 0.0)
    for one in (again, third):
        group = one(GroupRequest(0), "learner-0:l")
        assert isinstance(group, TrajectoryGroup) and group.num_given_up == 2 and group.trajectories == ()
        assert isinstance(one(GroupRequest(1), "learner-0:l"), NoGroup)
        assert one.core.counters["given_up"] == 3


def test_order_whose_groups_no_message_could_hold_is_refused(desk: Desk) -> None:
    answer = desk.ask(order(group_size=512, max_steps=100))
    assert isinstance(answer, ErrorReply) and "32768 steps a group" in answer.message
