"""An engine whose completions come from a model server, for evaluating served models (`computerrl eval --endpoint`).

It loads no weights: every version without tensors is served by the same model. Log-probs are those of the server (before
temperature, unless it runs with ``--logprobs-mode processed_logprobs``), and nothing is trained on them. A request with turns of
a chat goes to the server's chat, and its completion is text without tokens.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from computerrl.actor.engines.base import NO_VERSION, Completion, GenerationRequest
from computerrl.actor.engines.patience import Patience
from computerrl.common.chat import ChatReply, ChatRequest
from computerrl.common.endpoint import EndpointCompletion, completion
from computerrl.common.errors import ComputerRLError, EngineFailed, WeightError

if TYPE_CHECKING:
    import torch


class CompletionServer(Protocol):
    """The part of `common.endpoint.Endpoint` used here."""

    def complete(self, asked: Mapping[str, Any]) -> EndpointCompletion: ...

    def chat(self, request: ChatRequest) -> ChatReply: ...


_NO_INTS, _NO_FLOATS = np.zeros(0, np.int32), np.zeros(0, np.float32)


class WithoutWeights:
    """The part of a `PolicyEngine` that has no weights of the learner: it takes any version, with nothing in it."""

    def __init__(self) -> None:
        self._version = NO_VERSION

    @property
    def policy_version(self) -> int:
        """Version that was loaded last; `NO_VERSION` before."""
        return self._version

    def load(
        self, version: int, tensors: Mapping[str, torch.Tensor], *, expected_probe: Sequence[float] | np.ndarray | None = None
    ) -> float:
        """Serve the model as ``version``. Raises `WeightError` for weights: the server has its own."""
        del expected_probe
        if tensors:
            raise WeightError("a model that is not ours takes no weights: this actor.engine is for evaluations")
        self._version = version
        return 0.0

    @property
    def failure(self) -> ComputerRLError | None:
        """None: a server may come back."""
        return None

    def probe(self) -> np.ndarray:
        """Nothing: there are no weights to compare with."""
        return np.zeros(0, np.float32)

    def metrics(self) -> dict[str, float]:
        return {}


class AgentEngine(WithoutWeights):
    """The `PolicyEngine` of an agent with a model of its own, which asks no engine for completions."""

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """A future that raises `EngineFailed`."""
        del request
        failed: Future[Completion] = Future()
        failed.set_exception(EngineFailed("the agent has a model of its own"))
        return failed

    def close(self) -> None:
        """Nothing is open."""


class EndpointEngine(WithoutWeights):
    """A `PolicyEngine` around a served model."""

    def __init__(
        self, server: CompletionServer, *, model: str, decode: Callable[[Sequence[int]], str], num_live: int, seed: int
    ) -> None:
        """``model``: name on the server; ``decode``: from the model's own tokenizer; ``seed``: seed of the first request."""
        super().__init__()
        self._server = server
        self._model = model
        self._decode = decode
        self._seeds = itertools.count(seed)
        self._patience = Patience()
        self._pool = ThreadPoolExecutor(max_workers=num_live, thread_name_prefix="endpoint")

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Queue a request. The future raises `EngineFailed` when the server refuses it, `ConfigError` when it refuses whatever it
        is asked, or stays away."""
        if self._patience.is_closed:
            failed: Future[Completion] = Future()
            failed.set_exception(EngineFailed("the engine is closed"))
            return failed
        return self._pool.submit(self._complete, request, next(self._seeds), time.perf_counter())

    def close(self) -> None:
        """Fail what is queued; what the server works on is not waited for."""
        self._patience.close()
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
        sampled = self._patience.ask(lambda: self._server.complete(asked))
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
        reply = self._patience.ask(lambda: self._server.chat(asked))
        return Completion(
            tokens=_NO_INTS,
            logprobs=_NO_FLOATS,
            policy_versions=_NO_INTS,
            text=reply.text,
            finish="length" if reply.is_cut else "stop",
            queue_s=began - queued,
            generate_s=time.perf_counter() - began,
        )
