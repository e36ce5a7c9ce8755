"""The processes that `faults` and `network_cut` kill, freeze and cut off: the real broker, a learner that is the real loop around
a trainer of one number, and an actor that plays for milliseconds.

None of them can know how old a sample really is: version numbers are all they have. So every step carries, as its only
prompt token, how often the weights that sampled it had been trained, and the trainer checks that against its own count.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from computerrl.benchmarks._episodes import make_step, make_trajectory
from computerrl.broker.client import BrokerClient
from computerrl.broker.process import run_broker
from computerrl.common import log
from computerrl.common.config import RunConfig
from computerrl.common.errors import Superseded
from computerrl.common.lifecycle import HeartbeatThread, StopToken, die_with_parent, new_incarnation, stop_on_signals
from computerrl.common.messages import Assignment, Hello, Role, Trajectory
from computerrl.common.run_files.run_folder import BROKER_ADDRESS_VARIABLE, RunFolder
from computerrl.common.wire.transport import Client
from computerrl.learner.algorithms import make_algorithm
from computerrl.learner.checkpoints.checkpoint import CheckpointStore
from computerrl.learner.conductor import LearnerLoop
from computerrl.learner.contracts import Neighbours

FAMILIES = ("click", "type")
PRELOAD = [
    "computerrl.learner.conductor",
    "computerrl.broker.process",
    "computerrl.broker.client",
    "tensorboard.summary.writer.event_file_writer",
]
"""Modules that a fork server imports once, so that a killed process is back within milliseconds."""

_PLAY_S = 0.003
_SLOW_SHARE, _SLOW_S = 0.01, (0.5, 3.0)
"""Some episodes take so long that the policy moves on, or that another actor is given their slot."""
_UPDATE_S = 0.02
"""Longest time an optimizer step takes."""
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process lives."""

    role: Role
    index: int = 0
    namespace_of: int | None = None
    """Process whose network namespace to live in; None: the caller's."""
    broker_address: str | None = None
    """None: the address in the run folder."""

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"


def receipts_path(folder: Path, place: Place) -> Path:
    """Trajectory ids that this actor has a receipt for, a line each, written before it went on."""
    return folder / "receipts" / f"{place.name}.txt"


def too_old_path(folder: Path) -> Path:
    """A line for every step that was trained beyond `max_age`."""
    return folder / "too_old.jsonl"


def published_path(folder: Path) -> Path:
    """Every version number that weights were handed out under, a line each."""
    return folder / "published.txt"


def run_place(place: Place, config: RunConfig) -> None:
    """A process of this role, until it is told to stop, is replaced, or has finished the recipe."""
    die_with_parent(signal.SIGKILL)
    folder = RunFolder(config.folder)
    _say_into(folder.logs / f"{place.name}.log")
    if place.namespace_of is not None:
        _enter_network_of(place.namespace_of)
    if place.broker_address is not None:
        os.environ[BROKER_ADDRESS_VARIABLE] = place.broker_address
    stop = StopToken()
    stop_on_signals(stop)
    if place.role == "broker":
        run_broker(config, stop=stop)
        return
    incarnation = new_incarnation()
    log.bind(role=place.role, index=place.index, incarnation=incarnation)
    address = folder.wait_for_broker(stop, 60.0)
    client = Client(address, keys=folder.load_keys(), sender=f"{place.name}:{incarnation}")
    broker = BrokerClient(client, stop=stop)
    act = _learn if place.role == "learner" else _play
    try:
        act(place, config, broker, incarnation, stop)
    except Superseded:
        # As a zombie that wakes up shall end.
        log.get_logger().info("peer.superseded")
    finally:
        broker.close()


def _say_into(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    log.configure(level="warning")


def _enter_network_of(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.close(descriptor)


# --- actor -----------------------------------------------------------------------------------------------------------


def _play(place: Place, config: RunConfig, broker: BrokerClient, incarnation: str, stop: StopToken) -> None:
    chance = random.Random(incarnation)
    receipts = os.open(receipts_path(Path(config.folder), place), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with HeartbeatThread(broker, role="actor", index=place.index, incarnation=incarnation, stop=stop):
        while not stop.stopped:
            version, position = read_weights(Path(config.folder))
            work = broker.request_assignment(incarnation, version)
            if not isinstance(work, Assignment):
                stop.wait(min(0.05, work.retry_after_s))
                continue
            slow = chance.random() < _SLOW_SHARE
            stop.wait(chance.uniform(*_SLOW_S) if slow else chance.expovariate(1 / _PLAY_S))
            receipt = broker.submit(_episode(work, version, position, chance, actor=f"{place.name}:{incarnation}"))
            if receipt.accepted:
                os.write(receipts, f"{receipt.trajectory_id}\n".encode())


def _episode(work: Assignment, version: int, position: int, chance: random.Random, *, actor: str) -> Trajectory:
    demonstration = work.kind == "demonstration"
    step = make_step([max(0, position)], [4, 5], logprobs=[-0.5, -0.5], version=version, num_sampled=0 if demonstration else 2)
    steps = [step] * chance.randint(1, 3)
    return make_trajectory(work, steps, success=demonstration or chance.random() < 0.5, actor=actor)


# --- learner ---------------------------------------------------------------------------------------------------------


def _learn(place: Place, config: RunConfig, broker: BrokerClient, incarnation: str, stop: StopToken) -> None:
    folder = RunFolder(config.folder)
    welcome = broker.hello(Hello("learner", place.index, incarnation, socket.gethostname(), os.getpid(), {}))
    checkpoints = CheckpointStore(folder.checkpoints, num_kept=config.learner.num_checkpoints_kept)
    checkpoint = checkpoints.load()
    with HeartbeatThread(broker, role="learner", index=place.index, incarnation=incarnation, stop=stop):
        around = Neighbours(
            broker=broker,
            trainer=_OneNumber(config),
            weights=_WeightsFile(Path(config.folder)),
            folder=folder,
            checkpoints=checkpoints,
        )
        loop = LearnerLoop.begun(
            config, around, families=FAMILIES, announced_version=welcome.policy_version, checkpoint=checkpoint
        )
        while not (loop.finished or stop.stopped):
            if not loop.tick():
                stop.wait(0.01)
        loop.close()


class _OneNumber:
    """Its only weight counts how often it was trained: a version's true position."""

    check_screenshot = None
    skipped: frozenset[int] = frozenset()
    vocabulary_size = 1 << 31
    """Its prompts hold counts."""

    def __init__(self, config: RunConfig) -> None:
        self.algorithm = make_algorithm(config.learner, seed=config.seed)
        self._weight = torch.zeros(1)
        self._max_age = config.learner.max_age
        self._too_old = too_old_path(Path(config.folder))

    @property
    def revision(self) -> int:
        return int(self._weight)

    def refine(self, batch: Any) -> Any:
        return batch

    def update(self, batch: Any) -> dict[str, float]:
        now = int(self._weight)
        ages = [now - int(step.prompt_tokens[0]) for step in batch.samples]
        with self._too_old.open("a") as file:
            file.writelines(json.dumps({"age": age, "position": now}) + "\n" for age in ages if age > self._max_age)
        time.sleep(random.uniform(0.0, _UPDATE_S))
        self._weight += 1
        return {**batch.metrics, "loss": 0.0, "entropy": 1.0, "train_s": 0.0}

    def sft_step(self, steps: Any, lr: float) -> dict[str, float]:
        return {"loss": 0.0, "entropy": 1.0, "num_tokens": 0.0}

    def change_objective(self, lr: float) -> None:
        """It has none."""

    def set_reference(self) -> None:
        # The end of a supervised round, which is a version too.
        self._weight += 1

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self._weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._weight = state["weight"].clone()

    def trainable_tensors(self) -> dict[str, torch.Tensor]:
        return {"weight": self._weight}

    def probe_logprobs(self) -> np.ndarray:
        return self._weight.numpy().astype(np.float32)


class _WeightsFile:
    """Weights on their way to the actors: version and the one number, in a file that is replaced."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "weights.json"
        self._published = published_path(folder)

    def publish_base(self, policy_version: int, *, probe_logprobs: Any) -> None:
        self._write(policy_version, 0)

    def publish(self, policy_version: int, tensors: Mapping[str, torch.Tensor], *, probe_logprobs: Any) -> None:
        self._write(policy_version, int(tensors["weight"]))

    def metrics(self) -> dict[str, float]:
        return {}

    def _write(self, policy_version: int, position: int) -> None:
        with self._published.open("a") as file:
            file.write(f"{policy_version}\n")
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps([policy_version, position]))
        draft.replace(self._path)


def read_weights(folder: Path) -> tuple[int, int]:
    """(policy version, true position) of the weights that the learner handed out last; -1 before the first."""
    try:
        version, position = json.loads((folder / "weights.json").read_text())
    except FileNotFoundError:
        return -1, -1
    return version, position
