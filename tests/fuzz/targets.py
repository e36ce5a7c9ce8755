"""What is fuzzed: functions of some bytes that must come back, whatever the bytes. Whatever they raise is a finding."""

from __future__ import annotations

from computerrl.broker.journal.file import MemoryJournal
from computerrl.broker.service import BrokerService
from computerrl.common.errors import DecodeError
from computerrl.common.messages import (
    REQUEST_KINDS,
    AssignmentRequest,
    DirectoryRequest,
    GroupRequest,
    Hello,
    Message,
    StatusRequest,
)
from computerrl.common.wire import codec
from tests.support.broker_invariants import check
from tests.support.data.broker_data import core, order
from tests.support.wire_fuzz import unpack


def fuzz_codec(data: bytes) -> None:
    """What decodes is a message, and encoding that message gives bytes that decode to the same again."""
    for frames in unpack(data):
        codec.peek_message_id(frames)
        try:
            message = codec.decode(frames).message
        except DecodeError:
            continue
        once = codec.encode(message, sender="x-0:x", message_id=1, limited=False)
        again = codec.encode(codec.decode(once, limited=False).message, sender="x-0:x", message_id=1, limited=False)
        assert once == again, f"{type(message).__name__} changes each time it is encoded"


def fuzz_broker(data: bytes) -> None:
    """Requests of a hostile client, some together: each is answered, the books balance, the journal leads to the same books."""
    journal = MemoryJournal()
    service = _service(journal)
    service(order(), "learner-0:l")
    service(Hello("actor", 0, "a", "node1", 1, {}), "actor-0:a")
    for number in range(4):
        service(AssignmentRequest("a", 3, f"r{number}"), "actor-0:a")
    pending: list[tuple[Message, str, list[bytes]]] = []
    for number, frames in enumerate(unpack(data)):
        try:
            envelope = codec.decode(frames, kinds=REQUEST_KINDS)
        except DecodeError:
            continue
        pending.append((envelope.message, envelope.sender, frames))
        if number % 3 == 0:
            _answer(service, pending)
            pending = []
    _answer(service, pending)
    # What was left behind must not harm those who come after, nor a restarted broker.
    restarted = _service(journal)
    _go_on(service)
    _go_on(restarted)
    again = _service(journal).core
    check(again)
    for name in ("accepted", "groups_completed", "groups_consumed"):
        assert again.counters[name] == service.core.counters[name], name


def _go_on(service: BrokerService) -> None:
    """What an ordinary actor, the learner and a display ask."""
    asked: list[Message] = [AssignmentRequest("b", 2**31 - 1, f"q{number}") for number in range(6)]
    asked += [StatusRequest(), GroupRequest(service.core.delivery.cursor), DirectoryRequest("actor")]
    _answer(service, [(message, "learner-0:l", codec.encode(message, sender="x", message_id=1)) for message in asked])


def _service(journal: MemoryJournal) -> BrokerService:
    return BrokerService(core(), journal, clock=lambda: 0.0)


def _answer(service: BrokerService, requests: list[tuple[Message, str, list[bytes]]]) -> None:
    for ticket, (message, sender, frames) in enumerate(requests):
        service.receive(ticket, message, sender, frames=frames)
    while (batch := service.next_batch()) is not None:
        service.persist(batch)
        service.apply(batch)
    service.expire()
    answers = dict(service.pop_replies())
    assert sorted(answers) == list(range(len(requests)))
    check(service.core)
    for answer in answers.values():
        codec.decode(codec.encode(answer, sender="broker-0:b", message_id=1))


TARGETS = {"codec": fuzz_codec, "broker": fuzz_broker}
