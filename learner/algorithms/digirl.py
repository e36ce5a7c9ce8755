"""DigiRL: advantage-weighted regression with values of instructions and of steps (arXiv 2406.11896, section 4).

A step's advantage mixes the outcome and the next value: A_h = l^(H-h) R + (1 - l^(H-h)) (V(s_{h+1}) + r_h - V(s_h)) with
l = ``step_lambda`` and H steps. A trajectory's advantage is R - V(s_1): its outcome against the usual one of its instruction.
Steps above ``step_threshold`` of trajectories above ``instruction_threshold`` are trained by maximum likelihood (the hard filter
of the paper), all others not at all. The curriculum over instructions is `tasks.curriculum.name: success_band`.

Ours: one linear value head (`learner.model.head`) replaces two networks; it is read where a step begins, and at the first step
for the instruction. The value loss is the squared error, not cross-entropy. The release differs from the paper: no lambda, a
margin of 0.05 in place of the thresholds, and the return added to the advantage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from computerrl.learner.algorithms.base import FirstLook, LossBatch, TrainBatch
from computerrl.learner.algorithms.ppo import PPO, PPOOptions

if TYPE_CHECKING:
    import torch


class DigiRLOptions(PPOOptions):
    """`learner.algorithm.options` of digirl."""

    unused: ClassVar[frozenset[str]] = frozenset(
        {"negative_scale", "gamma", "length_alpha", "gae_lambda", "critic_lambda", "masks", "kl_cov"}
        | {"objective", "eps_low", "eps_high", "tv_limit"}
    )

    correction: Literal["decoupled", "tis", "icepop", "geometric", "none"] = "none"
    step_lambda: float = Field(0.5, ge=0, le=1)
    """l: weight of the outcome, which fades with the number of steps before the end."""
    step_threshold: float = Field(0.0)
    """Steps whose advantage is larger are trained."""
    instruction_threshold: float = Field(0.0)
    """Trajectories whose advantage is larger are trained."""


class DigiRL(PPO):
    """See the module's docstring."""

    options_model = DigiRLOptions
    options: DigiRLOptions
    normalises = False

    def sequence_targets(self, batch: TrainBatch, look: FirstLook, members: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """(1 for tokens of steps to imitate, else 0; the trajectory's outcome at the first token of each step, else NaN)."""
        assert look.values is not None
        values_h = np.array([look.values[i][0] for i in members], dtype=np.float64)
        rewards_h = np.array([batch.reward_S[i] for i in members], dtype=np.float64)
        chosen_h = self.chosen(rewards_h, values_h)
        advantages, targets = [], []
        for i, chosen in zip(members, chosen_h, strict=True):
            num_tokens = len(batch.samples[i].action_tokens)
            advantages += [float(chosen)] * num_tokens
            targets += [float(rewards_h.sum())] + [np.nan] * (num_tokens - 1)
        return np.array(advantages), np.array(targets)

    def chosen(self, rewards_h: np.ndarray, values_h: np.ndarray) -> np.ndarray:
        """[h] bool: steps of a trajectory that are imitated, from what they earned and the values where they began."""
        num_left_h = np.arange(len(rewards_h))[::-1]
        share_h = self.options.step_lambda**num_left_h
        outcome = rewards_h.sum()
        next_h = np.append(values_h[1:], 0.0)
        advantage_h = share_h * outcome + (1.0 - share_h) * (next_h + rewards_h - values_h)
        went_well = len(values_h) > 0 and outcome - values_h[0] > self.options.instruction_threshold
        return (advantage_h > self.options.step_threshold) & went_well

    def _surrogate(
        self, logprobs_M: torch.Tensor, proximal_M: torch.Tensor, batch: LossBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(log pi of what is imitated, no clip)."""
        import torch

        del proximal_M
        return batch.advantage_M * logprobs_M, torch.zeros_like(logprobs_M, dtype=torch.bool)
