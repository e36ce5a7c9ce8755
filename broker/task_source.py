"""Which task instance the n-th group of an order plays. Pure: the answer depends on the order and the number only, so that a
restarted broker gives every group the same task again.

This is where a curriculum would choose; today families take turns, group by group, and seeds count up.
"""

from __future__ import annotations

from common.messages import RolloutOrder, Split, TaskRef

_SPLITS: dict[str, Split] = {"demonstration": "demonstration", "evaluation": "evaluation", "training": "training"}


class TaskSource:
    """The groups of one order."""

    def __init__(self, order: RolloutOrder) -> None:
        self._order = order

    @property
    def num_groups(self) -> int | None:
        """All groups of the order, None when it has no end."""
        if self._order.num_per_family is None:
            return None
        return self._order.num_per_family * len(self._order.families)

    def has(self, number: int) -> bool:
        """Is there a group of this number?"""
        return number >= 0 and (self.num_groups is None or number < self.num_groups)

    def task(self, number: int) -> TaskRef:
        """The task of group ``number``."""
        instance, family = divmod(number, len(self._order.families))
        return TaskRef(self._order.families[family], self._order.first_seed + instance, _SPLITS[self._order.kind])
