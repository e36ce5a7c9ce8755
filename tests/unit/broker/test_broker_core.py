"""The broker's decisions, one by one: no sockets, no files, no clock."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace

from computerrl.broker.events import MessagePersisted, MessageReceived, Persist, PersistFailed, Reply
from computerrl.common.messages import (
    Ack,
    Assignment,
    AssignmentReturn,
    ConsumptionReport,
    ErrorReply,
    GroupRequest,
    HeartbeatAck,
    Hello,
    ImagesWanted,
    Message,
    NoAssignment,
    NoGroup,
    OrderClosure,
    ScreenshotRef,
    Status,
    StatusRequest,
    Trajectory,
    TrajectoryGroup,
    TrajectoryReceipt,
    VersionAnnouncement,
    Welcome,
)
from tests.support.data.broker_data import Desk, assignment, core, order, step, trajectory_for


def slot(answer: Message) -> str:
    """What an assignment is for: what comes next may have changed since it was handed out before."""
    assert isinstance(answer, Assignment), answer
    return answer.assignment_id


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_assignment_without_order_gives_no_order(desk: Desk) -> None:
    answer = desk.assign()
    assert isinstance(answer, NoAssignment) and answer.reason == "no_order" and answer.retry_after_s > 0


def test_assignments_fill_groups_contiguously_and_interleave_families(desk: Desk) -> None:
    desk.ask(order(num_per_family=2, kind="evaluation"))
    granted, reason = desk.assign_all()
    assert [one.assignment_id for one in granted] == [f"rl-1/{number}/{index}" for number in range(4) for index in range(2)]
    assert [one.task.task_id for one in granted[::2]] == [
        "web-click-button:100000",
        "calc-set-cell:100000",
        "web-click-button:100001",
        "calc-set-cell:100001",
    ]
    assert {one.task.split for one in granted} == {"evaluation"}
    assert reason == "all_assigned"


def test_finished_order_gives_no_order(desk: Desk) -> None:
    desk.ask(order(num_per_family=1, kind="evaluation"))
    desk.play(4)
    assert desk.assign_all() == ([], "no_order")


def test_credit_admits_at_most_eta_plus_one_batches_ahead_of_the_version(desk: Desk) -> None:
    desk.ask(VersionAnnouncement(0, 0))
    desk.ask(order())
    granted, reason = desk.assign_all()
    assert (len(granted), reason) == (8, "staleness_bound")  # (0 + 1 + 1) * 2 groups * 2
    for one in granted:
        desk.ask(trajectory_for(one))
    assert desk.assign_all() == ([], "staleness_bound")
    for number in range(2):
        desk.ask(GroupRequest(number))
    desk.ask(VersionAnnouncement(1, 2))
    granted, reason = desk.assign_all()
    assert (len(granted), reason) == (4, "staleness_bound")


def test_with_eta_0_an_actor_without_the_announced_weights_plays_nothing_that_is_trained() -> None:
    desk = Desk(core(eta=0))
    desk.ask(VersionAnnouncement(3, 0))
    desk.ask(order())
    assert desk.assign_all(policy_version=2) == ([], "policy_version")
    granted, reason = desk.assign_all(policy_version=3)
    assert (len(granted), reason) == (4, "staleness_bound")
    # A slot that came back is of the same batch: older weights may not fill it either.
    desk.ask(AssignmentReturn(granted[0].assignment_id, "a", "engine_failed"))
    assert desk.assign_all(policy_version=2) == ([], "policy_version")
    assert [one.assignment_id for one in desk.assign_all(policy_version=3)[0]] == [granted[0].assignment_id]
    desk.ask(OrderClosure("rl-1"))
    desk.ask(order("demos", kind="demonstration", num_per_family=1))
    assert len(desk.assign_all(policy_version=2)[0]) == 4


def test_with_eta_1_an_actor_plays_on_while_new_weights_are_on_their_way(desk: Desk) -> None:
    desk.ask(VersionAnnouncement(3, 0))
    desk.ask(order())
    assert len(desk.assign_all(policy_version=2)[0]) == 8


def test_credit_counts_versions_from_the_start_of_the_order(desk: Desk) -> None:
    desk.ask(VersionAnnouncement(7, 0))
    desk.ask(order())
    assert len(desk.assign_all(policy_version=7)[0]) == 8


def test_credit_of_a_learner_that_fell_back_counts_what_it_has_taken_again(desk: Desk) -> None:
    desk.ask(order())
    for version in range(1, 4):
        desk.play(4)
        for number in range(2 * version):
            desk.ask(GroupRequest(number))
        desk.ask(VersionAnnouncement(version, 2 * version))
    # Restarted from its first checkpoint: goes on as version 4 without having trained 3 batches.
    desk.ask(VersionAnnouncement(4, 1))
    granted, reason = desk.assign_all(policy_version=4)
    assert (len(granted), reason) == (0, "staleness_bound")  # 12 submitted, (1 group + eta + 1 batches) allowed.
    for number in range(1, 6):
        desk.ask(GroupRequest(number))
    desk.ask(VersionAnnouncement(5, 6))
    assert len(desk.assign_all(policy_version=5)[0]) == 8


def test_returned_assignment_gives_its_credit_and_slot_back_first(desk: Desk) -> None:
    desk.ask(order())
    granted, _ = desk.assign_all()
    assert desk.ask(AssignmentReturn(granted[3].assignment_id, "a", "desktop_broken")) == Ack()
    assert slot(desk.assign()) == granted[3].assignment_id
    assert desk.core.counters["returned/desktop_broken"] == 1


def test_return_by_somebody_else_changes_nothing(desk: Desk) -> None:
    desk.ask(order())
    granted, _ = desk.assign_all()
    desk.ask(AssignmentReturn(granted[0].assignment_id, "other", "desktop_broken"))
    assert desk.assign_all() == ([], "staleness_bound")


def test_return_reasons_cannot_grow_the_counters_without_end(desk: Desk) -> None:
    desk.ask(order())
    for number in range(200):
        granted = desk.assign()
        assert isinstance(granted, Assignment)
        desk.ask(AssignmentReturn(granted.assignment_id, "a", f"reason-{number}"))
    assert len(desk.core.counters) < 100
    assert desk.core.counters["returned"] == 200


def test_demonstrations_go_to_actors_without_a_policy_and_others_do_not(desk: Desk) -> None:
    desk.ask(order("eval", kind="evaluation", min_policy_version=1, num_per_family=1))
    assert desk.assign_all(policy_version=0) == ([], "policy_version")
    desk.ask(order("demo", kind="demonstration", num_per_family=1, group_size=1))
    granted, reason = desk.assign_all(policy_version=-1)
    assert ([one.order_id for one in granted], reason) == (["demo", "demo"], "policy_version")
    assert len(desk.assign_all(policy_version=1)[0]) == 4


def test_open_orders_take_turns(desk: Desk) -> None:
    desk.ask(order("eval", kind="evaluation", num_per_family=1))
    desk.ask(order("demo", kind="demonstration", num_per_family=1))
    granted, _ = desk.assign_all()
    assert [one.order_id for one in granted] == ["eval", "demo"] * 4


def test_assignment_names_what_is_handed_out_next(desk: Desk) -> None:
    desk.ask(order(num_per_family=2))
    desk.ask(order("eval-1", kind="evaluation", num_per_family=1, first_seed=200_000))
    first = desk.assign(policy_version=1)
    granted = [first, *desk.assign_all(policy_version=1)[0]]
    assert all(isinstance(one, Assignment) for one in granted)
    assert [one.next_task for one in granted[:-1]] == [one.task for one in granted[1:]]
    assert granted[-1].next_task is None


def test_same_request_id_gives_the_same_assignment_until_it_ends(desk: Desk) -> None:
    desk.ask(order())
    first = desk.assign(request_id="r1")
    assert desk.assign(request_id="r1") == first
    assert desk.assign(request_id="r2") != first
    assert isinstance(first, Assignment)
    desk.ask(trajectory_for(first))
    assert desk.assign(request_id="r1") != first


def test_assignment_not_submitted_in_time_goes_to_somebody_else(desk: Desk) -> None:
    desk.ask(order())
    first = desk.assign("a")
    desk.pass_time(119.0)
    assert slot(desk.assign("b")) != slot(first)
    desk.pass_time(2.0)
    assert desk.core.counters["expired"] == 1
    assert slot(desk.assign("b")) == slot(first)
    assert isinstance(first, Assignment)
    assert desk.ask(trajectory_for(first)) == TrajectoryReceipt(first.assignment_id, accepted=True, reason="")
    assert desk.ask(trajectory_for(first)) == TrajectoryReceipt(first.assignment_id, accepted=False, reason="duplicate")


def test_new_incarnation_releases_what_the_old_one_held_and_the_old_one_is_refused(desk: Desk) -> None:
    desk.ask(order())
    assert desk.hello("a") == Welcome(-1)
    first = desk.assign("a")
    desk.hello("b")
    assert desk.assign("b") == first
    for answer in (desk.hello("a"), desk.beat("a"), desk.assign("a")):
        assert isinstance(answer, ErrorReply) and answer.code == "superseded"
    assert desk.beat("b") == HeartbeatAck(1.0)


def test_superseded_learner_cannot_move_the_cursor(desk: Desk) -> None:
    for incarnation in ("old", "new"):
        desk.ask(Hello("learner", 0, incarnation, "node1", 1, {}), sender=f"learner-0:{incarnation}")
    desk.ask(order())
    desk.play(2)
    answer = desk.ask(ConsumptionReport(1), sender="learner-0:old")
    assert isinstance(answer, ErrorReply) and answer.code == "superseded"
    assert desk.ask(ConsumptionReport(1), sender="learner-0:new") == Ack()


def test_heartbeats_are_wanted_less_often_among_many_processes_but_three_times_before_one_counts_as_lost() -> None:
    periods = []
    desk = Desk(core(peer_timeout_s=15.0))
    for index in range(1300):
        desk.hello(f"i{index}", index=index)
        answer = desk.beat(f"i{index}", index=index)
        assert isinstance(answer, HeartbeatAck)
        periods.append(answer.period_s)
    assert periods[0] == periods[199] == 1.0 and periods[399] == 2.0 and periods[1299] == 6.5
    desk.beat("i1299", index=1299)
    for _ in range(19):
        desk.pass_time(1.0)
    assert isinstance(desk.beat("i1299", index=1299), HeartbeatAck)
    assert desk.beat("i1", index=1) == ErrorReply("unknown_peer", "actor-1:i1 has not said hello to this broker")
    for _ in range(20):
        desk.pass_time(1.0)
    answer = desk.beat("i1299", index=1299)
    assert isinstance(answer, ErrorReply) and answer.code == "unknown_peer"


def test_silent_peer_is_lost_and_its_assignments_come_back(desk: Desk) -> None:
    desk.ask(order())
    desk.hello("a")
    desk.hello("b", index=1)
    first = desk.assign("a")
    for _ in range(16):
        desk.beat("b", index=1)
        desk.pass_time(1.0)
    answer = desk.beat("a")
    assert isinstance(answer, ErrorReply) and answer.code == "unknown_peer"
    assert desk.assign("b") == first
    assert desk.hello("a") == Welcome(-1)


def test_peers_are_not_lost_when_the_broker_itself_stood_still(desk: Desk) -> None:
    desk.hello("a")
    desk.pass_time(1.0)
    desk.pass_time(60.0)
    assert desk.beat("a") == HeartbeatAck(1.0)


def test_group_is_numbered_when_complete_and_given_again_on_every_request(desk: Desk) -> None:
    desk.ask(order())
    granted, _ = desk.assign_all()
    for one in (granted[2], granted[0], granted[3]):
        desk.ask(trajectory_for(one))
    group = desk.ask(GroupRequest(0))
    assert isinstance(group, TrajectoryGroup)
    assert (group.group_id, group.group_seq) == ("rl-1/1", 0)
    assert [member.index for member in group.trajectories] == [0, 1]
    assert desk.ask(GroupRequest(1)) == NoGroup((0, 2))
    assert desk.ask(GroupRequest(0)) == group
    assert desk.core.counters["delivered"] == 2
    desk.ask(trajectory_for(granted[1]))
    second = desk.ask(GroupRequest(1))
    assert isinstance(second, TrajectoryGroup) and second.group_id == "rl-1/0"


def test_consumed_group_is_forgotten_and_asking_for_it_names_both_numbers(desk: Desk) -> None:
    desk.ask(order())
    desk.play(4)
    desk.ask(GroupRequest(0))
    assert desk.ask(ConsumptionReport(1)) == Ack()
    assert desk.ask(ConsumptionReport(0)) == Ack()
    answer = desk.ask(GroupRequest(0))
    assert isinstance(answer, ErrorReply)
    assert answer.code == "protocol_error" and "group 0" in answer.message and "below 1" in answer.message
    assert isinstance(desk.ask(GroupRequest(1)), TrajectoryGroup)


def test_consumption_of_groups_that_never_were_is_an_error(desk: Desk) -> None:
    answer = desk.ask(ConsumptionReport(5))
    assert isinstance(answer, ErrorReply) and "below 5" in answer.message
    answer = desk.ask(GroupRequest(5))
    assert isinstance(answer, ErrorReply) and "same run" in answer.message


def test_unfetched_group_reported_as_consumed_counts_as_delivered(desk: Desk) -> None:
    desk.ask(order())
    desk.play(2)
    desk.ask(ConsumptionReport(1))
    assert (desk.core.counters["delivered"], desk.core.counters["held"]) == (2, 0)


def test_closed_order_drops_incomplete_groups_and_keeps_complete_ones(desk: Desk) -> None:
    desk.ask(order())
    played = desk.play(3)
    late = desk.assign()
    assert isinstance(late, Assignment)
    assert desk.ask(OrderClosure("rl-1")) == Ack()
    assert desk.ask(OrderClosure("rl-1")) == Ack()
    counters = desk.core.counters
    assert (counters["held"], counters["rejected/order_closed"]) == (2, 1)
    assert desk.ask(trajectory_for(late)) == TrajectoryReceipt(late.assignment_id, accepted=False, reason="order_closed")
    assert desk.ask(trajectory_for(played[0])) == TrajectoryReceipt(played[0].assignment_id, accepted=False, reason="duplicate")
    assert desk.assign_all() == ([], "no_order")
    assert isinstance(desk.ask(GroupRequest(0)), TrajectoryGroup)


def test_same_order_placed_again_changes_nothing_and_another_under_its_id_is_an_error(desk: Desk) -> None:
    desk.ask(order())
    desk.play(3)
    assert desk.ask(order()) == Ack()
    assert desk.play(1)[0].assignment_id == "rl-1/1/1"
    answer = desk.ask(order(group_size=4))
    assert isinstance(answer, ErrorReply) and answer.code == "order_refused" and "other content" in answer.message


def test_closed_order_placed_again_is_refused_and_another_id_is_free(desk: Desk) -> None:
    desk.ask(order())
    desk.ask(OrderClosure("rl-1"))
    answer = desk.ask(order())
    assert isinstance(answer, ErrorReply) and answer.code == "order_refused" and "closed" in answer.message
    assert desk.assign_all() == ([], "no_order")
    assert desk.ask(order("rl-1.2")) == Ack()
    assert desk.play(1)[0].assignment_id == "rl-1.2/0/0"


def test_finished_order_placed_again_changes_nothing(desk: Desk) -> None:
    finite = order("eval", kind="evaluation", num_per_family=1, group_size=1)
    desk.ask(finite)
    desk.play(2)
    assert desk.ask(finite) == Ack()
    assert desk.assign_all() == ([], "no_order")


def test_order_placed_and_closed_before_either_is_on_disk_is_refused_when_applied() -> None:
    broker = core()
    broker.handle(MessagePersisted(0, order()), 0.0)
    broker.handle(MessagePersisted(1, OrderClosure("rl-1")), 0.0)
    (reply,) = broker.handle(MessagePersisted(2, order()), 0.0)
    assert isinstance(reply, Reply) and isinstance(reply.message, ErrorReply)
    assert broker.handle(MessagePersisted(None, order()), 0.0) == []  # So a replay goes on.


@pytest.mark.parametrize(
    "changes",
    [
        {"families": ()},
        {"group_size": 0},
        {"group_size": 10**9},
        {"max_steps": 0},
        {"num_per_family": -1},
        {"num_patches": -1},
        {"kind": "evaluation", "num_per_family": 1, "with_targets": True},
        {"kind": "evaluation", "num_per_family": 1, "with_facts": True},
    ],
)
def test_impossible_order_is_an_error(desk: Desk, changes: dict[str, object]) -> None:
    assert isinstance(desk.ask(order(**changes)), ErrorReply)


@pytest.mark.parametrize("wish", ["with_targets", "with_facts"])
def test_order_with_a_wish_hands_it_on_to_its_assignments(desk: Desk, wish: str) -> None:
    assert isinstance(desk.ask(order(**{wish: True})), Ack)
    granted = desk.assign()
    assert isinstance(granted, Assignment) and getattr(granted, wish)


def test_closing_an_unknown_order_is_an_error(desk: Desk) -> None:
    assert isinstance(desk.ask(OrderClosure("nope")), ErrorReply)


def bad_step() -> object:
    return replace(step(), policy_versions=np.zeros(1, dtype=np.int32))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"order_id": "rl-9"}, "unknown_assignment"),
        ({"index": 1}, "unknown_assignment"),
        ({"trajectory_id": "rl-1/0/x"}, "unknown_assignment"),
        ({"group_id": "rl-1/x"}, "unknown_assignment"),
        ({"group_id": "rl-1/00", "trajectory_id": "rl-1/00/0"}, "unknown_assignment"),
        ({"group_id": "rl-1/" + "9" * 200, "trajectory_id": "rl-1/" + "9" * 200 + "/0"}, "unknown_assignment"),
        ({"group_id": "rl-1/\u0661", "trajectory_id": "rl-1/\u0661/0"}, "unknown_assignment"),
        ({"index": 2, "trajectory_id": "rl-1/0/2"}, "unknown_assignment"),
        ({"index": -1, "trajectory_id": "rl-1/0/-1"}, "unknown_assignment"),
        ({"group_id": "rl-1/99999", "trajectory_id": "rl-1/99999/0"}, "unknown_assignment"),
        ({"kind": "evaluation"}, "malformed"),
        ({"task": replace(assignment().task, seed=5)}, "malformed"),
        ({"reward": 1.5}, "malformed"),
        ({"reward": float("nan")}, "malformed"),
        ({"steps": (bad_step(),)}, "malformed"),
        ({"steps": (replace(step(), behavior_logprobs=np.full(3, np.nan)),)}, "malformed"),
        ({"steps": (step(),) * 7}, "malformed"),
        ({"steps": (replace(step(), prompt_tokens=np.zeros(0, np.int32)),)}, "malformed"),
    ],
)
def test_wrong_trajectory_is_rejected_with_a_named_reason(desk: Desk, changes: dict[str, object], reason: str) -> None:
    desk.ask(order())
    desk.assign()
    wrong: Trajectory = replace(trajectory_for(assignment()), **changes)
    assert desk.ask(wrong) == TrajectoryReceipt(wrong.trajectory_id, accepted=False, reason=reason)
    assert desk.core.counters[f"rejected/{reason}"] == 1


def wordy(trajectory: Trajectory, num: int) -> Trajectory:
    return replace(trajectory, instruction="\u20ac" * num)


def with_images(trajectory: Trajectory, num: int) -> Trajectory:
    ref = ScreenshotRef("a" * 32, "segment-0.bin", 0, 1000, 320, 420)
    return replace(trajectory, steps=(replace(step(), images=(ref,) * num),))


@pytest.mark.parametrize(("grow", "allowed", "too_many"), [(wordy, 6_000, 20_000), (with_images, 40, 64)])
def test_trajectory_of_which_a_group_would_be_larger_than_any_message_is_rejected(
    desk: Desk, grow: Callable[[Trajectory, int], Trajectory], allowed: int, too_many: int
) -> None:
    desk.ask(order(group_size=4096))
    first, second = desk.assign(), desk.assign()
    assert isinstance(first, Assignment) and isinstance(second, Assignment)
    large = grow(trajectory_for(first), too_many)
    assert desk.ask(large) == TrajectoryReceipt(large.trajectory_id, accepted=False, reason="malformed")
    small = grow(trajectory_for(second), allowed)
    named = tuple({ref.content_hash for one in small.steps for ref in one.images})
    assert desk.ask(small) == (ImagesWanted(named) if named else TrajectoryReceipt(small.trajectory_id, accepted=True, reason=""))


def test_malformed_trajectory_frees_its_slot(desk: Desk) -> None:
    desk.ask(order())
    first = desk.assign("a")
    assert isinstance(first, Assignment)
    desk.ask(replace(trajectory_for(first), reward=2.0))
    assert desk.assign("a") == first


def test_evaluation_by_a_server_that_sends_text_alone_needs_versions_but_no_logprobs(desk: Desk) -> None:
    desk.ask(order(kind="evaluation", num_per_family=1))
    played = desk.assign()
    assert isinstance(played, Assignment)
    text_alone = replace(step(), behavior_logprobs=np.zeros(0, np.float32))
    unversioned = replace(text_alone, policy_versions=np.zeros(0, np.int32))
    assert not desk.ask(trajectory_for(played, steps=[unversioned])).accepted  # type: ignore[union-attr]
    again = desk.assign()
    assert isinstance(again, Assignment)
    assert desk.ask(trajectory_for(again, steps=[text_alone])).accepted  # type: ignore[union-attr]


def test_demonstration_needs_no_logprobs(desk: Desk) -> None:
    desk.ask(order(kind="demonstration", num_per_family=1))
    granted = desk.assign(policy_version=-1)
    assert isinstance(granted, Assignment)
    bare = replace(step(), behavior_logprobs=np.zeros(0), policy_versions=np.zeros(0, dtype=np.int32))
    receipt = desk.ask(trajectory_for(granted, steps=[bare]))
    assert isinstance(receipt, TrajectoryReceipt) and receipt.accepted


def test_trajectory_of_a_slot_granted_before_a_crash_is_taken(desk: Desk) -> None:
    desk.ask(order())
    granted = assignment(number=3, index=1)
    assert desk.ask(trajectory_for(granted)) == TrajectoryReceipt("rl-1/3/1", accepted=True, reason="")
    ids = [one.assignment_id for one in desk.assign_all()[0]]
    assert ids == ["rl-1/0/0", "rl-1/0/1", "rl-1/1/0", "rl-1/1/1", "rl-1/2/0", "rl-1/2/1", "rl-1/3/0"]


def test_two_copies_received_before_either_is_on_disk_count_once() -> None:
    desk = Desk()
    desk.ask(order())
    trajectory = trajectory_for(assignment())
    for ticket in range(2):
        assert desk.core.handle(MessageReceived(ticket, trajectory, "a"), 0.0) == [Persist(ticket, trajectory)]
    answers = [desk.core.handle(MessagePersisted(ticket, trajectory), 0.0)[-1] for ticket in range(2)]
    assert [answer.message.accepted for answer in answers if isinstance(answer, Reply)] == [True, False]
    desk.check()


def test_trajectory_that_could_not_be_written_changes_nothing_but_the_counters() -> None:
    desk = Desk()
    desk.ask(order())
    granted = desk.assign()
    assert isinstance(granted, Assignment)
    trajectory = trajectory_for(granted)
    desk.core.handle(MessageReceived(3, trajectory, "a"), 0.0)
    effects = desk.core.handle(PersistFailed(3, trajectory, "disk_full", "no space"), 0.0)
    assert effects == [Reply(3, ErrorReply("disk_full", "no space"))]
    desk.check()
    assert desk.core.counters["rejected/disk_full"] == 1
    receipt = desk.ask(trajectory)
    assert isinstance(receipt, TrajectoryReceipt) and receipt.accepted


def test_message_the_broker_does_not_take_is_an_error(desk: Desk) -> None:
    answer = desk.ask(Ack())
    assert isinstance(answer, ErrorReply) and "Ack" in answer.message


def test_version_only_rises_and_a_restarted_learner_is_told_the_highest(desk: Desk) -> None:
    desk.ask(VersionAnnouncement(5, 0))
    desk.ask(VersionAnnouncement(3, 0))
    assert desk.hello() == Welcome(5)


def test_status_shows_counters_queues_and_peers(desk: Desk) -> None:
    desk.hello("a")
    desk.beat("a")
    desk.ask(order())
    desk.play(3)
    desk.assign()
    status = desk.ask(StatusRequest())
    assert isinstance(status, Status)
    assert status.counters["received"] == status.counters["held"] == 3
    assert status.gauges["trajectories_pending"] == 1 and status.gauges["groups_waiting"] == 1
    assert status.gauges["assignments"] == 1
    assert status.metrics == {"actor-0": {"actor/x": 1.0}} and status.notes == {"actor-0": "playing"}
    assert [peer.incarnation for peer in status.peers] == ["a"]
