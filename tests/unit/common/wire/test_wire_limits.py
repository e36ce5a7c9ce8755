"""What a peer can send, and make others remember, has bounds; they are checked before memory is taken."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import msgpack
import numpy as np
import pytest
from test_transport_security import serving

from computerrl.broker.orders import order_book
from computerrl.common.errors import DecodeError, MessageTooLarge
from computerrl.common.messages import (
    DEFAULT_SIZE_LIMIT,
    MAX_PEERS,
    REQUEST_KINDS,
    SIZE_LIMITS,
    Ack,
    Action,
    ErrorReply,
    Evaluation,
    GroupRequest,
    Heartbeat,
    Hello,
    Lease,
    LeaseRequest,
    Message,
    OrderClosure,
    StatusRequest,
    StepRequest,
    TaskRef,
    Trajectory,
    Welcome,
)
from computerrl.common.wire import codec, transport
from computerrl.common.wire.transport import Client
from tests.support.data.broker_data import Desk, assignment, core, order, step, trajectory_for

MIB = 1 << 20


def frames_of(message: Message) -> list[bytes]:
    return codec.encode(message, sender="actor-0:i1", message_id=5)


def test_message_over_its_limit_is_refused_by_its_sender_who_is_told_kind_and_limit() -> None:
    limit = SIZE_LIMITS["Evaluation"].total_bytes
    with pytest.raises(MessageTooLarge, match=rf"Evaluation.*{limit}"):
        frames_of(Evaluation(1.0, success=True, detail="x" * limit))
    assert frames_of(Evaluation(1.0, success=True, detail="x" * (limit - 1000)))


def test_message_of_a_file_has_no_limit() -> None:
    large = Evaluation(1.0, success=True, detail="x" * (2 * MIB))
    frames = codec.encode(large, sender="journal", message_id=0, limited=False)
    assert codec.decode(frames, limited=False).message == large
    with pytest.raises(DecodeError, match="too large"):
        codec.decode(frames)


def header(**changes: object) -> bytes:
    return msgpack.packb({**msgpack.unpackb(frames_of(GroupRequest(1))[0]), **changes})


def test_limit_is_that_of_the_kind_named_first() -> None:
    padding = b"\x90" * (DEFAULT_SIZE_LIMIT.header_bytes + 1)
    with pytest.raises(DecodeError, match="too large"):
        codec.decode([header(body=padding)])
    with pytest.raises(DecodeError, match="missing required field"):
        codec.decode([header(kind="Trajectory", body=b"\x80" + padding[1:1])])
    good = header(kind="Trajectory")
    # The large kind first, and again, as another one, at the end of the map.
    twice = bytes([good[0] + 1]) + good[1:] + msgpack.packb("kind") + msgpack.packb("GroupRequest")
    with pytest.raises(DecodeError, match="twice"):
        codec.decode([twice])


def bombs() -> dict[str, tuple[Callable[[], list[bytes]], int]]:
    """Name -> (frames, how much memory decoding may take, MiB)."""
    empty_array = msgpack.ExtType(1, bytes(4))
    empties = b"\xdd" + (MIB).to_bytes(4, "big") + b"\x90" * MIB
    return {
        "of an answer's kind": (lambda: [header(kind="Status", body=empties)], 1),
        "of a small kind": (lambda: [header(body=empties)], 1),
        "of an unknown kind": (lambda: [header(kind="Nonsense", body=empties)], 1),
        "beside the body": (lambda: [header(kind="Trajectory", more=[[]] * (3 * MIB))], 8),
        "of empty arrays": (lambda: [header(kind="Trajectory", body=msgpack.packb([[empty_array] * (MIB // 8)] * 3))], 32),
        "declared but not there": (lambda: [header(body=b"\xdd\xff\xff\xff\xff")], 1),
        "declared header": (lambda: [b"\xdf\xff\xff\xff\xff"], 1),
    }


@pytest.mark.parametrize("name", bombs())
def test_decode_of_what_would_unpack_to_much_takes_little_memory(name: str) -> None:
    make, limit_mib = bombs()[name]
    frames = make()
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            codec.decode(frames, kinds=REQUEST_KINDS)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit_mib * MIB, f"{peak / MIB:.1f} MiB"


def test_numbers_that_no_array_takes_or_that_are_not_there_are_refused() -> None:
    header, arrays = frames_of(trajectory_for(assignment(), steps=[step(), step()]))
    with pytest.raises(DecodeError, match="1 numbers of frame 1 are in no array"):
        codec.decode([header, arrays + b"1234"])
    with pytest.raises(DecodeError, match="array of 3 numbers where 2 are left"):
        codec.decode([header, arrays[:-4]])


def test_server_replaces_an_answer_that_is_too_large_by_an_error_and_counts_it() -> None:
    keys = transport.generate_keys()
    large = Evaluation(1.0, success=True, detail="x" * (2 * MIB))
    with serving(keys, lambda _message, _sender: large) as server:
        client = Client(server.address, keys=keys, sender="actor-0:i1")
        with pytest.raises(MessageTooLarge, match="Evaluation"):
            client.request(StatusRequest(), timeout_s=10)
        client.close()
        assert server.counters["transport/too_large"] == 1


def test_server_takes_requests_only() -> None:
    with pytest.raises(DecodeError, match="takes no such message"):
        codec.decode(frames_of(Welcome(3)), kinds=REQUEST_KINDS)
    assert codec.decode(frames_of(GroupRequest(1)), kinds=REQUEST_KINDS).message == GroupRequest(1)


def test_status_and_directory_hold_as_many_processes_as_a_broker_remembers() -> None:
    hello, beat = SIZE_LIMITS["Hello"].total_bytes, SIZE_LIMITS["Heartbeat"].total_bytes
    assert MAX_PEERS * (hello + beat) <= SIZE_LIMITS["Status"].header_bytes
    assert MAX_PEERS * hello <= SIZE_LIMITS["Directory"].header_bytes


def test_broker_refuses_more_processes_and_keeps_those_it_has() -> None:
    desk = Desk()
    for index in range(MAX_PEERS):
        assert isinstance(desk.hello(f"i{index}", index=index), Welcome)
    refused = desk.hello("more", index=MAX_PEERS)
    assert isinstance(refused, ErrorReply) and str(MAX_PEERS) in refused.message
    assert isinstance(desk.hello("newer", index=0), Welcome)
    assert len(desk.core.peers.entries(0.0)) == MAX_PEERS


def test_broker_refuses_more_open_orders_until_one_is_closed() -> None:
    desk = Desk()
    for number in range(order_book._MAX_OPEN_ORDERS):
        assert desk.ask(order(f"rl-{number}")) == Ack()
    assert isinstance(desk.ask(order("more")), ErrorReply)
    assert desk.ask(order("rl-0")) == Ack()
    assert desk.ask(OrderClosure("rl-0")) == Ack()
    assert desk.ask(order("more")) == Ack()


def test_submission_far_ahead_makes_no_slots() -> None:
    desk = Desk(core(eta=1))
    desk.ask(order(group_size=4096))
    far = trajectory_for(assignment(number=4000))
    receipt = desk.ask(far)
    assert getattr(receipt, "reason", "") == "unknown_assignment"
    assert desk.core.orders["rl-1"].source.num_drawn == 0


@pytest.mark.parametrize(
    "build",
    [
        lambda: Heartbeat("actor", 0, "i1", {f"actor/{number}": 1.0 for number in range(129)}),
        lambda: Heartbeat("actor", 4096, "i1", {}),
        lambda: Heartbeat("actor", -1, "i1", {}),
        lambda: Heartbeat("actor", 0, "", {}),
        lambda: Heartbeat("actor", 0, "a:b", {}),
        lambda: Heartbeat("actor", 0, "i1\n", {}),
        lambda: Heartbeat("actor", 0, "i" * 65, {}),
        lambda: Hello("actor", 0, "i1", "n" * 257, 1, {}),
        lambda: Hello("actor", 0, "i1", "node1", 1, {str(number): "tcp://x:1" for number in range(5)}),
        lambda: order("x" * 129),
        lambda: order(first_seed=2**48 + 1),
        lambda: order(temperature=float("nan")),
        lambda: GroupRequest(2**53 + 1),
        lambda: LeaseRequest("i1", TaskRef("x" * 129, 1, "training")),
        lambda: StepRequest(Lease(0, 1), Action("click", {"points": [[[[[[1]]]]]]})),
        lambda: StepRequest(Lease(0, 1), Action("click", {"points": np.zeros(3)})),
        lambda: StepRequest(Lease(0, 1), Action("click", {str(number): 1 for number in range(33)})),
    ],
)
def test_value_outside_its_bounds_is_refused(build: Callable[[], Message]) -> None:
    with pytest.raises((DecodeError, ValueError)):
        codec.decode(frames_of(build()))


def test_text_for_people_is_cut_not_refused() -> None:
    assert len(Heartbeat("actor", 0, "i1", {}, "n" * 5000).note) == 1024
    assert len(ErrorReply("decode_error", "m" * 50_000).message) == 8192


def test_trajectory_of_ordinary_size_is_far_below_its_limit() -> None:
    # A hundred steps with long texts, each of them a thousand characters.
    steps = [step(num_prompt=8000, num_action=500)] * 100
    frames = frames_of(trajectory_for(assignment(), steps=steps))
    assert isinstance(codec.decode(frames).message, Trajectory)
    assert len(frames[0]) + 100 * 1000 < SIZE_LIMITS["Trajectory"].header_bytes / 10
