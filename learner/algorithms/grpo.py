"""Step-level GRPO (ComputerRL section 3.3) with a decoupled, staleness-bounded objective (AReaL, arXiv 2505.24298).

Every step of every rollout is one (prompt, action) sample. Its advantage is its reward relative to the rewards of all steps of
the task's rollouts. Tokens sampled by older policies are corrected by sg(min(w, C)) with w = pi_p / pi_b, while the clipped ratio
r = pi_t / pi_p is taken against the weights at the start of the update. On policy w = r = 1, and the gradient is that of plain
GRPO. Steps older than ``learner.age_bound`` updates do not train; they keep their place in baseline and denominator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from computerrl.common.config import LearnerConfig
from computerrl.common.config.base import Section
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.messages import TrajectoryGroup
from computerrl.learner.algorithms.base import LossBatch, LossResult, Need, PolicyOutputs, TrainBatch, parse_options
from computerrl.learner.algorithms.step_table import Chosen, StepTable, batch_metrics
from computerrl.learner.objective.advantages import group_advantages, step_rewards
from computerrl.learner.objective.ages import PolicyAges
from computerrl.learner.objective.aggregation import Aggregation, token_weights

if TYPE_CHECKING:
    import torch


class GRPOOptions(Section):
    """`learner.algorithm.options` of grpo."""

    eps_low: float = Field(0.2, gt=0, lt=1)
    """Lower clip distance of r."""
    eps_high: float = Field(0.2, gt=0)
    """Upper clip distance of r (0.2 as in AReaL; ComputerRL's is not published); above ``eps_low`` it is DAPO's clip-higher,
    which slows the loss of entropy. A recomputed pi_p is pi_t in the first of ``learner.num_minibatches``: with one, nothing is
    clipped."""
    objective: Literal["clipped", "gspo", "cispo", "dppo_tv"] = "clipped"
    """clipped: S(r, A) for each token; gspo: S(s, A) with the ratio s = exp(mean log r) of a step for each of its tokens (arXiv
    2507.18071, equations 5 to 7, eps 3e-4 and 4e-4; 0.1 and 0.28 in DART's release), whose gradient stays each token's own
    (GSPO-token, equations 13 and 14), so that corrections and advantages may differ by token; cispo: sg(min(r, 1 + eps_high)) A
    log pi_t (arXiv 2506.13585, equations 4 and 5; the paper's is that with correction none and aggregation token_mean, see
    configs/algorithms/cispo.yaml); dppo_tv: r A, without tokens that are ``tv_limit`` away from pi_b in the direction that A
    pushes (DPPO: the mask of prime-rl, without its 1e-3 log^2 r; prime-rl has no cap of w, verl one of 20)."""
    dual_clip: float | None = Field(None, gt=1)
    """c of max(S, c A) where A < 0 (dual-clip PPO, arXiv 1912.09729; 3 in verl and in the releases of ARPO and DART). None: S of
    a token that became far likelier is unbounded where A < 0."""
    tv_limit: float = Field(0.2, gt=0, le=1)
    """Limit of abs(pi_t - pi_b), for dppo_tv."""
    correction: Literal["decoupled", "tis", "icepop", "geometric", "none"] = "decoupled"
    """decoupled and tis: sg(min(w, correction_cap)) (caps 5, AReaL's bound, and 1..2); icepop: w inside ``icepop_range``, else 0;
    geometric: min(w, correction_cap) in steps whose geometric mean of w is inside ``geometric_range``, else 0 (the cap: ours);
    none: w = 1 and r = pi_t / pi_b, GRPO as if every token were on policy. `learner.objective.corrections` names the sources."""
    correction_cap: float = Field(5.0, gt=0)
    icepop_range: tuple[float, float] = (0.5, 2.0)
    geometric_range: tuple[float, float] = (0.99, 1.01)
    proximal: Literal["recomputed", "loglinear"] = "recomputed"
    """Source of log pi_p: a forward pass at the start of the update (free with one minibatch), or interpolation."""
    kl_beta: float = Field(0.0, ge=0)
    """Weight of the KL to the reference policy (ComputerRL 3e-4); 0 spares the reference forward pass."""
    kl_estimator: Literal["k1", "k2", "k3", "low_var"] = "k3"
    """Value of that KL, with d = log pi_ref - log pi_t: -d; d^2 / 2; exp(d) - d - 1. The gradient of all three is that of the KL,
    see `learner.objective.losses.kl_term`. low_var: k3 with its own gradient, another one (verl's, in DART's release)."""
    aggregation: Aggregation = "computerrl"
    """See `learner.objective.aggregation.token_weights`."""
    aggregation_constant: float | None = Field(None, gt=0)
    """k of aggregation `constant`."""
    advantage_delta: float = Field(1e-4, gt=0)
    """Added to the standard deviation (ours)."""
    negative_scale: float = Field(1.0, ge=0, le=1)
    """Factor of negative advantages (ours). A failed episode's steps include right ones, which a small policy unlearns from a few
    batches of them: with 1, cloned SmolLM2-135M forgot `done()` of families that it knew; with 0.1 it did not."""
    imitation_weight: float = Field(0.0, ge=0)
    """Added to the advantage of each well-formed step of a successful trajectory (ours, after self-imitation learning, arXiv
    1806.05635). Groups in which all succeed then preserve what the policy can do while other groups change shared weights."""
    format_penalty: float = Field(0.0, ge=0)
    """Taken from the reward of a badly formed step, besides its reward being 0 (ours)."""
    lr_scaling: Literal["none", "effective_samples"] = "none"
    """effective_samples: the learning rate of an optimizer step times sqrt(ESS / n), ESS = (sum w)^2 / sum w^2 over its n
    trajectories, each with the product w of its tokens' weights. That is one half of VCPO (arXiv 2602.17616); the algorithm
    `vcpo` has the other one, a baseline from gradient norms, besides."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature of training rollouts; the learner's log-probs are taken at the same."""

    unused: ClassVar[frozenset[str]] = frozenset()
    """Options that have no effect in a derived algorithm: giving them is an error."""

    @property
    def given(self) -> set[str]:
        """Options that the configuration gives a value."""
        return {name for name in self.model_fields_set if getattr(self, name) is not None}

    @model_validator(mode="before")
    @classmethod
    def _refuse_unused(cls, given: Any) -> Any:
        names = sorted(cls.unused & set(given)) if isinstance(given, Mapping) else []
        if names:
            raise ValueError(f"{', '.join(names)}: no effect with this algorithm; leave it out")
        return given

    @model_validator(mode="after")
    def _fit(self) -> GRPOOptions:
        for name, needed in _NEEDS.items():
            for other, values in needed.items():
                if name in self.given and getattr(self, other) not in values:
                    raise ValueError(f"{name}: no effect with {other} {getattr(self, other)!r}; leave it out")
        for name in ("icepop_range", "geometric_range"):
            low, high = getattr(self, name)
            if not 0 <= low < high:
                raise ValueError(f"{name} {low}..{high} is empty; give [low, high] with 0 <= low < high")
        if self.lr_scaling != "none" and self.correction == "none":
            raise ValueError("lr_scaling 'effective_samples' has no effect with correction 'none'; leave one of them out")
        if self.aggregation == "constant" and self.aggregation_constant is None:
            raise ValueError("aggregation 'constant' needs aggregation_constant")
        return self


_CORRECTED = ("decoupled", "tis", "icepop", "geometric")
_NEEDS: dict[str, dict[str, tuple[str, ...]]] = {
    "eps_low": {"objective": ("clipped", "gspo")},
    "eps_high": {"objective": ("clipped", "gspo", "cispo")},
    "dual_clip": {"objective": ("clipped", "gspo")},
    "tv_limit": {"objective": ("dppo_tv",)},
    "correction_cap": {"correction": ("decoupled", "tis", "geometric")},
    "icepop_range": {"correction": ("icepop",)},
    "geometric_range": {"correction": ("geometric",)},
    "proximal": {"correction": _CORRECTED},
    "aggregation_constant": {"aggregation": ("constant",)},
}
"""Option -> the option it depends on -> the values of that with which it has an effect."""


class GRPO:
    """See the module's docstring. Derived algorithms (`rloo`, `arpo`, ...) differ in defaults or in some of the methods below."""

    options_model: type[GRPOOptions] = GRPOOptions
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
        given = self.options.given & {"eps_low", "eps_high", "dual_clip"}
        if self.options.objective in ("gspo", "cispo"):
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
        """[n] float64: what each step earned."""
        return step_rewards(success=table.success_n, format_ok=table.format_n, format_penalty=self.options.format_penalty)

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

    def loss(self, outputs: PolicyOutputs, batch: LossBatch) -> LossResult:
        """- sum_M weight * (sg(correction(w)) * S(r, A) - beta * KL)."""
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
        log_weights_M = corrections.bounded(proximal_M - batch.behavior_logprobs_M).detach()
        return LossResult(-(batch.token_weight_M * term_M).sum(), metrics, log_weights_M)

    def lr_factor(self, effective_sample_share: float) -> float:
        """1, or sqrt(ESS / n) as in VCPO."""
        return math.sqrt(effective_sample_share) if self.options.lr_scaling == "effective_samples" else 1.0

    def _surrogate(
        self, logprobs_M: torch.Tensor, proximal_M: torch.Tensor, batch: LossBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The objective's term before correction, and which tokens a clip or mask decided, both [M]."""
        import torch

        from computerrl.learner.objective import corrections, losses

        options, advantage_M = self.options, batch.advantage_M
        log_ratio_M = logprobs_M - proximal_M
        if options.objective == "gspo":
            # The value is that of the step, the gradient each token's own: sg(s) pi_t / sg(pi_t).
            log_ratio_M = logprobs_M - logprobs_M.detach() + corrections.step_means(log_ratio_M.detach(), batch.step_M)
        ratio_M = torch.exp(corrections.bounded(log_ratio_M))
        if options.objective == "cispo":
            return losses.cispo(ratio_M, advantage_M, logprobs_M, eps_high=options.eps_high)
        if options.objective == "dppo_tv":
            within_M = losses.within_total_variation(logprobs_M, batch.behavior_logprobs_M, advantage_M, limit=options.tv_limit)
            return torch.where(within_M, ratio_M * advantage_M, 0.0), ~within_M
        return losses.clipped_surrogate(
            ratio_M, advantage_M, eps_low=options.eps_low, eps_high=options.eps_high, dual_clip=options.dual_clip
        )

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
