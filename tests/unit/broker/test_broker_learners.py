"""Only one learner is listened to: the one that came last, whatever sleeps, wakes or starts again."""

from __future__ import annotations

import pytest

from computerrl.broker.core import BrokerCore
from computerrl.broker.events import MessageReceived, Persist
from computerrl.broker.journal.file import MemoryJournal
from computerrl.broker.service import BrokerService
from computerrl.common.messages import (
    Ack,
    ConsumptionReport,
    ErrorReply,
    GroupRequest,
    Heartbeat,
    Hello,
    Message,
    VersionAnnouncement,
    Welcome,
)
from tests.support.data.broker_data import Desk, core, order


def hello(incarnation: str, *, role: str = "learner") -> Hello:
    return Hello(role, 0, incarnation, "node1", 1, {})  # type: ignore[arg-type]


def refused(answer: Message) -> bool:
    return isinstance(answer, ErrorReply) and answer.code == "superseded"


@pytest.mark.parametrize("role", ["learner", "actor", "env_server"])
def test_process_that_was_lost_and_replaced_is_refused_when_it_wakes(role: str) -> None:
    desk = Desk(core())
    desk.ask(hello("asleep", role=role), sender=f"{role}-0:asleep")
    desk.pass_time(100.0)
    assert desk.core.peers.entries(desk.now) == ()
    assert desk.ask(hello("newer", role=role), sender=f"{role}-0:newer") == Welcome(-1)
    beat = Heartbeat(role, 0, "asleep", {})  # type: ignore[arg-type]
    for message in (beat, hello("asleep", role=role)):
        assert refused(desk.ask(message, sender=f"{role}-0:asleep"))
    assert [peer.incarnation for peer in desk.core.peers.entries(desk.now)] == ["newer"]


def test_process_that_was_lost_and_not_replaced_comes_back() -> None:
    desk = Desk(core())
    desk.ask(hello("asleep"), sender="learner-0:asleep")
    desk.pass_time(100.0)
    assert desk.ask(hello("asleep"), sender="learner-0:asleep") == Welcome(-1)


def test_learner_is_welcomed_when_that_is_on_disk_and_others_at_once() -> None:
    one = core()
    effects = one.handle(MessageReceived(1, hello("l"), "learner-0:l"), 0.0)
    assert [type(effect) for effect in effects] == [Persist]
    effects = one.handle(MessageReceived(2, hello("a", role="actor"), "actor-0:a"), 0.0)
    assert Persist not in {type(effect) for effect in effects}


@pytest.mark.parametrize("segment_bytes", [1 << 20, 1])
def test_replaced_learner_is_refused_by_a_restarted_broker(segment_bytes: int) -> None:
    """With a segment of a byte every record begins one: what is known then comes from a snapshot."""
    journal = MemoryJournal()

    def start() -> BrokerService:
        fresh: BrokerCore = core()
        return BrokerService(fresh, journal, clock=lambda: 0.0, segment_bytes=segment_bytes)

    first = start()
    for incarnation in ("old", "older", "present"):
        assert isinstance(first(hello(incarnation), f"learner-0:{incarnation}"), Welcome)
    assert first(order(), "learner-0:present") == Ack()
    again = start()
    for incarnation in ("old", "older"):
        for message in (hello(incarnation), ConsumptionReport(0), VersionAnnouncement(5, 0), GroupRequest(0), order("rl-2")):
            assert refused(again(message, f"learner-0:{incarnation}")), message
    assert again(VersionAnnouncement(5, 0), "learner-0:present") == Ack()
    assert isinstance(again(hello("present"), "learner-0:present"), Welcome)


def test_learner_that_starts_while_the_broker_is_down_replaces_the_one_before() -> None:
    journal = MemoryJournal()
    BrokerService(core(), journal, clock=lambda: 0.0)(hello("before"), "learner-0:before")
    again = BrokerService(core(), journal, clock=lambda: 0.0)
    assert isinstance(again(hello("new"), "learner-0:new"), Welcome)
    assert refused(again(hello("before"), "learner-0:before"))


def test_learner_for_whom_there_is_no_room_takes_nobodys_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("computerrl.broker.peers.MAX_PEERS", 2)
    journal = MemoryJournal()
    service = BrokerService(core(), journal, clock=lambda: 0.0)
    for role in ("learner", "actor"):
        assert isinstance(service(hello("present", role=role), f"{role}-0:present"), Welcome)
    second = Hello("learner", 1, "more", "node1", 1, {})
    assert isinstance(service(second, "learner-1:more"), ErrorReply)
    again = BrokerService(core(), journal, clock=lambda: 0.0)
    assert again.core.peers.learners() == [(0, ["present"])]


def test_restarted_broker_knows_the_learners_place_but_nobody_present() -> None:
    journal = MemoryJournal()
    BrokerService(core(), journal, clock=lambda: 0.0)(hello("l"), "learner-0:l")
    again = BrokerService(core(), journal, clock=lambda: 0.0)
    assert again.core.peers.entries(0.0) == () and again.core.peers.learners() == [(0, ["l"])]
