"""Masks and KL-Cov against slow formulas of the named sources, token by token; and what they do to a batch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from computerrl.common.config import AlgorithmConfig, LearnerConfig, load_config
from computerrl.common.errors import ConfigError
from computerrl.learner.algorithms import FirstLook, PolicyAges, TrainBatch, make_algorithm
from computerrl.learner.algorithms.grpo import GRPO
from computerrl.learner.objective.masks import MASKS, RANGES, BatchTokens, covariant
from computerrl.learner.training.loss_batch import make_loss_batch
from tests.support.data.trainer_data import random_groups
from tests.unit.learner.algorithms.test_algorithms_values import looked

FOLDER = Path(__file__).resolve().parents[4] / "configs" / "algorithms"


def random_tokens(seed: int, *, num_steps: int = 12) -> BatchTokens:
    rng = np.random.default_rng(seed)
    step_m = np.repeat(np.arange(num_steps), rng.integers(1, 7, num_steps))
    behavior_m = -rng.random(len(step_m)) * 3
    return BatchTokens(
        logprobs_m=behavior_m + rng.normal(0, 0.4, len(step_m)),
        behavior_logprobs_m=behavior_m,
        entropy_m=rng.random(len(step_m)),
        advantages_m=rng.normal(size=num_steps)[step_m],
        step_m=step_m,
    )


Rows = list[dict[str, float]]


def rows_of(tokens: BatchTokens) -> Rows:
    names = {"now": "logprobs_m", "sampled": "behavior_logprobs_m", "entropy": "entropy_m", "A": "advantages_m", "step": "step_m"}
    return [{short: float(getattr(tokens, name)[i]) for short, name in names.items()} for i in range(len(tokens.step_m))]


def slow_m2po(rows: Rows, limit: float) -> list[bool]:
    """Algorithm 1: the worst token goes, until the mean of the squares of those left is small enough."""
    log_w = [row["now"] - row["sampled"] for row in rows]
    left = [i for i, row in enumerate(rows) if (row["A"] > 0 and log_w[i] > 0) or (row["A"] < 0 and log_w[i] < 0)]
    gone = set()
    while left and math.fsum(log_w[i] ** 2 for i in left) / len(left) > limit:
        worst = max(left, key=lambda i: log_w[i] ** 2)
        left.remove(worst)
        gone.add(worst)
    return [i not in gone for i in range(len(rows))]


def slow_opsm(rows: Rows, limit: float) -> list[bool]:
    """slime `compute_opsm_mask`: of steps with A < 0, those whose mean of log pi_old - log pi is too large."""

    def gap(step: float) -> float:
        own = [row["sampled"] - row["now"] for row in rows if row["step"] == step]
        return math.fsum(own) / len(own)

    return [not (row["A"] < 0 and gap(row["step"]) > limit) for row in rows]


def slow_sequence(rows: Rows, limit: float) -> list[bool]:
    """verl `compute_rollout_rejection_mask` (seq_sum): the product of w within [1 / limit, limit]."""
    products = {row["step"]: 1.0 for row in rows}
    for row in rows:
        products[row["step"]] *= math.exp(row["now"] - row["sampled"])
    return [1 / limit <= products[row["step"]] <= limit for row in rows]


def slow_veto(rows: Rows, limit: float) -> list[bool]:
    """verl's veto: a step with one token below the limit."""
    bad = {row["step"] for row in rows if math.exp(row["now"] - row["sampled"]) < limit}
    return [row["step"] not in bad for row in rows]


def slow_covariance(rows: Rows) -> list[float]:
    """verl `compute_policy_loss_clip_cov`: the product of both deviations from their means over the batch."""
    now, advantage = (math.fsum(row[name] for row in rows) / len(rows) for name in ("now", "A"))
    return [(row["now"] - now) * (row["A"] - advantage) for row in rows]


SLOW: dict[str, tuple[Callable[[Rows, float], list[bool]], float]] = {
    "m2po": (slow_m2po, 0.04),
    "opsm": (slow_opsm, 0.1),
    "sequence": (slow_sequence, 2.0),
    "veto": (slow_veto, 0.5),
}


@pytest.mark.parametrize("name", SLOW)
def test_mask_equals_its_source(name: str) -> None:
    slow, number = SLOW[name]
    masked = 0
    for seed in range(6):
        tokens = random_tokens(seed)
        found = MASKS[name](tokens, number, np.random.default_rng(0)).tolist()
        assert found == slow(rows_of(tokens), number)
        masked += found.count(False)
    assert masked, "the mask left something out"


def test_m2po_keeps_all_where_the_moment_is_small_and_nothing_counted_where_it_is_large() -> None:
    tokens = random_tokens(1)
    draws = np.random.default_rng(0)
    assert MASKS["m2po"](tokens, 100.0, draws).all()
    assert MASKS["m2po"](tokens, 1e-12, draws).tolist() == (tokens.log_weights_m * tokens.advantages_m <= 0).tolist()


def test_top_entropy_keeps_the_share_of_highest_entropy() -> None:
    tokens = random_tokens(2, num_steps=50)
    kept = MASKS["top_entropy"](tokens, 0.2, np.random.default_rng(0))
    assert kept.mean() == pytest.approx(0.2, abs=1 / len(kept))
    assert tokens.entropy_m[kept].min() > tokens.entropy_m[~kept].max()


def test_clip_cov_leaves_out_a_share_drawn_within_the_range_of_covariances() -> None:
    tokens = random_tokens(3, num_steps=200)
    covariance = np.array(slow_covariance(rows_of(tokens)))
    np.testing.assert_allclose(tokens.covariance_m, covariance, rtol=1e-9, atol=1e-12)
    drawn = [~MASKS["clip_cov"](tokens, 0.02, np.random.default_rng(seed)) for seed in (0, 0, 1)]
    assert drawn[0].sum() == int(0.02 * len(covariance)) > 1
    assert all(((covariance[one] > 1.0) & (covariance[one] < 5.0)).all() for one in drawn)
    assert drawn[0].tolist() == drawn[1].tolist() != drawn[2].tolist()
    flat = dataclasses.replace(tokens, advantages_m=np.zeros(len(covariance)))
    assert MASKS["clip_cov"](flat, 0.02, np.random.default_rng(0)).all(), "none is in the range"


def test_kl_cov_takes_the_largest_covariances_and_at_least_one() -> None:
    tokens = random_tokens(4, num_steps=60)
    covariance = slow_covariance(rows_of(tokens))
    for share, number in ((0.05, int(0.05 * len(covariance))), (1e-6, 1)):
        worst = sorted(range(len(covariance)), key=lambda i: -covariance[i])[:number]
        assert np.flatnonzero(covariant(tokens, share)).tolist() == sorted(worst)


# --- batches -------------------------------------------------------------------------------------------------------------


def prepared(**options: Any) -> tuple[GRPO, TrainBatch, FirstLook]:
    learner = LearnerConfig(num_minibatches=2, algorithm=AlgorithmConfig(options=options))
    algorithm = make_algorithm(learner)
    assert isinstance(algorithm, GRPO)
    batch = algorithm.prepare(random_groups(num_groups=4, size=4, seed=2), ages=PolicyAges(0))
    return algorithm, batch, looked(batch, 1)


def test_masked_tokens_have_no_advantage_and_a_step_without_any_other_is_left_out() -> None:
    algorithm, batch, look = prepared(masks={"sequence": 1.5, "veto": 0.3})
    assert algorithm.wants_look
    refined = algorithm.refine(batch, look)
    ratios = [
        np.exp(new.astype(np.float64) - step.behavior_logprobs) for new, step in zip(look.logprobs, batch.samples, strict=True)
    ]
    kept = [i for i, one in enumerate(ratios) if 1 / 1.5 <= one.prod() <= 1.5 and one.min() >= 0.3]
    assert 0 < len(kept) < len(batch.samples)
    assert refined.step_keys == [batch.step_keys[i] for i in kept]
    assert {key for key, why in refined.left_out.items() if why == "not_chosen"} == set(batch.step_keys) - set(refined.step_keys)
    np.testing.assert_array_equal(refined.token_weight_S, batch.token_weight_S[kept])
    gone = [i for i in range(len(batch.samples)) if i not in kept]
    assert refined.left_out_tokens - batch.left_out_tokens == sum(len(look.entropy[i]) for i in gone)
    assert refined.left_out_nll - batch.left_out_nll == pytest.approx(sum(float(look.entropy[i].sum()) for i in gone), rel=1e-5)
    assert 0 < refined.metrics["masked_fraction"] < 1


def test_masked_tokens_keep_their_step_where_a_kl_is_due() -> None:
    algorithm, batch, look = prepared(masks={"sequence": 1.5}, kl_beta=0.1)
    refined = algorithm.refine(batch, look)
    assert refined.step_keys == batch.step_keys and refined.token_advantages is not None
    zeros = [bool((one == 0).all()) for one in refined.token_advantages]
    assert 0 < sum(zeros) < len(zeros)


def test_no_mask_wants_no_look_and_what_is_not_finite_is_left_to_the_guard() -> None:
    algorithm, batch, look = prepared()
    assert not algorithm.wants_look and algorithm.refine(batch, look) is batch
    algorithm, batch, look = prepared(masks={"top_entropy": 0.2})
    broken = (np.full_like(look.logprobs[0], np.nan), *look.logprobs[1:])
    assert algorithm.refine(batch, dataclasses.replace(look, logprobs=broken)) is batch


def test_penalty_of_kl_cov_is_added_to_the_loss_of_its_tokens() -> None:
    algorithm, batch, look = prepared(objective="plain", kl_cov=0.2, kl_cov_beta=0.7)
    refined = algorithm.refine(batch, look)
    assert refined.drift_penalties is not None
    marks = np.concatenate(refined.drift_penalties)
    assert set(marks.tolist()) == {0.0, float(np.float32(0.7))} and (marks > 0).sum() == int(0.2 * len(marks))
    passes = make_loss_batch(refined, range(len(refined.samples)))
    rng = np.random.default_rng(0)
    logprobs = torch.tensor(rng.normal(-1, 0.3, len(marks)), dtype=torch.float64, requires_grad=True)
    old = torch.tensor(rng.normal(-1, 0.3, len(marks)), dtype=torch.float64)
    outputs = dataclasses.replace(outputs_of(logprobs), proximal_logprobs_M=old)
    loss = algorithm.loss(outputs, passes).loss
    without = algorithm.loss(outputs, dataclasses.replace(passes, drift_penalty_M=None)).loss
    weights = passes.token_weight_M.tolist()
    expected = math.fsum(
        w * m * abs(float(n) - float(o)) for w, m, n, o in zip(weights, marks, logprobs.detach(), old, strict=True)
    )
    assert (loss - without).item() == pytest.approx(expected, rel=1e-6)


def outputs_of(logprobs: torch.Tensor) -> Any:
    from computerrl.learner.algorithms import PolicyOutputs

    return PolicyOutputs(logprobs, torch.zeros_like(logprobs.detach()), None, None)


@pytest.mark.parametrize("name", ["m2po", "opsm", "sequence_mask", "clip_cov", "top_entropy", "kl_cov"])
def test_masks_as_configured_are_decided_by_a_first_look(name: str) -> None:
    algorithm = make_algorithm(load_config(FOLDER / f"{name}.yaml").learner)
    assert isinstance(algorithm, GRPO) and algorithm.wants_look
    batch = algorithm.prepare(random_groups(num_groups=6, size=6, seed=4), ages=PolicyAges(0))
    refined = algorithm.refine(batch, looked(batch, 3))
    assert refined.token_advantages is not None and refined.samples
    if name == "kl_cov":
        assert refined.drift_penalties is not None and np.concatenate(refined.drift_penalties).any()
    elif name != "clip_cov":  # Of random log-probs, few covariances are in its range.
        assert refined.metrics["masked_fraction"] > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"masks": {"m3po": 1.0}}, "no mask 'm3po'; there are m2po, opsm"),
        ({"masks": {"sequence": 0.5}}, "sequence 0.5 is not between 1 and inf"),
        ({"masks": {"top_entropy": 1.0}}, "top_entropy 1 is not between 0 and 1"),
        ({"objective": "vespo"}, "weighs by pi_t / pi_b itself; set correction to none"),
        ({"objective": "sapo", "gate_temperatures": (0.0, 1.0)}, "give two numbers above 0"),
        ({"positive_kernel": (1.0, 1.0)}, "positive_kernel: no effect with objective 'clipped'"),
    ],
)
def test_options_that_do_not_fit_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prepared(**options)
    assert said in str(caught.value)


def test_every_mask_has_a_range() -> None:
    assert MASKS.keys() == RANGES.keys()
