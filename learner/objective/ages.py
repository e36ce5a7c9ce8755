"""The age of sampled tokens: how many updates lie between the weights that sampled a token and the weights being trained. Pure.

Without a restart the age is the difference of two policy versions. A learner that resumes from a checkpoint discards versions, so
ages are differences of positions along the lineage (`learner.recipe.lineage` draws the picture).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from computerrl.common.messages import Step


@dataclass(frozen=True, slots=True)
class PolicyAges:
    """Ages as seen from the weights being trained. `PolicyAges(9)`: those have policy version 9, and no learner was restarted."""

    version: int
    """Policy version of the weights being trained."""
    restart_versions: tuple[int, ...] = ()
    """First policy version after each restart, ascending."""
    restart_positions: tuple[int, ...] = ()
    """Position of each of ``restart_versions`` along the lineage."""

    @property
    def position(self) -> int:
        """Position of the weights being trained. A resumed run comes to the same positions again, so draws are seeded by it."""
        return int(self.positions(np.array([self.version]))[0])

    def positions(self, versions: np.ndarray) -> np.ndarray:
        """[n] int64 positions along the lineage of ``versions`` [n] int."""
        versions = versions.astype(np.int64)
        if not self.restart_versions:
            return versions
        restart = np.searchsorted(self.restart_versions, versions, side="right")
        firsts, positions = np.array((0, *self.restart_versions)), np.array((0, *self.restart_positions))
        return positions[restart] + versions - firsts[restart]

    def of(self, step: Step) -> np.ndarray:
        """[tokens] int64: age of each action token of ``step``, in updates. Negative where discarded weights sampled it that were
        more updates on than those being trained."""
        return self.position - self.positions(step.policy_versions)

    def oldest(self, step: Step) -> int:
        """Age of the oldest action token of ``step``, at least 0. A step without policy versions is older than any other."""
        return max(0, int(self.of(step).max()) if step.policy_versions.size else self.position + 1)
