"""The remaining budget of a run: the limits of the configuration applied to its state."""

from __future__ import annotations

from dataclasses import replace

from computerrl.common import log
from computerrl.common.config import RunConfig
from computerrl.learner.recipe import limits, recipe
from computerrl.learner.recipe.state import LoopState


class RunBudget:
    """Answers from `limits` for one run. Changes the state in two places: planned evaluations, and the pace of the newest one."""

    def __init__(self, config: RunConfig, state: LoopState, *, num_families: int) -> None:
        self._config = config
        self._recipe = config.learner.recipe
        self._state = state
        self._num_episodes_each = num_families * self._recipe.eval_rollouts_per_task
        """Episodes that one episode per family and its rollouts amount to."""

    def planned(self, phase: recipe.Phase) -> recipe.Phase:
        """``phase`` with as many evaluation episodes as the remaining time allows. The number is decided once per evaluation."""
        return replace(phase, orders=tuple(map(self._planned_order, phase.orders)))

    def _planned_order(self, order: recipe.OrderPlan) -> recipe.OrderPlan:
        if order.kind != "evaluation":
            return order
        wanted = order.num_per_family or 0
        number = self._state.planned.setdefault(order.order_id, self._num_per_family(order.order_id, wanted))
        if number < wanted:
            log.get_logger().warning("evaluation.shortened", phase=order.order_id, episodes_per_family=number, wanted=wanted)
        return replace(order, num_per_family=number)

    def _num_per_family(self, name: str, wanted: int) -> int:
        each = self._num_episodes_each
        return limits.planned_episodes(name, wanted, num_episodes_each=each, state=self._state, limits=self._recipe)

    @property
    def _num_evaluated_last(self) -> int:
        """Episodes of the last evaluation, as far as is known."""
        wanted = self._recipe.eval_episodes_per_family
        return self._num_episodes_each * self._num_per_family(recipe.EVAL_AFTER_RL, wanted)

    def evaluation_ends_s(self, name: str, *, began_s: float) -> float | None:
        """`LoopState.run_s` at which evaluation ``name`` ends with the episodes that it has; None: never."""
        return limits.evaluation_ends_s(name, self._state, self._recipe, began_s=began_s)

    def note_pace(self) -> None:
        """Measure the pace of the evaluation whose episodes have ended."""
        if self._state.ends_s:
            num_playing = self._config.actor.num_actors * self._config.actor.num_episodes
            self._state.pace = limits.pace(self._state.ends_s, num_playing=num_playing)

    def reason_to_end_rl(self) -> str:
        """The limit of RL that is reached, in words; empty when none is."""
        return limits.reason_to_end_rl(self._state, self._recipe, num_evaluated=self._num_evaluated_last)

    def rl_used(self) -> float:
        """Share of RL's budget that is spent, 0 to 1."""
        return limits.budget_used(self._state, self._recipe, num_evaluated=self._num_evaluated_last)

    def samples_of_round(self) -> int | None:
        """Steps of the next Entropulse round that RL's time has room for; None: not known yet."""
        return limits.samples_of_round(self._state, self._config.learner)

    def time_left_s(self) -> float | None:
        """Estimated seconds until the run's end, the last evaluation included; None while nothing is known."""
        return limits.time_left_s(self._state, self._recipe, num_evaluated=self._num_evaluated_last)
