"""The interface of rewards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from computerrl.common.messages import ScreenshotRef, Trajectory


class RewardUnknown(Exception):
    """A reward that no number is known for. The trajectory's group then does without this reward; ``reason`` is counted."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class RewardSetting:
    """What a reward may use besides its options."""

    folder: Path
    """Folder of the run."""
    decode: Callable[[np.ndarray], str]
    """Text of the tokens of a prompt."""
    read_image: Callable[[ScreenshotRef], bytes]
    """Encoded bytes of a screenshot of the run. Raises `OSError` and `ValueError`."""


class Reward:
    """A reward of whole episodes. One instance serves a run; its methods are called from one thread."""

    wants_facts = False
    """Whether training episodes count the facts of their tasks for it (`RolloutOrder.with_facts`)."""

    def __init__(self, options: Mapping[str, Any], setting: RewardSetting) -> None:
        """Raises `ConfigError` for options that it does not know or cannot take."""

    @property
    def may_be_alone(self) -> bool:
        """May it be the reward of a run without the evaluator?"""
        return True

    def begin(self, trajectory: Trajectory) -> None:
        """``trajectory`` has come and will be scored: a slow reward begins its work in a thread of its own."""

    def score(self, trajectory: Trajectory) -> float:
        """What the episode earns. Raises `RewardUnknown`."""
        raise NotImplementedError

    def earned_before(self, trajectory: Trajectory) -> Sequence[float]:
        """Part of `score` that was earned before each step, where a step is paid only for what comes after it. Called after
        `score`, which raised nothing. Empty: all steps are paid alike."""
        del trajectory
        return ()

    def metrics(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Figures of an update on ``trajectories``, which were scored before, for metrics.jsonl."""
        del trajectories
        return {}

    def close(self) -> None:
        """The run ends."""
