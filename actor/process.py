"""The wiring of one actor process: broker, heartbeat, desktops, engine (its own or an engine process's), worker.

Everything that is opened is closed here, in the opposite order. Plays nothing itself (`actor.worker` does).
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from computerrl.actor.agents import make_agent, make_teacher, name_of_teacher
from computerrl.actor.agents.base import Agent
from computerrl.actor.desktops import DesktopDirectory
from computerrl.actor.live_images import LiveImages
from computerrl.actor.prompts.builder import FolderTokenizer, PromptBuilder, builder_of_run
from computerrl.actor.serving.remote_engine import RemoteEngine
from computerrl.actor.serving.server import ENGINE_ENDPOINT
from computerrl.actor.worker import ActorWorker
from computerrl.broker.client import BrokerClient
from computerrl.common import log
from computerrl.common.config import RunConfig
from computerrl.common.exporter import exporting
from computerrl.common.lifecycle import HeartbeatThread, StopToken, gc_paused, new_incarnation
from computerrl.common.models.engine_choice import engine_here
from computerrl.common.models.folder import check_model_folder, model_folder
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.wire.transport import Client, Keys
from computerrl.env_server.client import DesktopClient

if TYPE_CHECKING:
    from computerrl.actor.serving.host import EngineHost

WATCH_S = 0.5
"""How often the main thread looks whether the weight receiver gave up."""


class ActorProcess:
    """One actor process: what is open, and what the heartbeat tells of it."""

    def __init__(self, config: RunConfig, *, index: int, stop: StopToken) -> None:
        self._config = config
        self._index = index
        self._stop = stop
        self._incarnation = new_incarnation()
        self._name = f"actor-{index}:{self._incarnation}"
        self._folder = RunFolder(config.folder)
        self._keys: Keys = self._folder.load_keys()
        self._model = model_folder(config.model.name)
        self._worker: ActorWorker | None = None
        self._host: EngineHost | None = None
        self._remote: RemoteEngine | None = None
        self._failure: Exception | None = None
        self._note = "starting"

    def run(self) -> None:
        """Play until the stop; raises what made going on impossible."""
        log.bind(role="actor", index=self._index, incarnation=self._incarnation)
        is_central = self._config.actor.inference == "central"
        if self._config.actor.engine != "agent":
            check_model_folder(self._model, weights=self._config.actor.endpoint is None and not is_central)
        if not is_central:
            # Here, before other threads compute. An actor without an engine is spared torch's seconds and 0.2 GB.
            with gc_paused():
                import computerrl.actor.serving.host  # noqa: F401
        address = self._folder.wait_for_broker(self._stop)
        with ExitStack() as stack:
            broker = BrokerClient(self._open(stack, address))
            pulse = self._client(address)
            heartbeat = HeartbeatThread(
                pulse,
                role="actor",
                index=self._index,
                incarnation=self._incarnation,
                metrics=self._metrics,
                note=lambda: self._note,
                stop=self._stop,
            )
            stack.callback(heartbeat.close)
            stack.enter_context(exporting(self._config, role="actor", index=self._index, metrics=self._metrics))
            # Before the heartbeat ends, so that it does not wait for a broker that has ended first.
            stack.callback(pulse.close)
            tokenizer = None if self._config.actor.engine == "agent" else FolderTokenizer(self._model)
            images = LiveImages()
            agent = make_agent(self._config, tokenizer, model=self._model, read=images.read)
            if agent is not None:
                stack.callback(agent.close)
                player: PromptBuilder | Agent = agent
            else:
                assert tokenizer is not None, "the configuration was checked"
                player = builder_of_run(self._config, self._model, tokenizer, read=images.read)
            teacher = make_teacher(self._config)
            if teacher is not None:
                stack.callback(teacher.close)
            self._worker = self._make_worker(broker, player, images, teacher)
            # Once started it ends with the stop token, before the connections above are closed.
            stack.callback(self._close_playing, self._worker)
            self._worker.start()
            if is_central:
                self._use_remote(broker)
            else:
                arguments = (broker, tokenizer)
                threading.Thread(target=self._start_engine, args=arguments, name="engine-start", daemon=True).start()
            self._watch()
        for failure in (self._failure, self._worker.failure):
            if failure is not None:
                raise failure

    def _make_worker(
        self, broker: BrokerClient, player: PromptBuilder | Agent, images: LiveImages, teacher: Agent | None
    ) -> ActorWorker:
        def connect(address: str) -> DesktopClient:
            return DesktopClient(self._listed(address), config=self._config.desktop)

        return ActorWorker(
            self._config.actor,
            broker=broker,
            desktops=DesktopDirectory(lambda: broker.directory("env_server"), connect),
            player=player,
            actor=self._name,
            incarnation=self._incarnation,
            stop=self._stop,
            images=images if self._config.actor.shows_policy_images else None,
            teacher=teacher,
            teacher_name=name_of_teacher(self._config),
        )

    def _use_remote(self, broker: BrokerClient) -> None:
        def find() -> list[str]:
            entries = broker.directory("engine")
            return [entry.endpoints[ENGINE_ENDPOINT] for entry in entries if ENGINE_ENDPOINT in entry.endpoints]

        self._remote = RemoteEngine(find, self._listed, index=self._index, num_live=self._config.actor.num_episodes)
        assert self._worker is not None
        self._worker.use_engine(self._remote, self._remote)
        self._note = "playing"

    def _start_engine(self, broker: BrokerClient, tokenizer: FolderTokenizer | None) -> None:
        """Its own thread: vLLM takes half a minute, and there are demonstrations to play."""
        try:
            self._note = f"starting {engine_here(self._config).engine}"
            from computerrl.actor.serving.host import EngineHost

            self._host = EngineHost(
                self._config,
                index=self._index,
                name=self._name,
                tokenizer=tokenizer,
                broker=broker,
                connect=self._listed,
                stop=self._stop,
            )
            assert self._worker is not None
            self._worker.use_engine(self._host.engine, self._host.receiver)
        except Exception as error:  # noqa: BLE001
            # Thread boundary: without an engine this process is of no use; the supervisor decides what follows.
            log.get_logger().exception("engine.start_failed")
            self._failure = error
            self._stop.stop(f"the engine did not start: {type(error).__name__}: {error}")
            return
        self._note = "playing"

    def _watch(self) -> None:
        while not self._stop.wait(WATCH_S):
            if self._host is not None and self._host.failure is not None:
                self._failure = self._host.failure
                self._stop.stop(f"engine: {self._failure}")

    def _close_playing(self, worker: ActorWorker) -> None:
        self._stop.stop("the actor ends")
        worker.close()
        for engine in (self._host, self._remote):
            if engine is not None:
                engine.close()

    def _metrics(self) -> dict[str, float]:
        metrics = {} if self._worker is None else self._worker.metrics()
        return metrics if self._host is None else metrics | self._host.metrics()

    def _client(self, address: str) -> Client:
        return Client(address, keys=self._keys, sender=self._name)

    def _listed(self, address: str) -> Client:
        """A client of a process that the broker's directory lists. One that is started again has another address."""
        return Client(address, keys=self._keys, sender=self._name, gives_up_refused=True)

    def _open(self, stack: ExitStack, address: str) -> Client:
        client = self._client(address)
        stack.callback(client.close)
        return client


def run_actor(config: RunConfig, *, index: int, stop: StopToken) -> None:
    """One actor process, until ``stop``; everything is closed within 3 s of it.

    Raises `PeerTimeout` (no broker), `ConfigError` (no such model folder), `WeightError` (this engine cannot take the
    learner's weights), and whatever ended an episode slot unexpectedly.
    """
    ActorProcess(config, index=index, stop=stop).run()
