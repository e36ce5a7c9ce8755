"""The learner process: makes everything the conductor needs, runs it, and ends in time.

    broker ◄── BrokerClient ◄──┐                       ┌──► Trainer (policy, optimizer, algorithm)
    actors ◄── WeightSender ◄──┴── LearnerLoop.tick() ─┴──► Records, CheckpointStore

A stop waits for nothing: the files on disk are always enough to resume, so the exit may cut off a long optimizer step. A request
to save and end (`common.run_files.requests`) is honoured between two ticks, with a checkpoint. Decisions are the conductor's.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from computerrl.broker.client import BrokerClient
from computerrl.common import log
from computerrl.common.config import RunConfig
from computerrl.common.errors import PeerTimeout, WeightError
from computerrl.common.exporter import exporting
from computerrl.common.lifecycle import HeartbeatThread, StopToken, new_incarnation
from computerrl.common.messages import Hello
from computerrl.common.models.folder import model_folder
from computerrl.common.run_files import requests
from computerrl.common.run_files.recordings import recorded_seeds
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.weight_plan import base_digest
from computerrl.common.wire.addresses import is_loopback, own_address, reachable_address, tcp_address
from computerrl.common.wire.transport import Client, Server
from computerrl.env_server.client import family_names
from computerrl.learner.checkpoints.checkpoint import Checkpoint, CheckpointStore
from computerrl.learner.client import WEIGHTS_ENDPOINT
from computerrl.learner.conductor import LearnerLoop
from computerrl.learner.contracts import Neighbours
from computerrl.learner.recipe import recipe
from computerrl.learner.training import rank_processes
from computerrl.learner.training.served_model import ServedModel
from computerrl.learner.weights.files import WeightFiles
from computerrl.learner.weights.sender import WeightSender

if TYPE_CHECKING:
    from computerrl.learner.contracts import AnyTrainer

__all__ = ["LearnerLoop", "Neighbours", "run_learner"]

IDLE_S = (0.02, 0.2)
"""First and longest pause while there is no group to take; doubled each time. Groups come every few seconds."""

CHEAP_CHECKPOINT_S = 1.5
"""A checkpoint at a stop is made only when the last one took less than this to write."""

EXIT_LIMIT_S = 2.5
"""After a stop the process is gone within this, whatever its threads do; the supervisor kills at `supervisor.stop_s`."""


def run_learner(config: RunConfig, *, index: int, stop: StopToken) -> None:
    """Conduct the run until its recipe is finished or ``stop``. Raises the errors of `common.errors` for a dead end.

    On ranks other than 0, run the follower loop (`learner.training.rank_processes`).
    """
    if rank_processes.is_follower():
        log.bind(role="learner", index=index, incarnation=new_incarnation())
        rank_processes.run_follower(config, stop=stop)
        return
    folder = RunFolder(config.folder)
    keys = folder.load_keys()
    incarnation = new_incarnation()
    sender = f"learner-{index}:{incarnation}"
    log.bind(role="learner", index=index, incarnation=incarnation)
    families = family_names(config)
    done = threading.Event()
    threading.Thread(target=_end_in_time, args=(stop, done), name="exit-limit", daemon=True).start()
    try:
        address = folder.wait_for_broker(stop)
    except PeerTimeout:
        if stop.stopped:
            return
        raise
    broker = BrokerClient(Client(address, keys=keys, sender=sender))
    server = Server(tcp_address(own_address(config.learner.bind_address), 0), keys=keys, sender=sender)
    try:
        _LearnerProcess(config, folder, broker, server, index=index, incarnation=incarnation, families=families, stop=stop).run()
    except PeerTimeout:
        if not stop.stopped:
            raise
    finally:
        broker.close()
        done.set()


class _LearnerProcess:
    """One attempt at running the recipe."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        broker: BrokerClient,
        server: Server,
        *,
        index: int,
        incarnation: str,
        families: tuple[str, ...],
        stop: StopToken,
    ) -> None:
        self._config = config
        self._folder = folder
        self._broker = broker
        self._server = server
        self._families = families
        self._stop = stop
        self._index = index
        self._hello = Hello(
            role="learner",
            index=index,
            incarnation=incarnation,
            host=socket.gethostname(),
            pid=os.getpid(),
            endpoints={WEIGHTS_ENDPOINT: server.address},
        )
        self._loop: LearnerLoop | None = None
        self._note = "loading the model"

    def run(self) -> None:
        """Until finished or stopped."""
        welcome = self._broker.hello(self._hello)
        heartbeat = HeartbeatThread(
            self._broker,
            role="learner",
            index=self._index,
            incarnation=self._hello.incarnation,
            endpoints=self._hello.endpoints,
            metrics=self._metrics,
            note=self._say,
            stop=self._stop,
        )
        checkpoints = CheckpointStore(self._folder.checkpoints, num_kept=self._config.learner.num_checkpoints_kept)
        with heartbeat, exporting(self._config, role="learner", index=self._index, metrics=self._metrics):
            checkpoint = checkpoints.load()
            if checkpoint is None:
                self._order_demonstrations_early()
            self._conduct(checkpoints, checkpoint, announced_version=welcome.policy_version)

    def _order_demonstrations_early(self) -> None:
        """Order demonstrations: desktops can work while the model loads. The conductor places the same order again."""
        recorded = recorded_seeds(self._config.tasks, self._families)
        for order in recipe.first_phase(self._config, temperature=1.0, recorded=recorded).orders:
            if order.kind == "demonstration":
                self._broker.place_order(order.to_message(self._config, self._families, policy_version=0))

    def _conduct(self, checkpoints: CheckpointStore, checkpoint: Checkpoint | None, *, announced_version: int) -> None:
        served_at, folder = self._config.actor.served_at, model_folder(self._config.model.name)
        with ExitStack() as stack:
            if served_at is not None:
                trainer: AnyTrainer = ServedModel(self._config)
                device = "cpu"
            else:
                path = self._folder.resolved_config
                trainer, policy = stack.enter_context(
                    rank_processes.open_trainer(self._config, config_path=path, index=self._index)
                )
                device = policy.device.type
            digest = base_digest(folder, served_at=served_at)
            weights = _weight_sender(self._config, self._server, model_digest=digest, device=device)
            self._train(trainer, weights, checkpoints, checkpoint, announced_version=announced_version)

    def _train(
        self,
        trainer: AnyTrainer,
        weights: WeightSender,
        checkpoints: CheckpointStore,
        checkpoint: Checkpoint | None,
        *,
        announced_version: int,
    ) -> None:
        try:
            loop = self._loop = LearnerLoop.begun(
                self._config,
                Neighbours(broker=self._broker, trainer=trainer, weights=weights, folder=self._folder, checkpoints=checkpoints),
                families=self._families,
                announced_version=announced_version,
                checkpoint=checkpoint,
                start_s=self._folder.start_s(),
            )
            self._tick_until_done(loop)
            is_cheap = 0 < checkpoints.last_write_s < CHEAP_CHECKPOINT_S
            if _can_checkpoint(loop) and (is_cheap or not self._stop.stopped):
                loop.checkpoint(wait=True)
        finally:
            self._note = "ending"
            weights.close()
        loop.close()

    def _tick_until_done(self, loop: LearnerLoop) -> None:
        idle_s = IDLE_S[0]
        folder = self._folder.folder
        while not (loop.finished or self._stop.stopped or requests.asked(folder, "save") is not None):
            if requests.asked(folder, "checkpoint") is not None and _can_checkpoint(loop):
                requests.withdraw(folder, "checkpoint")
                loop.checkpoint()
            if loop.tick():
                idle_s = IDLE_S[0]
            else:
                # The broker is asked for the next group; it does not call. A pause, not a poll of something local.
                self._stop.wait(idle_s)
                idle_s = min(IDLE_S[1], 2 * idle_s)

    def _metrics(self) -> dict[str, float]:
        return {**(self._loop.metrics() if self._loop is not None else {}), **self._server.counters}

    def _say(self) -> str:
        return self._loop.note if self._loop is not None else self._note


def _can_checkpoint(loop: LearnerLoop) -> bool:
    """Not in the middle of a supervised round: it is begun anew, and would then start from weights that it trained already."""
    return not loop.finished and not recipe.is_sft(loop.state.phase)


def _weight_sender(config: RunConfig, server: Server, *, model_digest: str, device: str) -> WeightSender:
    backend = config.learner.weight_backend
    if backend == "auto":
        backend = "nccl" if device == "cuda" and not _shares_its_gpu(config) else "gloo"
    if backend == "nccl" and device != "cuda":
        raise WeightError("learner.weight_backend is nccl, but the learner computes on the CPU: use auto or gloo")
    host = reachable_address(own_address(config.learner.bind_address))
    files = WeightFiles(RunFolder(config.folder).weights) if backend == "file" else None
    return WeightSender(
        server,
        model_digest=model_digest,
        host=host,
        backend="nccl" if backend == "nccl" else "gloo",
        timeout_s=config.learner.weight_timeout_s,
        files=files,
        by_changes=config.learner.weight_encoding == "changes",
    )


def _shares_its_gpu(config: RunConfig) -> bool:
    """NCCL refuses two processes on one GPU, which is what learner and engines are on a host that has none left for them."""
    import torch

    is_alone = is_loopback(config.learner.bind_address)
    return is_alone and torch.cuda.device_count() <= config.learner.num_ranks


def _end_in_time(stop: StopToken, done: threading.Event) -> None:
    """After a stop, end the process even in the middle of an optimizer step: what is on disk is always whole."""
    stop.wait()
    if not done.wait(EXIT_LIMIT_S):
        log.get_logger().info("learner.cut_off", reason=stop.reason)
        sys.stderr.flush()
        os._exit(0)
