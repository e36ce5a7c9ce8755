"""Milestones: what an episode has brought about of its task, as a potential that shapes rewards.

    reward of step j      Phi(s_j+1) - Phi(s_j), with Phi = share of the facts to be changed that are as wanted (`Step.progress`)
    return from step j    Phi(s_T) - Phi(s_j): the sum telescopes, so a fact that is brought about and undone pays nothing

Sources: potential-based shaping, Ng, Harada and Russell 1999 ("Policy Invariance under Reward Transformations", theorem 1), with
discount 1; key nodes of web tasks, WebCanvas (arXiv 2406.12373). Facts are those that a family's own evaluator compares.

The theorem asks for Phi = 0 after the end of an episode. Then shaping is a baseline of each state and changes no expected
gradient: ``terminal: zero``. With ``terminal: kept``, the default, the episode keeps the potential of its last state, so a group
in which all fail has a signal. Every success ends with Phi = 1, the highest, so what succeeds for sure stays optimal. Between
policies that both fail at times, a larger weight prefers more facts to more successes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from computerrl.common.config.base import Section
from computerrl.common.messages import Trajectory
from computerrl.learner.rewards.base import Reward, RewardSetting, RewardUnknown


class MilestonesOptions(Section):
    """`options` of the reward milestones."""

    terminal: Literal["kept", "zero"] = "kept"
    """Potential after the last action: that of the last state, or 0 as in the theorem."""


class Milestones(Reward):
    """See the module's docstring."""

    wants_facts = True

    def __init__(self, options: Mapping[str, Any], setting: RewardSetting) -> None:
        super().__init__(options, setting)
        self._options = MilestonesOptions.model_validate(dict(options))

    @property
    def may_be_alone(self) -> bool:
        return False

    def score(self, trajectory: Trajectory) -> float:
        """Sum of the rewards of all steps. Raises `RewardUnknown`."""
        first, *_, last = self._potentials(trajectory)
        return last - first

    def earned_before(self, trajectory: Trajectory) -> list[float]:
        """See `Reward`."""
        first, *others = self._potentials(trajectory)
        return [potential - first for potential in (first, *others[:-1])]

    def _potentials(self, trajectory: Trajectory) -> list[float]:
        """Of the state before each step, and after the last one. Raises `RewardUnknown` where a fact was not counted."""
        if not trajectory.steps:
            raise RewardUnknown("no_steps")
        shares = [*(step.progress for step in trajectory.steps), trajectory.progress]
        known = [share for share in shares if share is not None]
        if len(known) < len(shares):
            raise RewardUnknown(f"no_facts_{trajectory.task.family}")
        return [*known[:-1], 0.0] if self._options.terminal == "zero" else known
