"""Every loss term, correction, advantage and aggregation against slow numpy in float64, close to the notation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from computerrl.learner.objective import corrections, losses
from computerrl.learner.objective.advantages import group_advantages, step_rewards
from computerrl.learner.objective.aggregation import token_weights

RNG = np.random.default_rng(3)
BEHAVIOR = -RNG.random(40) * 4
PROXIMAL = BEHAVIOR + RNG.normal(0, 0.6, 40)
CURRENT = PROXIMAL + RNG.normal(0, 0.4, 40)
ADVANTAGES = RNG.normal(0, 1.5, 40)


def tensor(values: object) -> torch.Tensor:
    return torch.tensor(np.asarray(values), dtype=torch.float64)


def slow_surrogate(ratio: float, advantage: float, low: float, high: float) -> float:
    clipped = max(1 - low, min(1 + high, ratio))
    return min(ratio * advantage, clipped * advantage)


def test_clipped_surrogate_random_tokens_equals_numpy() -> None:
    ratios = np.exp(CURRENT - PROXIMAL)
    found, clipped = losses.clipped_surrogate(tensor(ratios), tensor(ADVANTAGES), eps_low=0.2, eps_high=0.28)
    expected = [slow_surrogate(r, a, 0.2, 0.28) for r, a in zip(ratios, ADVANTAGES, strict=True)]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
    decided = [(r > 1.28 and a > 0) or (r < 0.8 and a < 0) for r, a in zip(ratios, ADVANTAGES, strict=True)]
    assert clipped.tolist() == decided


@pytest.mark.parametrize(
    ("estimator", "formula"),
    [
        (losses.kl_k1, lambda d: -d),
        (losses.kl_k2, lambda d: d * d / 2),
        (losses.kl_k3, lambda d: math.exp(d) - d - 1),
    ],
)
def test_kl_random_tokens_equals_numpy(estimator: object, formula: object) -> None:
    found = estimator(tensor(PROXIMAL), tensor(CURRENT))  # type: ignore[operator]
    expected = [formula(ref - cur) for ref, cur in zip(PROXIMAL, CURRENT, strict=True)]  # type: ignore[operator]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10)


def test_importance_weights_and_their_corrections_equal_numpy() -> None:
    weights = corrections.importance_weights(tensor(PROXIMAL), tensor(BEHAVIOR))
    slow = [math.exp(p) / math.exp(b) for p, b in zip(PROXIMAL, BEHAVIOR, strict=True)]
    np.testing.assert_allclose(weights.numpy(), slow, rtol=1e-12)
    truncated = corrections.truncated(weights, cap=1.5)
    np.testing.assert_allclose(truncated.numpy(), [min(w, 1.5) for w in slow], rtol=1e-12)
    kept = corrections.icepop(weights, low=0.5, high=2.0)
    np.testing.assert_allclose(kept.numpy(), [w if 0.5 <= w <= 2.0 else 0.0 for w in slow], rtol=1e-12)


def test_importance_weights_carry_no_gradient() -> None:
    current = tensor(CURRENT).requires_grad_()
    assert not corrections.importance_weights(current, tensor(BEHAVIOR)).requires_grad
    assert not corrections.loglinear_proximal(current, tensor(BEHAVIOR), tensor(np.ones(40))).requires_grad


def test_loglinear_proximal_ages_interpolate_as_versions_say() -> None:
    ages = np.arange(40) % 4
    version = 9
    found = corrections.loglinear_proximal(tensor(CURRENT), tensor(BEHAVIOR), tensor(ages))
    for i, age in enumerate(ages):
        v_behavior, v_proximal, v_current = version - age, version, version + 1
        alpha = (v_proximal - v_behavior) / (v_current - v_behavior)
        assert found[i].item() == pytest.approx(BEHAVIOR[i] + alpha * (CURRENT[i] - BEHAVIOR[i]), rel=1e-12)
    assert found[0].item() == BEHAVIOR[0]


# --- advantages and aggregation ----------------------------------------------------------------------------------------


def test_step_rewards_success_and_format_both_needed() -> None:
    rewards = step_rewards(earned=np.array([1, 1, 0, 0]), format_ok=np.array([1, 0, 1, 0]), format_penalty=0.25)
    assert rewards.tolist() == [1.0, -0.25, 0.0, -0.25]


def test_group_advantages_mixed_rewards_equal_definition() -> None:
    rewards = np.array([1, 1, 0, 0, 0, 1, 0], dtype=np.float64)
    mean = sum(rewards) / 7
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / 7)
    expected = [(r - mean) / (std + 1e-4) for r in rewards]
    np.testing.assert_allclose(group_advantages(rewards, delta=1e-4), expected, rtol=1e-12)


@pytest.mark.parametrize("rewards", [[1.0] * 5, [0.0] * 5, [0.1] * 3, []])
def test_group_advantages_equal_rewards_are_exactly_zero(rewards: list[float]) -> None:
    assert not group_advantages(np.array(rewards), delta=1e-9).any()


TOKENS = np.array([3, 5, 2, 4, 1, 6])
TRAJECTORY = np.array([0, 0, 1, 2, 2, 3])
GROUP = np.array([0, 0, 0, 1, 1, 1])


def objective(aggregation: str, terms: list[np.ndarray], **kwargs: float) -> float:
    weights = token_weights(
        aggregation,
        num_tokens_n=TOKENS,
        trajectory_n=TRAJECTORY,
        group_n=GROUP,
        **kwargs,  # type: ignore[arg-type]
    )
    return sum(float(w * term.sum()) for w, term in zip(weights, terms, strict=True))


def test_token_weights_each_aggregation_equals_its_definition() -> None:
    terms = [RNG.normal(size=n) for n in TOKENS]
    flat = np.concatenate(terms)
    assert objective("token_mean", terms) == pytest.approx(flat.mean())
    assert objective("constant", terms, constant=100.0) == pytest.approx(flat.sum() / 100)
    assert objective("step_mean", terms) == pytest.approx(np.mean([t.mean() for t in terms]))
    trajectories = [np.concatenate([terms[i] for i in np.flatnonzero(k == TRAJECTORY)]) for k in range(4)]
    assert objective("trajectory_mean", terms) == pytest.approx(np.mean([t.mean() for t in trajectories]))
    # ComputerRL equation 4: per task (1 / sum_i L_i) sum_i sum_j, then the expectation over tasks.
    tasks = [sum(terms[i].mean() for i in np.flatnonzero(g == GROUP)) / (g == GROUP).sum() for g in range(2)]
    assert objective("computerrl", terms) == pytest.approx(np.mean(tasks))


def test_token_weights_constant_without_its_number_is_refused() -> None:
    with pytest.raises(ValueError, match="constant"):
        objective("constant", [np.zeros(n) for n in TOKENS])
