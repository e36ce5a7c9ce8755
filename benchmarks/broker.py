"""The broker: submissions of 1 MB trajectories over CURVE sockets into the synced journal, against a raw sequential write.

Broker, clients and measurement are separate processes, as in a run. The peer writes the same number of bytes into a file on the
same disk and syncs once at its end, alternating with the broker. Values are medians over rounds.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from broker.client import BrokerClient
from broker.core import BrokerCore
from broker.journal import FileJournal
from broker.server import run_broker
from broker.service import BrokerService
from common import log
from common.config import BrokerConfig, LearnerConfig, RunConfig
from common.lifecycle import StopToken, die_with_parent
from common.messages import Assignment, RolloutOrder, Step, StepTiming, Trajectory, VersionAnnouncement
from common.run_folder import RunFolder
from common.transport import Client

_MB = 1_000_000
_NUM_THREADS = 8
"""Submissions in flight: what one node's actors may have."""
_GROUP_SIZE = 8
_SPAWN = multiprocessing.get_context("spawn")


def run(quick: bool) -> list[dict[str, Any]]:
    """Rows of design section 6."""
    rounds, num_per_round = (3, 64) if quick else (7, 256)
    with tempfile.TemporaryDirectory(prefix="computerrl-bench-", dir=Path.cwd()) as folder:
        # The file system of the working folder, where runs lie; /tmp may be memory.
        config = RunConfig(
            run_dir=folder,
            broker=BrokerConfig(eta=10_000),  # type: ignore[call-arg]
            learner=LearnerConfig(group_size=_GROUP_SIZE),  # type: ignore[call-arg]
        )
        RunFolder(config.folder).create(config)
        with _process(_broker_process, config), _process(_client_process, config) as clients:
            clients.recv()
            submitted, raw, latencies = [], [], []
            for number in range(rounds + 1):
                clients.send(num_per_round)
                num_bytes, took_s, latency_s = clients.recv()
                raw_s = _raw_write_s(Path(folder) / "raw", num_bytes=num_bytes)
                if number:  # The first round warms up.
                    submitted.append(num_bytes / took_s / _MB)
                    raw.append(num_bytes / raw_s / _MB)
                    latencies += latency_s
            clients.send("ping")
            round_trips: list[float] = clients.recv()
            clients.send(None)
        replay = _replay_rate(config)
    return [
        {
            "name": "submit 1 MB trajectories, journalled",
            "value": statistics.median(submitted),
            "unit": "MB/s",
            "spread": [min(submitted), max(submitted)],
            "better": "higher",
            "target": statistics.median(raw) / 2,
            "peer": "raw sequential write + fdatasync",
            "peer_value": statistics.median(raw),
            "ratio": statistics.median(one / other for one, other in zip(submitted, raw, strict=True)),
        },
        _row("submission latency p50", statistics.median(latencies) * 1e3, "ms", "lower"),
        _row("request round trip p50", statistics.median(round_trips) * 1e6, "us", "lower"),
        _row("journal replay", replay, "MB/s", "higher"),
    ]


def _row(name: str, value: float, unit: str, better: str) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "better": better, "target": None}


@contextmanager
def _process(target: Callable[[Connection, RunConfig], None], config: RunConfig) -> Iterator[Connection]:
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=target, args=(theirs, config))
    process.start()
    try:
        yield ours
    finally:
        process.terminate()
        process.join()


def _broker_process(_: Connection, config: RunConfig) -> None:
    die_with_parent()
    log.configure(level="error")
    run_broker(config, stop=StopToken())


def _client_process(pipe: Connection, config: RunConfig) -> None:
    die_with_parent()
    log.configure(level="error")
    folder = RunFolder(config.folder)
    address = folder.wait_for_broker(StopToken(), 60)
    broker = BrokerClient(Client(address, keys=folder.load_keys(), sender="actor-0:bench"))
    broker.request(VersionAnnouncement(0, 0), timeout_s=60)
    broker.place_order(RolloutOrder("bench", "training", ("web-click-button",), None, _GROUP_SIZE, 100_000, 1.0, 60, 0))
    steps = _steps_of_1_mb()
    pipe.send("ready")
    consumed = 0
    while (job := pipe.recv()) is not None:
        if job == "ping":
            pipe.send([_timed(lambda: broker.directory("actor")) for _ in range(1000)])
            continue
        latencies: list[float] = []
        assigned = [broker.request_assignment("bench", 0) for _ in range(job)]
        threads = [
            threading.Thread(target=_submit_all, args=(broker, assigned[place::_NUM_THREADS], steps, latencies))
            for place in range(_NUM_THREADS)
        ]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took_s = time.perf_counter() - started
        consumed += job // _GROUP_SIZE
        broker.report_consumption(consumed)
        pipe.send((job * _MB, took_s, latencies))


def _submit_all(broker: BrokerClient, assigned: list[Any], steps: tuple[Step, ...], latencies: list[float]) -> None:
    for assignment in assigned:
        assert isinstance(assignment, Assignment)
        trajectory = _trajectory(assignment, steps)
        latencies.append(_timed(lambda one=trajectory: broker.submit(one)))  # type: ignore[misc]


def _timed(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def _steps_of_1_mb() -> tuple[Step, ...]:
    """50 steps whose arrays are 1 MB together."""
    rng = np.random.default_rng(0)
    timing = StepTiming(0.1, 0.1, 0.05)
    made = []
    for _ in range(50):
        prompt = rng.integers(0, 50_000, 4700, dtype=np.int32)
        action = rng.integers(0, 50_000, 100, dtype=np.int32)
        logprobs = rng.normal(-1.0, 0.1, 100).astype(np.float32)
        versions = np.zeros(100, dtype=np.int32)
        made.append(Step(prompt, action, logprobs, versions, "click(1)", True, "", None, "quiet", timing))
    return tuple(made)


def _trajectory(assignment: Assignment, steps: tuple[Step, ...]) -> Trajectory:
    return Trajectory(
        trajectory_id=assignment.assignment_id,
        group_id=assignment.group_id,
        index=assignment.index,
        order_id=assignment.order_id,
        kind=assignment.kind,
        task=assignment.task,
        instruction="Click the button.",
        steps=steps,
        reward=1.0,
        success=True,
        end_reason="task_finished",
        final_screenshot=None,
        actor="actor-0:bench",
        started_at=0.0,
        duration_s=1.0,
        reset_s=0.1,
        wait_s=0.1,
    )


def _raw_write_s(path: Path, *, num_bytes: int) -> float:
    data = os.urandom(_MB)
    started = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(num_bytes // _MB):
            file.write(data)
        os.fdatasync(file.fileno())
    took_s = time.perf_counter() - started
    path.unlink()
    return took_s


def _replay_rate(config: RunConfig) -> float:
    journal = FileJournal(RunFolder(config.folder).journal)
    core = BrokerCore.from_config(config, run_id="bench")
    took_s = _timed(lambda: BrokerService(core, journal))
    rate = journal.num_bytes / took_s / _MB
    journal.close()
    return rate


if __name__ == "__main__":
    for line in run(quick=True):
        print(line)
