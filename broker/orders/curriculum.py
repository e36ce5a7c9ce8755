"""Curricula: families and sizes of the groups of a training order. Pure: results in, choice out.

A curriculum gives every family a share of the groups; `broker.orders.task_source` turns shares into a sequence. The choices of a
static curriculum follow from the order alone and need no record. Those of any other must be durable before they take effect.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from fractions import Fraction
from itertools import islice, takewhile
from typing import Any, Protocol

from computerrl.common.config.curriculum import MAX_RECENT
from computerrl.common.messages import CurriculumPlan, RolloutOrder

_FAILED_TO_COOL, _COOLED_TO_GO = 2, 3
"""Number of failed groups before a family's weight is reduced, and after that before it is removed."""
_WHOLE = 1_000_000
"""Number of parts in a whole. Changing shares are rounded to parts: their sums stay exact, at an error of a millionth."""


class RecentResults:
    """Latest outcomes of training rollouts by family, in the order of acceptance, and the longest success of each."""

    def __init__(self, outcomes: Mapping[str, str] | None = None, longest: Mapping[str, int] | None = None) -> None:
        """``outcomes``, ``longest``: values that `snapshot` returned."""
        self._outcomes: dict[str, deque[bool]] = {}
        self._longest = dict(longest or {})
        for family, letters in (outcomes or {}).items():
            self._outcomes[family] = deque((letter == "1" for letter in letters), maxlen=MAX_RECENT)

    def add(self, family: str, *, success: bool) -> None:
        """Add a training rollout."""
        self._outcomes.setdefault(family, deque(maxlen=MAX_RECENT)).append(success)

    def add_success(self, family: str, *, num_steps: int) -> None:
        """Add a success of any kind of order: demonstrations and evaluations show as well how many steps a task takes."""
        self._longest[family] = max(num_steps, self._longest.get(family, 0))

    def longest_success(self, family: str, plan: CurriculumPlan) -> int | None:
        """Steps of the longest success; None without one, or before there are ``min_results`` rollouts."""
        return self._longest.get(family) if len(self._outcomes.get(family, ())) >= plan.min_results else None

    def num_failures(self, family: str) -> int:
        """Number of rollouts since the last success."""
        return sum(1 for _ in takewhile(lambda success: not success, reversed(self._outcomes.get(family, ()))))

    def success_rate(self, family: str, plan: CurriculumPlan) -> float | None:
        """Success rate of the latest ``num_recent`` rollouts; None while there are fewer than ``min_results``."""
        latest = list(islice(reversed(self._outcomes.get(family, ())), plan.num_recent))
        return sum(latest) / len(latest) if len(latest) >= plan.min_results else None

    def snapshot(self) -> dict[str, Any]:
        """``outcomes``: family -> a letter per outcome, oldest first: `1` for success, `0` for failure; ``longest``: family ->
        steps of its longest success."""
        outcomes = {family: "".join("01"[success] for success in latest) for family, latest in self._outcomes.items()}
        return {"outcomes": outcomes, "longest": dict(self._longest)}


class Curriculum(Protocol):
    """Shares of the groups by family."""

    is_static: bool
    """Whether the shares never depend on results."""

    def shares(self, order: RolloutOrder, results: RecentResults) -> dict[str, int]:
        """Family -> share in whole numbers, above 0; their sum is the same at every draw of an order."""
        ...


class Uniform:
    """Equal shares."""

    is_static = True

    def shares(self, order: RolloutOrder, results: RecentResults) -> dict[str, int]:
        return dict.fromkeys(order.families, 1)


class Weighted:
    """Shares in proportion to the order's family weights."""

    is_static = True

    def shares(self, order: RolloutOrder, results: RecentResults) -> dict[str, int]:
        # Fractions hold exactly the decimals of the configuration.
        weights = {family: Fraction(repr(weight)) for family, weight in _weights(order).items()}
        scale = math.lcm(*(weight.denominator for weight in weights.values()))
        return {family: int(weight * scale) for family, weight in weights.items()}


class SuccessBand:
    """More groups for families that are solved sometimes: their groups teach, others' rollouts all end alike.

    A part ``floor`` of all groups goes to all families by their weights, so that none is forgotten; the rest, by the same
    weights, to those whose recent success lies in the band or is not known. When no family is of that kind, all are.
    """

    is_static = False

    def shares(self, order: RolloutOrder, results: RecentResults) -> dict[str, int]:
        plan, weights = order.curriculum, _weights(order)
        teaching = {family: weight for family, weight in weights.items() if _teaches(results.success_rate(family, plan), plan)}
        teaching = teaching or weights
        num_all, num_teaching = sum(weights.values()), sum(teaching.values())
        wanted = {
            family: plan.floor * weight / num_all + (1 - plan.floor) * teaching.get(family, 0.0) / num_teaching
            for family, weight in weights.items()
        }
        return _rounded(wanted)


class CoolDown:
    """Families that only fail rest (MobileRL, arXiv 2509.18119: its failure curriculum).

    By weights, but of a family whose last f groups failed altogether exp(-f) of its weight from the second on, and nothing from
    the fifth on, but for the millionth that keeps every family alive here. One success brings it back. A group is what the
    paper's epoch is; groups are taken to have the order's size.
    """

    is_static = False

    def shares(self, order: RolloutOrder, results: RecentResults) -> dict[str, int]:
        weights = _weights(order)
        num_failed = {family: results.num_failures(family) // order.group_size for family in weights}
        cooled = {family: weight * self._warmth(num_failed[family]) for family, weight in weights.items()}
        total = sum(cooled.values())
        if not total:
            cooled, total = weights, sum(weights.values())
        return _rounded({family: weight / total for family, weight in cooled.items()})

    @staticmethod
    def _warmth(num_failed_groups: int) -> float:
        if num_failed_groups < _FAILED_TO_COOL:
            return 1.0
        return math.exp(-num_failed_groups) if num_failed_groups < _FAILED_TO_COOL + _COOLED_TO_GO else 0.0


CURRICULA: dict[str, Curriculum] = {
    "uniform": Uniform(),
    "weighted": Weighted(),
    "success_band": SuccessBand(),
    "cool_down": CoolDown(),
}
"""Curricula by `tasks.curriculum.name`."""


def is_static(order: RolloutOrder) -> bool:
    """Whether the order's groups follow from the order alone."""
    low, high = group_size_limits(order)
    return CURRICULA[order.curriculum.name].is_static and low == high


def group_size_limits(order: RolloutOrder) -> tuple[int, int]:
    """Minimum and maximum number of rollouts of a group."""
    low, high = order.curriculum.min_group_size, order.curriculum.max_group_size
    return (order.group_size if low is None else low), (order.group_size if high is None else high)


def group_size(order: RolloutOrder, family: str, results: RecentResults) -> int:
    """Rollouts of the family's next group: the order's number while nothing is known, then fewer the surer the success.

    floor(9 / SR - 7) for a success rate SR, within the limits. DART begins with 8 and uses it above 0.6, where it gives
    less; going on below, it gives hard families the rollouts that a group needs there to see a success at all.
    """
    low, high = group_size_limits(order)
    rate = results.success_rate(family, order.curriculum)
    if rate is None:
        return order.group_size
    return max(low, min(high, math.floor(9 / rate - 7))) if rate > 0 else high


def max_steps(order: RolloutOrder, number: int, family: str, results: RecentResults) -> int:
    """Maximum number of actions of an episode of group ``number``."""
    limit = order.max_steps
    for first, steps in order.curriculum.horizon:
        limit = steps if number >= first else limit
    longest = results.longest_success(family, order.curriculum) if order.curriculum.length_cap else None
    return limit if longest is None else max(1, min(limit, longest))


def problem(order: RolloutOrder, *, max_group_size: int) -> str:
    """Problem of the order's curriculum, empty when there is none."""
    plan = order.curriculum
    weights = plan.family_weights
    low, high = group_size_limits(order)
    if plan.name not in CURRICULA:
        return f"has no curriculum {plan.name!r}, only {', '.join(CURRICULA)}"
    if plan != CurriculumPlan() and (order.kind != "training" or order.num_per_family is not None):
        return "is no training order without end: it plays all families alike and cannot have a curriculum"
    if not weights.keys() <= set(order.families):
        return f"weighs families that it does not play: {', '.join(sorted(weights.keys() - set(order.families)))}"
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights.values()):
        return f"has family weights below 0: {weights}"
    if not any(weights.get(family, 1.0) > 0 for family in order.families):
        return "gives all families the weight 0"
    if not (0 <= plan.band_low < plan.band_high <= 1 and 0 < plan.floor <= 1):
        return f"has success band {plan.band_low}..{plan.band_high} and floor {plan.floor}; all are shares, the floor above 0"
    starts = [number for number, _ in plan.horizon]
    if starts != sorted(set(starts)) or not all(1 <= steps <= order.max_steps for _, steps in plan.horizon):
        return f"has the horizon {plan.horizon}; groups must rise, steps be 1 to {order.max_steps}"
    if not 1 <= plan.min_results <= plan.num_recent <= MAX_RECENT:
        return f"looks at {plan.num_recent} results, of which {plan.min_results} must be there; at most {MAX_RECENT}"
    if not 1 <= low <= order.group_size <= high <= max_group_size:
        return f"wants groups of {low} to {high}, {order.group_size} at first; at most {max_group_size}"
    return ""


def _rounded(shares: Mapping[str, float]) -> dict[str, int]:
    """Shares in parts of `_WHOLE`, at least one each."""
    parts = {family: max(1, round(share * _WHOLE)) for family, share in shares.items()}
    parts[max(parts, key=parts.__getitem__)] += _WHOLE - sum(parts.values())
    return parts


def _weights(order: RolloutOrder) -> dict[str, float]:
    """Weights of the families that are played at all."""
    weights = {family: order.curriculum.family_weights.get(family, 1.0) for family in order.families}
    return {family: weight for family, weight in weights.items() if weight > 0}


def _teaches(rate: float | None, plan: CurriculumPlan) -> bool:
    return rate is None or plan.band_low <= rate <= plan.band_high
