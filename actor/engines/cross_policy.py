"""Cross-policy sampling: each action by the present weights or by older ones (AgentRL, arXiv 2510.04206, section 3.2).

Two engines on one model. The first has every version; the other is brought up to date when it is ``refresh_every`` versions
behind. Which of them samples an action is drawn with equal odds, for requests that allow it. Each token carries the version that
sampled it, as always, so staleness bound and corrections need to know nothing of this.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np

from actor.engines.base import NO_VERSION, Completion, GenerationRequest, PolicyEngine

if TYPE_CHECKING:
    import torch

_SAME_LOGPROBS = 1e-3
"""Two engines of one kind with the same weights compute the same; rounding aside."""


class CrossPolicyEngine:
    """A `PolicyEngine` made of two."""

    def __init__(self, present: PolicyEngine, older: PolicyEngine, *, refresh_every: int, seed: int) -> None:
        self._present = present
        self._older = older
        self._refresh_every = refresh_every
        self._random = random.Random(seed)

    @property
    def policy_version(self) -> int:
        return self._present.policy_version

    @property
    def older_version(self) -> int:
        """Version of the older weights; `NO_VERSION` before the first `load`."""
        return self._older.policy_version

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        older = request.may_be_older and self.older_version != NO_VERSION and self._random.random() < 0.5
        return (self._older if older else self._present).submit(request)

    def load(self, version: int, tensors: Mapping[str, torch.Tensor]) -> float:
        """See `PolicyEngine.load`. The first version goes to both, one that is loaded again goes where it went."""
        stall_s = self._present.load(version, tensors)
        held = self.older_version
        if held == NO_VERSION or not held < version < held + self._refresh_every:
            stall_s += self._older.load(version, tensors)
        return stall_s

    def probe(self) -> np.ndarray:
        """Of the present weights, or of the older ones while both are the same and these differ more: both must be right."""
        present = self._present.probe()
        if self.older_version != self.policy_version:
            return present
        older = self._older.probe()
        return older if np.abs(older - present).max() > _SAME_LOGPROBS else present

    def close(self) -> None:
        self._present.close()
        self._older.close()
