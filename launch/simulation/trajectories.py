"""Trajectories of simulated episodes as messages to the broker: without tokens, one step for each policy version. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from computerrl.common.messages import Step, StepTiming, Trajectory
from computerrl.launch.simulation.records import Play

_KEPT_VERSIONS = 1000
"""Steps of versions that are older by this number are dropped from memory."""


def versions_of(play: Play, loaded_at: Sequence[float]) -> Counter[int]:
    """Policy version -> steps of ``play`` that it sampled. ``loaded_at``: seconds at which the actor loaded version 0, 1, ...

    The steps are spread evenly over the time from the first step to the end of the last.
    """
    num_steps, sampled_at = play.times.num_steps, play.times.sampled_at
    each_s = (play.ended_s - play.began_s) / num_steps
    return Counter(bisect_right(loaded_at, play.began_s + (step + sampled_at) * each_s) - 1 for step in range(num_steps))


class Trajectories:
    """Builds the trajectory of a finished episode; all trajectories share one step for each policy version."""

    def __init__(self) -> None:
        self._steps: dict[int, Step] = {}

    def make(self, play: Play, versions: Iterable[int], *, now: float) -> Trajectory:
        """The trajectory of ``play`` with one step for each of ``versions``: more steps alike would only cost the broker time."""
        granted = play.granted
        # Every group has a signal, so that only ages keep steps from being trained.
        success = granted.index % 2 == 0
        return Trajectory(
            trajectory_id=granted.assignment_id,
            group_id=granted.group_id,
            index=granted.index,
            order_id=granted.order_id,
            kind=granted.kind,
            task=granted.task,
            instruction="",
            steps=tuple(map(self._step, versions)),
            reward=float(success),
            success=success,
            end_reason="done_action",
            final_screenshot=None,
            actor="sim-0:x",
            shown_by="",
            started_at=play.asked_s,
            duration_s=now - play.asked_s,
            reset_s=play.times.reset_s,
            wait_s=0.0,
        )

    def _step(self, version: int) -> Step:
        if version not in self._steps:
            one = np.array([1], dtype=np.int32)
            self._steps[version] = Step(
                one,
                one,
                np.array([-1.0], np.float32),
                np.array([version], np.int32),
                "click(1)",
                True,
                "",
                None,
                "quiet",
                StepTiming(0.0, 0.0, 0.0),
            )
            self._steps.pop(version - _KEPT_VERSIONS, None)
        return self._steps[version]
