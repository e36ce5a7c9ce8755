"""Counters of the broker, by name. Pure.

Every trajectory that came in is delivered, held or rejected: ``received == delivered + held + rejected`` after every event. The
methods keep that balance; all other names are plain counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from computerrl.common.messages import TrajectoryGroup

_NAMES = ("received", "accepted", "delivered", "held", "rejected", "assigned", "returned")
"""Counters that a status shows even when they are 0."""
_MAX_REASONS = 64
"""Distinct return reasons counted by name; a peer cannot grow the counters without end."""


class BrokerCounters(Counter[str]):
    """Number of events by name since the run began."""

    def count_accepted(self) -> None:
        """Count a new trajectory that is held until its group is delivered."""
        self["received"] += 1
        self["accepted"] += 1
        self["held"] += 1

    def count_rejected(self, reason: str) -> None:
        """Count a new trajectory that was refused."""
        self["received"] += 1
        self["rejected"] += 1
        self[f"rejected/{reason}"] += 1

    def count_dropped(self, num_trajectories: int, reason: str) -> None:
        """Count held trajectories as rejected."""
        self["held"] -= num_trajectories
        self["rejected"] += num_trajectories
        self[f"rejected/{reason}"] += num_trajectories

    def count_delivered(self, group: TrajectoryGroup) -> None:
        """Count the held trajectories of ``group`` as delivered."""
        self["held"] -= len(group.trajectories)
        self["delivered"] += len(group.trajectories)

    def count_returned(self, reason: str) -> None:
        """Count an assignment that an actor returned."""
        self["returned"] += 1
        name = f"returned/{reason[:64]}"
        num_names = sum(1 for counter in self if counter.startswith("returned/"))
        self[name if name in self or num_names < _MAX_REASONS else "returned/other"] += 1

    def for_status(self) -> dict[str, int]:
        """All counters, the basic ones also when they are 0."""
        return {**dict.fromkeys(_NAMES, 0), **self}

    def snapshot(self, *, num_redelivered: int) -> dict[str, int]:
        """All counters as a restarted broker has them: ``num_redelivered`` delivered trajectories count as held again."""
        values = dict(self)
        values["held"] = values.get("held", 0) + num_redelivered
        values["delivered"] = values.get("delivered", 0) - num_redelivered
        return values

    def restore(self, values: Mapping[str, int]) -> None:
        """Continue from a value that `snapshot` returned."""
        self.clear()
        self.update(values)
