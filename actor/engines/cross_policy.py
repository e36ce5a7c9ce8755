"""Cross-policy sampling: each action by the present weights or by older ones (AgentRL, arXiv 2510.04206, section 3.2).

Two engines on one model. The first has every version; the other is brought up to date when it is ``refresh_every`` versions
behind. Which of them samples an action is drawn with equal odds, for requests that allow it. Each token carries the version that
sampled it, as always, so staleness bound and corrections need to know nothing of this.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np

from computerrl.actor.engines.base import NO_VERSION, Completion, GenerationRequest, PolicyEngine
from computerrl.common.errors import ComputerRLError

if TYPE_CHECKING:
    import torch


class CrossPolicyEngine:
    """A `PolicyEngine` made of two."""

    def __init__(self, present: PolicyEngine, older: PolicyEngine, *, refresh_every: int, seed: int) -> None:
        self._present = present
        self._older = older
        self._refresh_every = refresh_every
        self._random = random.Random(seed)

    @property
    def policy_version(self) -> int:
        # Both get the first version, so that an engine without one is one that failed to take one.
        return self._present.policy_version if self.older_version != NO_VERSION else NO_VERSION

    @property
    def older_version(self) -> int:
        """Version of the older weights; `NO_VERSION` before the first `load` and after one that failed."""
        return self._older.policy_version

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        older = request.may_be_older and self.older_version != NO_VERSION and self._random.random() < 0.5
        return (self._older if older else self._present).submit(request)

    def load(
        self, version: int, tensors: Mapping[str, torch.Tensor], *, expected_probe: Sequence[float] | np.ndarray | None = None
    ) -> float:
        """See `PolicyEngine.load`. The first version goes to both, one that is loaded again goes where it went."""
        stall_s = self._present.load(version, tensors, expected_probe=expected_probe)
        held = self.older_version
        if held == NO_VERSION or not held < version < held + self._refresh_every:
            stall_s += self._older.load(version, tensors, expected_probe=expected_probe)
        return stall_s

    def probe(self) -> np.ndarray:
        """Of the present weights."""
        return self._present.probe()

    @property
    def failure(self) -> ComputerRLError | None:
        return self._present.failure or self._older.failure

    def metrics(self) -> dict[str, float]:
        """Of the engine with the present weights."""
        return self._present.metrics()

    def close(self) -> None:
        self._present.close()
        self._older.close()
