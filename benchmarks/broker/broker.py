"""The broker: trajectories over CURVE sockets into the synced journal, beside other ways of moving the same bytes.

The broker is a process of its own, as in a run; a load generator (`_load.py`) plays eight actors with several episodes in
flight each. Every trajectory is assigned, sent, journalled with fdatasync and acknowledged; assigning and encoding happen
before the clock starts. Peers (`_peers.py`) get the same bytes in turn with it, in the same run on the same disk. Values
are medians over rounds, spreads all rounds.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from computerrl.benchmarks._episodes import make_step, make_trajectory
from computerrl.benchmarks.broker._load import Connections, Frames
from computerrl.benchmarks.broker._peers import PEERS, missing
from computerrl.broker.client import BrokerClient
from computerrl.broker.core import BrokerCore
from computerrl.broker.journal.file import FileJournal
from computerrl.broker.process import run_broker
from computerrl.broker.service import BrokerService
from computerrl.common import log
from computerrl.common.config import BrokerConfig, LearnerConfig, RunConfig
from computerrl.common.lifecycle import StopToken, die_with_parent
from computerrl.common.messages import (
    Assignment,
    AssignmentRequest,
    Message,
    ReceiptBatch,
    RolloutOrder,
    Step,
    TaskRef,
    TrajectoryBatch,
    TrajectoryReceipt,
    VersionAnnouncement,
)
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.wire import codec
from computerrl.common.wire.transport import Client

_MB = 1_000_000
_NUM_ACTORS = 8
_GROUP_SIZE = 8
_SENDER = "actor-0:bench"
_CONSUME_EVERY_S = 0.25
_SPAWN = multiprocessing.get_context("spawn")
_RAW, _REDIS = next(name for name in PEERS if name.startswith("raw")), next(name for name in PEERS if name.startswith("Redis"))


@dataclass(frozen=True, slots=True)
class _Size:
    """One size of trajectory."""

    name: str
    num_steps: int
    num_prompt_tokens: int
    window: int
    """In flight per actor."""
    num_per_round: int
    in_bytes: bool
    """The rate is given in MB/s, not per second."""
    num_together: int = 1
    """Number of trajectories in one message; `BrokerClient` puts as many together when they wait."""


def run(quick: bool) -> list[dict[str, Any]]:
    """Rows of design section 6."""
    big = _Size("1 MB", 50, 4700, window=4, num_per_round=64 if quick else 256, in_bytes=True)
    small = _Size("4 KB", 1, 700, window=64, num_per_round=4_000 if quick else 30_000, in_bytes=False)
    together = replace(small, name="4 KB (32 to a message)", num_together=32, window=2)
    num_rounds = 2 if quick else 5
    with tempfile.TemporaryDirectory(prefix="computerrl-bench-", dir=Path.cwd()) as folder:
        # The file system of the working folder, where runs lie; /tmp may be memory.
        config = RunConfig(
            run_dir=folder,
            broker=BrokerConfig(eta=1_000_000),
            learner=LearnerConfig(group_size=_GROUP_SIZE),
        )
        RunFolder(config.folder).create(config)
        with _broker_process(config):
            bench = _Bench(config, Path(folder))
            rows = [row for size in (big, small, together) for row in bench.compare(size, num_rounds)]
            rows += bench.latencies(small, num_rounds)
            rows += bench.latencies(together, num_rounds)
            rows += bench.latencies(big, num_rounds)
            num_held = bench.fill_journal(big, num_bytes=100 * _MB if quick else 1000 * _MB)
            bench.close()
        rows.append(_recovery(config, num_held))
    return rows


class _Bench:
    """A running broker under load."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        run_folder = RunFolder(config.folder)
        self._folder = folder
        self._address = run_folder.wait_for_broker(StopToken(), 60)
        keys = run_folder.load_keys()
        self._client = BrokerClient(Client(self._address, keys=keys, sender=_SENDER))
        self._connections = Connections(self._address, keys, count=_NUM_ACTORS)
        self._client.request(VersionAnnouncement(0, 0), timeout_s=60)
        self._client.place_order(RolloutOrder("bench", "training", ("web-click-button",), None, _GROUP_SIZE, 100_000, 1.0, 60, 0))
        self._rates: dict[str, list[float]] = {}
        self._num_groups = 0

    def close(self) -> None:
        self._connections.close()
        self._client.close()

    def compare(self, size: _Size, num_rounds: int) -> list[dict[str, Any]]:
        """Rows of submissions beside each peer; the first round warms up."""
        ours: list[float] = []
        peers: dict[str, list[float]] = {name: [] for name in PEERS if not missing(name)}
        for number in range(num_rounds + 1):
            requests = self._requests(size)
            payloads = [_payload(size)] * size.num_per_round
            amount = sum(map(len, payloads)) / _MB if size.in_bytes else size.num_per_round
            load = self._connections.send_all(requests, window=size.window)
            assert all(receipt.accepted for answer in load.answers for receipt in _receipts(answer))
            self._consume(size.num_per_round)
            rates = {name: amount / PEERS[name](payloads, size.window * _NUM_ACTORS, self._folder) for name in peers}
            if number:
                ours.append(amount / load.took_s)
                for name, rate in rates.items():
                    peers[name].append(rate)
        self._rates[size.name] = ours
        return [_compared(size, name, ours, peers.get(name)) for name in PEERS]

    def latencies(self, size: _Size, num_rounds: int) -> list[dict[str, Any]]:
        """Rows of the time until the receipt, at half of the rate that was reached."""
        requests = self._requests(size)
        amount_each = sum(map(len, requests[0])) / _MB if size.in_bytes else size.num_together
        per_s = statistics.median(self._rates[size.name]) / amount_each / 2
        found = []
        for _ in range(num_rounds):
            with self._consuming():
                found += self._connections.send_all(requests, window=size.window, per_s=per_s).latencies_s
            self._consume(size.num_per_round)
            requests = self._requests(size)
        self._connections.send_all(requests, window=size.window)
        self._consume(size.num_per_round)
        cuts = statistics.quantiles(found, n=100)
        what = f"{size.name} receipt at half load ({per_s * size.num_together:.0f}/s)"
        return [
            {"name": f"{what}, {name}", "value": value, "unit": "s", "better": "lower", "target": target}
            for name, value, target in (("p50", cuts[49], 0.005), ("p99", cuts[98], 0.025))
        ]

    def fill_journal(self, size: _Size, *, num_bytes: int) -> int:
        """Submit trajectories that no learner consumes; gives their number."""
        num_held = 0
        while num_held * _MB < num_bytes:
            requests = self._requests(size)
            self._connections.send_all(requests, window=size.window)
            num_held += size.num_per_round
        return num_held

    def _requests(self, size: _Size) -> list[Frames]:
        """Encoded messages with trajectories for new assignments."""
        steps = _steps(size)
        ask = codec.encode(AssignmentRequest("bench", 0), sender=_SENDER, message_id=1)
        assigned = self._connections.send_all([ask] * size.num_per_round, window=64).answers
        trajectories = [make_trajectory(assignment, steps) for assignment in assigned if isinstance(assignment, Assignment)]
        assert len(trajectories) == size.num_per_round
        some = [trajectories[first : first + size.num_together] for first in range(0, len(trajectories), size.num_together)]
        messages = [TrajectoryBatch(tuple(few)) if len(few) > 1 else few[0] for few in some]
        return [codec.encode(message, sender=_SENDER, message_id=1) for message in messages]

    @contextmanager
    def _consuming(self) -> Iterator[None]:
        """Whatever is complete is reported as consumed soon, as a learner does it."""
        stop = StopToken()

        def run() -> None:
            while not stop.wait(_CONSUME_EVERY_S):
                self._client.report_consumption(int(self._client.status().gauges["group_seq_next"]))

        thread = threading.Thread(target=run, name="learner")
        thread.start()
        try:
            yield
        finally:
            stop.stop("the round is over")
            thread.join()

    def _consume(self, num_trajectories: int) -> None:
        self._num_groups += num_trajectories // _GROUP_SIZE
        self._client.report_consumption(self._num_groups)


def _receipts(answer: Message) -> tuple[TrajectoryReceipt, ...]:
    if isinstance(answer, ReceiptBatch):
        return answer.receipts
    assert isinstance(answer, TrajectoryReceipt), answer
    return (answer,)


def _payload(size: _Size) -> bytes:
    """The bytes of one trajectory; peers get every one by itself."""
    task = TaskRef("web-click-button", 100_000, "training")
    assignment = Assignment("bench/0/0", "bench/0", 0, "bench", "training", task, 1.0, 60, 60.0)
    return b"".join(codec.encode(make_trajectory(assignment, _steps(size)), sender=_SENDER, message_id=1))


def _compared(size: _Size, peer: str, ours: list[float], theirs: Sequence[float] | None) -> dict[str, Any]:
    unit = "MB/s" if size.in_bytes else "per s"
    absent = missing(peer)
    value = statistics.median(ours)
    peer_value = statistics.median(theirs) if theirs else None
    # By definition of the goal: half of the rate of the disk, twice the rate of Redis; and this many small ones in any case.
    factor = {_RAW: 0.5, _REDIS: 2.0}.get(peer) if size.in_bytes else None
    target = peer_value * factor if peer_value is not None and factor is not None else None
    if not size.in_bytes and peer == _RAW:
        target = 20_000.0
    return {
        "name": f"{size.name} trajectories, journalled and acknowledged, {_NUM_ACTORS} actors",
        "value": value,
        "unit": unit,
        "spread": [min(ours), max(ours)],
        "better": "higher",
        "target": target,
        "peer": f"{peer} (missing: {absent})" if absent else peer,
        "peer_value": peer_value,
        "ratio": statistics.median(one / other for one, other in zip(ours, theirs, strict=True)) if theirs else None,
    }


@contextmanager
def _broker_process(config: RunConfig) -> Iterator[None]:
    process = _SPAWN.Process(target=_run_broker, args=(config,))
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def _run_broker(config: RunConfig) -> None:
    die_with_parent()
    log.configure(level="error")
    run_broker(config, stop=StopToken())


def _recovery(config: RunConfig, num_held: int) -> dict[str, Any]:
    """A new broker on the journal that the last one left, of which everything is still needed."""
    log.configure(level="error")
    started = time.perf_counter()
    journal = FileJournal(RunFolder(config.folder).journal)
    core = BrokerCore.from_config(config, run_id="bench")
    service = BrokerService(core, journal)
    took_s = time.perf_counter() - started
    assert core.counters["held"] == num_held, (core.counters, num_held)
    num_bytes = journal.num_bytes
    service.close()
    name = f"recovery of a journal of {num_bytes / _MB:.0f} MB, all of it held"
    return {"name": name, "value": took_s, "unit": "s", "better": "lower", "target": 5.0}


def _steps(size: _Size) -> tuple[Step, ...]:
    rng = np.random.default_rng(0)
    num_action = 100
    made = []
    for _ in range(size.num_steps):
        prompt = rng.integers(0, 50_000, size.num_prompt_tokens, dtype=np.int32)
        action = rng.integers(0, 50_000, num_action, dtype=np.int32)
        logprobs = rng.normal(-1.0, 0.1, num_action).astype(np.float32)
        made.append(make_step(prompt, action, logprobs=logprobs))
    return tuple(made)


if __name__ == "__main__":
    for line in run(quick=True):
        print(line)
