"""When is a batch whole? As soon as its groups are there, of an algorithm that samples dynamically enough that teach something;
in mode `pace`, once it waited for what would come too late after it.

    position of the version      p - 2    p - 1    p        max_age 2; the update that is due makes p + 1
    age in this update             2        1      0
    age in the next one         3: lost     2      1

Steps sampled at the brink, exactly ``max_age`` behind, can train in this update and in no later one. While such steps are in
flight the learner goes on taking groups instead of updating, until nothing in flight is at the brink, the budget is spent, or
the batch is full: admission lets no more than (eta + 1) batches be on their way. Steps already past the bound are lost and
waited for no longer. Complete groups that hold steps at the brink join the batch with all groups numbered before them. Versions
are compared along the lineage. Pure: no clock, takes no groups.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from computerrl.common.config import RunConfig
from computerrl.common.messages import TrajectoryGroup
from computerrl.learner.recipe.lineage import Lineage

StallEnd = Literal["none", "arrived", "budget", "full", "phase"]
"""Why a wait ended. `none`: there was none. `arrived`: nothing in flight was at the brink any more. `budget`: it was spent in
vain. `full`: the batch cannot grow. `phase`: the phase was over."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The batch is whole."""

    num_groups: int
    stall_s: float
    """Time that the update waited since it had groups enough."""
    stall_end: StallEnd


class Pacer:
    """Decides where a batch ends."""

    def __init__(self, config: RunConfig, *, teaches: Callable[[TrajectoryGroup], bool] | None = None) -> None:
        """``teaches``: which groups a batch must have enough of (dynamic sampling); None: all count."""
        learner = config.learner
        self._teaches = teaches
        self._is_pacing = learner.staleness.mode == "pace"
        self._budget_s = learner.staleness.stall_budget_s
        self._max_age = learner.max_age
        self._num_groups = learner.groups_per_batch
        self._max_groups = (config.broker.eta + 1) * learner.groups_per_batch
        self._stalled_since: float | None = None
        self._versions: dict[int, frozenset[int]] = {}

    @property
    def is_stalling(self) -> bool:
        """Is an update waiting that has groups enough?"""
        return self._stalled_since is not None

    def cut(
        self,
        groups: Sequence[TrajectoryGroup],
        in_flight: Collection[int] | None,
        *,
        version: int,
        lineage: Lineage,
        now: float,
        may_wait: bool = True,
    ) -> Cut | None:
        """Number of ``groups``, in order of number, that make the batch; None: the batch is not whole yet.

        ``in_flight``: policy versions on their way, None when the last answer was a group and did not tell. ``version``: of the
        present weights. ``now``: seconds on any clock that only goes forward.
        """
        is_full = len(groups) >= self._max_groups
        num_needed = self._num_needed(groups)
        if num_needed is None:
            return None
        if not self._is_pacing:
            return Cut(num_needed, 0.0, "none")
        brink = lineage.position(version) - self._max_age
        if in_flight is None and not is_full and may_wait:
            return None
        at_risk = any(lineage.position(other) == brink for other in in_flight or ())
        if self._stalled_since is None:
            if at_risk and not is_full and may_wait:
                self._stalled_since = now
                return None
            return self._end(max(num_needed, self._num_due(groups, brink=brink, lineage=lineage)), 0.0, "none")
        stall_s = now - self._stalled_since
        reason = self._reason_to_end(stall_s, at_risk=at_risk, is_full=is_full, may_wait=may_wait)
        return None if reason is None else self._end(min(len(groups), self._max_groups), stall_s, reason)

    def _reason_to_end(self, stall_s: float, *, at_risk: bool, is_full: bool, may_wait: bool) -> StallEnd | None:
        if is_full:
            return "full"
        if not may_wait:
            return "phase"
        if not at_risk:
            return "arrived"
        return "budget" if stall_s >= self._budget_s else None

    def _num_needed(self, groups: Sequence[TrajectoryGroup]) -> int | None:
        """Number of the first ``groups`` that make a batch; None: there are too few, and more can come."""
        num_taught = 0
        for number, group in enumerate(groups[: self._max_groups], start=1):
            num_taught += self._teaches is None or self._teaches(group)
            if num_taught == self._num_groups:
                return number
        return self._max_groups if len(groups) >= self._max_groups else None

    def _num_due(self, groups: Sequence[TrajectoryGroup], *, brink: int, lineage: Lineage) -> int:
        """All groups up to the last one that the next update would come too late for."""
        numbers = [
            number
            for number, group in enumerate(groups[: self._max_groups], start=1)
            if any(lineage.position(version) == brink for version in self._versions_of(group))
        ]
        return max(numbers, default=0)

    def _versions_of(self, group: TrajectoryGroup) -> frozenset[int]:
        if group.group_seq not in self._versions:
            steps = (step for trajectory in group.trajectories for step in trajectory.steps)
            self._versions[group.group_seq] = frozenset(step.min_policy_version for step in steps)
        return self._versions[group.group_seq]

    def _end(self, num_groups: int, stall_s: float, reason: StallEnd) -> Cut:
        self._stalled_since = None
        self._versions = {}
        return Cut(num_groups, stall_s, reason)
