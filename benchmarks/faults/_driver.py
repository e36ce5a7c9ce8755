"""Keeps the processes of a run going while they are killed, frozen and woken at random, and counts these faults."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from computerrl.benchmarks.faults import _roles
from computerrl.benchmarks.faults._accounts import Accounts, settle
from computerrl.benchmarks.faults._roles import Place
from computerrl.broker.client import BrokerClient
from computerrl.common.config import BrokerConfig, LearnerConfig, RunConfig
from computerrl.common.config.learner import RecipeConfig
from computerrl.common.lifecycle import StopToken
from computerrl.common.run_files import requests
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.wire.transport import Client

PEER_TIMEOUT_S = 1.0
DRAIN_LIMIT_S = 120.0
"""Time for the learner to finish the recipe after the last kill."""

_forks = multiprocessing.get_context("forkserver")


def make_config(folder: Path, **broker: Any) -> RunConfig:
    """Small groups, short limits, a journal of many small segments, a checkpoint every second update."""
    limits = {"peer_timeout_s": PEER_TIMEOUT_S, "max_assignment_s": 2.0, "segment_mb": 0.1, **broker}
    recipe = RecipeConfig(demos_per_family=2, eval_episodes_per_family=2, max_updates=1_000_000)
    learner = LearnerConfig(group_size=4, groups_per_batch=2, max_age=2, checkpoint_every_updates=2, recipe=recipe)
    return RunConfig(run_dir=str(folder), broker=BrokerConfig(**limits), learner=learner)


class Fleet:
    """One process for each place. A process that ends is started again, as by a supervisor."""

    def __init__(self, config: RunConfig, places: list[Place]) -> None:
        _forks.set_forkserver_preload(_roles.PRELOAD)
        self.config = config
        self.places = places
        self.folder = RunFolder(config.folder)
        self.keys = self.folder.create(config)
        (self.folder.folder / "receipts").mkdir(exist_ok=True)
        self.kills: Counter[str] = Counter()
        self.num_started = 0
        self.num_superseded = 0
        self.failures: list[str] = []
        """Processes that ended without a kill, with their exit codes."""
        self.processes: dict[Place, ForkServerProcess] = {}
        for place in places:
            self.start(place)

    def start(self, place: Place) -> None:
        """Start, or start again."""
        process = _forks.Process(target=_roles.run_place, args=(place, self.config), name=place.name, daemon=True)
        process.start()
        self.processes[place] = process
        self.num_started += 1

    def kill(self, *places: Place) -> None:
        """SIGKILL all of ``places`` at once; start them again."""
        for place in places:
            self.processes[place].kill()
        for place in places:
            self.processes[place].join()
            self.kills[place.role] += 1
            self.start(place)

    def freeze(self, places: list[Place], duration_s: float) -> None:
        """Stop them all for a while, as a suspended host would."""
        processes = [self.processes[place] for place in places]
        for process in processes:
            _signal(process, signal.SIGSTOP)
        time.sleep(duration_s)
        for process in processes:
            _signal(process, signal.SIGCONT)

    def tend(self) -> None:
        """Start processes again that ended by themselves: replaced ones do; any other end is a failure."""
        for place, process in self.processes.items():
            if process.exitcode is None:
                continue
            if process.exitcode == 0 and place.role != "broker" and not self._finished(place):
                self.num_superseded += 1
                self.start(place)
            elif process.exitcode != 0:
                self.failures.append(f"{place.name} ended with {process.exitcode}")
                self.start(place)

    def _finished(self, place: Place) -> bool:
        return place.role == "learner" and '"summary"' in _tail(self.folder.metrics_path)

    def client(self, *, deadline_s: float = 60.0) -> BrokerClient:
        """The broker, for the driver itself."""
        address = self.folder.wait_for_broker(StopToken(), 60.0)
        return BrokerClient(Client(address, keys=self.keys, sender="dashboard-0:driver"), deadline_s=deadline_s)

    def drain(self) -> Accounts:
        """Let the recipe finish without further faults; gives the accounts. Raises `TimeoutError`."""
        requests.ask(self.folder.folder, "phase", "finish")
        (learner,) = (place for place in self.places if place.role == "learner")
        deadline = time.monotonic() + DRAIN_LIMIT_S
        while not (self.processes[learner].exitcode == 0 and self._finished(learner)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the learner has not finished within {DRAIN_LIMIT_S:g} s; see {self.folder.logs}")
            self.tend()
            time.sleep(0.05)
        broker = self.client()
        counters = broker.status().counters
        broker.close()
        self.close()
        return settle(self.folder.folder, counters)

    def close(self) -> None:
        """Kill everything."""
        for process in self.processes.values():
            process.kill()
            process.join()


class Havoc:
    """Decides at random whom to harm, when and how."""

    def __init__(self, fleet: Fleet, *, seed: int, pause_s: float) -> None:
        """``pause_s``: mean time between two acts."""
        self._fleet = fleet
        self._chance = random.Random(seed)
        self._pause_s = pause_s
        self._first = [0.09, 0.04, 0.02, 0.0]
        """Draws of the first acts: one of each rare kind, so that a short run has them too."""
        self.num_frozen = 0
        self.num_zombies = 0
        self.num_zombies_left = 0
        """Woken after they had been replaced, and still there 10 s later."""

    def act(self) -> None:
        """One act and the pause before it, which is anything from nothing to twice the mean."""
        chance, fleet = self._chance, self._fleet
        time.sleep(chance.uniform(0.0, 2 * self._pause_s))
        fleet.tend()
        what = self._first.pop() if self._first else chance.random()
        if what < 0.01:
            self._freeze(fleet.places)
        elif what < 0.03:
            self._freeze([self._pick()])
        elif what < 0.05:
            self._make_zombie()
        elif what < 0.10:
            first = self._pick()
            second = chance.choice([place for place in fleet.places if place is not first])
            fleet.kill(first, second)
        else:
            place = self._pick()
            fleet.kill(place)
            if chance.random() < 0.2:
                # Again, in the middle of its start.
                time.sleep(chance.uniform(0.0, 0.3))
                fleet.kill(place)

    def _pick(self) -> Place:
        role = self._chance.choice(["broker", "learner", "actor"])
        return self._chance.choice([place for place in self._fleet.places if place.role == role])

    def _freeze(self, places: list[Place]) -> None:
        self.num_frozen += len(places)
        self._fleet.freeze(places, self._chance.uniform(0.3, 1.5) * PEER_TIMEOUT_S)

    def _make_zombie(self) -> None:
        """An actor sleeps, is replaced, and wakes up."""
        fleet = self._fleet
        place = self._chance.choice([place for place in fleet.places if place.role == "actor"])
        zombie = fleet.processes[place]
        _signal(zombie, signal.SIGSTOP)
        fleet.start(place)
        time.sleep(self._chance.uniform(0.5, 2.0) * PEER_TIMEOUT_S)
        _signal(zombie, signal.SIGCONT)
        self.num_zombies += 1
        deadline = time.monotonic() + 10.0
        while zombie.exitcode is None and time.monotonic() < deadline:
            fleet.tend()
            time.sleep(0.05)
        if zombie.exitcode is None:
            self.num_zombies_left += 1
            zombie.kill()
            zombie.join()


def _signal(process: ForkServerProcess, number: signal.Signals) -> None:
    if process.exitcode is None and process.pid is not None:
        os.kill(process.pid, number)


def _tail(path: Path, *, num_bytes: int = 4000) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - num_bytes))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
