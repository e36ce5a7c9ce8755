"""Serial mode: the whole loop in one process and one thread of control, for debugging and tests.

    while not finished:  learner ticks; when it has nothing to do, the actor plays one episode

The same broker, desktop service, actor and learner as everywhere, over in-memory channels that still encode every message.
No processes, no sockets, no heartbeat threads: a breakpoint anywhere stops everything. Slow models and real desktops work too,
one episode at a time.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from computerrl.common import log
from computerrl.common.config import RunConfig
from computerrl.common.errors import ComputerRLError
from computerrl.common.lifecycle import StopToken, new_incarnation
from computerrl.common.messages import Heartbeat, Hello, Role, Status
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.launch.watch.run_state import MetricsTail, Record, RunState

if TYPE_CHECKING:
    from computerrl.actor.agents.base import Agent
    from computerrl.actor.engines.base import PolicyEngine
    from computerrl.actor.prompts.builder import PromptBuilder
    from computerrl.actor.worker import ActorWorker
    from computerrl.broker.client import BrokerClient
    from computerrl.env_server.client import DesktopClient
    from computerrl.env_server.driver import DesktopDriver
    from computerrl.learner.contracts import AnyTrainer
    from computerrl.learner.process import LearnerLoop

MAX_IDLE_TURNS = 1000
"""Turns in a row in which neither side had anything to do: in one process nothing can come from elsewhere, so it is a fault."""


def run_serial(
    config: RunConfig,
    *,
    on_record: Callable[[Record, RunState], None] = lambda record, state: None,
    on_start: Callable[[str], None] = lambda line: None,
    on_progress: Callable[[str, str], None] = lambda note, phase: None,
) -> RunState:
    """Play the whole recipe; gives the run's state. ``on_record`` is called for every new line of metrics, ``on_start`` before
    each part is made, ``on_progress`` after each turn with the learner's note and the phase."""
    log.configure(json_file=config.folder / "logs" / "serial.jsonl")
    tail = MetricsTail(RunFolder(config.folder).metrics_path)
    state = RunState()

    def look() -> None:
        for record in tail.read()[1]:
            state.take(record)
            on_record(record, state)

    with ExitStack() as stack:
        loop = SerialRun(config, stack, on_start=on_start)
        while loop.turn():
            look()
            on_progress(loop.note, state.phase)
        state.status = loop.status()
    look()
    return state


class SerialRun:
    """All parts of a run, wired through memory."""

    def __init__(self, config: RunConfig, stack: ExitStack, *, on_start: Callable[[str], None] = lambda line: None) -> None:
        """Parts are closed by ``stack``, the newest first. ``on_start``: see `run_serial`."""
        from computerrl.broker.client import BrokerClient
        from computerrl.broker.process import make_service
        from computerrl.common.wire.transport import LocalChannel

        self._config = config
        self._folder = RunFolder(config.folder)
        self._stop = StopToken()
        self._num_idle = 0
        service = make_service(config)
        stack.callback(service.close)

        def broker(role: Role) -> tuple[BrokerClient, Hello]:
            incarnation = new_incarnation()
            hello = Hello(role, 0, incarnation, socket.gethostname(), os.getpid(), {})
            return BrokerClient(LocalChannel(service, sender=f"{role}-0:{incarnation}")), hello

        self._peers = {"learner": broker("learner"), "actor": broker("actor")}
        welcome = {role: client.hello(hello) for role, (client, hello) in self._peers.items()}
        on_start("starting the desktops")
        desktops = self._make_desktops(stack)
        on_start("loading the actor's model")
        self._worker, engine = self._make_actor(stack, desktops)
        on_start("loading the learner's model")
        self._loop = self._make_learner(engine, announced_version=welcome["learner"].policy_version)
        stack.callback(self._loop.close)

    def turn(self) -> bool:
        """One unit of work of one side; False when the recipe is finished."""
        if self._loop.finished:
            return False
        if self._loop.tick() or self._worker.run_episode_once():
            self._num_idle = 0
            return True
        if self._loop.is_checking:
            time.sleep(0.001)
            return True
        self._num_idle += 1
        if self._num_idle >= MAX_IDLE_TURNS:
            raise ComputerRLError(f"learner ({self._loop.note}) and actor wait for each other; broker: {self.status().counters}")
        for role, (client, hello) in self._peers.items():
            metrics = self._loop.metrics() if role == "learner" else self._worker.metrics()
            client.heartbeat(Heartbeat(hello.role, 0, hello.incarnation, metrics))
        return True

    @property
    def note(self) -> str:
        """Progress of the learner's phase."""
        return self._loop.note

    def status(self) -> Status:
        """The broker's view."""
        return self._peers["learner"][0].status()

    def _make_desktops(self, stack: ExitStack) -> DesktopClient:
        from computerrl.common.wire.transport import LocalChannel
        from computerrl.env_server.client import DesktopClient, needed_desktop
        from computerrl.env_server.drivers import make_driver
        from computerrl.env_server.drivers.screenshots import ScreenshotStore
        from computerrl.env_server.serving.fleet import START_LIMIT_S, ServiceTimes
        from computerrl.env_server.serving.service import DesktopService

        desktop, folder = needed_desktop(self._config), self._folder
        screenshots = ScreenshotStore(
            folder.trajectories, picture_format=desktop.screenshot_format, incarnation=f"0-{new_incarnation()}"
        )
        stack.callback(screenshots.close)

        def make(index: int) -> DesktopDriver:
            return make_driver(desktop, index=index, folder=folder.logs / f"desktop-0-{index}", screenshots=screenshots)

        by_pixels = self._config.actor.prompt.shows_images
        service = DesktopService(
            desktop,
            tasks=self._config.tasks,
            make=make,
            times=ServiceTimes(lease_wait_s=START_LIMIT_S),  # nobody asks again: the one that is starting is waited for
            by_pixels=by_pixels,
            read=screenshots.get,
        )
        stack.callback(service.close)
        return DesktopClient(LocalChannel(service.handle), config=desktop)

    def _make_actor(self, stack: ExitStack, desktops: DesktopClient) -> tuple[ActorWorker, PolicyEngine]:
        from computerrl.actor.agents import make_agent, make_teacher, name_of_teacher
        from computerrl.actor.desktops import OneServer
        from computerrl.actor.engines import make_engine
        from computerrl.actor.live_images import LiveImages
        from computerrl.actor.prompts.builder import FolderTokenizer, builder_of_run
        from computerrl.actor.worker import ActorWorker
        from computerrl.common.models.folder import model_folder
        from computerrl.learner.model_store import ensure_model

        # A served model's folder may hold no weights.
        name, is_served = self._config.model.name, self._config.actor.served_at is not None
        model = model_folder(name) if is_served else ensure_model(name)
        client, hello = self._peers["actor"]
        images = LiveImages()
        tokenizer = None if self._config.actor.engine == "agent" else FolderTokenizer(model)
        engine = make_engine(self._config, model, decode=None if tokenizer is None else tokenizer.decode)
        stack.callback(engine.close)
        agent = make_agent(self._config, tokenizer, model=model, read=images.read)
        if agent is not None:
            stack.callback(agent.close)
            player: PromptBuilder | Agent = agent
        else:
            assert tokenizer is not None, "the configuration was checked"
            player = builder_of_run(self._config, model, tokenizer, read=images.read)
        teacher = make_teacher(self._config)
        if teacher is not None:
            stack.callback(teacher.close)
        worker = ActorWorker(
            self._config.actor,
            broker=client,
            desktops=OneServer(desktops),
            player=player,
            actor=f"actor-0:{hello.incarnation}",
            incarnation=hello.incarnation,
            stop=self._stop,
            images=images if self._config.actor.shows_policy_images else None,
            teacher=teacher,
            teacher_name=name_of_teacher(self._config),
        )
        worker.use_engine(engine)
        return worker, engine

    def _make_learner(self, engine: PolicyEngine, *, announced_version: int) -> LearnerLoop:
        from computerrl.env_server.client import family_names
        from computerrl.learner.checkpoints.checkpoint import CheckpointStore
        from computerrl.learner.client import DirectWeights
        from computerrl.learner.model.policy import load_policy
        from computerrl.learner.process import LearnerLoop, Neighbours
        from computerrl.learner.training.served_model import ServedModel
        from computerrl.learner.training.trainer import Trainer

        is_served = self._config.actor.served_at is not None
        trainer: AnyTrainer = ServedModel(self._config) if is_served else Trainer(self._config, load_policy(self._config))
        checkpoints = CheckpointStore(self._folder.checkpoints, num_kept=self._config.learner.num_checkpoints_kept)
        around = Neighbours(
            broker=self._peers["learner"][0],
            trainer=trainer,
            weights=DirectWeights(engine.load),
            folder=self._folder,
            checkpoints=checkpoints,
        )
        return LearnerLoop.begun(
            self._config,
            around,
            families=family_names(self._config),
            announced_version=announced_version,
            checkpoint=checkpoints.load(),
        )
