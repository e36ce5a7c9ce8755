"""An engine, and the receiver that keeps its weights those of the learner: what an actor has of its own, or an engine process for
many actors."""

from __future__ import annotations

import time
from collections.abc import Callable

from computerrl.actor.engines import make_engine
from computerrl.actor.prompts.builder import FolderTokenizer
from computerrl.actor.serving.weight_receiver import WeightReceiver
from computerrl.broker.client import BrokerClient
from computerrl.common import log
from computerrl.common.config import RunConfig
from computerrl.common.errors import ComputerRLError, PeerTimeout
from computerrl.common.lifecycle import StopToken
from computerrl.common.models.engine_choice import engine_here
from computerrl.common.models.folder import model_folder
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.weight_plan import base_digest
from computerrl.common.wire.transport import Channel
from computerrl.learner.client import WEIGHTS_ENDPOINT, WeightClient


class EngineHost:
    """Close it; ``receiver`` says which version may be served."""

    def __init__(
        self,
        config: RunConfig,
        *,
        index: int,
        name: str,
        tokenizer: FolderTokenizer | None,
        broker: BrokerClient,
        connect: Callable[[str], Channel],
        stop: StopToken,
    ) -> None:
        """Starts the engine, which takes seconds (transformers) to half a minute (vLLM's imports). ``name`` is the process's,
        `<role>-<index>:<incarnation>`; ``tokenizer``: None where an agent plays; ``connect`` opens a channel to an address.
        Raises what `make_engine` does."""
        started = time.perf_counter()
        folder = model_folder(config.model.name)
        decode = None if tokenizer is None else tokenizer.decode
        self.engine = make_engine(config, folder, decode=decode, index=index)
        self.receiver = WeightReceiver(
            WeightClient(lambda: connect(_weights_address(broker))),
            self.engine,
            receiver=name,
            model_digest=base_digest(folder, served_at=config.actor.served_at),
            files=RunFolder(config.folder).weights,
            stop=stop,
        )
        self.receiver.start()
        log.get_logger().info("engine.ready", engine=engine_here(config).engine, start_s=time.perf_counter() - started)

    @property
    def failure(self) -> ComputerRLError | None:
        """Set when this engine can sample no more, or not follow the learner; the process should end with it."""
        return self.engine.failure or self.receiver.failure

    def metrics(self) -> dict[str, float]:
        """For heartbeats."""
        return {"engine/load_stall_s": self.receiver.load_stalls.p50, **self.engine.metrics()}

    def close(self) -> None:
        """End the receiver, then the engine."""
        self.receiver.close()
        self.engine.close()


def _weights_address(broker: BrokerClient) -> str:
    """Raises `PeerTimeout` while there is no learner."""
    for entry in broker.directory("learner"):
        if WEIGHTS_ENDPOINT in entry.endpoints:
            return entry.endpoints[WEIGHTS_ENDPOINT]
    raise PeerTimeout("no learner serves weights yet")
