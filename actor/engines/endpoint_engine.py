"""An engine whose completions come from a model server, for evaluating served models (`computerrl eval --endpoint`).

It loads no weights: every version without tensors is served by the same model. Log-probs are those of the server (before
temperature, unless it runs with ``--logprobs-mode processed_logprobs``), and nothing is trained on them. A request with turns of
a chat goes to the server's chat, and its completion is text without tokens.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from computerrl.actor.engines.base import NO_VERSION, Completion, GenerationRequest
from computerrl.common import log
from computerrl.common.chat import ChatReply, ChatRequest
from computerrl.common.endpoint import EndpointCompletion, completion
from computerrl.common.errors import ConfigError, EndpointBusy, EndpointRefused, EngineFailed, PeerTimeout, Problem, WeightError

if TYPE_CHECKING:
    import torch

PATIENCE_S = 120.0
"""Time for which a request is repeated while the server is away."""

_BACKOFF_S = (0.5, 10.0)
_MOST_WAIT_S = 60.0
"""Longest wait that a server can demand before the next try."""
_MOST_REFUSALS = 5
"""Number of refusals in a row, with nothing else under way, after which the server is taken to refuse for good."""


class CompletionServer(Protocol):
    """The part of `common.endpoint.Endpoint` used here."""

    def complete(self, asked: Mapping[str, Any]) -> EndpointCompletion: ...

    def chat(self, request: ChatRequest) -> ChatReply: ...


_Reply = TypeVar("_Reply")
_NO_INTS, _NO_FLOATS = np.zeros(0, np.int32), np.zeros(0, np.float32)


class EndpointEngine:
    """A `PolicyEngine` around a served model."""

    def __init__(
        self, server: CompletionServer, *, model: str, decode: Callable[[Sequence[int]], str], num_live: int, seed: int
    ) -> None:
        """``model``: name on the server; ``decode``: from the model's own tokenizer; ``seed``: seed of the first request."""
        self._server = server
        self._model = model
        self._decode = decode
        self._version = NO_VERSION
        self._seeds = itertools.count(seed)
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._num_asked = 0
        """Number of requests that the server works on now."""
        self._num_refused = 0
        """Number of refusals since the last completion."""
        self._answered_at = -math.inf
        self._pool = ThreadPoolExecutor(max_workers=num_live, thread_name_prefix="endpoint")

    @property
    def policy_version(self) -> int:
        """Version that was loaded last; `NO_VERSION` before."""
        return self._version

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Queue a request. The future raises `EngineFailed` when the server refuses it, `ConfigError` when it refuses whatever it
        is asked, or stays away."""
        if self._closing.is_set():
            failed: Future[Completion] = Future()
            failed.set_exception(EngineFailed("the engine is closed"))
            return failed
        return self._pool.submit(self._complete, request, next(self._seeds), time.perf_counter())

    def load(
        self, version: int, tensors: Mapping[str, torch.Tensor], *, expected_probe: Sequence[float] | np.ndarray | None = None
    ) -> float:
        """Serve the model as ``version``. Raises `WeightError` for weights: the server has its own."""
        del expected_probe
        if tensors:
            raise WeightError("a model on a server takes no weights: actor.engine endpoint is for evaluations")
        self._version = version
        return 0.0

    def probe(self) -> np.ndarray:
        """Nothing: there are no weights to compare with."""
        return np.zeros(0, np.float32)

    def metrics(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        """Fail what is queued; what the server works on is not waited for."""
        self._closing.set()
        self._pool.shutdown(wait=False)

    def _complete(self, request: GenerationRequest, seed: int, queued: float) -> Completion:
        version, began = self._version, time.perf_counter()
        if request.chat:
            return self._chat(request, seed, queued, began)
        asked = completion(
            model=self._model,
            prompt=request.prompt_tokens.tolist(),
            max_new_tokens=request.max_new_tokens,
            temperature=request.temperature,
            seed=seed,
            stop_tokens=request.stop_tokens,
        )
        sampled = self._ask(lambda: self._server.complete(asked))
        tokens = sampled.tokens
        is_stopped = not sampled.is_cut and tokens[-1] in request.stop_tokens
        return Completion(
            tokens=np.array(tokens, dtype=np.int32),
            logprobs=np.array(sampled.logprobs, dtype=np.float32),
            policy_versions=np.full(len(tokens), version, dtype=np.int32),
            text=self._decode(tokens[:-1] if is_stopped else tokens),
            finish="length" if sampled.is_cut else "stop",
            queue_s=began - queued,
            generate_s=time.perf_counter() - began,
        )

    def _chat(self, request: GenerationRequest, seed: int, queued: float, began: float) -> Completion:
        asked = ChatRequest(self._model, request.chat, request.max_new_tokens, request.temperature, seed)
        reply = self._ask(lambda: self._server.chat(asked))
        return Completion(
            tokens=_NO_INTS,
            logprobs=_NO_FLOATS,
            policy_versions=_NO_INTS,
            text=reply.text,
            finish="length" if reply.is_cut else "stop",
            queue_s=began - queued,
            generate_s=time.perf_counter() - began,
        )

    def _ask(self, ask: Callable[[], _Reply]) -> _Reply:
        """What ``ask`` gets from the server. One that is away, has no time, or ends the connection, is asked again for
        `PATIENCE_S`."""
        pause_s, longest_s = _BACKOFF_S
        began = time.monotonic()
        deadline = began + PATIENCE_S
        while not self._closing.is_set():
            with self._lock:
                self._num_asked += 1
            wait_s = pause_s
            try:
                reply = ask()
            except PeerTimeout as error:
                self._end(counts=False)
                trouble: PeerTimeout | EndpointRefused = error
                if isinstance(error, EndpointBusy):
                    wait_s = min(max(pause_s, error.retry_after_s), _MOST_WAIT_S)
            except EndpointRefused as error:
                self._end(error)
                if not error.is_broken:
                    raise
                trouble = error
            else:
                self._end()
                return reply
            if time.monotonic() > deadline:
                raise self._given_up(trouble, began)
            log.get_logger().warning("endpoint.away", reason=str(trouble), again_in_s=wait_s)
            self._closing.wait(wait_s)
            pause_s = min(longest_s, 2 * pause_s)
        raise EngineFailed("the engine is closed")

    def _given_up(self, trouble: PeerTimeout | EndpointRefused, began: float) -> ConfigError | EngineFailed:
        """The error of a request that was asked for since ``began`` in vain."""
        with self._lock:
            if self._answered_at >= began:
                return EngineFailed(str(trouble))
        reason = f"the server has answered nothing for {time.monotonic() - began:.0f} s: {trouble}"
        return ConfigError([Problem("actor.endpoint", reason, "look at the server; --resume continues the evaluation")])

    def _end(self, refusal: EndpointRefused | None = None, *, counts: bool = True) -> None:
        """End of one try; without ``counts`` it says nothing about the server's will. Raises `ConfigError` when nothing is
        answered any more."""
        with self._lock:
            self._num_asked -= 1
            if counts:
                self._num_refused = self._num_refused + 1 if refusal else 0
                self._answered_at = self._answered_at if refusal else time.monotonic()
            is_hopeless = self._num_refused >= _MOST_REFUSALS and self._num_asked == 0 and not self._closing.is_set()
        if refusal is not None and is_hopeless:
            reason = f"the server refuses {_MOST_REFUSALS} requests in a row: {refusal}"
            raise ConfigError([Problem("actor.endpoint", reason, refusal.next_step)])
