"""Groups that results choose: on disk before anybody plays them, the same after a restart, of any size."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from msgspec.structs import replace

from computerrl.broker.core import BrokerCore
from computerrl.broker.events import MessagePersisted, MessageReceived, Persist, PersistFailed, Reply
from computerrl.broker.journal.file import MemoryJournal, Position
from computerrl.broker.service import BrokerService
from computerrl.common.messages import (
    Ack,
    Assignment,
    AssignmentRequest,
    CurriculumPlan,
    ErrorReply,
    GroupDrawn,
    GroupRequest,
    Message,
    NoAssignment,
    OrderClosure,
    TaskRef,
    TrajectoryGroup,
    TrajectoryReceipt,
    VersionAnnouncement,
)
from computerrl.common.wire import codec
from tests.support.broker_invariants import CheckedCore
from tests.support.clock import ManualClock
from tests.support.data.broker_data import core, order, trajectory_for

PLAN = CurriculumPlan("success_band", num_recent=8, min_results=2, min_group_size=2, max_group_size=5)
REQUEST = AssignmentRequest("a", 0)


class CountingJournal(MemoryJournal):
    """Counts syncs that made something durable."""

    num_syncs = 0

    def flush(self) -> list[Position]:
        self.num_syncs += bool(self._batch)
        return super().flush()


def served(journal: MemoryJournal, *, eta: int = 1) -> BrokerService:
    checked = CheckedCore(run_id="r", eta=eta, groups_per_batch=2, max_assignment_s=120.0, peer_timeout_s=15.0)
    return BrokerService(checked, journal, clock=ManualClock())


def assignments(answers: Iterable[Message]) -> list[Assignment]:
    return [answer for answer in answers if isinstance(answer, Assignment)]


def with_order(broker: BrokerCore) -> BrokerCore:
    broker.handle(MessagePersisted(None, order(curriculum=PLAN)), 0.0)
    return broker


def test_request_that_needs_a_group_waits_for_its_record_and_changes_nothing_before() -> None:
    broker = with_order(core())
    before = broker.snapshot()["orders"]
    record = GroupDrawn("rl-1", 0, TaskRef("web-click-button", 100_000, "training"), 2)
    assert broker.handle(MessageReceived(7, REQUEST, "actor-0:a"), 0.0) == [Persist(7, record, REQUEST)]
    assert broker.snapshot()["orders"] == before
    (reply,) = broker.handle(MessagePersisted(7, record, REQUEST), 0.0)
    assert isinstance(reply, Reply) and isinstance(reply.message, Assignment)
    assert (reply.ticket, reply.message.assignment_id, reply.message.task) == (7, "rl-1/0/0", record.task)
    # The rest of the group needs no other record.
    (reply,) = broker.handle(MessageReceived(8, REQUEST, "actor-0:a"), 0.0)
    assert isinstance(reply, Reply) and isinstance(reply.message, Assignment)
    assert reply.message.assignment_id == "rl-1/0/1"


def test_request_of_an_order_that_tells_its_groups_is_answered_at_once() -> None:
    broker = core()
    broker.handle(MessagePersisted(None, order(curriculum=CurriculumPlan("weighted", {"calc-set-cell": 2.0}))), 0.0)
    (reply,) = broker.handle(MessageReceived(7, REQUEST, "actor-0:a"), 0.0)
    assert isinstance(reply, Reply) and isinstance(reply.message, Assignment)


def test_draw_that_could_not_be_written_is_an_error_and_the_group_comes_later() -> None:
    broker = with_order(core())
    (persist,) = broker.handle(MessageReceived(1, REQUEST, "actor-0:a"), 0.0)
    assert isinstance(persist, Persist)
    before = broker.snapshot()["orders"]
    failed = broker.handle(PersistFailed(1, persist.message, "disk_full", "no space"), 0.0)
    assert failed == [Reply(1, ErrorReply("disk_full", "no space"))]
    assert broker.snapshot()["orders"] == before
    assert broker.handle(MessageReceived(1, REQUEST, "actor-0:a"), 0.0) == [persist]


def test_draw_of_an_order_that_was_closed_meanwhile_opens_nothing() -> None:
    broker = with_order(core())
    (persist,) = broker.handle(MessageReceived(1, REQUEST, "actor-0:a"), 0.0)
    broker.handle(MessagePersisted(None, OrderClosure("rl-1")), 0.0)
    assert isinstance(persist, Persist)
    (reply,) = broker.handle(MessagePersisted(1, persist.message, persist.context), 0.0)
    assert isinstance(reply, Reply) and isinstance(reply.message, NoAssignment)
    assert reply.message.reason == "no_order"


def test_draw_sent_by_a_peer_is_refused() -> None:
    (reply,) = with_order(core()).handle(MessageReceived(1, GroupDrawn("rl-1", 0, TaskRef("x", 1, "training"), 2), "a"), 0.0)
    assert isinstance(reply, Reply) and isinstance(reply.message, ErrorReply)
    assert reply.message.code == "protocol_error"


def test_requests_that_arrive_together_share_the_group_and_one_sync() -> None:
    journal = CountingJournal()
    service = served(journal)
    service(order(curriculum=PLAN, group_size=4), "learner-0:l")
    journal.num_syncs = 0
    answers = service.answer_all([(REQUEST, "actor-0:a")] * 4)
    assert [one.assignment_id for one in assignments(answers)] == [f"rl-1/0/{index}" for index in range(4)]
    assert journal.num_syncs == 1


def test_requests_for_more_than_one_group_are_all_answered_in_the_same_turn() -> None:
    service = served(MemoryJournal())
    service(order(curriculum=PLAN), "learner-0:l")
    answers = service.answer_all([(REQUEST, "actor-0:a")] * 9)
    assert len(assignments(answers)) == 8  # The bound: 2 batches of 2 groups of 2.
    assert isinstance(answers[8], NoAssignment) and answers[8].reason == "staleness_bound"


def test_two_choices_of_one_group_made_while_the_disk_was_busy_the_first_on_disk_counts() -> None:
    broker = with_order(core())
    first = broker.handle(MessageReceived(1, REQUEST, "actor-0:a"), 0.0)[0]
    assert isinstance(first, Persist) and isinstance(first.message, GroupDrawn)
    second = dataclasses.replace(first, ticket=2, message=replace(first.message, group_size=5))
    granted = [broker.handle(MessagePersisted(one.ticket, one.message, one.context), 0.0)[0] for one in (first, second)]
    assert [one.message.assignment_id for one in granted if isinstance(one, Reply)] == ["rl-1/0/0", "rl-1/0/1"]
    assert {group.size for state in broker.orders for group in state.slots.groups.values()} == {2}


def test_record_of_a_draw_is_what_is_written_not_the_frames_of_the_request() -> None:
    journal = MemoryJournal()
    service = served(journal)
    service(order(curriculum=PLAN), "learner-0:l")
    frames = codec.encode(REQUEST, sender="actor-0:a", message_id=1)
    service.receive(0, REQUEST, "actor-0:a", frames=frames)
    batch = service.next_batch()
    assert batch is not None
    service.persist(batch)
    service.apply(batch)
    ((_, first),) = service.pop_replies()
    (second,) = assignments([served(journal)(REQUEST, "actor-0:a")])
    assert isinstance(first, Assignment) and second.assignment_id == first.assignment_id


def test_restarted_broker_gives_a_group_the_same_task_and_size_whatever_was_learned_since() -> None:
    journal = MemoryJournal()
    service = served(journal)
    service(order(curriculum=PLAN, group_size=3), "learner-0:l")
    first = assignments(service.answer_all([(REQUEST, "actor-0:a")] * 6))
    assert {one.group_id: one.task.family for one in first} == {"rl-1/0": "web-click-button", "rl-1/1": "calc-set-cell"}
    for one in first[:3]:  # Solved every time: its next groups will be fewer and smaller.
        service(trajectory_for(one), "actor-0:a")
    again = assignments(served(journal).answer_all([(REQUEST, "actor-0:a")] * 3))
    assert [(one.assignment_id, one.task) for one in again] == [(one.assignment_id, one.task) for one in first[3:]]


def test_orders_take_turns_whether_their_groups_are_drawn_on_disk_or_not() -> None:
    service = served(MemoryJournal())
    service(order(curriculum=PLAN), "learner-0:l")
    service(order("eval", kind="evaluation", num_per_family=1), "learner-0:l")
    granted = assignments(service(REQUEST, "actor-0:a") for _ in range(6))
    assert [one.order_id for one in granted] == ["rl-1", "eval"] * 3


def test_copy_of_a_trajectory_of_a_large_group_that_is_complete_is_a_duplicate() -> None:
    service = served(MemoryJournal())
    service(order(curriculum=replace(PLAN, min_results=1)), "learner-0:l")
    while service.core.delivery.next_seq < 3:  # Nothing succeeds: the third group has 5 rollouts.
        (granted,) = assignments([service(REQUEST, "actor-0:a")])
        service(trajectory_for(granted, success=False), "actor-0:a")
    assert granted.assignment_id == "rl-1/2/4"
    receipt = service(trajectory_for(granted, success=False), "actor-0:a")
    assert receipt == TrajectoryReceipt("rl-1/2/4", accepted=False, reason="duplicate")


def test_later_groups_follow_what_was_accepted() -> None:
    service = served(MemoryJournal(), eta=20)
    service(order(curriculum=PLAN, group_size=2), "learner-0:l")
    sizes: dict[str, list[int]] = {"web-click-button": [], "calc-set-cell": []}
    for _ in range(160):
        (granted,) = assignments([service(REQUEST, "actor-0:a")])
        # Buttons always work, cells in half of the episodes.
        success = granted.task.family == "web-click-button" or granted.index % 2 == 0
        service(trajectory_for(granted, success=success), "actor-0:a")
    for number in range(service.core.delivery.next_seq):
        group = service(GroupRequest(number), "learner-0:l")
        assert isinstance(group, TrajectoryGroup)
        sizes[group.task.family].append(len(group.trajectories))
    assert set(sizes["web-click-button"]) == {2} and max(sizes["calc-set-cell"]) == 5
    assert len(sizes["calc-set-cell"]) > 3 * len(sizes["web-click-button"])


def test_learner_that_takes_batches_of_groups_of_any_size_never_waits_for_ever() -> None:
    """With eta 0 exactly one batch may be begun: it must be whole when it has been played."""
    service = served(MemoryJournal(), eta=0)
    assert service(order(curriculum=PLAN, group_size=4), "learner-0:l") == Ack()
    for version in range(60):
        played = 0
        while granted := assignments([service(AssignmentRequest("a", version), "actor-0:a")]):
            service(trajectory_for(granted[0], success=(version // 15 + played) % 3 == 0), "actor-0:a")
            played += 1
        for number in (2 * version, 2 * version + 1):
            assert isinstance(service(GroupRequest(number), "learner-0:l"), TrajectoryGroup)
        assert service(VersionAnnouncement(version + 1, 2 * version + 2), "learner-0:l") == Ack()
    assert service.core.delivery.next_seq == 120
