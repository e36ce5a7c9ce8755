"""GiGPO: group-in-group policy optimization (arXiv 2505.10978). Credit for each step, from the states that rollouts share.

A = ``episode_weight`` * A_episode + ``step_weight`` * A_state. A_episode compares a trajectory's outcome with those of its group
(equation 3). A_state compares the discounted return of a step with those of all steps of the group that were taken in the same
state (equations 6 and 7); it is 0 in a state that was seen once. Both are (x - mean) / (std + delta).

    state A:  click(right) x 4, of which 2 succeed     An advantage of whole trajectories punishes the right clicks of the two
              click(wrong) x 4, all fail               failures. Here their mistakes in state B are punished, and the clicks not.
    state B:  type("x") x 2, both succeed
              done() x 2, both fail

With ``state: screen`` a state is what is on screen, whatever came before, as in the paper, whose anchor states are observations
without history. With ``state: prompt`` it is the whole prompt, history included, on which the policy really decided: a desktop
after equal actions shows equal prompts. A step whose screen is unknown shares its state with none.

Ours: with ``action_values``, equal actions in equal states share the mean of their returns, an estimate of Q(s, a). The
gradient of a batch stays the same. With ``negative_scale`` below 1, an action that fails more often than others is then not
reinforced for its few successes.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from computerrl.learner.algorithms.grpo import GRPO, GRPOOptions
from computerrl.learner.algorithms.step_table import StepTable
from computerrl.learner.objective.advantages import discounted_returns, group_advantages


class GiGPOOptions(GRPOOptions):
    """`learner.algorithm.options` of gigpo."""

    gamma: float = Field(0.95, gt=0, le=1)
    """Discount of a step in a step's return."""
    episode_weight: float = Field(1.0, ge=0)
    """Weight of A_episode (1 in the paper)."""
    step_weight: float = Field(1.0, ge=0)
    """Weight of A_state (the paper's omega)."""
    state: Literal["prompt", "screen"] = "prompt"
    """What steps of a group must share to be compared: the prompt, or the screen (the paper's)."""
    action_values: bool = False
    """Steps with equal actions in equal states share the mean of their returns (ours)."""


class GiGPO(GRPO):
    """See the module's docstring."""

    options_model = GiGPOOptions
    options: GiGPOOptions

    def advantages(self, rewards_n: np.ndarray, table: StepTable) -> np.ndarray:
        """[n] of the episode plus of the state."""
        options, delta = self.options, self.options.advantage_delta
        # A penalty is due at its step, and is not discounted.
        returns_n = discounted_returns(np.maximum(rewards_n, 0.0), table.steps_left_n, gamma=options.gamma)
        returns_n += np.minimum(rewards_n, 0.0)
        advantage_n = np.zeros(len(table))
        for group in np.unique(table.group_n):
            members = np.flatnonzero(table.group_n == group)
            owners, owner_of = np.unique(table.trajectory_n[members], return_inverse=True)
            outcomes = table.earned_T[owners]
            advantage_n[members] = options.episode_weight * group_advantages(outcomes, delta=delta)[owner_of]
            for same in self._same_states(members, table):
                values = _action_values(same, returns_n, table) if options.action_values else returns_n[same]
                advantage_n[same] += options.step_weight * group_advantages(values, delta=delta)
        return advantage_n

    def _same_states(self, members: np.ndarray, table: StepTable) -> list[np.ndarray]:
        """``members``, steps of one group, by the state in which each was taken."""
        found: dict[bytes | str, list[int]] = {}
        for place in members:
            step = table.steps[place]
            screen = step.state or f"step {place}"
            found.setdefault(screen if self.options.state == "screen" else step.prompt_tokens.tobytes(), []).append(int(place))
        return [np.array(steps) for steps in found.values()]


def _action_values(same: np.ndarray, returns_n: np.ndarray, table: StepTable) -> np.ndarray:
    """[len(same)] mean return of the steps of ``same`` that hold the same action."""
    found: dict[bytes, list[int]] = {}
    for place, step in enumerate(same):
        found.setdefault(table.steps[step].action_tokens.tobytes(), []).append(place)
    values = np.zeros(len(same))
    for places in found.values():
        values[places] = returns_n[same[places]].mean()
    return values
