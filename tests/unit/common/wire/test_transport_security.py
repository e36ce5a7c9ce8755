"""Who may talk, and what a peer with the right keys may send: anything, without harm."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import create_connection

import msgpack
import pytest
import zmq

from computerrl.common.errors import PeerTimeout, SetupError
from computerrl.common.lifecycle import StopToken
from computerrl.common.messages import Ack, ErrorReply, StatusRequest
from computerrl.common.wire import codec, transport
from computerrl.common.wire.transport import Client, Handler, Server
from tests.support.wire_fuzz import mutated, seeds


@pytest.fixture(scope="module")
def keys() -> transport.Keys:
    return transport.generate_keys()


@contextmanager
def serving(keys: transport.Keys, handler: Handler = lambda _message, _sender: Ack()) -> Iterator[Server]:
    """Answers everything with `Ack`, or by ``handler``."""
    server = Server("tcp://127.0.0.1:0", keys=keys, sender="broker-0:b1")
    stop = StopToken()
    thread = threading.Thread(target=transport.serve, args=(server, handler, stop))
    thread.start()
    try:
        yield server
    finally:
        stop.stop("test over")
        thread.join()
        server.close()


@pytest.fixture
def server(keys: transport.Keys) -> Iterator[Server]:
    with serving(keys) as server:
        yield server


@pytest.fixture
def raw_socket(server: Server, keys: transport.Keys) -> Iterator[zmq.Socket[bytes]]:
    """A client that can send any frames, with the right keys."""
    with zmq.Context() as context, transport.client_socket(context, keys) as socket:
        socket.setsockopt(zmq.RCVTIMEO, 10_000)
        socket.connect(server.address)
        yield socket


def lives(server: Server, keys: transport.Keys) -> bool:
    client = Client(server.address, keys=keys, sender="actor-0:i1")
    try:
        return client.request(StatusRequest(), timeout_s=10) == Ack()
    finally:
        client.close()


@pytest.mark.parametrize("wrong", ["client pair", "server key", "both"])
def test_client_without_the_runs_keys_gets_nothing(server: Server, keys: transport.Keys, wrong: str) -> None:
    other = transport.generate_keys()
    changed = dataclasses.replace(
        keys,
        **({} if wrong == "server key" else {"client_public": other.client_public, "client_secret": other.client_secret}),
        **({} if wrong == "client pair" else {"server_public": other.server_public}),
    )
    client = Client(server.address, keys=changed, sender="actor-0:i1")
    with pytest.raises(PeerTimeout):
        client.request(StatusRequest(), timeout_s=1)
    client.close()
    assert lives(server, keys)


def test_client_with_the_servers_own_pair_gets_nothing(server: Server, keys: transport.Keys) -> None:
    changed = dataclasses.replace(keys, client_public=keys.server_public, client_secret=keys.server_secret)
    client = Client(server.address, keys=changed, sender="actor-0:i1")
    with pytest.raises(PeerTimeout):
        client.request(StatusRequest(), timeout_s=1)
    client.close()


def test_client_without_encryption_gets_nothing(server: Server, keys: transport.Keys) -> None:
    frames = codec.encode(StatusRequest(), sender="actor-0:i1", message_id=1)
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(server.address)
        socket.send_multipart(frames)
        assert not socket.poll(500)
    assert lives(server, keys)


def test_malformed_frames_get_an_error_reply_with_their_id(raw_socket: zmq.Socket[bytes]) -> None:
    raw_socket.send(msgpack.packb({"kind": "Nonsense", "id": 77, "schema": 1, "sender": "actor-9:x"}))
    envelope = codec.decode(raw_socket.recv_multipart())
    assert isinstance(envelope.message, ErrorReply)
    assert envelope.message.code == "decode_error"
    assert "Nonsense" in envelope.message.message and "actor-9:x" in envelope.message.message
    assert envelope.cause_id == 77


def test_fuzzed_frames_each_get_an_answer_and_the_server_lives_on(
    server: Server, keys: transport.Keys, raw_socket: zmq.Socket[bytes]
) -> None:
    rng = random.Random(0)
    golden = list(seeds().values())
    for _ in range(300):
        # A message without frames is no message to ZeroMQ: nothing would arrive.
        raw_socket.send_multipart(mutated(rng.choice(golden), rng) or [b""])
    kinds = [type(codec.decode(raw_socket.recv_multipart()).message) for _ in range(300)]
    assert set(kinds) <= {Ack, ErrorReply}
    assert kinds.count(ErrorReply) == server.counters["transport/malformed"] > 150
    assert lives(server, keys)


@pytest.mark.parametrize("wrong", ["client pair", "server key", "no encryption"])
def test_refused_handshake_is_counted(server: Server, keys: transport.Keys, wrong: str) -> None:
    other = transport.generate_keys()
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        if wrong != "no encryption":
            socket.curve_serverkey = other.server_public if wrong == "server key" else keys.server_public
            pair = keys if wrong == "server key" else other
            socket.curve_publickey, socket.curve_secretkey = pair.client_public, pair.client_secret
        socket.connect(server.address)
        assert eventually(lambda: server.counters["transport/unauthorised"] > 0)
    assert lives(server, keys)
    assert server.counters["transport/malformed"] == 0


def test_connection_that_does_not_speak_zeromq_does_no_harm(server: Server, keys: transport.Keys) -> None:
    host, _, port = server.address.removeprefix("tcp://").rpartition(":")
    for data in (b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\xff" * 100_000):
        with contextlib.suppress(ConnectionError), create_connection((host, int(port))) as plain:
            plain.sendall(data)
    assert lives(server, keys)


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()


def test_created_keys_are_private_and_stay(tmp_path: Path) -> None:
    folder = tmp_path / "run" / ".keys"
    keys = transport.create_keys(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {
        "server.key": 0o600,
        "client.key": 0o600,
    }
    assert transport.create_keys(folder) == keys == transport.load_keys(folder)
    assert keys.client_secret.decode() not in repr(keys)


def test_missing_keys_raise_setup_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"server\.key"):
        transport.load_keys(tmp_path)


def test_keys_that_others_can_read_raise_setup_error(tmp_path: Path) -> None:
    transport.create_keys(tmp_path)
    (tmp_path / "client.key").chmod(0o644)
    with pytest.raises(SetupError, match="mode 0644"):
        transport.load_keys(tmp_path)


def test_damaged_key_raises_setup_error(tmp_path: Path) -> None:
    transport.create_keys(tmp_path)
    (tmp_path / "client.key").write_bytes(b"short\nkey\n")
    with pytest.raises(SetupError, match="no key file"):
        transport.load_keys(tmp_path)
