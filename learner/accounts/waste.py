"""Training data that is lost, by reason, and the bias that the loss gives to the rest. Pure, of bounded memory.

Compared are distributions over trajectories: of *submitted* training trajectories (all that the learner took) and of what is
left of them without those lost. One of which 3 of 10 steps are lost counts as 7/10 of a trajectory of length 10. Two figures say
how far the two lie apart, 0 (alike) to 1 (nothing in common): the Kolmogorov-Smirnov distance of the lengths in steps, and the
total variation distance of the task families. They describe this run; no test of significance is made.

    reason         lost                                                          why it is, or is not, staleness
    too_old        trajectories all of whose steps were older than the bound     staleness: mostly short ones whose group had to
                                                                                 wait for a straggler
    masked         steps older than the bound of trajectories trained otherwise  staleness: the early steps of long episodes
    phase_closed   taken, but their phase ended before their batch was whole     when phases end; long ones arrive last
    no_signal      no advantage: their group's rollouts all scored the same, or  not staleness: it follows the task's difficulty
                   `negative_scale` 0 leaves out what failed
    not_chosen     the algorithm left them out, trajectories or single steps     not staleness: a choice
    too_sure       the policy was sure of these steps; the algorithm left them   not staleness: a choice
                   out, single ones or all of a trajectory
    skipped        their optimizer step had gradients that were not finite       not staleness: a numerical failure
    a poison       not what a policy of this run can have sampled                not staleness: a mistake (`poison`)

`within_bound` leaves out the first two only: the doing of the age bound alone. `trained` leaves out all of them. Its steps were
free to train; those whose advantage came out as 0 are among them. Not seen here is what the broker gave up before it was
delivered (`rejected/order_closed`: incomplete groups of a closed order), which it counts without lengths, and what was never
submitted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

STALENESS = ("too_old", "masked")
"""Reasons that are the age bound's doing."""

Steps = Mapping[tuple[str, int], int]
"""(family, length of the trajectory in steps) -> steps. Steps by length are trajectories, so whole and partial ones add up. One
without steps weighs nothing."""


@dataclass(slots=True)
class Amount:
    """An amount of trajectories with the same outcome."""

    num_trajectories: int = 0
    """Trajectories, whole or in part."""
    num_action_tokens: int = 0
    steps: Counter[tuple[str, int]] = field(default_factory=Counter)

    def add(self, family: str, length: int, *, num_steps: int, num_tokens: int) -> None:
        """``num_steps`` of a trajectory of ``length`` steps."""
        self.num_trajectories += 1
        self.num_action_tokens += num_tokens
        self.steps[family, length] += num_steps

    def figures(self) -> dict[str, Any]:
        """Counts in all three units, and the mean length (None of nothing)."""
        return {
            "trajectories": self.num_trajectories,
            "steps": self.steps.total(),
            "action_tokens": self.num_action_tokens,
            "mean_length": mean_length(self.steps),
        }

    def state(self) -> dict[str, Any]:
        """JSON-ready; `restore` takes it back."""
        steps = [[family, length, number] for (family, length), number in self.steps.items()]
        return {"num_trajectories": self.num_trajectories, "num_action_tokens": self.num_action_tokens, "steps": steps}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Amount:
        """Back from `state`."""
        steps = Counter({(family, length): number for family, length, number in state["steps"]})
        return cls(state["num_trajectories"], state["num_action_tokens"], steps)


class Waste:
    """Counts training trajectories and the lost parts of them."""

    def __init__(self) -> None:
        self.submitted = Amount()
        self.lost: dict[str, Amount] = {}
        self._num_lost = 0
        """Trajectories none of whose steps trained."""

    def take(self, *, family: str, length: int, num_tokens: int) -> None:
        """A trajectory of ``length`` steps and ``num_tokens`` action tokens was taken."""
        self.submitted.add(family, length, num_steps=length, num_tokens=num_tokens)

    def lose(self, reason: str, *, family: str, length: int, num_steps: int, num_tokens: int) -> None:
        """``num_steps`` of a trajectory's ``length`` steps do not train for ``reason``: all, once per trajectory; or some, once
        per reason, of a trajectory with a step that does."""
        self.lost.setdefault(reason, Amount()).add(family, length, num_steps=num_steps, num_tokens=num_tokens)
        self._num_lost += num_steps == length

    def figures(self) -> dict[str, Any]:
        """JSON-ready, see docs/reference/metrics.md."""
        submitted = self.submitted.steps
        trained = _without(submitted, (amount.steps for amount in self.lost.values()))
        in_bound = _without(submitted, (self.lost[reason].steps for reason in STALENESS if reason in self.lost))
        return {
            "submitted": self.submitted.figures(),
            "trained": self._trained(trained).figures() | bias(submitted, trained),
            "within_bound": {"mean_length": mean_length(in_bound), **bias(submitted, in_bound)},
            "lost": {
                reason: amount.figures() | bias(submitted, _without(submitted, [amount.steps]))
                for reason, amount in sorted(self.lost.items())
            },
            "lengths": _length_rows(_by_length(submitted), _by_length(trained)),
        }

    def _trained(self, steps: Counter[tuple[str, int]]) -> Amount:
        tokens = sum(amount.num_action_tokens for amount in self.lost.values())
        return Amount(self.submitted.num_trajectories - self._num_lost, self.submitted.num_action_tokens - tokens, steps)

    def state(self) -> dict[str, Any]:
        """JSON-ready; `restore` takes it back."""
        lost = {reason: amount.state() for reason, amount in self.lost.items()}
        return {"submitted": self.submitted.state(), "lost": lost, "num_lost": self._num_lost}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Waste:
        """Back from `state`."""
        waste = cls()
        waste.submitted = Amount.restore(state["submitted"])
        waste.lost = {reason: Amount.restore(amount) for reason, amount in state["lost"].items()}
        # Checkpoints of earlier releases lost single steps for their age alone.
        whole = sum(amount.num_trajectories for reason, amount in waste.lost.items() if reason != "masked")
        waste._num_lost = int(state.get("num_lost", whole))
        return waste


def bias(before: Steps, after: Steps) -> dict[str, float | None]:
    """Distance of ``after`` from ``before`` in lengths and families, 0..1; None when one of them is empty."""
    return {"length_ks": length_ks(before, after), "family_tv": family_tv(before, after)}


def mean_length(steps: Steps) -> float | None:
    """Mean length over trajectories, in steps; None of nothing."""
    num_trajectories = sum(_by_length(steps).values())
    return sum(steps.values()) / num_trajectories if num_trajectories else None


def length_ks(before: Steps, after: Steps) -> float | None:
    """Kolmogorov-Smirnov distance: the largest difference of the two cumulative shares of trajectories by length."""
    differences = _differences(_by_length(before), _by_length(after))
    return None if differences is None else max(abs(sum(differences[:end])) for end in range(1, len(differences) + 1))


def family_tv(before: Steps, after: Steps) -> float | None:
    """Total variation distance: half the sum of the differences of the families' shares of trajectories."""
    differences = _differences(_by_family(before), _by_family(after))
    return None if differences is None else sum(map(abs, differences)) / 2


def _differences(before: Mapping[Any, float], after: Mapping[Any, float]) -> list[float] | None:
    """Share before less share after, by ascending key; None when one of them is empty."""
    total_before, total_after = sum(before.values()), sum(after.values())
    if not total_before or not total_after:
        return None
    keys = sorted(before.keys() | after.keys())
    return [before.get(key, 0.0) / total_before - after.get(key, 0.0) / total_after for key in keys]


def _by_length(steps: Steps) -> dict[int, float]:
    """Trajectories by length."""
    found: dict[int, float] = defaultdict(float)
    for (_, length), number in steps.items():
        if number:
            found[length] += number / length
    return found


def _by_family(steps: Steps) -> dict[str, float]:
    """Trajectories by family."""
    found: dict[str, float] = defaultdict(float)
    for (family, length), number in steps.items():
        if number:
            found[family] += number / length
    return found


def _without(steps: Steps, parts: Iterable[Steps]) -> Counter[tuple[str, int]]:
    rest = Counter(steps)
    for part in parts:
        rest.subtract(part)
    return +rest


def _length_rows(submitted: Mapping[int, float], trained: Mapping[int, float]) -> list[list[float]]:
    """[length, trajectories submitted, trajectories trained], ascending."""
    return [[length, round(submitted[length], 3), round(trained.get(length, 0.0), 3)] for length in sorted(submitted)]
