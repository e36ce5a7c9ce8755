"""Demonstrations for RL: of training instances on which a whole group failed, and what updates imitate.

A group that fails altogether says nothing to the algorithm. Its instance is demonstrated once (as in DAgger, arXiv 1011.0686, the
expert shows what to do where the policy's own failures are), and updates imitate that beside the algorithm's loss while the
family fails (demonstration-augmented policy gradient, arXiv 1709.10087). The number of such demonstrations is limited.

Keeps its books in `LoopState`: who resumes has the same demonstrations and asks for no more than are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from computerrl.common import log
from computerrl.common.config import RunConfig
from computerrl.common.errors import OrderRefused
from computerrl.common.messages import TrajectoryGroup
from computerrl.learner.accounts.rollouts import keep_demonstration
from computerrl.learner.algorithms.base import TrainBatch
from computerrl.learner.contracts import Broker
from computerrl.learner.recipe import phases as recipe
from computerrl.learner.recipe.state import LoopState
from computerrl.learner.supervised.pool import EpisodePool


class Aids:
    """See the module's docstring."""

    def __init__(
        self,
        config: RunConfig,
        state: LoopState,
        *,
        families: Sequence[str],
        broker: Broker,
        cloned: EpisodePool,
        pool: EpisodePool,
    ) -> None:
        """``cloned``: what cloning trained on, imitated where none may be asked for; ``pool``: where those asked for go."""
        self._config = config
        self._recipe = config.learner.recipe
        self._state = state
        self._families = families
        self._broker = broker
        self._cloned = cloned
        self._pool = pool

    def keep(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Take the demonstrations among ``groups``, whose fate is being decided."""
        for group in groups:
            if group.kind != "demonstration":
                continue
            self._broker.close_order(group.order_id)
            for trajectory in group.trajectories:
                keep_demonstration(trajectory, self._pool)

    def ask(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Order demonstrations of those instances of ``groups`` on which all rollouts failed, as long as any are left."""
        for group in groups:
            task, asked = group.task, self._state.aids
            if len(asked) >= self._recipe.demos_of_failures or not self._recipe.num_demos(task.family):
                continue
            if not group.trajectories or any(trajectory.success for trajectory in group.trajectories):
                continue
            plan = recipe.aid(task)
            if plan.order_id in asked:
                continue
            try:
                self._broker.place_order(plan.to_message(self._config, self._families, policy_version=self._state.policy_version))
            except OrderRefused:
                # Played before a checkpoint was resumed that does not know of it; its group came in once more, or will.
                log.get_logger().info("demonstration.known", order_id=plan.order_id)
            asked.append(plan.order_id)

    def close(self) -> None:
        """RL ends for now: what was asked for and has not come in is given up."""
        self._state.old_orders += [order_id for order_id in self._state.aids if order_id not in self._state.old_orders]

    def add_to(self, batch: TrainBatch, *, update: int) -> TrainBatch:
        """``batch`` and the demonstrations that update number ``update`` imitates."""
        settings = self._recipe
        if not settings.demo_replay_steps:
            return batch
        pool = self._pool if settings.demos_of_failures else self._cloned
        failing = {name: success for name, success in self._state.latest_success.items() if success < settings.demo_replay_below}
        episodes = pool.draw(per_task=1, max_steps=settings.demo_replay_steps, salt=f"update-{update}", families=failing)
        steps = tuple(step for episode in episodes for step in episode.steps)
        return replace(batch, demonstrated=steps, demonstration_weight=settings.demo_replay_weight)
