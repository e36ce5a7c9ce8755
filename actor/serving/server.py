"""One engine for many actors (`actor.inference: central`): requests come over a socket, completions go when they are sampled.

    actors ──CompletionRequest──► polling thread ──submit──► engine thread ──CompletionResult──► actors
           ──EngineQuery────────► parked until the version changes
           ──ImageSubmission────► kept for prompts that show them

No thread waits for a completion: the engine's own thread sends it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from computerrl.actor.engines.base import NO_VERSION, Completion, GenerationRequest, RequestImage, Sampler, Versions
from computerrl.actor.serving.images import ServedImages
from computerrl.common import log
from computerrl.common.errors import ComputerRLError, ProtocolError
from computerrl.common.lifecycle import StopToken
from computerrl.common.messages import CompletionRequest, CompletionResult, EngineQuery, EngineState, ErrorReply, ImageSubmission
from computerrl.common.metrics import Rate
from computerrl.common.wire.transport import Request, Server

ENGINE_ENDPOINT = "engine"
"""Name under which an engine process announces its socket in `Hello.endpoints`."""

PARK_S = 1.0
"""Time after which a query for a version gets its reply even when nothing has changed."""

_TURN_S = 0.02
"""Maximum delay of a reply to a query after the version changed."""


@dataclass(frozen=True, slots=True)
class _Parked:
    request: Request
    known_version: int
    until: float


class EngineServer:
    """Serves the engine given to `use_engine`; before that it refuses completions. One thread runs it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._engine: Sampler | None = None
        self._versions: Versions | None = None
        self._images: ServedImages | None = None
        self._parked: list[_Parked] = []
        self._completions = Rate()
        self._tokens = Rate()

    def use_engine(self, engine: Sampler, versions: Versions, images: ServedImages | None = None) -> None:
        """Serve ``engine`` from now on, at the version that ``versions`` allows. ``images``: for prompts that show them. From any
        thread."""
        self._images = images
        self._versions = versions
        self._engine = engine

    def run(self, stop: StopToken) -> None:
        """Serve until ``stop``."""
        while not stop.stopped:
            for request in self._server.poll(_TURN_S):
                self._handle(request)
            self._reply_to_parked(time.monotonic())

    def metrics(self) -> dict[str, float]:
        """For heartbeats."""
        return {
            "engine/policy_version": float(self._version),
            "engine/answers_per_s": self._completions.per_s,
            "engine/tokens_per_s": self._tokens.per_s,
        }

    @property
    def _version(self) -> int:
        return NO_VERSION if self._versions is None else self._versions.policy_version

    def _handle(self, request: Request) -> None:
        message = request.message
        if isinstance(message, CompletionRequest):
            self._sample(request, message)
        elif isinstance(message, ImageSubmission) and self._images is not None:
            self._keep(request, message, self._images)
        elif isinstance(message, EngineQuery):
            self._parked.append(_Parked(request, message.known_version, time.monotonic() + PARK_S))
        else:
            request.reply(ErrorReply("protocol_error", f"an engine process takes no {type(message).__name__}"))

    def _reply_to_parked(self, now: float) -> None:
        version = self._version
        waiting = []
        for parked in self._parked:
            if parked.known_version != version or parked.until <= now:
                parked.request.reply(EngineState(version))
            else:
                waiting.append(parked)
        self._parked = waiting

    @staticmethod
    def _keep(request: Request, message: ImageSubmission, images: ServedImages) -> None:
        try:
            request.reply(images.keep(message))
        except ProtocolError as error:
            request.reply(ErrorReply(error.code, str(error)))

    def _sample(self, request: Request, message: CompletionRequest) -> None:
        engine, images = self._engine, self._images
        if engine is None:
            request.reply(ErrorReply("engine_failed", "the engine is still starting"))
        elif not message.images:
            self._submit(request, message, engine, ())
        elif images is None:
            request.reply(ErrorReply("protocol_error", "prompts show no images in this run"))
        elif (wanted := images.wanted(message.images)) is not None:
            request.reply(wanted)
        else:
            images.prepare(message.images, lambda prepared: self._submit_prepared(request, message, engine, prepared))

    def _submit_prepared(
        self,
        request: Request,
        message: CompletionRequest,
        engine: Sampler,
        prepared: Callable[[], tuple[RequestImage, ...]],
    ) -> None:
        try:
            self._submit(request, message, engine, prepared())
        except ComputerRLError as error:
            request.reply(ErrorReply(error.code, str(error)))
        except Exception as error:  # noqa: BLE001
            # Thread boundary: a fault of this program; the actor must not wait for its deadline.
            log.get_logger().exception("engine.request_failed", error=f"{type(error).__name__}: {error}")
            request.reply(ErrorReply("engine_failed", f"{type(error).__name__}: {error}"))

    def _submit(self, request: Request, message: CompletionRequest, engine: Sampler, images: tuple[RequestImage, ...]) -> None:
        wanted = GenerationRequest(
            message.prompt_tokens,
            message.temperature,
            message.max_new_tokens,
            frozenset(message.stop_tokens.tolist()),
            message.may_be_older,
            images,
        )
        engine.submit(wanted).add_done_callback(lambda done: self._send(request, done))

    def _send(self, request: Request, done: Future[Completion]) -> None:
        """Send the reply, in the engine's thread."""
        error = done.exception()
        if error is None:
            completion = done.result()
            self._completions.add()
            self._tokens.add(len(completion.tokens))
            request.reply(
                CompletionResult(
                    completion.tokens,
                    completion.logprobs,
                    completion.policy_versions,
                    completion.text,
                    completion.finish,
                    completion.queue_s,
                    completion.generate_s,
                )
            )
        elif isinstance(error, ComputerRLError):
            request.reply(ErrorReply(error.code, str(error)))
        else:
            log.get_logger().error("engine.request_failed", error=f"{type(error).__name__}: {error}")
            request.reply(ErrorReply("engine_failed", f"{type(error).__name__}: {error}"))
