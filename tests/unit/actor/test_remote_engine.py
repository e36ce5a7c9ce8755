"""Actors that ask an engine process: `RemoteEngine` and `EngineServer` over real sockets, the engine's core alone is made up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from computerrl.actor.engines.base import NO_VERSION, GenerationRequest
from computerrl.actor.engines.threaded import ThreadedEngine
from computerrl.actor.serving.remote_engine import RemoteEngine
from computerrl.actor.serving.server import EngineServer
from computerrl.common.errors import ComputerRLError, EngineFailed, ProtocolError
from computerrl.common.lifecycle import StopToken
from computerrl.common.messages import WeightLoaded
from computerrl.common.wire.transport import Client, Keys, Server, create_keys
from tests.unit.actor.engines.test_engine_threaded import CountingCore

LIMIT_S = 10.0


class Versions:
    policy_version = 5


class EngineProcess:
    """The server of an engine in a thread; ``ready`` gives it its engine."""

    def __init__(self, keys: Keys, *, ready: bool = True) -> None:
        self.core = CountingCore(room=8)
        self.engine = ThreadedEngine(self.core, decode=lambda tokens: " ".join(map(str, tokens)), name="t", dtype="float32")
        self.engine.load(5, {})
        self.versions = Versions()
        self._socket = Server("tcp://127.0.0.1:0", keys=keys, sender="engine-0:test")
        self.address = self._socket.address
        self.server = EngineServer(self._socket)
        self._stop = StopToken()
        self._thread = threading.Thread(target=self.server.run, args=(self._stop,))
        if ready:
            self.serve()
        self._thread.start()

    def serve(self) -> None:
        self.server.use_engine(self.engine, self.versions)

    def close(self) -> None:
        self._stop.stop("test ends")
        self._thread.join()
        self._socket.close()
        self.core.gate.set()
        self.engine.close()


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return create_keys(tmp_path / "keys")


@pytest.fixture
def process(keys: Keys) -> Iterator[Callable[..., EngineProcess]]:
    started: list[EngineProcess] = []

    def start(**fields: bool) -> EngineProcess:
        started.append(EngineProcess(keys, **fields))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def ask(keys: Keys) -> Iterator[Callable[..., RemoteEngine]]:
    """An actor's side that finds the addresses of a list, which a test may change."""
    started: list[RemoteEngine] = []

    def start(addresses: list[str], *, index: int = 0) -> RemoteEngine:
        def connect(address: str) -> Client:
            return Client(address, keys=keys, sender=f"actor-{index}:test", gives_up_refused=True)

        started.append(RemoteEngine(lambda: list(addresses), connect, index=index, num_live=4))
        return started[-1]

    yield start
    for one in started:
        one.close()


def request(num_tokens: int = 3, *, prompt: int = 2) -> GenerationRequest:
    return GenerationRequest(np.arange(prompt, dtype=np.int32), 0.7, num_tokens, frozenset({13}))


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_answers_arrive_whole_with_the_version_of_every_token(process: Callable, ask: Callable) -> None:
    engine = ask([process().address])
    assert engine.wait_version(5, timeout_s=LIMIT_S)
    futures = [engine.submit(request(number)) for number in (1, 2, 3, 9)]
    found = [future.result(timeout=LIMIT_S) for future in futures]
    assert [one.tokens.tolist() for one in found] == [[10], [10, 11], [10, 11, 12], [10, 11, 12, 13]]
    assert [one.finish for one in found] == ["length", "length", "length", "stop"]
    assert found[3].text == "10 11 12" and found[3].policy_versions.tolist() == [5] * 4
    assert found[3].logprobs.tolist() == [-1.0] * 4 and found[3].logprobs.dtype == np.float32


def test_answers_of_many_are_sampled_together(process: Callable, ask: Callable) -> None:
    one = process()
    one.core.gate.clear()
    actors = [ask([one.address], index=index) for index in range(2)]
    assert all(actor.wait_version(5, timeout_s=LIMIT_S) for actor in actors)
    futures = [actor.submit(request(5)) for actor in actors for _ in range(4)]
    wait(lambda: len(one.engine._queue) + len(one.core.running) == 8)
    one.core.gate.set()
    assert [len(future.result(timeout=LIMIT_S).tokens) for future in futures] == [4] * 8  # 13 ends them.
    assert one.core.most_running == 8


def test_new_version_is_known_at_once_and_a_lost_one_too(process: Callable, ask: Callable) -> None:
    one = process()
    engine = ask([one.address])
    assert engine.wait_version(5, timeout_s=LIMIT_S)
    assert not engine.wait_version(6, timeout_s=0.05)
    one.versions.policy_version = 6
    assert engine.wait_version(6, timeout_s=LIMIT_S)
    one.versions.policy_version = NO_VERSION
    wait(lambda: engine.policy_version == NO_VERSION)


def test_engine_that_is_still_starting_serves_no_version_and_says_so(process: Callable, ask: Callable) -> None:
    one = process(ready=False)
    engine = ask([one.address])
    wait(lambda: engine._channel is not None)
    with pytest.raises(EngineFailed, match="still starting"):
        engine.submit(request()).result(timeout=LIMIT_S)
    assert engine.policy_version == NO_VERSION
    one.serve()
    assert engine.wait_version(5, timeout_s=LIMIT_S)


def test_error_of_the_engine_reaches_the_one_who_asked(process: Callable, ask: Callable) -> None:
    one = process()
    engine = ask([one.address])
    assert engine.wait_version(5, timeout_s=LIMIT_S)
    with pytest.raises(EngineFailed, match="too long"):
        engine.submit(request(prompt=101)).result(timeout=LIMIT_S)
    one.core.broken = ValueError("a fault")
    with pytest.raises(EngineFailed, match="ValueError: a fault"):
        engine.submit(request()).result(timeout=LIMIT_S)
    assert len(engine.submit(request()).result(timeout=LIMIT_S).tokens) == 3


def test_actor_goes_on_with_another_engine_when_its_own_is_gone(process: Callable, ask: Callable) -> None:
    first, second = process(), process()
    second.versions = Versions()
    second.versions.policy_version = 7
    second.serve()
    addresses = [first.address, second.address]
    engine = ask(addresses)
    assert engine.wait_version(5, timeout_s=LIMIT_S)
    first.core.gate.clear()
    under_way = engine.submit(request())
    wait(lambda: len(first.engine._queue) + len(first.core.running) == 1)
    first._stop.stop("gone")
    first._thread.join()
    first._socket.close()
    addresses.remove(first.address)
    with pytest.raises(ComputerRLError):
        under_way.result(timeout=LIMIT_S)
    assert engine.wait_version(7, timeout_s=LIMIT_S)
    assert len(engine.submit(request()).result(timeout=LIMIT_S).tokens) == 3


def test_actors_divide_the_engines(process: Callable, ask: Callable) -> None:
    processes = [process(), process()]
    for version, one in enumerate(processes, start=8):
        one.versions.policy_version = version
    engines = [ask([one.address for one in processes], index=index) for index in range(3)]
    wait(lambda: [engine.policy_version for engine in engines] == [8, 9, 8])


def test_without_any_engine_there_is_no_version_and_requests_fail(ask: Callable) -> None:
    engine = ask([])
    with pytest.raises(EngineFailed, match="no engine process"):
        engine.submit(request()).result(timeout=LIMIT_S)
    assert engine.policy_version == NO_VERSION
    engine.close()
    with pytest.raises(EngineFailed, match="closed"):
        engine.submit(request()).result(timeout=LIMIT_S)


def test_other_messages_are_refused_by_name(process: Callable, keys: Keys) -> None:
    client = Client(process().address, keys=keys, sender="actor-0:test")
    with pytest.raises(ProtocolError, match="WeightLoaded"):
        client.request(WeightLoaded("actor-0:test", 1, ""), timeout_s=LIMIT_S)
    client.close()
