"""Weights between real processes: one sender, several receivers, and what happens when one of them dies, hangs, lies or comes
late, at every stage of an update."""

import functools
import json
import os
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

from computerrl.common.wire.transport import Server, create_keys
from computerrl.learner.weights import snapshot
from computerrl.learner.weights.files import WeightFiles
from computerrl.learner.weights.sender import WeightSender
from tests.support.tiers import one_in

PROCESS = Path(__file__).parents[2] / "support" / "processes" / "weight_process.py"
ROOT = PROCESS.parents[2]
NUM_TENSORS = 6
TIMEOUT_S = 3.0
"""Of a bucket: what one that hangs costs the others, and would cost the training if that waited."""
BUCKET_BYTES = 16 << 20
"""So that there are several of little weight."""
STAGES = ("joining", "forming", "receiving", "loading", "reporting")


class Receiver:
    """A receiver in its own process and what it said."""

    def __init__(self) -> None:
        self.events: list[dict] = []
        self.pid = 0
        self.killed = False
        self._changed = threading.Condition()

    def note(self, event: dict) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def wait(self, event: str, *, timeout_s: float = 120.0, **fields: object) -> dict:
        """The first event of that kind with these fields, said already or not."""
        wanted = {"event": event, **fields}

        def found() -> dict | None:
            return next((one for one in self.events if wanted.items() <= one.items()), None)

        with self._changed:
            assert self._changed.wait_for(found, timeout=timeout_s), f"no {wanted} in {self.events}"
            return found()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)
        self.killed = self.killed or number == signal.SIGKILL


class Bench:
    """A sender and the receivers started for a test."""

    def __init__(self, folder: Path, *, files: bool = False, by_changes: bool = False) -> None:
        keys = create_keys(folder / "keys")
        server = Server("tcp://127.0.0.1:0", keys=keys, sender="learner-0:test")
        self.files = folder / "weights"
        self.sender = WeightSender(
            server,
            model_digest="digest",
            host="127.0.0.1",
            timeout_s=TIMEOUT_S,
            files=WeightFiles(self.files) if files else None,
            by_changes=by_changes,
        )
        self.receivers: dict[str, Receiver] = {}
        self.version = 0
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(PROCESS), str(folder / "keys"), self.sender.address, str(self.files)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout:
            found = json.loads(line)
            self.receivers[found["name"]].note(found)

    def start(self, name: str, behaviour: str = "good") -> Receiver:
        receiver = self.receivers[name] = Receiver()
        self._process.stdin.write(f"{name} {behaviour}\n")
        self._process.stdin.flush()
        receiver.pid = receiver.wait("started")["pid"]
        return receiver

    def publish(self, *, changed: int | None = None) -> tuple[int, float]:
        """Publish tensors filled with the next version (5 MB each: several buckets); it and how long the caller stood still.
        ``changed``: so many numbers at both ends of each tensor are the version, the others 0."""
        self.version += 1
        value = float(self.version)
        tensors = {f"layer.{i}": torch.full((2_500_000,), value, dtype=torch.bfloat16) for i in range(NUM_TENSORS)}
        if changed is not None:
            for tensor in tensors.values():
                tensor[changed:-changed] = 0
        started = time.monotonic()
        self.sender.publish(self.version, tensors, probe_logprobs=np.full(NUM_TENSORS, value, np.float32))
        return self.version, time.monotonic() - started

    def wait_loaded(self, expected: dict[str, int], timeout_s: float = 120.0) -> None:
        """Wait until the sender knows that these receivers serve these versions."""
        deadline = time.monotonic() + timeout_s
        while any(self.sender.loaded_versions().get(name) != version for name, version in expected.items()):
            assert time.monotonic() < deadline, self.sender.loaded_versions()
            time.sleep(0.02)

    def close(self) -> None:
        for receiver in self.receivers.values():
            if receiver.pid and not receiver.killed:
                receiver.signal(signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self.sender.close()


@pytest.fixture(scope="module", autouse=True)
def small_buckets() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "plan_buckets", functools.partial(snapshot.plan_buckets, bucket_bytes=BUCKET_BYTES))
        yield


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    found.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """With two good receivers, for all stages: they outlive what happens to the others."""
    found = Bench(tmp_path_factory.mktemp("weights"))
    found.start("actor-0:a"), found.start("actor-1:a")
    yield found
    found.close()


def values(version: int) -> dict[str, float]:
    return {f"layer.{i}": float(version) for i in range(NUM_TENSORS)}


def test_broadcast_two_receivers_and_late_joiner_all_get_newest(bench: Bench) -> None:
    first, second = bench.start("actor-0:a"), bench.start("actor-1:a")
    bench.sender.publish_base(0, probe_logprobs=np.zeros(1, np.float32))
    first.wait("serving", version=0), second.wait("serving", version=0)
    for _ in range(3):
        version, _ = bench.publish()
        for receiver in (first, second):
            assert receiver.wait("serving", version=version)["values"] == values(version)
    late = bench.start("actor-2:a")
    assert late.wait("serving")["version"] == 3  # At once: nothing new was published for it.
    bench.publish()
    for receiver in (first, second, late):
        receiver.wait("serving", version=4)
    bench.wait_loaded({"actor-0:a": 4, "actor-1:a": 4, "actor-2:a": 4})


@pytest.mark.parametrize("stage", one_in(3, STAGES))
def test_receiver_killed_at_any_stage_others_get_the_version_and_training_never_waits(shared: Bench, stage: str) -> None:
    victim = shared.start(f"victim:{stage}", f"at:{stage}")
    version, stood_s = shared.publish() if stage != "joining" else (shared.version, 0.0)
    victim.wait("at", stage=stage)
    victim.signal(signal.SIGKILL)
    assert stood_s < TIMEOUT_S
    version, stood_s = shared.publish()
    assert stood_s < TIMEOUT_S
    for name in ("actor-0:a", "actor-1:a"):
        assert shared.receivers[name].wait("serving", version=version)["values"] == values(version)
    again = shared.start(f"victim:{stage}-again")
    assert again.wait("serving", version=version)["values"] == values(version)
    again.signal(signal.SIGKILL)


@pytest.mark.parametrize("stage", one_in(3, STAGES))
def test_receiver_that_hangs_at_any_stage_is_left_behind_and_catches_up(shared: Bench, stage: str) -> None:
    sleeper = shared.start(f"sleeper:{stage}", f"at:{stage}")
    if stage != "joining":
        shared.publish()
    sleeper.wait("at", stage=stage)
    sleeper.signal(signal.SIGSTOP)
    version, stood_s = shared.publish()
    assert stood_s < TIMEOUT_S
    for name in ("actor-0:a", "actor-1:a"):
        shared.receivers[name].wait("serving", version=version)
    sleeper.signal(signal.SIGCONT)
    assert sleeper.wait("serving", version=version)["values"] == values(version)
    version, _ = shared.publish()
    for name in ("actor-0:a", "actor-1:a", f"sleeper:{stage}"):
        shared.receivers[name].wait("serving", version=version)
    sleeper.signal(signal.SIGKILL)


@pytest.mark.parametrize("stage", one_in(3, STAGES))
def test_receiver_that_joins_at_any_stage_of_anothers_update_gets_the_version(shared: Bench, stage: str) -> None:
    late, slow = shared.start(f"late:{stage}", "waiting"), shared.start(f"slow:{stage}", f"at:{stage}")
    version = shared.publish()[0] if stage != "joining" else shared.version
    slow.wait("at", stage=stage)
    late.signal(signal.SIGCONT)
    for receiver in (late, slow):
        assert receiver.wait("serving", version=version)["values"] == values(version)
        receiver.signal(signal.SIGKILL)


def test_broadcast_buffer_corrupted_on_the_way_detected_and_repeated(bench: Bench) -> None:
    receiver = bench.start("actor-0:a", "corrupt")
    bench.publish()
    assert receiver.wait("serving")["values"] == values(1)
    assert bench.sender.metrics()["learner/weight_broadcasts"] == 2


def test_join_with_another_base_model_refused_and_never_served(bench: Bench) -> None:
    stranger, good = bench.start("actor-0:a", "other_model"), bench.start("actor-1:a")
    bench.publish()
    good.wait("serving", version=1)
    assert "actor-0:a" not in bench.sender.loaded_versions()
    assert [event["event"] for event in stranger.events] == ["started"]


# --- by changes ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def by_changes(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path, by_changes=True)
    yield found
    found.close()


def megabytes(bench: Bench) -> float:
    return bench.sender.metrics()["learner/weight_broadcast_mb"]


def test_changes_reach_those_that_hold_the_weights_before_and_late_joiners_make_them_whole(by_changes: Bench) -> None:
    first, second = by_changes.start("actor-0:a"), by_changes.start("actor-1:a")
    by_changes.wait_loaded({"actor-0:a": by_changes.publish(changed=100)[0]})
    sizes = []
    for _ in range(3):
        version, _ = by_changes.publish(changed=100)
        for receiver in (first, second):
            assert receiver.wait("serving", version=version)["values"] == values(version)
        by_changes.wait_loaded({"actor-0:a": version, "actor-1:a": version})
        sizes.append(megabytes(by_changes))
    # The second may have come after the first version; from then on both hold the same.
    assert sizes[-1] < 1 and sizes[-2] < 1
    late = by_changes.start("actor-2:a")
    assert late.wait("serving")["version"] == version and megabytes(by_changes) > 20
    version, _ = by_changes.publish(changed=100)
    for receiver in (first, second, late):
        assert receiver.wait("serving", version=version)["values"] == values(version)


def test_receiver_killed_among_changes_leaves_the_others_right(by_changes: Bench) -> None:
    good, victim = by_changes.start("actor-0:a"), by_changes.start("actor-1:a", "at:receiving")
    by_changes.publish(changed=100)
    victim.wait("at", stage="receiving")
    victim.signal(signal.SIGKILL)
    for _ in range(2):
        version, _ = by_changes.publish(changed=100)
        assert good.wait("serving", version=version)["values"] == values(version)


def test_changes_damaged_on_the_way_are_sent_again_as_whole_weights(by_changes: Bench) -> None:
    good, lying = by_changes.start("actor-0:a"), by_changes.start("actor-1:a", "corrupt_changes")
    for _ in range(3):
        version, _ = by_changes.publish(changed=100)
        for receiver in (good, lying):
            assert receiver.wait("serving", version=version)["values"] == values(version)
    lying.wait("damaged")


# --- through files -----------------------------------------------------------------------------------------------------


@pytest.fixture
def by_file(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path, files=True)
    yield found
    found.close()


def test_files_reach_receivers_and_late_joiners_and_the_newest_two_are_kept(by_file: Bench) -> None:
    first, second = by_file.start("actor-0:a"), by_file.start("actor-1:a")
    by_file.sender.publish_base(0, probe_logprobs=np.zeros(1, np.float32))
    first.wait("serving", version=0), second.wait("serving", version=0)
    for _ in range(3):
        version, stood_s = by_file.publish()
        assert stood_s < TIMEOUT_S
        for receiver in (first, second):
            assert receiver.wait("serving", version=version)["values"] == values(version)
    assert by_file.start("actor-2:a").wait("serving", version=3)["values"] == values(3)
    assert [path.name[:8] for path in sorted(by_file.files.iterdir())] == ["00000002", "00000003"]
    by_file.sender.close()
    assert not list(by_file.files.iterdir())


@pytest.mark.release
def test_files_receiver_that_hangs_costs_the_others_nothing(by_file: Bench) -> None:
    good, sleeper = by_file.start("actor-0:a"), by_file.start("actor-1:a", "at:loading")
    by_file.publish()
    sleeper.wait("at")
    sleeper.signal(signal.SIGSTOP)
    good.wait("serving", version=1)
    for version in (2, 3, 4):
        by_file.publish()
        good.wait("serving", version=version)
    sleeper.signal(signal.SIGCONT)
    assert sleeper.wait("serving", version=4)["values"] == values(4)


@pytest.mark.release
def test_files_damaged_on_the_disk_are_never_served(by_file: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = by_file.start("actor-0:a", "waiting")
    write, damaged = WeightFiles.write, []

    def write_damaged(self: WeightFiles, version: int, buffers: list[torch.Tensor]) -> str:
        name = write(self, version, buffers)
        if not damaged:
            path = by_file.files / name
            data = bytearray(path.read_bytes())
            data[-7] ^= 1
            path.write_bytes(data)
            damaged.append(name)
        else:
            (by_file.files / name).unlink(missing_ok=True)
            name = write(self, version, buffers)
        return name

    monkeypatch.setattr(WeightFiles, "write", write_damaged)
    by_file.publish()
    receiver.signal(signal.SIGCONT)
    assert receiver.wait("serving")["values"] == values(1)
    assert damaged


def test_files_that_cannot_be_written_cost_nobody_the_version_before(
    by_file: Bench, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    receiver = by_file.start("actor-0:a")
    by_file.publish()
    receiver.wait("serving", version=1)
    write = WeightFiles.write

    def full(self: WeightFiles, version: int, buffers: list[torch.Tensor]) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(WeightFiles, "write", full)
    by_file.publish()
    time.sleep(1.5)
    assert by_file.sender.loaded_versions() == {"actor-0:a": 1}
    monkeypatch.setattr(WeightFiles, "write", write)
    receiver.wait("serving", version=2)
    assert "weights.not_written" in capfd.readouterr().out
