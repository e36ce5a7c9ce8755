"""The engine of an actor without weights: an engine process samples its completions (`actor.inference: central`).

The actor's index chooses the engine process among those that the broker knows. When it is gone, the actor turns to another one,
or to the same one after its restart. Versions are the engine process's: the actor holds no weights that could be out of date.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from computerrl.actor.engines.base import NO_VERSION, Completion, GenerationRequest
from computerrl.actor.serving.server import PARK_S
from computerrl.common import log
from computerrl.common.errors import ComputerRLError, EngineFailed, ProtocolError
from computerrl.common.messages import (
    Ack,
    CompletionRequest,
    CompletionResult,
    EngineQuery,
    EngineState,
    ImagesWanted,
    submissions_of,
)
from computerrl.common.wire.transport import Channel

PATIENCE_S = 120.0
"""Deadline of a completion. A later one means that the engine hangs: the episode is played again."""

QUERY_TIMEOUT_S = PARK_S + 14.0
"""Deadline of a query. `PARK_S` is the usual time; the rest is for an engine process that loads weights. A dead one is noticed at
once, by its connection."""

MAX_SENDS = 3
"""Maximum number of times that the images of one request are sent; other prompts may have pushed them out meanwhile."""

RETRY_S = 0.25
"""Pause before the engine processes are looked up again."""


class RemoteEngine:
    """A `Sampler`, and the `Versions` that it serves."""

    def __init__(
        self, find: Callable[[], Sequence[str]], connect: Callable[[str], Channel], *, index: int, num_live: int
    ) -> None:
        """``find`` returns the addresses of engine processes, ``connect`` opens a channel to one; both may fail."""
        self._find = find
        self._connect = connect
        self._index = index
        self._channel: Channel | None = None
        self._version = NO_VERSION
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._complaint = ""
        self._pool = ThreadPoolExecutor(max_workers=num_live, thread_name_prefix="engine-ask")
        self._thread = threading.Thread(target=self._watch, name="engine-watch", daemon=True)
        self._thread.start()

    @property
    def policy_version(self) -> int:
        """Version that the engine process serves; `NO_VERSION` while there is none."""
        return self._version

    def wait_version(self, policy_version: int, *, timeout_s: float) -> bool:
        """Wait until at least ``policy_version`` is served; False when it did not come in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._version >= policy_version, timeout=timeout_s)

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Request a completion. The future raises `EngineFailed` when no engine process serves or it fails, `PeerTimeout` when it
        is gone."""
        if self._closing.is_set():
            failed: Future[Completion] = Future()
            failed.set_exception(EngineFailed("the engine is closed"))
            return failed
        return self._pool.submit(self._ask, request)

    def close(self) -> None:
        """Fail the requests under way."""
        self._closing.set()
        self._leave()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._thread.join(timeout=1.0)

    def _ask(self, request: GenerationRequest) -> Completion:
        channel = self._channel
        if channel is None:
            raise EngineFailed("no engine process serves now")
        message = CompletionRequest(
            request.prompt_tokens,
            request.temperature,
            request.max_new_tokens,
            np.array(sorted(request.stop_tokens), dtype=np.int32),
            request.may_be_older,
            tuple(image.ref for image in request.sent),
        )
        reply = channel.request(message, timeout_s=PATIENCE_S)
        for _ in range(MAX_SENDS):
            if not isinstance(reply, ImagesWanted):
                break
            self._send(channel, reply, request)
            reply = channel.request(message, timeout_s=PATIENCE_S)
        if isinstance(reply, ImagesWanted):
            raise EngineFailed(f"an engine process still wants images that were sent {MAX_SENDS} times")
        if not isinstance(reply, CompletionResult):
            raise ProtocolError(f"an engine process answered CompletionRequest with {type(reply).__name__}")
        return Completion(
            reply.tokens, reply.logprobs, reply.policy_versions, reply.text, reply.finish, reply.queue_s, reply.generate_s
        )

    @staticmethod
    def _send(channel: Channel, wanted: ImagesWanted, request: GenerationRequest) -> None:
        images = {image.ref.content_hash: image.data for image in request.sent}
        if missing := [name for name in wanted.names if name not in images]:
            raise ProtocolError(f"an engine process wants image {missing[0]}, which the prompt does not show")
        for submission in submissions_of(wanted.names, images):
            reply = channel.request(submission, timeout_s=PATIENCE_S)
            if not isinstance(reply, Ack):
                raise ProtocolError(f"an engine process answered ImageSubmission with {type(reply).__name__}")

    # --- the thread --------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._closing.is_set():
            try:
                channel = self._channel or self._join()
                reply = channel.request(EngineQuery(self._version), timeout_s=QUERY_TIMEOUT_S)
                if not isinstance(reply, EngineState):
                    raise ProtocolError(f"an engine process answered EngineQuery with {type(reply).__name__}")
                self._note(reply.policy_version)
            except ComputerRLError as error:
                if self._complaint != error.code and not self._closing.is_set():
                    self._complaint = error.code  # Once per cause, not once per retry.
                    log.get_logger().warning("engine.away", error=error.code, reason=str(error))
                self._note(NO_VERSION)
                self._leave()
                self._closing.wait(RETRY_S)

    def _join(self) -> Channel:
        addresses = self._find()
        if not addresses:
            raise EngineFailed("the broker knows no engine process")
        address = addresses[self._index % len(addresses)]
        channel = self._connect(address)
        self._channel = channel
        return channel

    def _note(self, version: int) -> None:
        if version != NO_VERSION and self._complaint:
            self._complaint = ""
            log.get_logger().info("engine.back", policy_version=version)
        with self._changed:
            self._version = version
            self._changed.notify_all()

    def _leave(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
