"""The interface of a policy engine: requests in, sampled tokens with their log-probs and policy versions out.

Types and protocols only. An engine never knows about tasks, prompts as text, desktops or sockets; it samples token ids
from token ids. There are two implementations, `transformers_engine` and `vllm_engine`, both driven by `threaded.ThreadedEngine`.
An engine whose weights are elsewhere is a `Sampler` only.

Array shape legend: P prompt tokens, A sampled tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from computerrl.common.chat import ChatTurn
from computerrl.common.errors import ComputerRLError
from computerrl.common.messages import ScreenshotRef
from computerrl.common.vision.processor import Processed

if TYPE_CHECKING:
    import torch

NO_VERSION = -1
"""`policy_version` of an engine that has not been given weights by a learner yet."""


@dataclass(frozen=True, slots=True)
class RequestImage:
    """One image of a prompt."""

    content_hash: str
    """Name of its bytes, see `common.messages.ScreenshotRef`."""
    processed: Processed
    """The image as the model's own processor prepares it."""


@dataclass(frozen=True, slots=True)
class SentImage:
    """One image of a prompt for an engine process, which prepares it itself."""

    ref: ScreenshotRef
    """Name and size; where the image lies says nothing to the engine process."""
    data: bytes
    """Its encoded bytes."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Request to sample one completion."""

    prompt_tokens: np.ndarray
    """[P] int32, at least one."""
    temperature: float
    """Sampling temperature. Above 0, tokens are sampled from softmax(logits / temperature) without truncation; 0 is greedy."""
    max_new_tokens: int
    """Maximum number of tokens of the completion."""
    stop_tokens: frozenset[int]
    """Tokens that end the completion; the one sampled stays in it."""
    may_be_older: bool = False
    """Whether older weights may sample this completion too, in an engine that keeps some (`actor.engines.cross_policy`)."""
    images: tuple[RequestImage, ...] = ()
    """Images of the prompt, in the order of their tokens."""
    sent: tuple[SentImage, ...] = ()
    """The same in place of ``images``, for an engine process (`actor.serving.remote_engine`)."""
    chat: tuple[ChatTurn, ...] = ()
    """The prompt as turns, for a server that takes those alone; an engine with weights samples from ``prompt_tokens``."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A sampled completion."""

    tokens: np.ndarray
    """[A] int32, stop token included; none where a server sends text alone."""
    logprobs: np.ndarray
    """[A] float32, under the sampling distribution (temperature applied; temperature 1 when greedy)."""
    policy_versions: np.ndarray
    """[A] int32, version of the weights that computed each token's distribution."""
    text: str
    """Decoded tokens without the stop token."""
    finish: Literal["stop", "length"]
    """Reason for the end: a stop token, or `GenerationRequest.max_new_tokens`."""
    queue_s: float
    """Seconds from `submit` until the engine admitted the request."""
    generate_s: float
    """Seconds from there until the last token."""


class Versions(Protocol):
    """Policy versions that may be served: by `actor.serving.weight_receiver.WeightReceiver` and `remote_engine.RemoteEngine`."""

    @property
    def policy_version(self) -> int:
        """Version that may be served now; `NO_VERSION` while there is none."""

    def wait_version(self, policy_version: int, *, timeout_s: float) -> bool:
        """Wait until at least ``policy_version`` may be served; False when it did not come in time."""


class Sampler(Protocol):
    """Continuous batching: any number of threads submit, and weights may change between two tokens of a completion."""

    @property
    def policy_version(self) -> int:
        """Version of the weights that sample the next token; `NO_VERSION` while there are none."""

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Queue a request. The future raises `EngineFailed` when the engine breaks or closes."""

    def close(self) -> None:
        """Fail the queued requests and free all resources; may be called twice."""


class WeightHolder(Protocol):
    """The part of an engine that loads new weights."""

    @property
    def policy_version(self) -> int:
        """Version of the weights; `NO_VERSION` while they are none."""

    def load(
        self, version: int, tensors: Mapping[str, torch.Tensor], *, expected_probe: Sequence[float] | np.ndarray | None = None
    ) -> float:
        """Replace the named weights between two decode steps. Returns the seconds for which generation stood still.

        Names are Hugging Face parameter names; parameters that are not named keep their value. Completions under way go
        on, and their later tokens carry ``version``; nothing cached from older weights serves a new request. No token sampled
        with the new weights leaves the engine before its `probe` agrees with ``expected_probe``, the learner's (None: not
        compared).

        Raises `WeightError`. After unknown names or wrong shapes nothing has changed. When the probe differs or loading breaks
        off, the weights in the engine are no version: `policy_version` is `NO_VERSION`, and completions under way and new
        requests fail with `EngineFailed` until a `load` succeeds.
        """


class PolicyEngine(Sampler, WeightHolder, Protocol):
    """A sampler that holds weights and loads new ones."""

    @property
    def failure(self) -> ComputerRLError | None:
        """Set when the engine can sample no more, such as after its processes have died: its process should end with it."""

    def metrics(self) -> dict[str, float]:
        """Figures for heartbeats; empty for an engine that counts nothing."""

    def probe(self) -> np.ndarray:
        """Log-probs of `common.weight_plan.probe_tokens`: entry i is log p(token i+1 | tokens 0..i) at temperature 1."""
