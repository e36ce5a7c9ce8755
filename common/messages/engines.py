"""Engines: completions that an engine process samples for actors (`actor.inference: central`).

Array shape legend: P prompt tokens, A sampled tokens.
"""

from __future__ import annotations

from typing import Literal

from computerrl.common.messages.base import (
    FLOAT32,
    INT32,
    FloatArray,
    IntArray,
    NewTokens,
    Temperature,
    Version,
    Wire,
    take_arrays,
)
from computerrl.common.messages.trajectories import ScreenshotRefs


class EngineQuery(Wire, frozen=True):
    """Request for the policy version that an engine process serves. The reply is `EngineState`: at once when the version differs
    from ``known_version``, else within a second."""

    known_version: Version
    """Version in the last `EngineState`; -1 before the first."""


class EngineState(Wire, frozen=True):
    """Policy version that an engine process serves."""

    policy_version: Version
    """Version of the weights, -1 while the process serves none."""


class CompletionRequest(Wire, frozen=True):
    """Request to sample one completion. The reply is `CompletionResult`, or `ImagesWanted` when the engine process lacks an image
    of the prompt."""

    prompt_tokens: IntArray
    """[P] tokens of the prompt."""
    temperature: Temperature
    max_new_tokens: NewTokens
    stop_tokens: IntArray
    """Tokens that end the completion."""
    may_be_older: bool
    """Whether older weights may sample this completion too, in an engine that keeps some."""
    images: ScreenshotRefs = ()
    """Images of the prompt, in the order of their tokens. The engine process has their bytes from an `ImageSubmission`."""

    def __post_init__(self) -> None:
        take_arrays(self, {"prompt_tokens": INT32, "stop_tokens": INT32})


class CompletionResult(Wire, frozen=True):
    """A sampled completion; its arrays have one entry per token."""

    tokens: IntArray
    """[A] tokens, the stop token included."""
    logprobs: FloatArray
    """[A] log-probs under the sampling distribution."""
    policy_versions: IntArray
    """[A] policy version of the weights that computed each token's distribution."""
    text: str
    """Decoded tokens without the stop token."""
    finish: Literal["stop", "length"]
    """Reason for the end: a stop token, or the maximum length."""
    queue_s: float
    """Seconds until the engine admitted the request."""
    generate_s: float
    """Seconds from there until the last token."""

    def __post_init__(self) -> None:
        take_arrays(self, {"tokens": INT32, "logprobs": FLOAT32, "policy_versions": INT32})
