"""An algorithm of your own: GRPO in which tasks that mostly fail count more.

    computerrl train quickstart learner.algorithm.name=examples.hard_tasks:HardTasks name=hard-tasks

A step's advantage is GRPO's times the share of its task's rollouts that failed: a success of a task that fails in 7 of 8 rollouts
counts seven times as much as one of a task that fails in 1 of 8. README.md shows this class; a test trains with it.
"""

from __future__ import annotations

import numpy as np

from computerrl.learner.algorithms import GRPO, StepTable


class HardTasks(GRPO):
    """See the module's docstring. Constructor (options, learner), losses and corrections are GRPO's."""

    def advantages(self, rewards_n: np.ndarray, table: StepTable) -> np.ndarray:
        """[n] advantage of each step of the batch, from the reward of each step."""
        failed_n = 1.0 - table.success_n
        share_n = table.per_group(lambda failed, _: np.full(len(failed), failed.mean()), failed_n)
        return super().advantages(rewards_n, table) * share_n
