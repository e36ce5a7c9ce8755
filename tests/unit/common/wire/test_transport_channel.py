"""Client and server over real sockets of this machine: answers, errors, deadlines, restarts, threads."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from computerrl.common.errors import (
    ChannelClosed,
    ComputerRLError,
    ConfigError,
    DecodeError,
    NoDesktop,
    PeerTimeout,
    Problem,
    RemoteError,
    SetupError,
    error_classes,
)
from computerrl.common.lifecycle import StopToken
from computerrl.common.messages import Ack, ErrorReply, GroupRequest, Message, NoGroup, StatusRequest
from computerrl.common.wire import transport
from computerrl.common.wire.transport import Client, LocalChannel, Server


@pytest.fixture(scope="module")
def keys() -> transport.Keys:
    return transport.generate_keys()


@pytest.fixture
def client_of(keys: transport.Keys) -> Iterator[Callable[[str], Client]]:
    made: list[Client] = []

    def make(address: str) -> Client:
        made.append(Client(address, keys=keys, sender="actor-0:i1"))
        return made[-1]

    yield make
    for client in made:
        client.close()


@contextmanager
def served(handler: transport.Handler, keys: transport.Keys, bind: str = "tcp://127.0.0.1:0") -> Iterator[str]:
    server = Server(bind, keys=keys, sender="broker-0:b1")
    stop = StopToken()
    thread = threading.Thread(target=transport.serve, args=(server, handler, stop))
    thread.start()
    try:
        yield server.address
    finally:
        stop.stop("test over")
        thread.join()
        server.close()


def double(message: Message, _sender: str) -> Message:
    assert isinstance(message, GroupRequest)
    return NoGroup((2 * message.group_seq,))


def test_request_is_answered_by_the_handler(keys: transport.Keys, client_of: Callable[[str], Client]) -> None:
    with served(double, keys) as address:
        assert client_of(address).request(GroupRequest(21), timeout_s=10) == NoGroup((42,))


def test_handler_sees_the_senders_name(keys: transport.Keys, client_of: Callable[[str], Client]) -> None:
    seen: list[str] = []
    with served(lambda _message, sender: seen.append(sender) or Ack(), keys) as address:
        client_of(address).request(StatusRequest(), timeout_s=10)
    assert seen == ["actor-0:i1"]


@pytest.mark.parametrize("local", [True, False])
def test_error_of_the_handler_is_raised_at_the_client(
    keys: transport.Keys, client_of: Callable[[str], Client], local: bool
) -> None:
    def refuse(_message: Message, _sender: str) -> Message:
        raise NoDesktop("all 4 are leased")

    with served(refuse, keys) as address:
        channel = LocalChannel(refuse) if local else client_of(address)
        with pytest.raises(NoDesktop, match="all 4 are leased"):
            channel.request(StatusRequest(), timeout_s=10)


@pytest.mark.parametrize("code", sorted(error_classes()))
def test_every_error_code_becomes_an_error_with_its_text(code: str) -> None:
    error = transport.error_from_reply(ErrorReply(code, "the text"), peer="tcp://x")
    assert isinstance(error, ComputerRLError)
    assert "the text" in str(error)
    if isinstance(error, RemoteError):
        assert error.remote_code == code
    else:
        assert error.code == code


def test_unknown_error_code_becomes_remote_error() -> None:
    error = transport.error_from_reply(ErrorReply("new_code", "text"), peer="tcp://x")
    assert isinstance(error, RemoteError)
    assert error.remote_code == "new_code"
    config_error = ConfigError([Problem("a", "b", "c")])
    assert isinstance(transport.error_from_reply(ErrorReply(config_error.code, "x"), peer="p"), RemoteError)


def test_request_without_answer_raises_peer_timeout_at_its_deadline(
    keys: transport.Keys, client_of: Callable[[str], Client]
) -> None:
    server = Server("tcp://127.0.0.1:0", keys=keys, sender="broker-0:b1")
    with pytest.raises(PeerTimeout, match="did not answer StatusRequest"):
        client_of(server.address).request(StatusRequest(), timeout_s=0.2)
    server.close()


def test_late_reply_is_dropped_and_the_next_request_gets_its_own(
    keys: transport.Keys, client_of: Callable[[str], Client]
) -> None:
    slow = threading.Event()

    def handler(message: Message, _sender: str) -> Message:
        if message == GroupRequest(1):
            slow.wait(10)
        return double(message, "")

    with served(handler, keys) as address:
        client = client_of(address)
        with pytest.raises(PeerTimeout):
            client.request(GroupRequest(1), timeout_s=0.2)
        slow.set()
        for number in range(2, 6):
            assert client.request(GroupRequest(number), timeout_s=10) == NoGroup((2 * number,))


def test_replies_from_other_threads_wake_the_poll_and_reach_the_right_request(
    keys: transport.Keys, client_of: Callable[[str], Client]
) -> None:
    server = Server("tcp://127.0.0.1:0", keys=keys, sender="env_server-0:e1")
    stop = StopToken()

    kept: list[transport.Request] = []

    def poll() -> None:
        while not stop.stopped:
            # A poll longer than the requests' deadlines: only the wake-up gets the replies out in time.
            for request in server.poll(60.0):
                kept.append(request)
                threading.Timer(0.05, request.reply, [double(request.message, "")]).start()

    poller = threading.Thread(target=poll)
    poller.start()
    client = client_of(server.address)
    answers: dict[int, Message] = {}

    def ask(number: int) -> None:
        answers[number] = client.request(GroupRequest(number), timeout_s=10)

    askers = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert answers == {number: NoGroup((2 * number,)) for number in range(16)}
    stop.stop("test over")
    kept[0].reply(Ack())  # Wakes the poller; the client drops it.
    poller.join()
    server.close()


def ask_in_vain(client: Client) -> None:
    with pytest.raises(PeerTimeout):
        client.request(StatusRequest(), timeout_s=5)


def test_reply_after_close_is_dropped(keys: transport.Keys, client_of: Callable[[str], Client]) -> None:
    server = Server("tcp://127.0.0.1:0", keys=keys, sender="env_server-0:e1")
    client = client_of(server.address)
    asker = threading.Thread(target=ask_in_vain, args=(client,))
    asker.start()
    requests: list[transport.Request] = []
    while not requests:
        requests = server.poll(1.0)
    server.close()
    server.close()
    late = threading.Thread(target=requests[0].reply, args=(Ack(),))
    late.start()
    late.join()
    asker.join()


def test_broken_connection_ends_the_request_long_before_its_deadline(
    keys: transport.Keys, client_of: Callable[[str], Client]
) -> None:
    server = Server("tcp://127.0.0.1:0", keys=keys, sender="broker-0:b1")
    client = client_of(server.address)

    def close_after_request() -> None:
        while not server.poll(0.5):
            pass
        server.close()

    closer = threading.Thread(target=close_after_request)
    closer.start()
    with pytest.raises(PeerTimeout, match="broke the connection"):
        client.request(StatusRequest(), timeout_s=60)
    closer.join()


def test_client_reaches_a_server_restarted_on_the_same_address(keys: transport.Keys, client_of: Callable[[str], Client]) -> None:
    with served(double, keys) as address:
        client = client_of(address)
        assert client.request(GroupRequest(1), timeout_s=10) == NoGroup((2,))
    with served(double, keys, bind=address):
        assert ask_again(client, GroupRequest(2)) == NoGroup((4,))


def ask_again(client: Client, message: GroupRequest) -> Message:
    """The answer. That the last connection broke may be learnt only during the next request, which a caller then repeats."""
    try:
        return client.request(message, timeout_s=10)
    except PeerTimeout:
        return client.request(message, timeout_s=10)


def test_request_sent_before_the_server_is_there_is_answered_when_it_comes(
    keys: transport.Keys, client_of: Callable[[str], Client]
) -> None:
    with served(double, keys) as address:
        pass
    client = client_of(address)
    answers: list[Message] = []
    asker = threading.Thread(target=lambda: answers.append(client.request(GroupRequest(3), timeout_s=20)))
    asker.start()
    asker.join(0.3)
    with served(double, keys, bind=address):
        asker.join()
    assert answers == [NoGroup((6,))]


def test_request_to_a_server_that_is_gone_for_good_ends_long_before_its_deadline(keys: transport.Keys) -> None:
    with served(double, keys) as address:
        client = Client(address, keys=keys, sender="actor-0:a", gives_up_refused=True)
        assert client.request(GroupRequest(1), timeout_s=10) == NoGroup((2,))
    # The connection broke while no request was under way, which this side may learn only during the first one.
    for said in ("is gone: nothing listens there|broke the connection", "is gone: nothing listens there"):
        with pytest.raises(PeerTimeout, match=f"({said}) before it answered GroupRequest"):
            client.request(GroupRequest(2), timeout_s=60)
    with served(double, keys, bind=address):
        assert ask_again(client, GroupRequest(3)) == NoGroup((6,))
    client.close()


def test_close_ends_a_waiting_request_and_refuses_new_ones(keys: transport.Keys, client_of: Callable[[str], Client]) -> None:
    server = Server("tcp://127.0.0.1:0", keys=keys, sender="broker-0:b1")
    client = client_of(server.address)
    threading.Timer(0.2, client.close).start()
    with pytest.raises(ChannelClosed):
        client.request(StatusRequest(), timeout_s=60)
    with pytest.raises(ChannelClosed):
        client.request(StatusRequest(), timeout_s=60)
    server.close()


def test_port_taken_raises_setup_error_naming_it(keys: transport.Keys) -> None:
    server = Server("tcp://127.0.0.1:0", keys=keys, sender="broker-0:b1")
    with pytest.raises(SetupError, match=f"{server.address}.*in use"):
        Server(server.address, keys=keys, sender="broker-0:b2")
    server.close()


def test_bad_bind_address_raises_setup_error(keys: transport.Keys) -> None:
    with pytest.raises(SetupError, match="cannot be bound"):
        Server("tcp://203.0.113.7:0", keys=keys, sender="broker-0:b2")


def test_free_port_lies_outside_the_ephemeral_range(keys: transport.Keys) -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    server = Server("tcp://127.0.0.1:0", keys=keys, sender="broker-0:b1")
    assert int(server.address.rpartition(":")[2]) < first
    server.close()


def test_local_channel_passes_messages_through_the_codec() -> None:
    request = GroupRequest(21)
    seen: list[Message] = []

    def handler(message: Message, sender: str) -> Message:
        seen.append(message)
        assert sender == "learner-0:s"
        return double(message, sender)

    assert LocalChannel(handler, sender="learner-0:s").request(request, timeout_s=1) == NoGroup((42,))
    assert seen == [request] and seen[0] is not request


def test_decode_error_reply_becomes_decode_error() -> None:
    error = transport.error_from_reply(ErrorReply("decode_error", "x"), peer="p")
    assert isinstance(error, DecodeError)


def test_client_that_was_left_open_in_a_cycle_does_not_stop_the_garbage_collector(keys: transport.Keys) -> None:
    with served(lambda message, sender: Ack(), keys) as address:
        client = Client(address, keys=keys, sender="actor-0:i1")
        assert client.request(StatusRequest(), timeout_s=10) == Ack()
        cycle: list[object] = [client]
        cycle.append(cycle)
        del client, cycle
        gc.collect()
