"""The wiring of one actor process: broker, heartbeat, desktops, engine, weight receiver, worker.

Everything that is opened is closed here, in the opposite order. Plays nothing itself (`actor.worker` does).
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

from actor.desktops import DesktopDirectory
from actor.engines import make_engine
from actor.engines.base import PolicyEngine
from actor.prompt import FolderTokenizer, PromptBuilder
from actor.weight_receiver import WeightReceiver
from actor.worker import ActorWorker
from broker.client import BrokerClient
from common import log
from common.config import RunConfig
from common.errors import PeerTimeout
from common.lifecycle import Heartbeat, StopToken, new_incarnation
from common.model_folder import check_model_folder, model_folder
from common.run_folder import RunFolder
from common.transport import Channel, Client, Keys
from common.weight_plan import folder_digest
from env_server.client import DesktopClient
from learner.client import WEIGHTS_ENDPOINT, WeightClient

BROKER_WAIT_S = 60.0
"""An actor started before the broker waits this long for it."""

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
        self._engine: PolicyEngine | None = None
        self._receiver: WeightReceiver | None = None
        self._failure: Exception | None = None
        self._note = "starting"

    def run(self) -> None:
        """Play until the stop; raises what made going on impossible."""
        log.bind(role="actor", index=self._index, incarnation=self._incarnation)
        check_model_folder(self._model)
        address = self._folder.wait_for_broker(self._stop, BROKER_WAIT_S)
        with ExitStack() as stack:
            broker = BrokerClient(self._open(stack, address))
            pulse = self._client(address)
            heartbeat = Heartbeat(
                pulse,
                role="actor",
                index=self._index,
                incarnation=self._incarnation,
                metrics=self._metrics,
                note=lambda: self._note,
                stop=self._stop,
            )
            stack.callback(heartbeat.close)
            # Before the heartbeat ends, so that it does not wait for a broker that has ended first.
            stack.callback(pulse.close)
            tokenizer = FolderTokenizer(self._model)
            self._worker = self._make_worker(broker, PromptBuilder(tokenizer, self._config.actor.prompt))
            # Once started it ends with the stop token, before the connections above are closed.
            stack.callback(self._close_playing, self._worker)
            self._worker.start()
            builder = threading.Thread(target=self._start_engine, args=(broker, tokenizer), name="engine-start", daemon=True)
            builder.start()
            self._watch()
        for failure in (self._failure, self._worker.failure):
            if failure is not None:
                raise failure

    def _make_worker(self, broker: BrokerClient, prompt: PromptBuilder) -> ActorWorker:
        def connect(address: str) -> DesktopClient:
            return DesktopClient(self._client(address), config=self._config.desktop)

        return ActorWorker(
            self._config.actor,
            broker=broker,
            desktops=DesktopDirectory(lambda: broker.directory("env_server"), connect),
            prompt=prompt,
            actor=self._name,
            incarnation=self._incarnation,
            stop=self._stop,
        )

    def _start_engine(self, broker: BrokerClient, tokenizer: FolderTokenizer) -> None:
        """Its own thread: vLLM takes half a minute, and there are demonstrations to play."""
        started = time.perf_counter()

        def connect() -> Channel:
            for entry in broker.directory("learner"):
                if WEIGHTS_ENDPOINT in entry.endpoints:
                    return self._client(entry.endpoints[WEIGHTS_ENDPOINT])
            raise PeerTimeout("no learner serves weights yet")

        try:
            self._note = f"starting {self._config.actor.engine}"
            engine = make_engine(self._config, self._model, decode=tokenizer.decode, index=self._index)
            self._engine = engine
            receiver = WeightReceiver(
                WeightClient(connect),
                engine,
                receiver=self._name,
                model_digest=folder_digest(self._model),
                stop=self._stop,
            )
            self._receiver = receiver
            receiver.start()
            assert self._worker is not None
            self._worker.use_engine(engine, receiver)
        except Exception as error:  # noqa: BLE001
            # Thread boundary: without an engine this process is of no use; the supervisor decides what follows.
            log.get_logger().exception("engine.start_failed")
            self._failure = error
            self._stop.stop(f"the engine did not start: {type(error).__name__}: {error}")
            return
        self._note = "playing"
        log.get_logger().info("engine.ready", engine=self._config.actor.engine, start_s=time.perf_counter() - started)

    def _watch(self) -> None:
        while not self._stop.wait(WATCH_S):
            if self._receiver is not None and self._receiver.failure is not None:
                self._failure = self._receiver.failure
                self._stop.stop(f"weights: {self._failure}")

    def _close_playing(self, worker: ActorWorker) -> None:
        self._stop.stop("the actor ends")
        worker.close()
        if self._receiver is not None:
            self._receiver.close()
        if self._engine is not None:
            self._engine.close()

    def _metrics(self) -> dict[str, float]:
        metrics = {} if self._worker is None else self._worker.metrics()
        if self._receiver is not None:
            metrics["actor/load_stall_s"] = self._receiver.load_stalls.p50
        return metrics

    def _client(self, address: str) -> Client:
        return Client(address, keys=self._keys, sender=self._name)

    def _open(self, stack: ExitStack, address: str) -> Client:
        client = self._client(address)
        stack.callback(client.close)
        return client
