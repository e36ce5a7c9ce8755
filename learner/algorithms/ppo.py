"""PPO with a value function and length-adaptive, decoupled GAE (UI-TARS-2, arXiv 2509.02544, section 3; VAPO, arXiv 2504.05118).

All action tokens of a trajectory are one sequence, which earns its reward at its end. Advantages use
lambda = 1 - 1 / (``length_alpha`` * number of tokens): the longer a trajectory, the farther back its end counts. Value targets
use lambda 1, so that they are not biased by the values themselves. Advantages are normalised over the tokens of the batch. Groups
have no role: ``learner.group_size`` may be 2.

Ours: the value function is linear in the policy's last hidden state (`learner.model.head`). Badly formed steps lose
``format_penalty`` at their last token, and a success counts only when its last step is well formed. Steps too old to train are
left out of the sequence, which keeps its success. The correction is the decoupled one of `grpo`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field

from computerrl.common.config import LearnerConfig
from computerrl.learner.algorithms.base import FirstLook, LossBatch, LossResult, PolicyOutputs, TrainBatch
from computerrl.learner.algorithms.grpo import GRPO, GRPOOptions
from computerrl.learner.algorithms.step_table import StepTable
from computerrl.learner.objective.advantages import generalised_advantages, length_adaptive_lambda
from computerrl.learner.objective.aggregation import Aggregation

if TYPE_CHECKING:
    import torch


class PPOOptions(GRPOOptions):
    """`learner.algorithm.options` of ppo."""

    unused: ClassVar[frozenset[str]] = frozenset({"negative_scale"})

    aggregation: Aggregation = "token_mean"
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount of a token."""
    length_alpha: float | None = Field(0.05, gt=0)
    """lambda = 1 - 1 / (this * tokens of the trajectory), at least 0; None: lambda is ``gae_lambda`` for all."""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """lambda of advantages when it does not adapt."""
    critic_lambda: float = Field(1.0, ge=0, le=1)
    """lambda of value targets."""
    value_coefficient: float = Field(0.5, gt=0)
    """Weight of the squared error of the values."""
    value_lr: float = Field(0.02, gt=0)
    """Learning rate of the value head (ours)."""


class PPO(GRPO):
    """See the module's docstring. `vtrace` and `digirl` differ in `sequence_targets`."""

    options_model: type[PPOOptions] = PPOOptions
    options: PPOOptions
    normalises = True
    """Are advantages normalised over the tokens of the batch?"""
    wants_look = True

    def __init__(self, options: Mapping[str, Any], learner: LearnerConfig) -> None:
        super().__init__(options, learner)
        self.value_lr = self.options.value_lr

    def rewards(self, table: StepTable) -> np.ndarray:
        """[n] success at the last step of a trajectory that trains, penalties wherever a step is badly formed."""
        rewards_n = np.where(table.format_n, 0.0, super().rewards(table))
        last_n = np.append(table.trajectory_n[1:] != table.trajectory_n[:-1], True)[: len(table)]
        earned_T = np.bincount(
            table.trajectory_n, weights=table.earned_n * (table.format_n & last_n), minlength=len(table.trajectories)
        )
        # A last step that is too old is left out of the sequence, and not what the trajectory earned.
        trained = np.flatnonzero(self.may_train(table))[::-1]
        owners, first = np.unique(table.trajectory_n[trained], return_index=True)
        rewards_n[trained[first]] += earned_T[owners]
        return rewards_n

    def advantages(self, rewards_n: np.ndarray, table: StepTable) -> np.ndarray:
        """[n] none yet, but every step has a say: see `refine`."""
        del rewards_n
        return np.ones(len(table))

    def refine(self, batch: TrainBatch, look: FirstLook) -> TrainBatch:
        """``batch`` with an advantage and a value target for each token."""
        assert look.values is not None
        advantages: list[np.ndarray] = [np.zeros(0)] * len(batch.samples)
        targets: list[np.ndarray] = [np.zeros(0)] * len(batch.samples)
        for trajectory in np.unique(batch.trajectory_S):
            members = np.flatnonzero(batch.trajectory_S == trajectory).tolist()
            ends = np.cumsum([len(batch.samples[i].action_tokens) for i in members])
            advantages_t, targets_t = self.sequence_targets(batch, look, members)
            for i, advantage, target in zip(members, np.split(advantages_t, ends), np.split(targets_t, ends), strict=False):
                advantages[i], targets[i] = advantage, target
        flat = np.concatenate(advantages)
        mean, scale = (flat.mean(), flat.std() + self.options.advantage_delta) if self.normalises else (0.0, 1.0)
        refined = replace(
            batch,
            token_advantages=tuple(((one - mean) / scale).astype(np.float32) for one in advantages),
            value_targets=tuple(one.astype(np.float32) for one in targets),
            metrics={**batch.metrics, "value_mean": float(np.concatenate(look.values).mean())},
        )
        return super().refine(refined, look)

    def sequence_targets(self, batch: TrainBatch, look: FirstLook, members: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """(advantages, value targets) of the tokens of one trajectory, whose steps are ``members``."""
        assert look.values is not None
        options = self.options
        values_t = np.concatenate([look.values[i] for i in members]).astype(np.float64)
        rewards_t = token_rewards(batch, members)
        lam = options.gae_lambda
        if options.length_alpha is not None:
            lam = length_adaptive_lambda(len(values_t), alpha=options.length_alpha)
        advantages_t = generalised_advantages(rewards_t, values_t, gamma=options.gamma, lam=lam)
        targets_t = values_t + generalised_advantages(rewards_t, values_t, gamma=options.gamma, lam=options.critic_lambda)
        return advantages_t, targets_t

    def loss(self, outputs: PolicyOutputs, batch: LossBatch) -> LossResult:
        """`GRPO.loss` plus value_coefficient * weight * (V - target)^2 / 2 over tokens that have a target."""
        import torch

        assert outputs.values_M is not None and batch.value_target_M is not None
        result = super().loss(outputs, batch)
        has_target_M = ~torch.isnan(batch.value_target_M)
        error_M = torch.where(has_target_M, outputs.values_M - torch.nan_to_num(batch.value_target_M), 0.0)
        value_loss: torch.Tensor = (batch.token_weight_M * error_M.square()).sum() / 2
        metrics = {**result.metrics, "value_error": (error_M.detach().square().sum(), has_target_M.sum())}
        return replace(result, loss=result.loss + self.options.value_coefficient * value_loss, metrics=metrics)


def token_rewards(batch: TrainBatch, members: list[int]) -> np.ndarray:
    """[t] float64: each step's reward at its last token."""
    rewards = []
    for i in members:
        rewards += [0.0] * (len(batch.samples[i].action_tokens) - 1) + [float(batch.reward_S[i])]
    return np.array(rewards)
