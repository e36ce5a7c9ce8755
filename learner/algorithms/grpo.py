"""Step-level GRPO (ComputerRL section 3.3) with a decoupled, staleness-bounded objective (AReaL, arXiv 2505.24298).

Every step of every rollout is one (prompt, action) sample. Its advantage is its reward relative to the rewards of all steps of
the task's rollouts. Tokens sampled by older policies are corrected by sg(min(w, C)) with w = pi_p / pi_b, while the clipped ratio
r = pi_t / pi_p is taken against the weights at the start of the update. On policy w = r = 1, and the gradient is that of plain
GRPO. Steps older than ``learner.age_bound`` updates do not train; they keep their place in baseline and denominator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from computerrl.common.config import LearnerConfig
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.messages import TrajectoryGroup
from computerrl.learner.algorithms.base import FirstLook, LossBatch, LossResult, Need, PolicyOutputs, TrainBatch, parse_options
from computerrl.learner.algorithms.grpo_options import GRPOOptions
from computerrl.learner.algorithms.masking import masked
from computerrl.learner.algorithms.step_table import Chosen, StepTable, batch_metrics
from computerrl.learner.objective.advantages import group_advantages, step_rewards
from computerrl.learner.objective.ages import PolicyAges
from computerrl.learner.objective.aggregation import token_weights

if TYPE_CHECKING:
    import torch


class GRPO:
    """See the module's docstring. Derived algorithms (`rloo`, `arpo`, ...) differ in defaults or in some of the methods below."""

    options_model: type[GRPOOptions] = GRPOOptions
    pays_outcomes = True
    """Do the rewards of episodes count (`learner.rewards`)?"""
    seed = 0
    """See `Draws`."""

    def __init__(self, options: Mapping[str, Any], learner: LearnerConfig) -> None:
        self.options = parse_options(self.options_model, options)
        self.temperature = self.options.temperature
        self._age_bound = learner.age_bound
        needs: set[Need] = set()
        if self.options.proximal == "recomputed" and self.options.correction != "none":
            needs.add("proximal_logprobs")
        if self.options.kl_beta > 0:
            needs.add("reference_logprobs")
        self.needs = frozenset(needs)
        if "proximal_logprobs" in needs and learner.num_minibatches == 1:
            self._refuse_what_clips()

    def _refuse_what_clips(self) -> None:
        """With one optimizer step a batch r is 1 wherever a clip looks at it."""
        given = self.options.given & {"eps_low", "eps_high", "dual_clip", "kl_cov"}
        if self.options.objective in ("gspo", "gmpo", "cispo", "sapo"):
            given |= {"objective"}
        if given:
            step = "set learner.num_minibatches to 2 or more, or take correction none or proximal loglinear"
            raise ConfigError(
                [
                    Problem(f"learner.algorithm.options.{name}", "no effect with one minibatch: r is 1 in the first", step)
                    for name in sorted(given)
                ]
            )

    def generator(self, ages: PolicyAges) -> np.random.Generator:
        """The generator of all draws for the batch that ``ages`` belongs to; a resumed run gets the same one for it."""
        return np.random.default_rng((self.seed, ages.position))

    # --- methods to override ---------------------------------------------------------------------------------------

    def choose(self, groups: Sequence[TrajectoryGroup], *, ages: PolicyAges) -> Chosen:
        """The rollouts that the batch is made of: here all that came. Use `generator` for draws. A copy of a trajectory keeps its
        id."""
        del ages
        return Chosen(groups)

    def may_train(self, table: StepTable) -> np.ndarray:
        """[n] bool: steps within the age bound, and those of a memory, which are older than any bound and there for it."""
        return table.whole_n & ((table.age_n <= self._age_bound) | table.replayed_n)

    def rewards(self, table: StepTable) -> np.ndarray:
        """[n] float64: what each step earned, and those after it."""
        return step_rewards(earned=table.returns_n, format_ok=table.format_n, format_penalty=self.options.format_penalty)

    def advantages(self, rewards_n: np.ndarray, table: StepTable) -> np.ndarray:
        """[n] float64, exactly 0 where there is no signal."""
        return table.per_group(lambda rewards, _: group_advantages(rewards, delta=self.options.advantage_delta), rewards_n)

    def counted(self, advantage_n: np.ndarray, table: StepTable) -> np.ndarray:
        """[n] bool: steps that have a place in the denominators of the objective, trained or not."""
        del table
        return np.ones(len(advantage_n), dtype=bool)

    # --- Algorithm ---------------------------------------------------------------------------------------------------

    def prepare(self, groups: Sequence[TrajectoryGroup], *, ages: PolicyAges) -> TrainBatch:
        """Advantages per group over all its steps; weights over all steps of the batch; then leave out what cannot train."""
        options = self.options
        chosen = self.choose(groups, ages=ages)
        table = StepTable.of(chosen.groups, ages=ages, came=groups, replayed=chosen.replayed)
        rewards_n = self.rewards(table)
        advantage_n = self.advantages(rewards_n, table)
        advantage_n = np.where(advantage_n < 0, options.negative_scale * advantage_n, advantage_n)
        advantage_n += options.imitation_weight * (table.success_n & table.format_n)
        counted_n = self.counted(advantage_n, table)
        weight_n = np.zeros(len(table))
        if counted_n.any():
            weight_n[counted_n] = token_weights(
                options.aggregation,
                num_tokens_n=table.num_tokens_n[counted_n],
                trajectory_n=table.trajectory_n[counted_n],
                group_n=table.group_n[counted_n],
                constant=options.aggregation_constant,
            )
        trains_n = self.may_train(table)
        computed_n = trains_n & counted_n & ((advantage_n != 0.0) | (options.kl_beta > 0))
        computed = np.flatnonzero(computed_n)
        left_out = [table.steps[i] for i in np.flatnonzero(table.whole_n & ~computed_n & ~table.replayed_n)]
        return TrainBatch(
            samples=tuple(table.steps[i] for i in computed),
            trajectory_S=table.trajectory_n[computed],
            group_S=table.group_n[computed],
            reward_S=rewards_n[computed].astype(np.float32),
            advantage_S=advantage_n[computed].astype(np.float32),
            token_weight_S=weight_n[computed].astype(np.float32),
            ages=ages,
            replayed_S=table.replayed_n[computed],
            step_S=table.position_n[computed],
            trajectory_ids=tuple(trajectory.trajectory_id for trajectory in table.trajectories),
            not_chosen=chosen.not_chosen(groups),
            left_out={**chosen.left_out(groups, table), **table.named(trains_n & ~computed_n & ~table.replayed_n, "no_signal")},
            metrics={
                **batch_metrics(groups, table, rewards_n, advantage_n * counted_n, trains_n=trains_n, age_bound=self._age_bound),
                "num_steps_computed": float(len(computed)),
            },
            left_out_nll=-float(sum(step.behavior_logprobs.sum(dtype=np.float64) for step in left_out)),
            left_out_tokens=sum(len(step.action_tokens) for step in left_out),
        )

    @property
    def wants_look(self) -> bool:
        """Do masks or KL-Cov need one? See `Refines`."""
        return self.options.wants_masks

    def refine(self, batch: TrainBatch, look: FirstLook) -> TrainBatch:
        """``batch`` without what the masks leave out. An algorithm with a `refine` of its own calls this at its end."""
        return masked(batch, look, self.options, self.generator(batch.ages)) if self.options.wants_masks else batch

    def loss(self, outputs: PolicyOutputs, batch: LossBatch) -> LossResult:
        """- sum_M weight * (sg(correction(w)) * objective(r, A) - beta * KL)."""
        import torch

        from computerrl.learner.objective import corrections, losses

        options = self.options
        proximal_M, correction_M = self._correction(outputs, batch)
        surrogate_M, clipped_M = self._surrogate(outputs.logprobs_M, proximal_M, batch)
        term_M = correction_M * surrogate_M
        current_M = outputs.logprobs_M.detach()
        num_tokens = float(len(current_M))
        metrics = {
            "clip_fraction": (clipped_M.sum(), num_tokens),
            "importance_weight": (correction_M.sum(), num_tokens),
            "ratio": (torch.exp(corrections.bounded(current_M - proximal_M)).sum(), num_tokens),
            "kl": (losses.kl_k3(current_M, batch.behavior_logprobs_M).sum(), num_tokens),
        }
        if outputs.reference_logprobs_M is not None:
            kl_M = losses.kl_term(
                outputs.reference_logprobs_M, outputs.logprobs_M, batch.behavior_logprobs_M, estimator=options.kl_estimator
            )
            term_M = term_M - options.kl_beta * kl_M
            metrics["reference_kl"] = (kl_M.detach().sum(), num_tokens)
        if batch.drift_penalty_M is not None:
            drift_M = corrections.bounded(outputs.logprobs_M - proximal_M.detach()).abs()
            term_M = term_M - batch.drift_penalty_M * drift_M
        log_weights_M = corrections.bounded(proximal_M - batch.behavior_logprobs_M).detach()
        return LossResult(-(batch.token_weight_M * term_M).sum(), metrics, log_weights_M)

    def lr_factor(self, effective_sample_share: float) -> float:
        """1, or sqrt(ESS / n) as in VCPO."""
        return math.sqrt(effective_sample_share) if self.options.lr_scaling == "effective_samples" else 1.0

    def _surrogate(
        self, logprobs_M: torch.Tensor, proximal_M: torch.Tensor, batch: LossBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The objective's term before correction, and which tokens a clip or mask decided, both [M]."""
        from computerrl.learner.objective.surrogates import SURROGATES, Limits, Tokens

        options = self.options
        limits = Limits(**{name: getattr(options, name) for name in Limits.__dataclass_fields__})
        tokens = Tokens(logprobs_M, proximal_M, batch.behavior_logprobs_M, batch.advantage_M, batch.step_M)
        return SURROGATES[options.objective](tokens, limits)

    def _correction(self, outputs: PolicyOutputs, batch: LossBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """(log pi_p, corrected w), both [M] and without gradient."""
        import torch

        from computerrl.learner.objective import corrections

        options = self.options
        if options.correction == "none":
            return batch.behavior_logprobs_M, torch.ones_like(batch.behavior_logprobs_M)
        if options.proximal == "loglinear":
            proximal_M = corrections.loglinear_proximal(outputs.logprobs_M, batch.behavior_logprobs_M, batch.age_M)
        else:
            assert outputs.proximal_logprobs_M is not None
            proximal_M = outputs.proximal_logprobs_M
        weights_M = corrections.importance_weights(proximal_M, batch.behavior_logprobs_M)
        if options.correction == "icepop":
            low, high = options.icepop_range
            return proximal_M, corrections.icepop(weights_M, low=low, high=high)
        if options.correction == "geometric":
            low, high = options.geometric_range
            weights_M = corrections.geometric_mask(weights_M, batch.step_M, low=low, high=high)
        return proximal_M, corrections.truncated(weights_M, cap=options.correction_cap)
