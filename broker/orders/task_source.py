"""Which task each group of an order plays, one group after the other, and with how many rollouts. Pure, no randomness.

A curriculum says what share of the groups each family should have. A family gains its share with every group and pays one
for each of its own; of those in credit, the next group goes to the one that would first be a whole group behind. With
shares that do not change this is earliest deadline first: every family stays within one group of its share at any time,
and equal shares make families take turns. Seeds count up per family.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from computerrl.broker.orders import curriculum
from computerrl.broker.orders.curriculum import CURRICULA, RecentResults
from computerrl.common.messages import OrderKind, RolloutOrder, Split, TaskRef

_SPLITS: dict[OrderKind, Split] = {"demonstration": "demonstration", "evaluation": "evaluation", "training": "training"}


@dataclass(frozen=True, slots=True)
class Draw:
    """What a group plays."""

    task: TaskRef
    group_size: int
    """Rollouts."""


class TaskSource:
    """The groups of one order."""

    def __init__(self, order: RolloutOrder, results: RecentResults) -> None:
        """``results``: looked at with every draw, never changed here."""
        self._order = order
        self._results = results
        self._curriculum = CURRICULA[order.curriculum.name]
        self._fixed_shares = self._curriculum.shares(order, results) if self._curriculum.is_static else None
        self._credits = dict.fromkeys(order.families, 0)
        """Family -> what it is owed, in the units of the curriculum's shares: their sum is one group."""
        self._groups_of = dict.fromkeys(order.families, 0)
        """Family -> groups so far."""
        self.num_drawn = 0
        """Groups so far; also the number of the next one."""
        self._ahead: deque[Draw] = deque()
        """What a scout has found already: many that are asked for one after the other are worked out once."""
        self._scout: TaskSource | None = None
        self.is_static = curriculum.is_static(order)
        """Do the groups follow from the order alone? Else each must be on disk before anybody plays it."""

    @property
    def num_groups(self) -> int | None:
        """All groups of the order, None when it has no end."""
        if self._order.num_per_family is None:
            return None
        return self._order.num_per_family * len(self._order.families)

    def has(self, number: int) -> bool:
        """Is there a group of this number?"""
        return number >= 0 and (self.num_groups is None or number < self.num_groups)

    def next(self) -> Draw:
        """What the next group plays, as things stand."""
        shares = self._shares()
        one = sum(shares.values())
        owed = {family: self._credits[family] + share for family, share in shares.items()}
        due = [family for family in shares if owed[family] > 0]
        family = min(due, key=lambda name: (one - owed[name]) / shares[name])
        seed = self._order.first_seed + self._groups_of[family]
        size = curriculum.group_size(self._order, family, self._results)
        return Draw(TaskRef(family, seed, self._order.split or _SPLITS[self._order.kind]), size)

    def take(self, draw: Draw) -> None:
        """The next group plays this."""
        shares = self._shares()
        for family, share in shares.items():
            self._credits[family] += share
        self._credits[draw.task.family] -= sum(shares.values())
        self._groups_of[draw.task.family] += 1
        self.num_drawn += 1
        if self._ahead:
            self._ahead.popleft()

    def ahead(self, number: int) -> Draw:
        """What group ``number``, not drawn yet, will play; only of a static source."""
        assert self.is_static and number >= self.num_drawn
        if self._scout is None or not self._ahead:
            self._scout = TaskSource(self._order, self._results)
            self._scout.restore(self.snapshot())
        while len(self._ahead) <= number - self.num_drawn:
            self._ahead.append(self._scout.next())
            self._scout.take(self._ahead[-1])
        return self._ahead[number - self.num_drawn]

    def snapshot(self) -> dict[str, Any]:
        """Plain values."""
        return {"credits": dict(self._credits), "groups_of": dict(self._groups_of)}

    def restore(self, value: dict[str, Any]) -> None:
        """From what `snapshot` gave."""
        self._credits, self._groups_of = dict(value["credits"]), dict(value["groups_of"])
        self._ahead.clear()
        self.num_drawn = sum(self._groups_of.values())

    def _shares(self) -> dict[str, int]:
        if self._fixed_shares is not None:
            return self._fixed_shares
        return self._curriculum.shares(self._order, self._results)
