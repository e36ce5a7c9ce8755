"""Options of GRPO and of the algorithms derived from it, and which of them go together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from computerrl.common.config.base import Section
from computerrl.learner.objective.aggregation import Aggregation
from computerrl.learner.objective.masks import MASKS, RANGES


class GRPOOptions(Section):
    """`learner.algorithm.options` of grpo."""

    eps_low: float = Field(0.2, gt=0, lt=1)
    """Lower clip distance of r."""
    eps_high: float = Field(0.2, gt=0)
    """Upper clip distance of r (0.2 as in AReaL; ComputerRL's is not published); above ``eps_low`` it is DAPO's clip-higher,
    which slows the loss of entropy. A recomputed pi_p is pi_t in the first of ``learner.num_minibatches``: with one, nothing is
    clipped."""
    objective: Literal["clipped", "plain", "gspo", "gmpo", "cispo", "dppo_tv", "sapo", "vespo", "topr"] = "clipped"
    """clipped: S(r, A) for each token; plain: r A; gspo: S(s, A) with the ratio s = exp(mean log r) of a step for each of its
    tokens (arXiv 2507.18071, equations 5 to 7, eps 3e-4 and 4e-4; 0.1 and 0.28 in DART's release), whose gradient stays each
    token's own (GSPO-token, equations 13 and 14), so that corrections and advantages may differ by token; gmpo: A times the
    geometric mean of the clipped ratios of a step (arXiv 2507.20673; the eps are distances of log r, 0.4); cispo:
    sg(min(r, 1 + eps_high)) A log pi_t (arXiv 2506.13585, equations 4 and 5; the paper's is that with correction none and
    aggregation token_mean, see configs/algorithms/cispo.yaml); dppo_tv: r A, without tokens that are ``tv_limit`` away from pi_b
    in the direction that A pushes (DPPO: the mask of prime-rl, without its 1e-3 log^2 r; prime-rl has no cap of w, verl one of
    20); sapo: a soft gate of r in place of the clip (arXiv 2511.20347); vespo: a kernel of a step's weight (arXiv 2602.10693);
    topr: tapered off-policy REINFORCE (arXiv 2503.14286). `learner.objective.surrogates` has the formulas."""
    dual_clip: float | None = Field(None, gt=1)
    """c of max(S, c A) where A < 0 (dual-clip PPO, arXiv 1912.09729; 3 in verl and in the releases of ARPO and DART). None: S of
    a token that became far likelier is unbounded where A < 0."""
    tv_limit: float = Field(0.2, gt=0, le=1)
    """Limit of abs(pi_t - pi_b), for dppo_tv."""
    gate_temperatures: tuple[float, float] = (1.0, 1.05)
    """tau of sapo where A > 0, and where A is not."""
    positive_kernel: tuple[float, float] = (2.0, 3.0)
    """(k, lambda) of vespo where A >= 0 (those of the release)."""
    negative_kernel: tuple[float, float] = (3.0, 2.0)
    """(k, lambda) of vespo where A < 0."""
    masks: dict[str, float] = Field(default_factory=dict)
    """Tokens that do not train, by name of a mask and its number: m2po (largest second moment of log w, 0.04), opsm (largest mean
    of log pi_b - log pi_p of a step with A < 0), sequence (largest product of w of a step, or of 1 / w), veto (least w of a
    token of a step), top_entropy (share of tokens that train), clip_cov (share of tokens left out). Decided once per update, by
    one more forward pass; see `learner.objective.masks`."""
    kl_cov: float = Field(0.0, ge=0, lt=1)
    """Share of tokens of largest covariance of log pi_p and A that pay ``kl_cov_beta`` abs(log r) (KL-Cov, arXiv 2505.22617; 2e-3
    to 2e-4). 0: none, and the pass is spared."""
    kl_cov_beta: float = Field(1.0, gt=0)
    """Weight of that penalty (1 in the paper)."""
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
    def wants_masks(self) -> bool:
        """Is anything decided by masks or KL-Cov?"""
        return bool(self.masks) or self.kl_cov > 0

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

    @field_validator("masks")
    @classmethod
    def _know_masks(cls, masks: dict[str, float]) -> dict[str, float]:
        for name, number in masks.items():
            if name not in MASKS:
                raise ValueError(f"no mask {name!r}; there are {', '.join(MASKS)}")
            low, high = RANGES[name]
            if not low < number < high:
                raise ValueError(f"{name} {number:g} is not between {low:g} and {high:g}, both excluded")
        return masks

    @field_validator("gate_temperatures", "positive_kernel", "negative_kernel")
    @classmethod
    def _are_positive(cls, both: tuple[float, float]) -> tuple[float, float]:
        if min(both) <= 0:
            raise ValueError("give two numbers above 0")
        return both

    @model_validator(mode="after")
    def _fit(self) -> GRPOOptions:
        for name, needed in _NEEDS.items():
            for other, values in needed.items():
                if name in self.given and getattr(self, other) not in values:
                    raise ValueError(f"{name}: no effect with {other} {getattr(self, other)!r}; leave it out")
        if self.objective in _WEIGHED_BY_SAMPLER and self.correction != "none":
            raise ValueError(f"objective {self.objective!r} weighs by pi_t / pi_b itself; set correction to none")
        for name in ("icepop_range", "geometric_range"):
            low, high = getattr(self, name)
            if not 0 <= low < high:
                raise ValueError(f"{name} {low}..{high} is empty; give [low, high] with 0 <= low < high")
        if self.lr_scaling != "none" and self.correction == "none":
            raise ValueError("lr_scaling 'effective_samples' has no effect with correction 'none'; leave one of them out")
        if self.aggregation == "constant" and self.aggregation_constant is None:
            raise ValueError("aggregation 'constant' needs aggregation_constant")
        return self


_WEIGHED_BY_SAMPLER = ("vespo", "topr")
"""Objectives that are defined by the ratio to the policy that sampled."""
_CORRECTED = ("decoupled", "tis", "icepop", "geometric")
_NEEDS: dict[str, dict[str, tuple[str, ...]]] = {
    "eps_low": {"objective": ("clipped", "gspo", "gmpo")},
    "eps_high": {"objective": ("clipped", "gspo", "gmpo", "cispo")},
    "dual_clip": {"objective": ("clipped", "gspo")},
    "tv_limit": {"objective": ("dppo_tv",)},
    "gate_temperatures": {"objective": ("sapo",)},
    "positive_kernel": {"objective": ("vespo",)},
    "negative_kernel": {"objective": ("vespo",)},
    "correction_cap": {"correction": ("decoupled", "tis", "geometric")},
    "icepop_range": {"correction": ("icepop",)},
    "geometric_range": {"correction": ("geometric",)},
    "proximal": {"correction": _CORRECTED},
    "aggregation_constant": {"aggregation": ("constant",)},
}
"""Option -> the option it depends on -> the values of that with which it has an effect."""
