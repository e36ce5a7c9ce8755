"""ARPO: a group that failed gets one of the task's earlier successes (arXiv 2505.16282, section 3.3).

The last ``memory_size`` successful rollouts of each task are kept. When the rewards of a group hardly differ and are low (std
below ``replay_std``, mean below ``replay_mean``), a stored success replaces one of its rollouts before advantages are computed,
so that the group has a signal. Clip 0.2 and 0.3, no KL.

Ours: a task's memory is its family's. The success is drawn at random from the memory (seeded by the run's seed and the number of
the update). It replaces the last rollout that failed. Samples are steps, not whole trajectories. The correction is the decoupled
one of `grpo`; for an old success it is bounded and applied token by token, so it does not account for states that have become
rarer since. The release differs: dual clip 3 (`dual_clip`), a mean over tokens, the success takes the first place, and its
log-probs are recomputed, so that nothing corrects its age.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from computerrl.common.messages import Trajectory
from computerrl.learner.algorithms.replaying import ReplayingGRPO, ReplayingOptions


class ARPOOptions(ReplayingOptions):
    """`learner.algorithm.options` of arpo."""

    eps_high: float = Field(0.3, gt=0)
    replay_std: float = Field(0.05, ge=0)
    """A group's rewards differ less than this ..."""
    replay_mean: float = Field(0.2, ge=0, le=1)
    """... and are lower than this on average: one is replaced."""


class ARPO(ReplayingGRPO):
    """See the module's docstring."""

    options_model = ARPOOptions
    options: ARPOOptions

    def replay(
        self, trajectories: tuple[Trajectory, ...], kept: tuple[Trajectory, ...], rng: np.random.Generator
    ) -> tuple[Trajectory, ...]:
        """A failed group's rollouts with a success in place of the last one that failed."""
        rewards = [float(one.success) for one in trajectories]
        if not rewards or np.std(rewards) >= self.options.replay_std or np.mean(rewards) >= self.options.replay_mean:
            return trajectories
        gone = max(number for number, one in enumerate(trajectories) if not one.success)
        return (*trajectories[:gone], *trajectories[gone + 1 :], kept[rng.integers(len(kept))])
