"""Trajectories that an algorithm keeps from update to update, to train on again. Saved with the checkpoint.

Kept by task family: training instances of a family are never played twice here, and a benchmark's task is a family of its own.
A trajectory in a memory was recorded when it came. Training on it again is the algorithm's decision, shows in
`num_steps_replayed`, and is not bound by `learner.max_age`: its log-probs and policy versions are kept, so that it can be
corrected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from computerrl.common.errors import DecodeError, ResumeError
from computerrl.common.messages import Trajectory, TrajectoryGroup
from computerrl.common.wire import codec
from computerrl.learner.images import names_in

_WRITER = "memory"


class Stored(Protocol):
    """A collection that a checkpoint can hold."""

    def image_names(self) -> list[str]:
        """Images that the prompts in it show."""
        ...

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """(arrays, JSON-ready rest); `restore` takes them back."""
        ...

    def restore(self, arrays: Mapping[str, np.ndarray], rest: Mapping[str, Any]) -> None:
        """Continue from `state`. Raises `ResumeError` when it is of another release."""
        ...


@runtime_checkable
class Remembers(Protocol):
    """An algorithm with a memory."""

    memory: Stored

    def remember(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Keep what is needed of ``groups``, which were trained on; `prepare` was given the same."""
        ...


class SuccessMemory:
    """At most so many successful trajectories of each family."""

    def __init__(self, *, per_family: int, keep: Literal["newest", "shortest"] = "newest") -> None:
        """``keep``: which stay when there are more; of equally short ones the newest."""
        self._per_family = per_family
        self._keep = keep
        self._kept: dict[str, list[Trajectory]] = {}
        """Oldest first."""

    def add(self, trajectory: Trajectory) -> None:
        """Take it in if it was a success."""
        if not trajectory.success or not trajectory.steps:
            return
        kept = self._kept.setdefault(trajectory.task.family, [])
        kept.append(trajectory)
        if len(kept) > self._per_family:
            longest = max(len(one.steps) for one in kept)
            del kept[0 if self._keep == "newest" else [len(one.steps) for one in kept].index(longest)]

    def of(self, family: str) -> tuple[Trajectory, ...]:
        """Trajectories of ``family``, oldest first."""
        return tuple(self._kept.get(family, ()))

    def image_names(self) -> list[str]:
        """See `Stored`."""
        return names_in(one for kept in self._kept.values() for one in kept)

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """(arrays, JSON-ready rest); `restore` takes them back."""
        kept = [trajectory for family in sorted(self._kept) for trajectory in self._kept[family]]
        frames = [codec.encode(one, sender=_WRITER, message_id=0, limited=False) for one in kept]
        # Writable, as torch wants the arrays that it takes over.
        joined = bytearray(b"".join(frame for one in frames for frame in one))
        return {"frames": np.frombuffer(joined, np.uint8)}, {"lengths": [[len(frame) for frame in one] for one in frames]}

    def restore(self, arrays: Mapping[str, np.ndarray], rest: Mapping[str, Any]) -> None:
        """Continue from `state`. Raises `ResumeError` when it is of another release."""
        data, start = arrays["frames"].tobytes(), 0
        self._kept = {}
        for lengths in rest["lengths"]:
            frames = []
            for length in lengths:
                frames.append(data[start : start + length])
                start += length
            try:
                trajectory = codec.decode(frames, limited=False).message
            except DecodeError as error:
                raise ResumeError(f"the checkpoint's memory of trajectories is of another release: {error}") from None
            assert isinstance(trajectory, Trajectory)
            self._kept.setdefault(trajectory.task.family, []).append(trajectory)
