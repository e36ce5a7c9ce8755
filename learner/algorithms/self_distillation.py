"""On-policy self-distillation: the policy that has seen a success in its prompt teaches the policy that has not.

    A_t = log pi(a_t | success, prompt, a_<t) - log pi(a_t | prompt, a_<t), both under the weights at the start of the update

The update minimises KL(pi(. | prompt) || sg pi(. | success, prompt)) per token on the policy's own samples. With a_t sampled, its
gradient is that of a policy gradient with the advantage A_t. No token counts for those before it, there is no baseline of a
group, and outcomes only decide what is shown. So there is a signal where all rollouts of a group fail.

Source: SDPO (Huebotter et al. 2026, "Reinforcement Learning via Self-Distillation", arXiv 2601.20802), whose loss this is, by one
sampled token in place of the sum over the vocabulary, as in `distillation`. The teacher is the present policy, not smoothed over
updates.

Ours: a group is shown one success, drawn at random: another rollout of the group, or else one of the family's latest. It is
shown as it was played: prompt and action, step after step, before the prompt's own tokens. Steps of the success itself do not
train, nor those of groups without one to show. Tokens of older policies are corrected as in `grpo`. A_t is kept within -20 and
20.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from computerrl.common.config import LearnerConfig, RunConfig
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.messages import Trajectory, TrajectoryGroup
from computerrl.common.models.folder import context_length, sliding_window
from computerrl.learner.algorithms.base import FirstLook, TrainBatch
from computerrl.learner.algorithms.grpo import GRPO, GRPOOptions
from computerrl.learner.algorithms.step_table import StepTable
from computerrl.learner.objective.ages import PolicyAges
from computerrl.learner.objective.aggregation import Aggregation
from computerrl.learner.objective.memory import SuccessMemory

_MOST = 20.0
"""Largest size of an advantage in nats."""


class SelfDistillationOptions(GRPOOptions):
    """`learner.algorithm.options` of self_distillation."""

    unused: ClassVar[frozenset[str]] = frozenset(
        {"kl_beta", "kl_estimator", "advantage_delta", "negative_scale", "imitation_weight", "format_penalty", "masks", "kl_cov"}
    )

    aggregation: Aggregation = "token_mean"
    memory_size: int = Field(8, ge=1)
    """Number of successes kept of each family."""
    max_hint_tokens: int = Field(2048, ge=1)
    """Maximum length of a shown success; longer ones are not shown. With the longest prompt and its answer it has to fit the
    model's context."""


class SelfDistillation(GRPO):
    """See the module's docstring."""

    options_model = SelfDistillationOptions
    options: SelfDistillationOptions
    pays_outcomes = False

    def __init__(self, options: Mapping[str, Any], learner: LearnerConfig) -> None:
        super().__init__(options, learner)
        self.memory = SuccessMemory(per_family=self.options.memory_size)
        self._hinted: frozenset[str] = frozenset()
        """Ids of the trajectories of the batch in preparation that are shown a success."""

    @property
    def wants_look(self) -> bool:
        return True

    def config_problems(self, config: RunConfig) -> list[Problem]:
        """Prompts that show images, and a model whose context a success before the longest prompt does not fit."""
        actor = config.actor
        if actor.prompt.shows_images:
            return [_images_problem()]
        name, hint = config.model.name, self.options.max_hint_tokens
        answered = actor.prompt.max_prompt_tokens + actor.max_new_tokens
        seen = min((one for one in (context_length(name), sliding_window(name)) if one is not None), default=None)
        if seen is None or hint + answered <= seen:
            return []
        reason = f"{name!r} sees {seen} tokens, and a success, a prompt and its answer may have {hint} + {answered}"
        step = f"set it to {seen - answered} or less" if seen > answered else "use a model with a longer context"
        return [Problem("learner.algorithm.options.max_hint_tokens", reason, step)]

    def prepare(self, groups: Sequence[TrajectoryGroup], *, ages: PolicyAges) -> TrainBatch:
        """As `GRPO.prepare`, of the steps to which a success can be shown."""
        rng = self.generator(ages)
        hints: dict[str, np.ndarray] = {}
        for group in groups:
            shown = self._drawn(group, rng)
            if shown is not None:
                hint = _as_played(shown)
                hints |= {one.trajectory_id: hint for one in group.trajectories if one.trajectory_id != shown.trajectory_id}
        self._hinted = frozenset(hints)
        batch = super().prepare(groups, ages=ages)
        hints_S = tuple(hints[batch.trajectory_ids[owner]] for owner in batch.trajectory_S)
        return replace(batch, hints=hints_S, metrics={**batch.metrics, "hinted": len(hints) / max(1, len(batch.trajectory_ids))})

    def advantages(self, rewards_n: np.ndarray, table: StepTable) -> np.ndarray:
        """[n] 1 where a success is shown, else 0. `refine` has the tokens' own."""
        del rewards_n
        return table.of_trajectory([float(one.trajectory_id in self._hinted) for one in table.trajectories])

    def counted(self, advantage_n: np.ndarray, table: StepTable) -> np.ndarray:
        """[n] bool: the steps to which a success is shown."""
        return advantage_n > 0

    def refine(self, batch: TrainBatch, look: FirstLook) -> TrainBatch:
        """``batch`` with the advantages A_t."""
        assert look.hinted_logprobs is not None
        both = zip(look.hinted_logprobs, look.logprobs, strict=True)
        made = tuple(np.clip(hinted - own, -_MOST, _MOST).astype(np.float32) for hinted, own in both)
        num_tokens = max(1, sum(map(len, made)))
        # - A_t of a sampled token is an unbiased estimate of the KL.
        kl = -sum(float(one.sum(dtype=np.float64)) for one in made) / num_tokens
        return replace(batch, token_advantages=made, metrics={**batch.metrics, "hint_kl": kl})

    def remember(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Keep the successes of ``groups``."""
        for trajectory in (one for group in groups for one in group.trajectories):
            self.memory.add(trajectory)

    def _drawn(self, group: TrajectoryGroup, rng: np.random.Generator) -> Trajectory | None:
        """The success to show to ``group``; None: there is none that is short enough."""
        for found in ([one for one in group.trajectories if one.success], self.memory.of(group.task.family)):
            fitting = [one for one in found if 0 < len(_as_played(one)) <= self.options.max_hint_tokens]
            if fitting:
                shown = fitting[rng.integers(len(fitting))]
                if any(step.images for step in shown.steps):
                    raise ConfigError([_images_problem()])
                return shown
        return None


def _images_problem() -> Problem:
    reason = "self_distillation shows successes as text, and prompts show images"
    return Problem("actor.prompt.format", reason, "use compact or computerrl_text, or another algorithm")


def _as_played(trajectory: Trajectory) -> np.ndarray:
    """int32 tokens of all prompts and actions, in order."""
    parts = [part for step in trajectory.steps for part in (step.prompt_tokens, step.action_tokens)]
    return np.concatenate(parts).astype(np.int32) if parts else np.zeros(0, np.int32)
