"""Weights between real processes: one sender, several receivers, and what happens when one of them dies, hangs or lies."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from common.transport import Server, create_keys
from learner.weight_sender import WeightSender

PROCESS = Path(__file__).with_name("weight_process.py")
ROOT = PROCESS.parents[2]
NUM_TENSORS = 6


class ReceiverProcess:
    """A receiver in its own process and what it said."""

    def __init__(self, folder: Path, address: str, name: str, behaviour: str = "good") -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(PROCESS), str(folder), address, name, behaviour]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
        self.events: queue.Queue[dict] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.events.put(json.loads(line))

    def wait(self, event: str, *, timeout_s: float = 60.0, **fields: object) -> dict:
        """The next event of that kind with these fields."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = self.events.get(timeout=max(0.01, deadline - time.monotonic()))
            if found["event"] == event and all(found.get(key) == value for key, value in fields.items()):
                return found

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Bench:
    """A sender and the receivers started for one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "keys"
        keys = create_keys(self.folder)
        server = Server("tcp://127.0.0.1:0", keys=keys, sender="learner-0:test")
        self.sender = WeightSender(server, model_digest="digest", host="127.0.0.1", timeout_s=4.0)
        self.receivers: list[ReceiverProcess] = []

    def start(self, name: str, behaviour: str = "good") -> ReceiverProcess:
        receiver = ReceiverProcess(self.folder, self.sender.address, name, behaviour)
        self.receivers.append(receiver)
        return receiver

    def publish(self, version: int) -> float:
        """Publish tensors filled with ``version`` (5 MB each: several buckets); how long the caller stood still."""
        tensors = {f"layer.{i}": torch.full((2_500_000,), float(version), dtype=torch.bfloat16) for i in range(NUM_TENSORS)}
        started = time.monotonic()
        self.sender.publish(version, tensors, probe_logprobs=np.full(NUM_TENSORS, version, np.float32))
        return time.monotonic() - started

    def wait_loaded(self, expected: dict[str, int], timeout_s: float = 30.0) -> None:
        """Wait until the sender knows that these receivers serve these versions."""
        deadline = time.monotonic() + timeout_s
        while any(self.sender.loaded_versions().get(name) != version for name, version in expected.items()):
            assert time.monotonic() < deadline, self.sender.loaded_versions()
            time.sleep(0.02)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    for receiver in found.receivers:
        receiver.kill()
    found.sender.close()


EXPECTED = {f"layer.{i}": 0.0 for i in range(NUM_TENSORS)}


@pytest.mark.timeout(120)
def test_broadcast_two_receivers_and_late_joiner_all_get_newest(bench: Bench) -> None:
    first, second = bench.start("actor-0:a"), bench.start("actor-1:a")
    first.wait("started"), second.wait("started")
    bench.sender.publish_base(0, probe_logprobs=np.zeros(1, np.float32))
    first.wait("serving", version=0), second.wait("serving", version=0)
    for version in (1, 2, 3):
        bench.publish(version)
        for receiver in (first, second):
            assert receiver.wait("serving", version=version)["values"] == dict.fromkeys(EXPECTED, float(version))
    late = bench.start("actor-2:a")
    assert late.wait("serving")["version"] == 3  # At once: nothing new was published for it.
    bench.publish(4)
    for receiver in (first, second, late):
        receiver.wait("serving", version=4)
    bench.wait_loaded({"actor-0:a": 4, "actor-1:a": 4, "actor-2:a": 4})


@pytest.mark.timeout(120)
def test_broadcast_receiver_killed_in_the_middle_others_get_version_and_training_never_waits(bench: Bench) -> None:
    good, victim = bench.start("actor-0:a"), bench.start("actor-1:a", "hang")
    good.wait("started"), victim.wait("started")
    bench.publish(1)
    victim.wait("hanging")
    assert bench.publish(2) < 1.0  # The broadcast of version 1 hangs; publishing does not.
    victim.kill()
    good.wait("serving", version=2)
    again = bench.start("actor-1:b")
    again.wait("serving", version=2)
    bench.publish(3)
    good.wait("serving", version=3), again.wait("serving", version=3)
    assert bench.sender.metrics()["learner/weight_broadcasts_failed"] >= 1


@pytest.mark.timeout(120)
def test_broadcast_receiver_hangs_alive_others_get_version_after_timeout(bench: Bench) -> None:
    good, sleeper = bench.start("actor-0:a"), bench.start("actor-1:a", "hang")
    good.wait("started"), sleeper.wait("started")
    bench.publish(1)
    sleeper.wait("hanging")
    good.wait("serving", version=1, timeout_s=30)
    bench.publish(2)
    good.wait("serving", version=2, timeout_s=30)


@pytest.mark.timeout(120)
def test_broadcast_buffer_corrupted_on_the_way_detected_and_repeated(bench: Bench) -> None:
    receiver = bench.start("actor-0:a", "corrupt")
    receiver.wait("started")
    bench.publish(1)
    assert receiver.wait("serving")["values"] == dict.fromkeys(EXPECTED, 1.0)
    assert bench.sender.metrics()["learner/weight_broadcasts"] == 2


@pytest.mark.timeout(60)
def test_join_with_another_base_model_refused_and_never_served(bench: Bench) -> None:
    stranger, good = bench.start("actor-0:a", "other_model"), bench.start("actor-1:a")
    bench.publish(1)
    good.wait("serving", version=1)
    stranger.wait("started")
    assert "actor-0:a" not in bench.sender.loaded_versions()
    assert stranger.events.empty()
