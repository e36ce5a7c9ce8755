"""The outcome of every trajectory: trained in which update, or not and why; one line each along the surviving lineage.

The file is append-only; a checkpoint remembers its length and the counters, and a resumed learner goes on from there, since
everything after will be delivered and recorded again. Counts and bounds live in memory; lines are only for people and
tests. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from computerrl.common.messages import Trajectory
from computerrl.learner.accounts.waste import Waste
from computerrl.learner.algorithms.base import LeftOut
from computerrl.learner.poison import POISONS, Poison
from computerrl.learner.recipe.orders import plan_id

Outcome = Literal["trained", "demonstrated", "evaluated", "skipped", "too_old", "phase_closed"] | LeftOut | Poison
"""`trained`: at least one of its steps was in the loss of an optimizer step. `skipped`: that optimizer step was not done, for its
gradients were not finite. `no_signal`: none of its steps had an advantage, as when all rollouts of its group scored the same; it
moved the statistics, not the weights. `not_chosen`: its algorithm left it out, for others of its group or out of a
memory. `too_sure`: the policy was so sure of its steps that its algorithm left them out. `too_old`: every step was older than
`max_age`. `phase_closed`: its phase had ended. `demonstrated` / `evaluated`: it served its order's purpose. A `Poison`: it was
not what a policy of this run can have sampled."""

DROPS: tuple[Outcome, ...] = (*get_args(LeftOut), "skipped", "too_old", "phase_closed", *POISONS)
"""Outcomes of training trajectories that were not trained."""


@dataclass(frozen=True, slots=True)
class AgeSpan:
    """Policy ages of a trajectory's steps when it was consumed."""

    minimum: int
    maximum: int
    num_masked: int
    """Steps older than `max_age`, out of the loss."""
    num_tokens_masked: int
    """Action tokens in them."""
    left_out: Mapping[LeftOut, tuple[int, int]] = field(default_factory=dict)
    """Reason -> (steps, their action tokens) that the algorithm left out."""


class Ledger:
    """Counts the outcomes of all trajectories that the learner took."""

    def __init__(self, append: Callable[[Mapping[str, Any]], None]) -> None:
        """``append`` writes one line."""
        self._append = append
        self._counts: dict[str, int] = {}
        self._max_age_trained = 0
        self._num_steps_masked = 0
        self.waste = Waste()
        """Training trajectories that were taken and lost, and the bias of the rest."""

    def record(
        self, trajectory: Trajectory, outcome: Outcome, *, group_seq: int, update: int, policy_version: int, ages: AgeSpan | None
    ) -> None:
        """Record the ``outcome`` of ``trajectory``. ``ages``: for training trajectories that reached an update."""
        self._counts[outcome] = self._counts.get(outcome, 0) + 1
        line: dict[str, Any] = {
            "trajectory_id": trajectory.trajectory_id,
            "group_seq": group_seq,
            "outcome": outcome,
            "phase": plan_id(trajectory.order_id),
            "update": update,
            "policy_version": policy_version,
            "num_steps": len(trajectory.steps),
            "success": trajectory.success,
        }
        if ages is not None:
            line |= {"age_min": ages.minimum, "age_max": ages.maximum, "steps_masked": ages.num_masked}
            self._num_steps_masked += ages.num_masked
            if ages.left_out:
                line["steps_left_out"] = {reason: num_steps for reason, (num_steps, _) in ages.left_out.items()}
        self._append(line)
        if trajectory.kind == "training":
            self._count(trajectory, outcome, ages)

    def _count(self, trajectory: Trajectory, outcome: Outcome, ages: AgeSpan | None) -> None:
        family, length = trajectory.task.family, len(trajectory.steps)
        num_tokens = sum(len(step.action_tokens) for step in trajectory.steps)
        self.waste.take(family=family, length=length, num_tokens=num_tokens)
        if outcome in DROPS:
            self.waste.lose(outcome, family=family, length=length, num_steps=length, num_tokens=num_tokens)
        elif ages is not None:
            masked = (ages.num_masked, ages.num_tokens_masked)
            for reason, (steps, tokens) in [("masked", masked), *ages.left_out.items()]:
                if steps:
                    self.waste.lose(reason, family=family, length=length, num_steps=steps, num_tokens=tokens)

    def note_age_trained(self, age: int) -> None:
        """A step of this age was trained."""
        self._max_age_trained = max(self._max_age_trained, age)

    @property
    def counts(self) -> dict[str, int]:
        """Trajectories by outcome."""
        return dict(self._counts)

    @property
    def num_taken(self) -> int:
        """All trajectories consumed."""
        return sum(self._counts.values())

    @property
    def drops(self) -> dict[str, int]:
        """Trajectories that were not trained, by outcome."""
        return {outcome: self._counts[outcome] for outcome in DROPS if outcome in self._counts}

    @property
    def max_age_trained(self) -> int:
        """Oldest step that was ever trained."""
        return self._max_age_trained

    @property
    def num_steps_masked(self) -> int:
        """Steps kept out of the loss for their age."""
        return self._num_steps_masked

    def num_lost(self, counters: Mapping[str, int]) -> int:
        """Trajectories the broker delivered that are not recorded here; 0 once everything delivered has been decided.

        What the broker acknowledged is delivered, held or dropped by name there (its own invariant), so this closes the balance.
        """
        return max(0, counters.get("delivered", 0) - self.num_taken)

    def state(self) -> dict[str, Any]:
        """JSON-ready; `restore` takes it back."""
        return {
            "counts": self.counts,
            "max_age_trained": self._max_age_trained,
            "num_steps_masked": self._num_steps_masked,
            "waste": self.waste.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self._counts = dict(state["counts"])
        self._max_age_trained = int(state["max_age_trained"])
        self._num_steps_masked = int(state["num_steps_masked"])
        self.waste = Waste.restore(state["waste"])
