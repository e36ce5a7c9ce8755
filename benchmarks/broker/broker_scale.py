"""The broker under 2,000 connected actors: memory, cost per trajectory, deaf clients, and three times the learner's rate.

Broker, learner and crowds are separate processes over CURVE sockets. Costs are compared in the same run at the same rate of
trajectories.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from computerrl.benchmarks.broker._crowd import Orders, Report, run_crowd
from computerrl.broker.client import BrokerClient
from computerrl.broker.process import run_broker
from computerrl.common import log
from computerrl.common.config import BrokerConfig, LearnerConfig, RunConfig
from computerrl.common.config.actor import ActorConfig
from computerrl.common.lifecycle import HeartbeatThread, StopToken, die_with_parent
from computerrl.common.messages import RolloutOrder, TrajectoryGroup
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.wire.transport import Client
from computerrl.env_server.drivers.memory import pss_mb

_ACTORS_PER_CROWD = 500
_GROUP_SIZE, _GROUPS_PER_BATCH, _ETA = 8, 6, 99
_BATCH = _GROUP_SIZE * _GROUPS_PER_BATCH
_CREDIT = (_ETA + 1) * _BATCH
"""Trajectories that may be under way or wait for the learner at once."""
_SEGMENT_MB = 8.0
_RATE_PER_S = 100.0
"""Trajectories a second where costs are compared."""
_OVERLOAD_TOKENS = 2000
"""8 kB a trajectory."""
_NUM_ENV_SERVERS = 20
_SPAWN = multiprocessing.get_context("spawn")


def run(quick: bool) -> list[dict[str, Any]]:
    """Rows of design section 6."""
    num_actors, stage_s, overload_s = (200, 3.0, 6.0) if quick else (2000, 20.0, 120.0)
    with tempfile.TemporaryDirectory(prefix="computerrl-bench-", dir=Path.cwd()) as folder:
        return measure(Path(folder), num_actors=num_actors, stage_s=stage_s, overload_s=overload_s)


def measure(folder: Path, *, num_actors: int, stage_s: float, overload_s: float) -> list[dict[str, Any]]:
    """All stages against one broker with ``num_actors`` connections; ``stage_s`` is how long each lasts."""
    config = RunConfig(
        run_dir=str(folder),
        broker=BrokerConfig(eta=_ETA, segment_mb=_SEGMENT_MB),
        learner=LearnerConfig(group_size=_GROUP_SIZE, groups_per_batch=_GROUPS_PER_BATCH),
        actor=ActorConfig(num_actors=num_actors),
    )
    RunFolder(config.folder).create(config)
    with _process(_broker_process, config) as broker, Learner(config) as learner:
        few = _Stages(broker, learner, config, num_actors=10, first_index=0)
        with few:
            base = few.play(num_playing=10, stage_s=stage_s)
        many = _Stages(broker, learner, config, num_actors=num_actors, first_index=10)
        with many:
            many.wait_welcomed(60.0)
            idle = many.idle(stage_s)
            all_at = many.play(num_playing=num_actors, stage_s=max(stage_s, 2.0))
            heard, deaf = many.beside_deaf(stage_s)
            flood = many.flood(overload_s)
        lost = learner.count_lost(few.accepted | many.accepted)
    return [
        *_memory_and_cost_rows(num_actors, idle, base, all_at),
        *_deaf_rows(heard, deaf),
        *_flood_rows(flood, overload_s),
        _row(f"trajectories lost, of {len(few.accepted | many.accepted):,} acknowledged", lost, "", target=0),
    ]


# --- rows ------------------------------------------------------------------------------------------------------------


def _row(name: str, value: float, unit: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "target": None, "better": "lower", **more}


def _memory_and_cost_rows(num_actors: int, idle: Stage, base: Stage, all_at: Stage) -> list[dict[str, Any]]:
    cost = all_at.cpu_s / max(1, all_at.num_accepted) * 1e3
    base_cost = base.cpu_s / max(1, base.num_accepted) * 1e3
    peer = {"peer": "10 actors, same rate", "peer_value": base_cost}
    return [
        _row(f"broker memory (PSS), {num_actors:,} idle actors", idle.pss_mb, "MiB", target=300),
        _row(f"broker CPU per heartbeat, {num_actors:,} idle actors", 1e3 * idle.cpu_s / max(1, idle.num_beats), "ms"),
        _row("heartbeats a second in that stage", idle.num_beats / idle.wall_s, "1/s", better="higher"),
        _row(
            f"broker CPU per trajectory, {num_actors:,} actors, their heartbeats included",
            cost,
            "ms",
            target=1.5 * base_cost,
            **peer,
        ),
        _row(
            "trajectories a second in that stage",
            all_at.num_accepted / all_at.wall_s,
            "1/s",
            better="higher",
            peer="10 actors",
            peer_value=base.num_accepted / base.wall_s,
        ),
    ]


def _deaf_rows(heard: Stage, deaf: Stage) -> list[dict[str, Any]]:
    peer = "the same 20 clients, reading"
    return [
        _row(
            f"latency of others {name} beside 20 clients that never read",
            deaf.latency_ms(share),
            "ms",
            peer=peer,
            peer_value=heard.latency_ms(share),
        )
        for name, share in (("p50", 0.5), ("p99", 0.99))
    ] + [_row("broker memory (PSS) beside them", deaf.pss_mb, "MiB", peer=peer, peer_value=heard.pss_mb)]


def _flood_rows(flood: Flood, overload_s: float) -> list[dict[str, Any]]:
    return [
        _row(f"offered over taken, {overload_s:g} s", flood.offered_over_taken, "", better="higher"),
        # Beside the credit, the batch that was taken and is not reported as consumed.
        _row("trajectories held at most", flood.max_held, "", target=_CREDIT + _BATCH),
        _row("journal at most", flood.max_journal_mb, "MiB", target=flood.journal_bound_mb),
        _row("broker memory (PSS) at most", flood.max_pss_mb, "MiB"),
        _row("requests that found no credit", flood.num_refused, "", better="higher"),
    ]


# --- stages ----------------------------------------------------------------------------------------------------------


class Stage:
    """Observations of broker and players during one stage."""

    def __init__(self, reports: list[Report], *, cpu_s: float, wall_s: float, pss: float) -> None:
        self.num_beats = sum(report.num_beats for report in reports)
        self.num_accepted = sum(len(report.accepted) for report in reports)
        self.latencies_s = sorted(latency for report in reports for latency in report.latencies_s)
        self.cpu_s, self.wall_s, self.pss_mb = cpu_s, wall_s, pss

    def latency_ms(self, share: float) -> float:
        """The latency that ``share`` of the requests stayed below."""
        return 1e3 * statistics.quantiles(self.latencies_s, n=1000)[round(1000 * share) - 1]


class Flood:
    """Maxima while more was offered than the learner took."""

    def __init__(self) -> None:
        self.max_held = self.num_refused = 0
        self.max_journal_mb = self.max_pss_mb = self.journal_bound_mb = self.offered_over_taken = 0.0


class _Stages:
    """Crowds of actors and their orders."""

    def __init__(self, broker: int, learner: Learner, config: RunConfig, *, num_actors: int, first_index: int) -> None:
        self._broker, self._learner = broker, learner
        self._num_actors = num_actors
        self.accepted: set[str] = set()
        self._pipes: list[Connection] = []
        self._processes = []
        for first in range(0, num_actors, _ACTORS_PER_CROWD):
            ours, theirs = _SPAWN.Pipe()
            size = min(_ACTORS_PER_CROWD, num_actors - first)
            args = (theirs, config.folder, first_index + first, size)
            self._processes.append(_SPAWN.Process(target=run_crowd, args=args, daemon=True))
            self._processes[-1].start()
            self._pipes.append(ours)

    def __enter__(self) -> _Stages:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(10.0)
            process.kill()

    def tell(self, **orders: Any) -> list[Report]:
        """New orders for all crowds (``num_playing`` in all); gives their reports until now."""
        left = orders.pop("num_playing", 0)
        for place, pipe in enumerate(self._pipes):
            size = min(_ACTORS_PER_CROWD, self._num_actors - place * _ACTORS_PER_CROWD)
            # Deaf ones are in the last crowd, behind those that play.
            num_deaf = orders.get("num_deaf", 0) if place == len(self._pipes) - 1 else 0
            playing = min(left, size - num_deaf)
            left -= playing
            pipe.send(Orders(**{**orders, "num_playing": playing, "num_deaf": num_deaf}))
        reports = [pipe.recv() for pipe in self._pipes]
        for report in reports:
            self.accepted.update(report.accepted)
        return reports

    def wait_welcomed(self, limit_s: float) -> None:
        """Until the broker has answered every actor. Raises `TimeoutError`."""
        deadline = time.monotonic() + limit_s
        while (num := sum(report.num_welcomed for report in self.tell())) < self._num_actors:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{num} of {self._num_actors} actors connected within {limit_s:g} s")
            time.sleep(0.5)

    def idle(self, stage_s: float) -> Stage:
        """Heartbeats only."""
        return self._watch(stage_s)

    def play(self, *, num_playing: int, stage_s: float) -> Stage:
        """``num_playing`` of them play, together at `_RATE_PER_S`."""
        self.wait_welcomed(60.0)
        think_s = num_playing / _RATE_PER_S
        self.tell(num_playing=num_playing, think_s=think_s)
        time.sleep(min(think_s, 10.0))
        stage = self._watch(stage_s, num_playing=num_playing, think_s=think_s)
        self.tell()
        time.sleep(0.5)
        return stage

    def beside_deaf(self, stage_s: float) -> tuple[Stage, Stage]:
        """50 play beside 20 clients that ask all the time; first these read their answers, then they do not."""
        playing = {"num_playing": 50, "think_s": 0.5}
        stages = []
        for reads in (True, False):
            orders = {**playing, "num_deaf": _NUM_ENV_SERVERS, "deaf_reads": reads}
            self.tell(**orders)
            stages.append(self._watch(stage_s, **playing))
            time.sleep(0.2)
        return stages[0], stages[1]

    def flood(self, duration_s: float) -> Flood:
        """All play without a pause while the learner takes a third of that."""
        flood = Flood()
        everybody = {"num_playing": self._num_actors, "num_tokens": _OVERLOAD_TOKENS}
        self.tell(**everybody)
        time.sleep(2.0)
        offered = self._watch(duration_s / 4, **everybody)
        offered_per_s = offered.num_accepted / offered.wall_s
        self._learner.max_per_s = offered_per_s / 3
        taken, started = self._learner.num_taken, time.monotonic()
        while time.monotonic() - started < duration_s:
            status = self._learner.status()
            flood.max_held = max(flood.max_held, status.counters["held"] + self._learner.num_unreported)
            flood.max_journal_mb = max(flood.max_journal_mb, status.gauges["journal_bytes"] / 2**20)
            flood.max_pss_mb = max(flood.max_pss_mb, pss_mb([self._broker]))
            time.sleep(0.25)
        passed_s = time.monotonic() - started
        flood.num_refused = sum(report.num_refused for report in self.tell())
        flood.offered_over_taken = offered_per_s * passed_s / (self._learner.num_taken - taken)
        record_mb = (4 * _OVERLOAD_TOKENS + 2000) / 2**20
        # Held trajectories lie in whole segments: one that waits for the rest of its group keeps its whole segment.
        flood.journal_bound_mb = 2 * _CREDIT * record_mb + 3 * _SEGMENT_MB
        self._learner.max_per_s = None
        return flood

    def _watch(self, stage_s: float, **orders: Any) -> Stage:
        self.tell(**orders)
        started, cpu_s = time.monotonic(), _cpu_s(self._broker)
        time.sleep(stage_s)
        cpu_s, wall_s = _cpu_s(self._broker) - cpu_s, time.monotonic() - started
        return Stage(self.tell(**orders), cpu_s=cpu_s, wall_s=wall_s, pss=pss_mb([self._broker]))


# --- the other side --------------------------------------------------------------------------------------------------


class Learner:
    """Takes groups as fast as it can or may, and reports them as consumed; twenty env_servers say hello beside it."""

    def __init__(self, config: RunConfig) -> None:
        folder = RunFolder(config.folder)
        address, keys = folder.wait_for_broker(StopToken(), 60.0), folder.load_keys()
        self._stop = StopToken()
        self._broker = BrokerClient(Client(address, keys=keys, sender="learner-0:scale"), stop=self._stop)
        self._broker.announce_version(0, group_seq=0)
        self._broker.place_order(RolloutOrder("rl-1", "training", ("click",), None, _GROUP_SIZE, 0, 1.0, 60, -1))
        endpoints = {f"desktops-{number}": f"tcp://127.0.0.1:{5000 + number}" for number in range(4)}
        self._beats = [
            HeartbeatThread(self._broker, role="env_server", index=index, incarnation=f"e{index}", endpoints=endpoints)
            for index in range(_NUM_ENV_SERVERS)
        ]
        self.fetched: set[str] = set()
        self.num_taken = self.num_unreported = 0
        self.max_per_s: float | None = None
        """Trajectories taken a second at most; None: no limit."""
        self._thread = threading.Thread(target=self._take, name="learner", daemon=True)
        self._thread.start()

    def __enter__(self) -> Learner:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.stop("the benchmark ends")
        self._thread.join()
        for beat in self._beats:
            beat.close()
        self._broker.close()

    def status(self) -> Any:
        """The broker's."""
        return self._broker.status()

    def count_lost(self, accepted: set[str]) -> int:
        """Acknowledged trajectories that neither were delivered nor wait for the rest of their group."""
        before = -1
        while before != len(self.fetched):
            before = len(self.fetched)
            time.sleep(1.0)
        return max(0, len(accepted - self.fetched) - self.status().counters["held"])

    def _take(self) -> None:
        number = 0
        while not self._stop.stopped:
            group = self._broker.fetch_group(number)
            if not isinstance(group, TrajectoryGroup):
                self._stop.wait(0.02)
                continue
            number += 1
            self.fetched.update(trajectory.trajectory_id for trajectory in group.trajectories)
            self.num_taken += len(group.trajectories)
            self.num_unreported += len(group.trajectories)
            if number % _GROUPS_PER_BATCH == 0:
                self._broker.announce_version(number // _GROUPS_PER_BATCH, group_seq=number)
                self._broker.report_consumption(number)
                self.num_unreported = 0
            limit = self.max_per_s
            if limit is not None:
                self._stop.wait(len(group.trajectories) / limit)


@contextmanager
def _process(target: Any, config: RunConfig) -> Iterator[int]:
    process = _SPAWN.Process(target=target, args=(config,), daemon=True)
    process.start()
    try:
        assert process.pid is not None
        yield process.pid
    finally:
        process.terminate()
        process.join()


def _broker_process(config: RunConfig) -> None:
    die_with_parent()
    log.configure(level="error")
    run_broker(config, stop=StopToken())


def _cpu_s(pid: int) -> float:
    """User and system time of a process, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
