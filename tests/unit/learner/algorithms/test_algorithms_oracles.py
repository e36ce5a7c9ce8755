"""The loss and its gradient, for each file of configs/algorithms, against formulas written down here from the named sources.

The formulas are slow, in float64, one token at a time, and differentiated by autograd. Batches hold steps of one to 400 tokens,
ages, masks, ratios beyond every clip and log ratios of 100. Advantages and weights of each file are compared in
test_algorithms_configured.py, values of states in test_algorithms_values.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from computerrl.common.config import AlgorithmConfig, LearnerConfig, load_config
from computerrl.common.errors import ConfigError
from computerrl.learner.algorithms import Algorithm, LossBatch, PolicyAges, PolicyOutputs, SamplesDynamically, make_algorithm
from computerrl.learner.algorithms.grpo import GRPO
from computerrl.learner.objective.losses import KL_ESTIMATORS, kl_term
from tests.support.data.trainer_data import make_group, make_step

FOLDER = Path(__file__).resolve().parents[4] / "configs" / "algorithms"
Scalar = torch.Tensor


# --- tokens --------------------------------------------------------------------------------------------------------------


@dataclass
class Token:
    """One action token, in the notation of the papers."""

    now: Scalar
    """log pi_t, with the graph."""
    old: float
    """log pi_p."""
    sampled: float
    """log pi_b."""
    reference: float
    age: float
    advantage: float
    weight: float
    step: int


def random_tokens(seed: int, *, spread: float = 0.5, lengths: tuple[int, ...] = (3, 1, 5, 4, 2)) -> list[Token]:
    rng = np.random.default_rng(seed)
    tokens = []
    for step, length in enumerate(lengths):
        advantage = float(rng.normal())
        for _ in range(length):
            sampled = -float(rng.random()) * 3
            old = sampled + float(rng.normal(0, spread))
            now = old + float(rng.normal(0, spread))
            tokens.append(
                Token(
                    torch.tensor(now, dtype=torch.float64, requires_grad=True),
                    old,
                    sampled,
                    now + float(rng.normal(0, spread)),
                    float(rng.integers(0, 5)),
                    advantage,
                    float(rng.random() * (rng.random() < 0.8)),
                    step,
                )
            )
    return tokens


def far_apart(log_ratio: float, log_weight: float, advantage: float) -> list[Token]:
    """A step with one token whose ratio and weight are as far out as asked, between ordinary ones."""
    tokens = random_tokens(7, spread=0.1, lengths=(3, 3))
    sampled = -120.0
    now = sampled + log_weight + log_ratio
    tokens[1] = Token(
        torch.tensor(now, dtype=torch.float64, requires_grad=True), sampled + log_weight, sampled, now, 1.0, advantage, 0.5, 0
    )
    return tokens


BATCHES: dict[str, Callable[[], list[Token]]] = {
    **{f"random {seed}": lambda seed=seed: random_tokens(seed) for seed in range(3)},  # type: ignore[misc]
    "wild": lambda: random_tokens(11, spread=2.0),
    "calm": lambda: random_tokens(12, spread=0.01),
    "a step of 400 tokens": lambda: random_tokens(13, lengths=(400, 2)),
    **{
        f"log r {r}, log w {w}, A {a}": lambda r=r, w=w, a=a: far_apart(r, w, a)  # type: ignore[misc]
        for r in (-100.0, 100.0)
        for w in (-100.0, 0.0, 100.0)
        for a in (1.0, -1.0)
    },
}


def as_pass(tokens: list[Token], *, with_values: bool) -> tuple[PolicyOutputs, LossBatch]:
    def column(name: str) -> torch.Tensor:
        return torch.tensor([getattr(token, name) for token in tokens], dtype=torch.float64)

    logprobs = torch.tensor([token.now.item() for token in tokens], dtype=torch.float64, requires_grad=True)
    zeros = torch.zeros(len(tokens), dtype=torch.float64)
    outputs = PolicyOutputs(logprobs, zeros, column("old"), column("reference"), zeros if with_values else None)
    batch = LossBatch(
        step_M=torch.tensor([token.step for token in tokens]),
        advantage_M=column("advantage"),
        token_weight_M=column("weight"),
        behavior_logprobs_M=column("sampled"),
        age_M=column("age"),
        is_replayed_M=zeros.bool(),
        value_target_M=zeros if with_values else None,
    )
    return outputs, batch


# --- formulas ------------------------------------------------------------------------------------------------------------

Formula = Callable[[int, list[Token]], Scalar]


def limited(value: Any) -> Any:
    """Log ratios are clamped to 20 before they are exponentiated (verl `compute_policy_loss_vanilla`, OpenRLHF `PolicyLoss`)."""
    return value.clamp(-20.0, 20.0) if isinstance(value, torch.Tensor) else min(max(value, -20.0), 20.0)


def of_step(tokens: list[Token], step: int) -> list[Token]:
    return [token for token in tokens if token.step == step]


def ppo_clip(low: float, high: float, old: Callable[[Token], float] = lambda token: token.old) -> Formula:
    """PPO, arXiv 1707.06347, equation 7; with two eps DAPO's, arXiv 2503.14476, equation 8."""

    def term(i: int, tokens: list[Token]) -> Scalar:
        token = tokens[i]
        ratio = torch.exp(limited(token.now - old(token)))
        return torch.minimum(ratio * token.advantage, ratio.clamp(1 - low, 1 + high) * token.advantage)

    return term


def gspo_token(low: float, high: float) -> Formula:
    """GSPO-token, arXiv 2507.18071, equations 13 and 14, and verl `compute_policy_loss_gspo`: s_t = sg[s] pi / sg[pi]."""

    def term(i: int, tokens: list[Token]) -> Scalar:
        own = of_step(tokens, tokens[i].step)
        mean = math.fsum(token.now.item() - token.old for token in own) / len(own)
        token = tokens[i]
        ratio = math.exp(limited(mean)) * torch.exp(token.now - token.now.detach())
        if abs(mean) > 20.0:
            ratio = ratio.detach()
        return torch.minimum(ratio * token.advantage, ratio.clamp(1 - low, 1 + high) * token.advantage)

    return term


def cispo(high: float) -> Formula:
    """CISPO, arXiv 2506.13585, equations 4 and 5: the ratio is to the policy that sampled."""

    def term(i: int, tokens: list[Token]) -> Scalar:
        token = tokens[i]
        return min(math.exp(limited(token.now.item() - token.sampled)), 1 + high) * token.advantage * token.now

    return term


def dppo_tv(limit: float) -> Formula:
    """prime-rl `default_loss_fn`: r A where the probability has not moved away from the sampler's by more than the limit."""

    def term(i: int, tokens: list[Token]) -> Scalar:
        token = tokens[i]
        moved = math.exp(token.now.item()) - math.exp(token.sampled)
        away = moved > limit if token.advantage > 0 else moved < -limit
        return torch.exp(limited(token.now - token.old)) * token.advantage * (not away)

    return term


def unclipped(old: Callable[[Token], float] = lambda token: token.old) -> Formula:
    """M2PO, arXiv 2510.01161, with the ratio to the policy that sampled; KL-Cov in verl `compute_policy_loss_kl_cov`."""
    return lambda i, tokens: torch.exp(limited(tokens[i].now - old(tokens[i]))) * tokens[i].advantage


def gmpo(low: float, high: float) -> Formula:
    """GMPO, arXiv 2507.20673, and verl `compute_policy_loss_geo_mean`: exp(mean over the step of the clipped log r) A, a token's
    log r being clipped where that makes its part smaller. Its gradient is shared out by token."""

    def part(token: Token) -> tuple[float, bool]:
        log_ratio = float(limited(token.now.item() - token.old))
        narrow = min(max(log_ratio, -low), high)
        smaller = narrow < log_ratio if token.advantage > 0 else token.advantage < 0 and narrow > log_ratio
        return (narrow, True) if smaller else (log_ratio, False)

    def term(i: int, tokens: list[Token]) -> Scalar:
        own = of_step(tokens, tokens[i].step)
        mean = math.exp(math.fsum(part(token)[0] for token in own) / len(own))
        token = tokens[i]
        still = part(token)[1] or abs(token.now.item() - token.old) > 20.0
        grows = torch.ones((), dtype=torch.float64) if still else torch.exp(token.now - token.now.detach())
        return mean * grows * token.advantage

    return term


def sapo(positive: float, negative: float) -> Formula:
    """SAPO, arXiv 2511.20347, and TRL: the ratio through a sigmoid of slope tau, scaled so that its slope at 1 is 1."""

    def term(i: int, tokens: list[Token]) -> Scalar:
        token = tokens[i]
        tau = positive if token.advantage > 0 else negative
        ratio = torch.exp(limited(token.now - token.old))
        return 4 / tau / (1 + torch.exp(-tau * (ratio - 1))) * token.advantage

    return term


def step_weight(i: int, tokens: list[Token]) -> float:
    """Product of pi_t / pi_b over the step."""
    own = of_step(tokens, tokens[i].step)
    return math.exp(limited(math.fsum(limited(token.now.item() - token.sampled) for token in own)))


def vespo(positive: tuple[float, float], negative: tuple[float, float]) -> Formula:
    """VESPO's release, `compute_policy_loss_vespo`: W^k exp(lambda (1 - W)) A log pi."""

    def term(i: int, tokens: list[Token]) -> Scalar:
        token, weight = tokens[i], step_weight(i, tokens)
        k, rate = positive if token.advantage >= 0 else negative
        return math.exp(k * math.log(weight) + rate * (1 - weight)) * token.advantage * token.now

    return term


def topr(i: int, tokens: list[Token]) -> Scalar:
    """TOPR, arXiv 2503.14286: weight 1 for what is good, [W] clipped to 0..1 for what is not."""
    token = tokens[i]
    return (1.0 if token.advantage > 0 else min(step_weight(i, tokens), 1.0)) * token.advantage * token.now


def distilled(low: float, high: float) -> Formula:
    """Thinking Machines Lab, "On-Policy Distillation" (2025): the advantage of a token is the teacher's log-prob minus the
    policy's; here in PPO's objective."""

    def term(i: int, tokens: list[Token]) -> Scalar:
        token = tokens[i]
        advantage = token.advantage * limited(token.reference - token.old)
        return ppo_clip(low, high)(i, [*tokens[:i], dataclasses.replace(token, advantage=advantage), *tokens[i + 1 :]])

    return term


def likelihood(i: int, tokens: list[Token]) -> Scalar:
    """DigiRL, arXiv 2406.11896, section 4: maximum likelihood of what is imitated."""
    return tokens[i].advantage * tokens[i].now


Weight = Callable[[int, list[Token]], float]


def w_of(token: Token) -> float:
    return math.exp(limited(token.old - token.sampled))


def truncated(cap: float) -> Weight:
    """min(w, C): AReaL, arXiv 2505.24298, equation 5, `ppo_actor_loss_fn` with action "clamp"; TIS in verl and slime."""
    return lambda i, tokens: min(w_of(tokens[i]), cap)


def icepop(low: float, high: float) -> Weight:
    """IcePop, arXiv 2510.18855: w inside the range, else 0; slime `icepop_function`."""
    return lambda i, tokens: w_of(tokens[i]) if low <= w_of(tokens[i]) <= high else 0.0


def geometric(low: float, high: float, cap: float) -> Weight:
    """verl `compute_rollout_rejection_mask` (seq_mean_k1): by the geometric mean over the step; the cap is ours."""

    def weight(i: int, tokens: list[Token]) -> float:
        own = of_step(tokens, tokens[i].step)
        mean = math.exp(math.fsum(limited(token.old - token.sampled) for token in own) / len(own))
        return min(w_of(tokens[i]), cap) if low <= mean <= high else 0.0

    return weight


def unweighted(i: int, tokens: list[Token]) -> float:
    return 1.0


def interpolated(token: Token) -> float:
    """AReaL `compute_prox_logp_approximations` (loglinear), for an update from version v to v + 1: alpha = age / (age + 1)."""
    alpha = token.age / (token.age + 1)
    return token.sampled + alpha * (token.now.item() - token.sampled)


def kl_with_its_gradient(beta: float) -> Formula:
    """k3 as a value, clamped as in verl `kl_penalty` (low_var_kl); with the gradient of k2 (its "k3+") times the importance
    weight (TRL `use_bias_correction_kl`, NeMo-RL), at most 5."""

    def term(i: int, tokens: list[Token]) -> Scalar:
        token, now = tokens[i], tokens[i].now.item()
        d = limited(token.reference - now)
        value = min(math.exp(d) - d - 1, 10.0)
        k2 = -min(math.exp(limited(now - token.sampled)), 5.0) * d * token.now
        return beta * (value + k2 - k2.detach())

    return term


def low_var_kl(beta: float) -> Formula:
    """verl `kl_penalty` (low_var_kl), as DART's release calls it: k3 clamped to 10, differentiated as it is."""

    def term(i: int, tokens: list[Token]) -> Scalar:
        d = limited(tokens[i].reference - tokens[i].now)
        return beta * (torch.exp(d) - d - 1).clamp(-10.0, 10.0)

    return term


def no_kl(i: int, tokens: list[Token]) -> Scalar:
    return torch.zeros((), dtype=torch.float64)


CAPPED_AT_5 = truncated(5.0)


@dataclass(frozen=True)
class Source:
    term: Formula
    weight: Weight = CAPPED_AT_5
    kl: Formula = no_kl


PLAIN = Source(ppo_clip(0.2, 0.2))
SOURCES: dict[str, Source] = {
    **dict.fromkeys(
        (
            "grpo",
            "scaling_inter",
            "vcpo",
            "rloo",
            "reinforce_pp",
            "dr_grpo",
            "m_grpo",
            "rebn",
            "agentrl",
            "adagrpo",
            "gigpo",
            "behaviour_cloning",
            "coda",
            "max_rl",
            "opsm",
            "sequence_mask",
            "clip_cov",
            "gui_r1",
            "gui_g1",
            "gui_g2",
            "se_gui",
        ),
        PLAIN,
    ),
    "ppo": PLAIN,
    "vtrace": Source(ppo_clip(0.2, 0.2), unweighted),
    "digirl": Source(likelihood, unweighted),
    "distillation": Source(distilled(0.2, 0.2)),
    "self_distillation": PLAIN,
    "arpo": Source(ppo_clip(0.2, 0.3)),
    "dapo": Source(ppo_clip(0.2, 0.28)),
    "grpo_roc": Source(ppo_clip(0.2, 0.28)),
    "top_entropy": Source(ppo_clip(0.2, 0.28)),
    "m2po": Source(unclipped(lambda token: token.sampled), unweighted),
    "kl_cov": Source(unclipped()),
    "gmpo": Source(gmpo(0.4, 0.4)),
    "sapo": Source(sapo(1.0, 1.05)),
    "vespo": Source(vespo((2.0, 3.0), (3.0, 2.0)), unweighted),
    "topr": Source(topr, unweighted),
    "computerrl": Source(ppo_clip(0.2, 0.2), kl=kl_with_its_gradient(3e-4)),
    "ui_s1": Source(ppo_clip(0.2, 0.2), kl=kl_with_its_gradient(1e-4)),
    "dart": Source(ppo_clip(0.2, 0.28), truncated(1.0), kl_with_its_gradient(0.1)),
    "dart_release": Source(gspo_token(0.1, 0.28), truncated(1.0), low_var_kl(0.1)),
    "gspo": Source(gspo_token(3e-4, 4e-4)),
    "cispo": Source(cispo(0.28), unweighted),
    "dppo_tv": Source(dppo_tv(0.2)),
    "tis": Source(ppo_clip(0.2, 0.2), truncated(2.0)),
    "icepop": Source(ppo_clip(0.2, 0.2), icepop(0.5, 2.0)),
    "geometric": Source(ppo_clip(0.2, 0.2), geometric(0.99, 1.01, 5.0)),
    "loglinear": Source(
        ppo_clip(0.2, 0.2, old=interpolated),
        lambda i, tokens: min(math.exp(limited(interpolated(tokens[i]) - tokens[i].sampled)), 5.0),
    ),
}


def slow_loss(tokens: list[Token], source: Source) -> Scalar:
    total = torch.zeros((), dtype=torch.float64)
    for i, token in enumerate(tokens):
        total = total + token.weight * (source.weight(i, tokens) * source.term(i, tokens) - source.kl(i, tokens))
    return -total


def gradient_of(loss: Scalar, tokens: list[Token]) -> np.ndarray:
    found = torch.autograd.grad(loss, [token.now for token in tokens], allow_unused=True)
    return np.array([0.0 if one is None else one.item() for one in found])


def ours(algorithm: Algorithm, tokens: list[Token]) -> tuple[float, np.ndarray]:
    outputs, batch = as_pass(tokens, with_values=hasattr(algorithm, "value_lr"))
    if "reference_logprobs" not in algorithm.needs:
        outputs = dataclasses.replace(outputs, reference_logprobs_M=None)
    loss = algorithm.loss(outputs, batch).loss
    (gradient,) = torch.autograd.grad(loss, [outputs.logprobs_M])
    return loss.item(), gradient.numpy()


def make(**options: Any) -> Algorithm:
    learner = LearnerConfig(num_minibatches=2, algorithm=AlgorithmConfig(options=options))
    return make_algorithm(learner)


def test_every_file_has_its_source() -> None:
    assert SOURCES.keys() == {path.stem for path in FOLDER.glob("*.yaml")}


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_loss_and_gradient_as_configured_are_those_of_the_source(name: str) -> None:
    algorithm = make_algorithm(load_config(FOLDER / f"{name}.yaml").learner)
    for batch, build in BATCHES.items():
        tokens = build()
        expected = slow_loss(tokens, SOURCES[name])
        loss, gradient = ours(algorithm, tokens)
        assert math.isfinite(loss) and np.isfinite(gradient).all(), batch
        assert loss == pytest.approx(expected.item(), rel=1e-9, abs=1e-12), batch
        wanted = gradient_of(expected, tokens)
        np.testing.assert_allclose(gradient, wanted, rtol=1e-8, atol=1e-9 * max(1e-3, np.abs(wanted).max()), err_msg=batch)


def dual_clipped(term: Formula, limit: float) -> Formula:
    """Dual-clip PPO, arXiv 1912.09729, equation 5; `clip_ratio_c` of verl, 3 there."""

    def bounded(i: int, tokens: list[Token]) -> Scalar:
        inner, advantage = term(i, tokens), tokens[i].advantage
        return torch.maximum(inner, torch.tensor(limit * advantage, dtype=torch.float64)) if advantage < 0 else inner

    return bounded


def k2_with_its_weight(beta: float) -> Formula:
    """k2 = d^2 / 2 as a value; see `kl_with_its_gradient` for the gradient, which is the same."""
    of_k3 = kl_with_its_gradient(beta)

    def term(i: int, tokens: list[Token]) -> Scalar:
        value = of_k3(i, tokens)
        return value - value.detach() + beta * limited(tokens[i].reference - tokens[i].now.item()) ** 2 / 2

    return term


TO_SAMPLER = ppo_clip(0.2, 0.2, old=lambda token: token.sampled)
VARIED: dict[str, tuple[dict[str, Any], Source]] = {
    "dual clip": ({"dual_clip": 3.0}, Source(dual_clipped(PLAIN.term, 3.0))),
    "dual clip, no correction": ({"dual_clip": 3.0, "correction": "none"}, Source(dual_clipped(TO_SAMPLER, 3.0), unweighted)),
    "no correction": ({"correction": "none"}, Source(TO_SAMPLER, unweighted)),
    "gspo, icepop": ({"objective": "gspo", "correction": "icepop"}, Source(gspo_token(0.2, 0.2), icepop(0.5, 2.0))),
    "gspo, geometric": (
        {"objective": "gspo", "correction": "geometric", "geometric_range": (0.5, 2.0)},
        Source(gspo_token(0.2, 0.2), geometric(0.5, 2.0, 5.0)),
    ),
    "k2": ({"kl_beta": 0.1, "kl_estimator": "k2"}, Source(PLAIN.term, kl=k2_with_its_weight(0.1))),
    "low_var": ({"kl_beta": 0.1, "kl_estimator": "low_var"}, Source(PLAIN.term, kl=low_var_kl(0.1))),
}


@pytest.mark.parametrize("name", VARIED)
def test_loss_and_gradient_of_options_are_those_of_the_source(name: str) -> None:
    options, source = VARIED[name]
    for batch, build in BATCHES.items():
        tokens = build()
        expected = slow_loss(tokens, source)
        loss, gradient = ours(make(**options), tokens)
        assert loss == pytest.approx(expected.item(), rel=1e-9, abs=1e-12), batch
        wanted = gradient_of(expected, tokens)
        np.testing.assert_allclose(gradient, wanted, rtol=1e-8, atol=1e-9 * max(1e-3, np.abs(wanted).max()), err_msg=batch)


# --- what the numbers mean -----------------------------------------------------------------------------------------------


def test_gspo_trains_no_token_that_a_correction_switched_off() -> None:
    algorithm = make(objective="gspo", correction="icepop")
    num_off = 0
    for seed in range(4):
        tokens = random_tokens(seed, spread=1.0)
        _, gradient = ours(algorithm, tokens)
        off = np.array([icepop(0.5, 2.0)(i, tokens) == 0.0 for i in range(len(tokens))])
        assert (gradient[off] == 0.0).all()
        num_off += off.sum()
    assert num_off > 10


def test_gspo_gives_each_token_the_gradient_of_its_own_advantage() -> None:
    tokens = random_tokens(0, spread=0.0, lengths=(3,))
    for token, advantage in zip(tokens, (1.0, 0.0, 0.0), strict=True):
        token.advantage, token.weight = advantage, 1.0
    np.testing.assert_allclose(ours(make(objective="gspo"), tokens)[1], [-1.0, 0.0, 0.0], atol=1e-12)


@pytest.mark.parametrize("objective", ["clipped", "gspo"])
def test_dual_clip_bounds_what_a_bad_and_now_likely_token_weighs(objective: str) -> None:
    tokens = far_apart(5.0, 0.0, -1.0)
    if objective == "gspo":
        tokens = tokens[1:2]
    without, bounded = (ours(make(objective=objective, **options), tokens)[1] for options in ({}, {"dual_clip": 3.0}))
    place = 1 if objective == "clipped" else 0
    assert without[place] == pytest.approx(0.5 * math.exp(5.0), rel=1e-6) and bounded[place] == 0.0


@pytest.mark.parametrize("options", [{"objective": "cispo", "dual_clip": 3.0}, {"objective": "dppo_tv", "dual_clip": 3.0}])
def test_dual_clip_without_a_clip_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="dual_clip: no effect"):
        make(**options)


def expected_gradient(logits: torch.Tensor, behavior: torch.Tensor, reference: torch.Tensor, estimator: str) -> torch.Tensor:
    """Exactly, over all tokens of a vocabulary: the mean over pi_b of the gradient of the KL term."""
    logprobs = torch.log_softmax(logits, -1)
    term = kl_term(reference, logprobs, behavior, estimator=estimator)
    (gradient,) = torch.autograd.grad((behavior.exp().detach() * term).sum(), [logits])
    return gradient


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("drift", [0.0, 0.3])
def test_kl_term_has_the_gradient_of_the_kl_on_policy_and_off(estimator: str, drift: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(8, dtype=torch.float64).requires_grad_()
    reference = torch.log_softmax(torch.randn(8, dtype=torch.float64), -1)
    behavior = torch.log_softmax(logits.detach() + drift * torch.randn(8, dtype=torch.float64), -1)
    logprobs = torch.log_softmax(logits, -1)
    (wanted,) = torch.autograd.grad((logprobs.exp() * (logprobs - reference)).sum(), [logits])
    torch.testing.assert_close(expected_gradient(logits, behavior, reference, estimator), wanted, rtol=1e-12, atol=1e-14)
    # The value of k3 is an unbiased estimate on policy; its own gradient is another one.
    other = expected_gradient(logits, behavior, reference, "low_var")
    assert (other - wanted).norm() > 0.05 * wanted.norm()


@pytest.mark.parametrize("difference", [-100.0, -15.0, 5.0, 8.0, 12.0, 20.0, 100.0])
@pytest.mark.parametrize("estimator", sorted(KL_ESTIMATORS))
def test_kl_term_of_one_token_is_bounded(difference: float, estimator: str) -> None:
    now = torch.tensor([-30.0], dtype=torch.float64).requires_grad_()
    term = kl_term(now.detach() + difference, now, now.detach() - 100.0, estimator=estimator)
    (gradient,) = torch.autograd.grad(term.sum(), [now])
    # d is at most 20, k3 at most 10, the weight at most 5.
    assert abs(term.item()) <= 20.0**2 / 2 and abs(gradient.item()) <= 5.0 * 20.0
    if estimator == "k3":
        assert term.item() <= 10.0 and gradient.item() * -difference > 0, "however far, the pull is towards the reference"


def test_log_ratios_beyond_any_float_lose_no_batch() -> None:
    for options in ({}, {"correction": "geometric"}, {"correction": "icepop"}, {"objective": "gspo"}, {"correction": "none"}):
        for log_ratio in (-200.0, 200.0):
            for advantage in (1.0, -1.0):
                outputs, batch = as_pass(far_apart(log_ratio, log_ratio, advantage), with_values=False)
                narrow = dataclasses.replace(
                    outputs,
                    **{  # type: ignore[arg-type]
                        name: getattr(outputs, name).detach().float() for name in ("proximal_logprobs_M", "reference_logprobs_M")
                    },
                )
                logprobs = outputs.logprobs_M.detach().float().requires_grad_()
                narrow = dataclasses.replace(narrow, logprobs_M=logprobs)
                batch = dataclasses.replace(batch, behavior_logprobs_M=batch.behavior_logprobs_M.float())
                algorithm = make(kl_beta=0.1, **options)
                result = algorithm.loss(narrow, batch)
                result.loss.backward()
                assert torch.isfinite(result.loss) and logprobs.grad is not None and torch.isfinite(logprobs.grad).all()
                assert all(math.isfinite(float(total)) for total, _ in result.metrics.values())


# --- which groups and draws ----------------------------------------------------------------------------------------------


def test_dapo_counts_groups_by_outcome() -> None:
    """arXiv 2503.14476, equation 11: 0 < number of correct answers < G."""
    good, bad = make_step([1], [2, 3]), make_step([1], [4], format_ok=False)
    solved = make_group([(True, [good, bad]), (True, [good])], group_seq=0)
    failed = make_group([(False, [good, bad]), (False, [good])], group_seq=1)
    mixed = make_group([(True, [good]), (False, [good])], group_seq=2)
    config = AlgorithmConfig(name="dapo", options={"format_penalty": 0.5, "kl_beta": 0.1})
    batch = make_algorithm(LearnerConfig(algorithm=config)).prepare([solved, failed, mixed], ages=PolicyAges(0))
    assert {key[0] for key in batch.step_keys} == {"rl-1/2/0", "rl-1/2/1"}
    np.testing.assert_allclose(batch.token_weight_S, [0.25, 0.25])
    assert batch.metrics["num_groups_without_signal"] == 2


def test_dapo_fills_its_batch_with_the_groups_that_it_counts() -> None:
    """An episode that ran out of time before its first step is no answer."""
    good = make_step([1], [2, 3])
    for episodes in ([(True, [good]), (False, [])], [(True, [good]), (False, [good])], [(False, [good]), (True, [])]):
        group = make_group(episodes)
        algorithm = make_algorithm(LearnerConfig(algorithm=AlgorithmConfig(name="dapo")))
        assert isinstance(algorithm, SamplesDynamically)
        assert algorithm.teaches(group) == bool(algorithm.prepare([group], ages=PolicyAges(0)).samples)


@pytest.mark.parametrize("name", ["grpo_roc", "arpo", "adagrpo", "dart"])
def test_draws_follow_from_seed_and_version(name: str) -> None:
    group = make_group([(number < 8, [make_step([1, number], [2])]) for number in range(16)], group_seq=0)
    failed = make_group([(False, [make_step([1, number], [2])]) for number in range(8)], group_seq=1)

    def drawn(seed: int, version: int) -> tuple[Any, ...]:
        made = make_algorithm(LearnerConfig(algorithm=AlgorithmConfig(name=name), max_age=1000), seed=seed)
        assert isinstance(made, GRPO)
        remember = getattr(made, "remember", lambda groups: None)
        remember([group])
        batch = made.prepare([group] if name == "grpo_roc" else [failed], ages=PolicyAges(version))
        return (*sorted(batch.not_chosen), *(key for key, old in zip(batch.step_keys, batch.replayed_S, strict=True) if old))

    assert drawn(3, 5) == drawn(3, 5)
    assert len({drawn(seed, 5) for seed in range(8)}) > 1 and len({drawn(3, version) for version in range(8)}) > 1


def test_ui_s1_drops_a_group_that_differs_in_one_late_step_alone() -> None:
    """MobileAgent's `filter_groups`, metric seq_future_reward, threshold 0.3: the deviation of the first steps' returns."""

    def episode(matches: list[bool]) -> tuple[bool, list[Any]]:
        return all(matches), [replace(make_step([1, place], [2]), matched=match) for place, match in enumerate(matches)]

    late = make_group([episode([True] * 15)] * 7 + [episode([True] * 14 + [False])], group_seq=0)
    early = make_group([episode([True] * 15)] * 4 + [episode([False] + [True] * 14)] * 4, group_seq=1)
    batch = make_algorithm(LearnerConfig(algorithm=AlgorithmConfig(name="ui_s1"))).prepare([late, early], ages=PolicyAges(0))
    assert {key[0].split("/")[1] for key in batch.step_keys} == {"1"}
