"""Task and size of each group of an order, one group after the other. Pure, no randomness.

A curriculum gives every family a share of the groups. A family gains its share with every group and pays one for each of its own.
Of the families in credit, the next group goes to the one that would first be a whole group behind. With constant shares this is
earliest deadline first: every family stays within one group of its share at any time, and equal shares make families take turns.
Seeds count up per family.
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
    """Task and size of a group."""

    task: TaskRef
    group_size: int
    """Number of rollouts."""


class TaskSource:
    """The groups of one order."""

    def __init__(self, order: RolloutOrder, results: RecentResults) -> None:
        """``results``: outcomes that every draw reads and none changes."""
        self._order = order
        self._results = results
        self._curriculum = CURRICULA[order.curriculum.name]
        self._fixed_shares = self._curriculum.shares(order, results) if self._curriculum.is_static else None
        self._credits = dict.fromkeys(order.families, 0)
        """Credit by family, in units of the curriculum's shares, whose sum is one group."""
        self._groups_of = dict.fromkeys(order.families, 0)
        """Number of groups drawn, by family."""
        self.num_drawn = 0
        """Number of groups drawn; also the number of the next group."""
        self._ahead: deque[Draw] = deque()
        """Draws of the scout beyond ``num_drawn``; each is computed once, however often it is requested."""
        self._scout: TaskSource | None = None
        self.is_static = curriculum.is_static(order)
        """Whether the groups follow from the order alone; else each draw must be durable before it is played."""

    @property
    def num_groups(self) -> int | None:
        """Number of groups of the order, None when it has no end."""
        if self._order.num_per_family is None:
            return None
        return self._order.num_per_family * len(self._order.families)

    def has(self, number: int) -> bool:
        """Whether the order has a group of this number."""
        return number >= 0 and (self.num_groups is None or number < self.num_groups)

    def next(self) -> Draw:
        """Draw of the next group, by the present results."""
        shares = self._shares()
        one = sum(shares.values())
        owed = {family: self._credits[family] + share for family, share in shares.items()}
        due = [family for family in shares if owed[family] > 0]
        family = min(due, key=lambda name: (one - owed[name]) / shares[name])
        seed = self._order.first_seed + self._groups_of[family]
        size = curriculum.group_size(self._order, family, self._results)
        return Draw(TaskRef(family, seed, self._order.split or _SPLITS[self._order.kind]), size)

    def take(self, draw: Draw) -> None:
        """Make ``draw`` the next group."""
        shares = self._shares()
        for family, share in shares.items():
            self._credits[family] += share
        self._credits[draw.task.family] -= sum(shares.values())
        self._groups_of[draw.task.family] += 1
        self.num_drawn += 1
        if self._ahead:
            self._ahead.popleft()

    def ahead(self, number: int) -> Draw:
        """Draw of group ``number``, which is not drawn yet; only of a static source."""
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
        """Continue from a value that `snapshot` returned."""
        self._credits, self._groups_of = dict(value["credits"]), dict(value["groups_of"])
        self._ahead.clear()
        self.num_drawn = sum(self._groups_of.values())

    def _shares(self) -> dict[str, int]:
        if self._fixed_shares is not None:
            return self._fixed_shares
        return self._curriculum.shares(self._order, self._results)
