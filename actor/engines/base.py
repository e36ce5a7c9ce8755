"""What a policy engine is: requests in, sampled tokens with their log-probs and policy versions out.

Types and protocol only. An engine never knows about tasks, prompts as text, desktops or sockets; it samples token ids
from token ids. Two implementations: `transformers_engine` and `vllm_engine`, both driven by `threaded.ThreadedEngine`. What has
its weights elsewhere is a `Sampler` only.

Array shape legend: P prompt tokens, A sampled tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

if TYPE_CHECKING:
    import torch

NO_VERSION = -1
"""`policy_version` of an engine that has not been given weights by a learner yet."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One completion to sample."""

    prompt_tokens: np.ndarray
    """[P] int32, at least one."""
    temperature: float
    """Above 0: sample from softmax(logits / temperature), no truncation. 0: most likely token."""
    max_new_tokens: int
    stop_tokens: frozenset[int]
    """Sampling ends after one of these; it stays in the completion."""
    may_be_older: bool = False
    """Older weights may sample this one too, where an engine keeps some (`actor.engines.cross_policy`)."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What was sampled."""

    tokens: np.ndarray
    """[A] int32, stop token included."""
    logprobs: np.ndarray
    """[A] float32, of the distribution that sampled (temperature applied; temperature 1 when greedy)."""
    policy_versions: np.ndarray
    """[A] int32, version whose weights computed each token's distribution."""
    text: str
    """Decoded tokens without the stop token."""
    finish: Literal["stop", "length"]
    queue_s: float
    """From `submit` until the engine took the request in."""
    generate_s: float
    """From there until the last token."""


class Sampler(Protocol):
    """Continuous batching: any number of threads submit, weights may change between two tokens of a completion."""

    @property
    def policy_version(self) -> int:
        """Version of the weights that sample the next token; `NO_VERSION` while there are none."""

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Queue a request. The future raises `EngineFailed` when the engine breaks or closes."""

    def close(self) -> None:
        """Fail what is queued and free everything; may be called twice."""


class PolicyEngine(Sampler, Protocol):
    """A sampler that holds weights and takes new ones."""

    def load(
        self, version: int, tensors: Mapping[str, torch.Tensor], *, expected_probe: Sequence[float] | np.ndarray | None = None
    ) -> float:
        """Replace the named weights between two decode steps; gives the seconds that generation stood still.

        Names are Hugging Face parameter names; tensors that are not named keep their value. Completions under way go
        on, their later tokens carry ``version``; nothing cached from older weights serves a new request. Nothing sampled with
        the new weights leaves the engine before its `probe` agrees with ``expected_probe``, the learner's (None: not compared).

        Raises `WeightError`. For unknown names or wrong shapes nothing has changed. When the probe differs or loading breaks
        off, what the engine holds is no version: `policy_version` is `NO_VERSION`, and completions under way and new
        requests fail with `EngineFailed` until a `load` succeeds.
        """

    def metrics(self) -> dict[str, float]:
        """For heartbeats; empty for an engine that counts nothing."""

    def probe(self) -> np.ndarray:
        """Log-probs of `common.weight_plan.probe_tokens`: entry i is log p(token i+1 | tokens 0..i) at temperature 1."""
