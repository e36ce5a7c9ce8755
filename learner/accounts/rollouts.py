"""Rollout phases, which train nothing: what comes of the groups of demonstration and evaluation orders.

Keeps its books in `LoopState`. Takes no groups and places no orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from computerrl.common import log
from computerrl.common.messages import Trajectory, TrajectoryGroup
from computerrl.learner.accounts.ledger import Outcome
from computerrl.learner.accounts.records import Records
from computerrl.learner.recipe import orders
from computerrl.learner.recipe import phases as recipe
from computerrl.learner.recipe.state import LoopState
from computerrl.learner.supervised.pool import EpisodePool


class Rollouts:
    """Tallies results by order, keeps demonstrations, writes down evaluations that are complete."""

    def __init__(self, state: LoopState, *, families: Sequence[str], records: Records, demonstrations: EpisodePool) -> None:
        """``demonstrations``: where successful ones go."""
        self._state = state
        self._families = families
        self._records = records
        self._demonstrations = demonstrations

    def num_missing(self, order: recipe.OrderPlan) -> int:
        """Episodes of ``order`` that have not come in."""
        tally = self._state.tallies[order.order_id]
        return self._num_ordered(order) - tally.num_episodes - tally.num_given_up

    def _num_ordered(self, order: recipe.OrderPlan) -> int:
        return (order.num_per_family or 0) * len(order.families or self._families) * order.group_size

    def progress(self, phase: recipe.Phase) -> str:
        """How far the orders of ``phase`` are, in a few words; empty where it orders no certain number."""
        parts = []
        for order in phase.orders:
            ordered, tally = self._num_ordered(order), self._state.tallies.get(order.order_id)
            if ordered and tally is not None:
                done = f"{ordered - self.num_missing(order)} of {ordered} episodes"
                parts.append(f"{order.order_id}: {done}, success {tally.success:.3f}")
        return "; ".join(parts)

    def take(self, group: TrajectoryGroup, phase: recipe.Phase) -> Outcome:
        """Count ``group`` in; gives what becomes of its trajectories."""
        name = orders.plan_id(group.order_id)
        tally = self._state.tallies.get(name) if group.order_id in self._state.orders else None
        if tally is None:
            return "phase_closed"
        tally.num_given_up += group.num_given_up
        for trajectory in group.trajectories:
            tally.add(trajectory.task.family, success=trajectory.success)
            if group.kind == "demonstration":
                keep_demonstration(trajectory, self._demonstrations)
        order = next((order for order in phase.orders if order.order_id == name), None)
        if order is not None and order.kind == "evaluation" and not self.num_missing(order):
            self._record_evaluation(order)
        return "demonstrated" if group.kind == "demonstration" else "evaluated"

    def cut(self, phase: recipe.Phase) -> None:
        """End the evaluations of ``phase`` with the episodes that came in."""
        for order in phase.orders:
            is_open = order.kind == "evaluation" and order.order_id not in self._state.evaluations
            if is_open and self._state.tallies[order.order_id].num_episodes:
                self._record_evaluation(order)

    def _record_evaluation(self, order: recipe.OrderPlan) -> None:
        tally = self._state.tallies[order.order_id]
        families = {name: {"successes": s, "episodes": n} for name, (s, n) in sorted(tally.families.items())}
        result: dict[str, Any] = {"success": tally.success, "families": families, "policy_version": self._state.policy_version}
        if tally.num_given_up:
            result["num_given_up"] = tally.num_given_up
        if self.num_missing(order):
            result["num_cut_off"] = self.num_missing(order)
        self._state.evaluations[order.order_id] = result
        self._records.event("evaluation", phase=order.order_id, **result)
        log.get_logger().info("evaluation.done", phase=order.order_id, success=round(tally.success, 3))


def keep_demonstration(trajectory: Trajectory, pool: EpisodePool) -> None:
    """Add ``trajectory`` to ``pool`` when it succeeded; say so when it did not."""
    if trajectory.success:
        pool.add(trajectory)
    else:
        log.get_logger().warning("demonstration.failed", task=trajectory.task.task_id, end_reason=trajectory.end_reason)
