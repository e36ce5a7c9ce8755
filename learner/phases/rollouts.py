"""Rollout phases, which train nothing: the groups of demonstration and evaluation orders are counted until all have come.

Keeps its counts in `LoopState`. Places no orders.
"""

from __future__ import annotations

from typing import Any

from computerrl.common import log
from computerrl.common.errors import ResumeError
from computerrl.common.messages import TrajectoryGroup
from computerrl.learner.accounts.books import Books
from computerrl.learner.accounts.ledger import Outcome
from computerrl.learner.checkpoints.checkpoint import trainer_state
from computerrl.learner.contracts import Neighbours
from computerrl.learner.phases.versions import PolicyVersions
from computerrl.learner.phases.work import Ended, PhaseTimer, Tick
from computerrl.learner.recipe import orders, recipe
from computerrl.learner.recipe.budget import RunBudget
from computerrl.learner.recipe.state import LoopState, Tally
from computerrl.learner.supervised.pool import EpisodePool, keep_demonstration


class RolloutTallies:
    """Results of the orders of a phase: tallies, kept demonstrations, and the lines of evaluations that are complete."""

    def __init__(self, phase: recipe.Phase, books: Books, *, families: tuple[str, ...], demonstrations: EpisodePool) -> None:
        """``families``: those of the run. ``demonstrations``: the pool of successful ones."""
        self._orders = phase.orders
        self._state = books.state
        self._records = books.records
        self._families = families
        self._demonstrations = demonstrations

    def num_missing(self, order: recipe.OrderPlan) -> int:
        """Episodes of ``order`` that have not come in."""
        tally = self._state.tallies[order.order_id]
        return self._num_ordered(order) - tally.num_episodes - tally.num_given_up

    def is_any_missing(self, kind: str | None = None) -> bool:
        """Is any order, or any order of ``kind``, incomplete?"""
        return any(self.num_missing(order) for order in self._orders if kind is None or order.kind == kind)

    def _num_ordered(self, order: recipe.OrderPlan) -> int:
        return (order.num_per_family or 0) * len(order.families or self._families) * order.group_size

    def progress(self) -> str:
        """Progress of the orders, in a few words."""
        parts = []
        for order in self._orders:
            ordered, tally = self._num_ordered(order), self._state.tallies.get(order.order_id)
            if ordered and tally is not None:
                done = f"{ordered - self.num_missing(order)} of {ordered} episodes"
                parts.append(f"{order.order_id}: {done}, success {tally.success:.3f}")
        return "; ".join(parts)

    def add(self, group: TrajectoryGroup) -> Outcome:
        """Count ``group``; returns the outcome of its trajectories."""
        name = orders.plan_id(group.order_id)
        tally = self._state.tallies.get(name) if group.order_id in self._state.orders else None
        if tally is None:
            return "phase_closed"
        tally.num_given_up += group.num_given_up
        for trajectory in group.trajectories:
            is_off = trajectory.end_reason == "off_demonstration"
            tally.add(trajectory.task.family, success=trajectory.success, is_off_demonstration=is_off)
            if group.kind == "demonstration":
                keep_demonstration(trajectory, self._demonstrations)
        order = next((order for order in self._orders if order.order_id == name), None)
        if order is not None and not self.num_missing(order):
            if order.kind == "evaluation":
                self._record_evaluation(order)
            else:
                self._record_demonstrations(order)
        return "demonstrated" if group.kind == "demonstration" else "evaluated"

    def cut(self) -> None:
        """End the evaluations with the episodes that came in."""
        for order in self._orders:
            is_open = order.kind == "evaluation" and order.order_id not in self._state.evaluations
            if is_open and self._state.tallies[order.order_id].num_episodes:
                self._record_evaluation(order)

    def _record_evaluation(self, order: recipe.OrderPlan) -> None:
        tally = self._state.tallies[order.order_id]
        families = _by_family(tally)
        result: dict[str, Any] = {
            "success": tally.success,
            "families": families,
            "policy_version": self._state.policy_version,
            "split": order.split,
        }
        if tally.num_given_up:
            result["num_given_up"] = tally.num_given_up
        if self.num_missing(order):
            result["num_cut_off"] = self.num_missing(order)
        self._state.evaluations[order.order_id] = result
        self._records.event("evaluation", phase=order.order_id, **result)
        log.get_logger().info("evaluation.done", phase=order.order_id, success=round(tally.success, 3))

    def _record_demonstrations(self, order: recipe.OrderPlan) -> None:
        tally = self._state.tallies[order.order_id]
        result = {"success": tally.success, "families": _by_family(tally), "off_demonstration": tally.off_demonstration}
        self._records.event("demonstrations", phase=order.order_id, **result)
        if tally.off_demonstration:
            log.get_logger().warning("demonstrations.unsayable", phase=order.order_id, families=tally.off_demonstration)


def _by_family(tally: Tally) -> dict[str, dict[str, int]]:
    return {name: {"successes": s, "episodes": n} for name, (s, n) in sorted(tally.families.items())}


class RolloutWork:
    """Takes groups until all episodes of the phase's orders have come, or the evaluation's time is up."""

    def __init__(
        self,
        phase: recipe.Phase,
        books: Books,
        *,
        tallies: RolloutTallies,
        budget: RunBudget,
        timer: PhaseTimer,
        round_check: RoundCheck,
    ) -> None:
        self._phase = phase
        self._state = books.state
        self._intake = books.intake
        self._tallies = tallies
        self._budget = budget
        self._timer = timer
        self._round_check = round_check
        self.note = tallies.progress() or phase.name

    def tick(self) -> Tick:
        """Count one group, or end the phase."""
        if not self._tallies.is_any_missing():
            self._budget.note_pace()
            if recipe.is_check_after(self._phase.name):
                self._round_check.decide(self._phase.name)
            return Ended(f"{' and '.join(order.order_id for order in self._phase.orders)} complete")
        if self._is_overdue():
            self._budget.note_pace()
            self._tallies.cut()
            return Ended(f"time for {self._phase.name} is up ({self._state.run_s:.0f} s)")
        group = self._intake.fetch()
        if group is None:
            return False
        self._intake.decide_all([group], self._tallies.add(group))
        if group.kind == "evaluation":
            self._state.ends_s += [self._state.run_s - self._timer.began_s] * len(group.trajectories)
        self.note = self._tallies.progress()
        return True

    def close(self) -> bool:
        return self._tallies.is_any_missing()

    def _is_overdue(self) -> bool:
        if self._phase.name not in recipe.EVALUATIONS:
            return False
        ends_s = self._budget.evaluation_ends_s(self._phase.name, began_s=self._timer.began_s)
        return ends_s is not None and self._state.run_s >= ends_s and not self._tallies.is_any_missing("demonstration")


class RoundCheck:
    """Compares the evaluations before and after an Entropulse round, and takes a harmful round back."""

    def __init__(self, around: Neighbours, books: Books, *, versions: PolicyVersions) -> None:
        self._around = around
        self._state: LoopState = books.state
        self._records = books.records
        self._versions = versions

    def decide(self, name: str) -> None:
        """Restore the weights from before the round when fewer episodes of check ``name`` succeeded than before it."""
        evaluations, trainer = self._state.evaluations, self._around.trainer
        before, after = evaluations[recipe.check_before(name)]["success"], evaluations[name]["success"]
        number, self._state.before_round = self._state.before_round, None
        taken_back = False
        if after < before and number is not None:
            try:
                trainer.load_state_dict(trainer_state(self._around.checkpoints.read(number)))
                taken_back = True
            except ResumeError as error:
                # Newer checkpoints, made because a person asked, have taken its place.
                log.get_logger().error("round.not_taken_back", checkpoint=number, error=str(error))
        if taken_back:
            trainer.set_reference()
            self._versions.advance(publish=True)
        log.get_logger().info("round.checked", phase=name, before=before, after=after, taken_back=taken_back)
        self._records.event("round", phase=name, before=before, after=after, taken_back=taken_back)
