"""The wiring of one engine process (`actor.inference: central`): broker, heartbeat, socket, engine, weight receiver.

Everything that is opened is closed here, in the opposite order. Answers nothing itself (`actor.serving.server` does).
"""

from __future__ import annotations

import threading
from contextlib import ExitStack

from computerrl.actor.prompts.builder import FolderTokenizer
from computerrl.actor.serving.host import EngineHost
from computerrl.actor.serving.images import ServedImages
from computerrl.actor.serving.server import ENGINE_ENDPOINT, EngineServer
from computerrl.broker.client import BrokerClient
from computerrl.common import log
from computerrl.common.config import RunConfig
from computerrl.common.exporter import exporting
from computerrl.common.lifecycle import HeartbeatThread, StopToken, new_incarnation
from computerrl.common.models.engine_choice import engine_here
from computerrl.common.models.folder import check_model_folder, model_folder
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.wire.addresses import own_address, tcp_address
from computerrl.common.wire.transport import Client, Keys, Server

WATCH_S = 0.5
"""How often the weight receiver is asked whether it gave up."""


class EngineProcess:
    """One engine process: what is open, and what the heartbeat tells of it."""

    def __init__(self, config: RunConfig, *, index: int, stop: StopToken) -> None:
        self._config = config
        self._index = index
        self._stop = stop
        self._incarnation = new_incarnation()
        self._name = f"engine-{index}:{self._incarnation}"
        self._model = model_folder(config.model.name)
        self._folder = RunFolder(config.folder)
        self._keys: Keys = self._folder.load_keys()
        self._host: EngineHost | None = None
        self._images: ServedImages | None = None
        self._failure: Exception | None = None

    def run(self) -> None:
        """Answer until the stop; raises what made going on impossible."""
        log.bind(role="engine", index=self._index, incarnation=self._incarnation)
        check_model_folder(self._model)
        address = self._folder.wait_for_broker(self._stop)
        with ExitStack() as stack:
            socket = Server(tcp_address(own_address(self._config.actor.bind_address), 0), keys=self._keys, sender=self._name)
            stack.callback(socket.close)
            server = EngineServer(socket)
            channel, pulse = self._client(address), self._client(address)
            stack.callback(channel.close)

            def metrics() -> dict[str, float]:
                return server.metrics() | ({} if self._host is None else self._host.metrics())

            heartbeat = HeartbeatThread(
                pulse,
                role="engine",
                index=self._index,
                incarnation=self._incarnation,
                endpoints={ENGINE_ENDPOINT: socket.address},
                metrics=metrics,
                note=lambda: f"starting {engine_here(self._config).engine}" if self._host is None else "serving",
                stop=self._stop,
            )
            stack.callback(heartbeat.close)
            stack.enter_context(exporting(self._config, role="engine", index=self._index, metrics=metrics))
            # Before the heartbeat ends, so that it does not wait for a broker that has ended first.
            stack.callback(pulse.close)
            stack.callback(self._close_host)
            arguments = (BrokerClient(channel), server)
            threading.Thread(target=self._start_engine, args=arguments, name="engine-start", daemon=True).start()
            server.run(self._stop)
        if self._failure is not None:
            raise self._failure

    def _start_engine(self, broker: BrokerClient, server: EngineServer) -> None:
        """Its own thread, which watches the engine afterwards: actors are told meanwhile that there is nothing yet."""
        try:
            tokenizer = FolderTokenizer(self._model)
            if self._config.actor.prompt.shows_images:
                self._images = ServedImages(self._model, tokenizer)
            host = EngineHost(
                self._config,
                index=self._index,
                name=self._name,
                tokenizer=tokenizer,
                broker=broker,
                connect=self._listed,
                stop=self._stop,
            )
        except Exception as error:  # noqa: BLE001
            # Thread boundary: without an engine this process is of no use; the supervisor decides what follows.
            log.get_logger().exception("engine.start_failed")
            self._failure = error
            self._stop.stop(f"the engine did not start: {type(error).__name__}: {error}")
            return
        self._host = host
        server.use_engine(host.engine, host.receiver, self._images)
        while not self._stop.wait(WATCH_S):
            if host.failure is not None:
                self._failure = host.failure
                self._stop.stop(f"engine: {host.failure}")

    def _close_host(self) -> None:
        if self._images is not None:
            self._images.close()
        if self._host is not None:
            self._host.close()

    def _client(self, address: str) -> Client:
        return Client(address, keys=self._keys, sender=self._name)

    def _listed(self, address: str) -> Client:
        """A client of a process that the broker's directory lists. One that is started again has another address."""
        return Client(address, keys=self._keys, sender=self._name, gives_up_refused=True)


def run_engine(config: RunConfig, *, index: int, stop: StopToken) -> None:
    """One engine process, until ``stop``. Raises what `actor.process.run_actor` does for an actor with its own engine."""
    EngineProcess(config, index=index, stop=stop).run()
