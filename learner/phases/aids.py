"""Demonstrations for RL: ordered for training instances on which a whole group failed, and imitated by updates.

A group without a success has no signal for the algorithm. Its instance is demonstrated once (as in DAgger, arXiv 1011.0686, the
expert acts where the policy's own failures are), and updates imitate that beside the algorithm's loss while the family fails
(demonstration-augmented policy gradient, arXiv 1709.10087). The number of such demonstrations is limited.

Keeps its counts in `LoopState`: a resumed learner has the same demonstrations and orders no more than are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from computerrl.common import log
from computerrl.common.config import RunConfig
from computerrl.common.errors import OrderRefused
from computerrl.common.messages import TrajectoryGroup
from computerrl.learner.algorithms.base import TrainBatch
from computerrl.learner.contracts import Broker
from computerrl.learner.recipe import recipe
from computerrl.learner.recipe.state import LoopState
from computerrl.learner.supervised.pool import Pools, keep_demonstration


class Aids:
    """See the module's docstring."""

    def __init__(self, config: RunConfig, state: LoopState, *, families: Sequence[str], broker: Broker, pools: Pools) -> None:
        """Demonstrations that come go into `Pools.aids`. Where none may be ordered, updates imitate those of cloning."""
        self._config = config
        self._recipe = config.learner.recipe
        self._state = state
        self._families = families
        self._broker = broker
        self._pools = pools

    def keep(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Keep the demonstrations among ``groups``, whose outcome is being decided."""
        for group in groups:
            if group.kind != "demonstration":
                continue
            self._broker.close_order(group.order_id)
            for trajectory in group.trajectories:
                keep_demonstration(trajectory, self._pools.aids)

    def order(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Order demonstrations of those instances of ``groups`` on which all rollouts failed, as long as any are left."""
        for group in groups:
            task, ordered = group.task, self._state.aids
            if len(ordered) >= self._recipe.demos_of_failures or not self._recipe.num_demos(task.family):
                continue
            if not group.trajectories or any(trajectory.success for trajectory in group.trajectories):
                continue
            plan = recipe.aid(task)
            if plan.order_id in ordered:
                continue
            try:
                self._broker.place_order(plan.to_message(self._config, self._families, policy_version=self._state.policy_version))
            except OrderRefused:
                # It was ordered after the checkpoint that was resumed; its group came in once more, or will.
                log.get_logger().info("demonstration.known", order_id=plan.order_id)
            ordered.append(plan.order_id)

    def close(self) -> None:
        """RL pauses or ends: give up the demonstrations that were ordered and have not come."""
        self._state.old_orders += [order_id for order_id in self._state.aids if order_id not in self._state.old_orders]

    def add_to(self, batch: TrainBatch, *, update: int) -> TrainBatch:
        """``batch`` with the demonstrations that update number ``update`` imitates."""
        settings = self._recipe
        if not settings.demo_replay_steps:
            return batch
        pool = self._pools.aids if settings.demos_of_failures else self._pools.demonstrations
        failing = {name: success for name, success in self._state.latest_success.items() if success < settings.demo_replay_below}
        episodes = pool.draw(per_task=1, max_steps=settings.demo_replay_steps, salt=f"update-{update}", families=failing)
        steps = tuple(step for episode in episodes for step in episode.steps)
        return replace(batch, demonstrated=steps, demonstration_weight=settings.demo_replay_weight)
