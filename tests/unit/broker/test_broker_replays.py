"""The same frames once more, from whomever, change nothing: every request to the broker, at any time in a run."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from computerrl.broker.journal.file import MemoryJournal
from computerrl.broker.service import BrokerService
from computerrl.common.messages import (
    REQUEST_KINDS,
    AssignmentRequest,
    AssignmentReturn,
    ConsumptionReport,
    DirectoryRequest,
    EncodedImage,
    ErrorReply,
    GroupRequest,
    Heartbeat,
    Hello,
    ImageRequest,
    ImageSubmission,
    Message,
    OrderClosure,
    ReceiptBatch,
    RolloutOrder,
    ScreenshotRef,
    Status,
    StatusRequest,
    Trajectory,
    TrajectoryBatch,
    TrajectoryReceipt,
    VersionAnnouncement,
)
from computerrl.common.wire import codec
from tests.support.data.broker_data import assignment, core, order, step, trajectory_for

COUNTS_COPIES = re.compile(r"received|rejected(/.*)?")
"""Counters that say how often something came in."""

small = st.integers(0, 3)
incarnations = st.sampled_from(["a", "b"])
order_ids = st.sampled_from(["rl-1", "rl-2"])
ids = st.builds("{}/{}/{}".format, order_ids, small, st.integers(0, 1))


IMAGES = [EncodedImage.of(data) for data in (b"one", b"another")]
images = st.sampled_from([*IMAGES, replace(IMAGES[0], data=IMAGES[1].data)])
names = st.sampled_from([image.content_hash for image in IMAGES])


def submission(order_id: str, number: int, index: int, *, whole: bool, shown: list[str]) -> Trajectory:
    played = assignment(order_id, number, index)
    refs = tuple(ScreenshotRef(name, "segment", 0, 3, 8, 8) for name in shown)
    return trajectory_for(played, steps=[replace(step(), images=refs)] * (1 if whole else 7))


shown = st.lists(names, max_size=2)
trajectories = st.builds(submission, order_ids, small, st.integers(0, 1), whole=st.booleans(), shown=shown)


REQUESTS: dict[type, st.SearchStrategy[Message]] = {
    RolloutOrder: st.builds(order, order_ids, group_size=st.integers(1, 2), num_per_family=st.sampled_from([None, 2, -1])),
    OrderClosure: st.builds(OrderClosure, order_ids),
    AssignmentRequest: st.builds(AssignmentRequest, incarnations, st.integers(-1, 2), st.builds("r{}".format, small)),
    AssignmentReturn: st.builds(AssignmentReturn, ids, incarnations, st.just("desktop_broken")),
    Trajectory: trajectories,
    TrajectoryBatch: st.builds(TrajectoryBatch, st.lists(trajectories, min_size=1, max_size=3).map(tuple)),
    ImageSubmission: st.builds(ImageSubmission, st.lists(images, max_size=3).map(tuple)),
    ImageRequest: st.builds(ImageRequest, st.lists(names, min_size=1, max_size=3).map(tuple)),
    GroupRequest: st.builds(GroupRequest, st.integers(-1, 4)),
    ConsumptionReport: st.builds(ConsumptionReport, st.integers(-1, 4)),
    VersionAnnouncement: st.builds(VersionAnnouncement, st.integers(-1, 4), small),
    Hello: st.builds(Hello, st.just("actor"), small, incarnations, st.just("node1"), st.just(1), st.just({})),
    Heartbeat: st.builds(Heartbeat, st.just("actor"), small, incarnations, st.just({"actor/x": 1.0})),
    DirectoryRequest: st.builds(DirectoryRequest, st.just("actor")),
    StatusRequest: st.builds(StatusRequest),
}
"""An `AssignmentRequest` without a ``request_id`` asks for another episode each time, by definition; nobody sends one."""
requests = st.one_of(*REQUESTS.values())


def state(service: BrokerService, journal: MemoryJournal) -> dict[str, Any]:
    """All that a request can change, but counters of what came in."""
    broker = service.core
    snapshot = broker.snapshot()
    counters = broker.counters.items()
    snapshot["counters"] = {name: value for name, value in counters if value and not COUNTS_COPIES.fullmatch(name)}
    return {
        **snapshot,
        "held": sorted(trajectory.trajectory_id for trajectory in broker.held()),
        "grants": [[*state.slots.grants] for state in broker.orders],
        "free": [[*state.slots.free] for state in broker.orders],
        "turns": [*broker.orders._turns],
        "peers": (broker.peers.entries(0.0), broker.peers.metrics, broker.peers.notes),
        "decided": broker.delivery.decided,
        "num_bytes": journal.num_bytes,
    }


def receipts(answer: Message) -> tuple[TrajectoryReceipt, ...]:
    """In an answer to trajectories."""
    if isinstance(answer, ReceiptBatch):
        return answer.receipts
    return (answer,) if isinstance(answer, TrajectoryReceipt) else ()


def content(answer: Message) -> bytes:
    """What an answer says, without how often something came in."""
    said = replace(answer, counters={}) if isinstance(answer, Status) else answer
    return b"".join(codec.encode(said, sender="broker-0:b", message_id=1))


@given(st.lists(st.tuples(requests, incarnations), min_size=1, max_size=25))
def test_request_that_comes_twice_changes_nothing_the_second_time(sent: list[tuple[Message, str]]) -> None:
    journal = MemoryJournal()
    service = BrokerService(core(), journal, clock=lambda: 0.0)
    service(order(), "learner-0:l")
    for message, incarnation in sent:
        frames = codec.encode(message, sender=f"actor-0:{incarnation}", message_id=7)
        answers, states = [], []
        for _ in range(2):
            request = codec.decode(frames, kinds=REQUEST_KINDS)
            answers += service.answer_all([(request.message, request.sender)])
            states.append(state(service, journal))
        assert states[0] == states[1], message
        first, second = answers
        for one, again in zip(receipts(first), receipts(second), strict=True):
            # A slot that is filled by now is what is looked at first.
            assert not again.accepted and again.reason in ("duplicate", "" if one.accepted else one.reason)
        if not receipts(first):
            assert content(first) == content(second) or isinstance(second, ErrorReply), message


@given(st.lists(requests, min_size=1, max_size=15))
def test_copies_that_come_together_are_one(sent: list[Message]) -> None:
    once, twice = (BrokerService(core(), MemoryJournal(), clock=lambda: 0.0) for _ in range(2))
    for service in (once, twice):
        service(order(), "learner-0:l")
    for message in sent:
        once.answer_all([(message, "actor-0:a")])
        twice.answer_all([(message, "actor-0:a")] * 2)
    # The journal may hold a copy that was written before the first one counted; it counts once all the same.
    left, right = (state(service, MemoryJournal()) for service in (once, twice))
    assert left == right


def test_requests_tried_are_all_that_a_broker_takes() -> None:
    assert REQUESTS.keys() == core()._checks.keys()
