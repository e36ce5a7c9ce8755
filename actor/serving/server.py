"""One engine for many actors (`actor.inference: central`): requests come over a socket, answers go when they are sampled.

    actors ──CompletionRequest──► polling thread ──submit──► engine thread ──CompletionResult──► actors
           ──EngineQuery────────► parked until the version changes

No thread waits for an answer: the engine's own thread sends it.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from computerrl.actor.engines.base import NO_VERSION, Completion, GenerationRequest, Sampler
from computerrl.common import log
from computerrl.common.errors import ComputerRLError
from computerrl.common.lifecycle import StopToken
from computerrl.common.messages import CompletionRequest, CompletionResult, EngineQuery, EngineState, ErrorReply, Message
from computerrl.common.metrics import Rate

ENGINE_ENDPOINT = "engine"
"""Name under which an engine process announces its socket in `Hello.endpoints`."""

PARK_S = 1.0
"""A query for a version is answered after this long even when nothing has changed."""

_TURN_S = 0.02
"""How late an actor may hear of a version."""


class Request(Protocol):
    """The part of `common.wire.transport.Request` used here."""

    message: Message

    def reply(self, message: Message) -> None: ...


class Server(Protocol):
    """The part of `common.wire.transport.Server` used here."""

    def poll(self, timeout_s: float) -> list[Any]: ...


class Versions(Protocol):
    """The part of `actor.serving.weight_receiver.WeightReceiver` used here."""

    @property
    def policy_version(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _Parked:
    request: Request
    known_version: int
    until: float


class EngineServer:
    """Answers with the engine given to `use_engine`; before that it has none. One thread runs it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._engine: Sampler | None = None
        self._versions: Versions | None = None
        self._parked: list[_Parked] = []
        self._answers = Rate()
        self._tokens = Rate()

    def use_engine(self, engine: Sampler, versions: Versions) -> None:
        """Answer from now on; ``versions`` says what may be served. From any thread."""
        self._versions = versions
        self._engine = engine

    def run(self, stop: StopToken) -> None:
        """Until ``stop``."""
        while not stop.stopped:
            for request in self._server.poll(_TURN_S):
                self._take(request)
            self._answer_parked(time.monotonic())

    def metrics(self) -> dict[str, float]:
        """For heartbeats."""
        return {
            "engine/policy_version": float(self._version),
            "engine/answers_per_s": self._answers.per_s,
            "engine/tokens_per_s": self._tokens.per_s,
        }

    @property
    def _version(self) -> int:
        return NO_VERSION if self._versions is None else self._versions.policy_version

    def _take(self, request: Request) -> None:
        message = request.message
        if isinstance(message, CompletionRequest):
            self._sample(request, message)
        elif isinstance(message, EngineQuery):
            self._parked.append(_Parked(request, message.known_version, time.monotonic() + PARK_S))
        else:
            request.reply(ErrorReply("protocol_error", f"an engine process takes no {type(message).__name__}"))

    def _answer_parked(self, now: float) -> None:
        version = self._version
        waiting = []
        for parked in self._parked:
            if parked.known_version != version or parked.until <= now:
                parked.request.reply(EngineState(version))
            else:
                waiting.append(parked)
        self._parked = waiting

    def _sample(self, request: Request, message: CompletionRequest) -> None:
        engine = self._engine
        if engine is None:
            request.reply(ErrorReply("engine_failed", "the engine is still starting"))
            return
        wanted = GenerationRequest(
            message.prompt_tokens,
            message.temperature,
            message.max_new_tokens,
            frozenset(message.stop_tokens.tolist()),
            message.may_be_older,
        )
        engine.submit(wanted).add_done_callback(lambda done: self._send(request, done))

    def _send(self, request: Request, done: Future[Completion]) -> None:
        """In the engine's thread."""
        error = done.exception()
        if error is None:
            found = done.result()
            self._answers.add()
            self._tokens.add(len(found.tokens))
            request.reply(
                CompletionResult(
                    found.tokens, found.logprobs, found.policy_versions, found.text, found.finish, found.queue_s, found.generate_s
                )
            )
        elif isinstance(error, ComputerRLError):
            request.reply(ErrorReply(error.code, str(error)))
        else:
            log.get_logger().error("engine.request_failed", error=f"{type(error).__name__}: {error}")
            request.reply(ErrorReply("engine_failed", f"{type(error).__name__}: {error}"))
