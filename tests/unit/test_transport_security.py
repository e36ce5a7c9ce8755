"""Who may talk, and what a peer with the right keys may send: anything, without harm."""

from __future__ import annotations

import dataclasses
import random
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest
import zmq
from broker_data import examples

from common import codec, transport
from common.errors import PeerTimeout, SetupError
from common.lifecycle import StopToken
from common.messages import Ack, ErrorReply, StatusRequest
from common.transport import Client, Server


@pytest.fixture(scope="module")
def keys() -> transport.Keys:
    return transport.generate_keys()


@pytest.fixture
def server(keys: transport.Keys) -> Iterator[Server]:
    """Answers everything with `Ack`."""
    server = Server("tcp://127.0.0.1:0", keys=keys, sender="broker-0:b1")
    stop = StopToken()
    thread = threading.Thread(target=transport.serve, args=(server, lambda _message, _sender: Ack(), stop))
    thread.start()
    yield server
    stop.stop("test over")
    thread.join()
    server.close()


@pytest.fixture
def raw_socket(server: Server, keys: transport.Keys) -> Iterator[zmq.Socket[bytes]]:
    """A client that can send any frames, with the right keys."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.curve_serverkey = keys.server_public
        socket.curve_publickey, socket.curve_secretkey = keys.client_public, keys.client_secret
        socket.setsockopt(zmq.LINGER, 0)
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
    num_sent = 0
    for _ in range(300):
        frames = fuzzed_frames(rng)
        raw_socket.send_multipart(frames)
        num_sent += 1
    kinds = [type(codec.decode(raw_socket.recv_multipart()).message) for _ in range(num_sent)]
    assert set(kinds) <= {Ack, ErrorReply}
    assert kinds.count(ErrorReply) > num_sent // 2
    assert lives(server, keys)


def fuzzed_frames(rng: random.Random) -> list[bytes]:
    """Random bytes, or a good message with bytes changed, frames lost, doubled or cut."""
    if rng.random() < 0.3:
        return [rng.randbytes(rng.choice([0, 1, 20, 3000])) for _ in range(rng.randint(1, 4))]
    frames = codec.encode(rng.choice(examples()), sender="actor-0:i1", message_id=1)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(frames))
        match rng.randrange(4):
            case 0 if frames[place]:
                frame = bytearray(frames[place])
                frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
                frames[place] = bytes(frame)
            case 1 if len(frames) > 1:
                del frames[place]
            case 2:
                frames.insert(place, frames[place])
            case _:
                frames[place] = frames[place][: len(frames[place]) // 2]
    return frames


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
