"""What the broker tells of versions in flight, and what its credit counts from when batches are larger than usual."""

from __future__ import annotations

import pytest

from computerrl.broker.events import StateRestored, TrajectoryRestored
from computerrl.common.messages import (
    Assignment,
    AssignmentReturn,
    GroupRequest,
    NoGroup,
    OrderClosure,
    RolloutOrder,
    Trajectory,
    TrajectoryGroup,
    VersionAnnouncement,
)
from tests.support.data.broker_data import Desk, core, order, step, trajectory_for


def in_flight(desk: Desk, group_seq: int = 0) -> tuple[int, ...]:
    answer = desk.ask(GroupRequest(group_seq))
    assert isinstance(answer, NoGroup), answer
    return answer.training_versions


def grant(desk: Desk, *, policy_version: int, incarnation: str = "a") -> Assignment:
    granted = desk.assign(incarnation, policy_version=policy_version)
    assert isinstance(granted, Assignment)
    return granted


def played(granted: Assignment, *versions: int) -> Trajectory:
    return trajectory_for(granted, steps=[step(policy_version=version) for version in versions])


def training() -> RolloutOrder:
    return order(group_size=3)


def test_no_group_nothing_in_flight_names_no_version() -> None:
    desk = Desk()
    desk.ask(training())
    assert desk.ask(GroupRequest(0)) == NoGroup()


def test_no_group_played_episode_counts_with_its_assignment_and_a_finished_one_with_its_steps() -> None:
    desk = Desk()
    desk.ask(training())
    first, _ = grant(desk, policy_version=3), grant(desk, policy_version=5)
    assert in_flight(desk) == (3, 5)
    desk.ask(played(first, 4, 6))
    assert in_flight(desk) == (4, 5, 6)


def test_no_group_completed_group_is_in_flight_no_longer() -> None:
    desk = Desk()
    desk.ask(training())
    for version in (3, 4, 5):
        desk.ask(played(grant(desk, policy_version=version), version))
    assert isinstance(desk.ask(GroupRequest(0)), TrajectoryGroup)
    assert in_flight(desk, 1) == ()


@pytest.mark.parametrize("kind", ["evaluation", "demonstration"])
def test_no_group_orders_that_train_nothing_do_not_count(kind: str) -> None:
    desk = Desk()
    desk.ask(order(kind=kind, num_per_family=1))
    grant(desk, policy_version=3)
    assert in_flight(desk) == ()


def test_no_group_closed_order_does_not_count() -> None:
    desk = Desk()
    desk.ask(training())
    desk.ask(played(grant(desk, policy_version=3), 3))
    grant(desk, policy_version=4)
    desk.ask(OrderClosure("rl-1"))
    assert in_flight(desk) == ()


def test_no_group_grant_of_a_dead_actor_or_past_its_deadline_does_not_count() -> None:
    desk = Desk()
    desk.hello("a")
    desk.hello("b", index=1)
    desk.ask(training())
    grant(desk, policy_version=3, incarnation="a")
    returned = grant(desk, policy_version=4, incarnation="b")
    grant(desk, policy_version=5, incarnation="b")
    desk.ask(AssignmentReturn(returned.assignment_id, "b", "desktop_broken"), sender="actor-1:b")
    assert in_flight(desk) == (3, 5)
    for _ in range(20):
        desk.beat("b", index=1)
        desk.pass_time(1.0)
    assert in_flight(desk) == (5,)  # Actor 0 was silent for 20 s, 15 are allowed.
    for _ in range(100):
        desk.beat("b", index=1)
        desk.pass_time(1.0)
    assert in_flight(desk) == ()  # 120 s are over.


def test_no_group_restarted_broker_counts_what_the_journal_knows() -> None:
    desk = Desk()
    desk.ask(training())
    waiting = played(grant(desk, policy_version=3), 3)
    desk.ask(waiting)
    grant(desk, policy_version=2)
    again = Desk(core())
    again.core.handle(StateRestored(desk.core.snapshot()), 0.0)
    again.core.handle(TrajectoryRestored(waiting), 0.0)
    assert in_flight(again) == (3,)


def train(desk: Desk, *, groups: int, version: int) -> None:
    """Play, take and report the next ``groups`` groups of 2, however many batches of 2 groups that is."""
    first = desk.core.delivery.next_seq
    desk.play(2 * groups, policy_version=version - 1)
    for number in range(first, first + groups):
        assert isinstance(desk.ask(GroupRequest(number)), TrajectoryGroup)
    desk.ask(VersionAnnouncement(version, first + groups))


def test_credit_after_a_larger_batch_reaches_as_far_ahead_as_after_an_ordinary_one() -> None:
    desk = Desk()
    desk.ask(VersionAnnouncement(0, 0))
    desk.ask(order())
    train(desk, groups=4, version=1)
    assert len(desk.assign_all(policy_version=1)[0]) == 8  # (eta + 1) * 2 groups * 2; by versions alone it would be 4.


def test_credit_after_larger_batches_survives_compaction() -> None:
    desk = Desk()
    desk.ask(VersionAnnouncement(0, 0))
    desk.ask(order())
    for version in range(1, 6):
        train(desk, groups=4, version=version)
    again = Desk(core())
    again.core.handle(StateRestored(desk.core.snapshot()), 0.0)
    for trajectory in desk.core.held():
        again.core.handle(TrajectoryRestored(trajectory), 0.0)
    again.ask(GroupRequest(20))  # The learner goes on where it was.
    assert len(again.assign_all(policy_version=5)[0]) == 8


def test_credit_of_the_next_training_order_does_not_count_what_the_one_before_trained() -> None:
    desk = Desk()
    desk.ask(VersionAnnouncement(0, 0))
    desk.ask(order())
    train(desk, groups=4, version=1)
    desk.ask(OrderClosure("rl-1"))
    desk.ask(order("rl-2"))
    assert len(desk.assign_all(policy_version=1)[0]) == 8
