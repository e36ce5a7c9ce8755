"""VCPO's baseline (arXiv 2602.17616): against its formula, against a search for the smallest variance, and against gradients
that plain transformers gives."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from computerrl.learner.algorithms import FirstLook, PolicyAges, Refines
from computerrl.learner.objective.advantages import off_policy_optimal_baseline
from tests.support.data.trainer_data import make_group, make_step, random_groups
from tests.unit.learner.training.test_trainer_updates import make_trainer, plain_logprobs, plain_model


@pytest.fixture(autouse=True)
def runs_below_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def slow_baseline(rewards: list[float], log_weights: list[float], norms: list[float]) -> float:
    """`compute_opob_baseline` of the release: W = ||g||^2 ratio^2, b = sum W R / sum W."""
    weights = [norm**2 * math.exp(log_weight) ** 2 for norm, log_weight in zip(norms, log_weights, strict=True)]
    return sum(weight * reward for weight, reward in zip(weights, rewards, strict=True)) / sum(weights)


@pytest.mark.parametrize("seed", range(5))
def test_baseline_is_that_of_the_release_and_has_the_smallest_second_moment(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rewards, log_weights, gradients = rng.integers(0, 2, 8) * 1.0, rng.normal(0, 1, 8), rng.normal(0, 1, (8, 5))
    rewards[:2] = 0.0, 1.0
    norms = np.linalg.norm(gradients, axis=1)
    found = off_policy_optimal_baseline(rewards, log_weights, norms)
    assert found == pytest.approx(slow_baseline(rewards.tolist(), log_weights.tolist(), norms.tolist()), rel=1e-12)

    def second_moment(baseline: float) -> float:
        terms = (np.exp(log_weights) * (rewards - baseline))[:, None] * gradients
        return float((terms**2).sum())

    assert all(second_moment(found) <= second_moment(found + off) for off in (-0.1, -1e-3, 1e-3, 0.1))


@pytest.mark.parametrize(
    ("rewards", "log_weights", "norms", "expected"),
    [
        ([1, 1, 1], [0.0, 5.0, -5.0], [1.0, 2.0, 3.0], 1.0),
        ([0, 1], [0.0, 0.0], [2.0, 2.0], 0.5),
        ([0, 1], [2000.0, 1000.0], [1.0, 1.0], 0.0),
        ([0, 1], [-2000.0, -2000.0], [1.0, 3.0], 0.9),
        ([0, 1], [0.0, 0.0], [0.0, 0.0], math.nan),
        ([0, 1], [0.0, 0.0], [math.nan, 1.0], math.nan),
    ],
)
def test_baseline_at_the_edges(rewards: list[float], log_weights: list[float], norms: list[float], expected: float) -> None:
    found = off_policy_optimal_baseline(np.array(rewards, float), np.array(log_weights), np.array(norms))
    assert found == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("max_pack_tokens", [None, 64])
def test_advantages_are_those_of_gradients_by_plain_transformers(max_pack_tokens: int | None) -> None:
    trainer = make_trainer(name="vcpo", max_pack_tokens=max_pack_tokens, group_size=4)
    groups = random_groups(num_groups=2, size=4, seed=3)
    solved = make_group([(True, [make_step([1, 2], [3])]), (True, [make_step([1, 2], [4])])], group_seq=2)
    batch = trainer.refine(trainer.algorithm.prepare([*groups, solved], ages=PolicyAges(0)))
    model = plain_model()
    trained = [parameter for name, parameter in model.named_parameters() if name in trainer.policy.weights.masters]
    expected: dict[str, float] = {}
    for group in groups:
        outcomes = [float(one.success) for one in group.trajectories]
        log_weights, norms = [], []
        for one in group.trajectories:
            logprobs = torch.cat([plain_logprobs(model, step) for step in one.steps])
            gradients = torch.autograd.grad(logprobs.sum(), trained)
            norms.append(math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients)))
            sampled = np.concatenate([step.behavior_logprobs for step in one.steps])
            log_weights.append(float(logprobs.detach().double().sum() - sampled.sum()))
        baseline = slow_baseline(outcomes, log_weights, norms)
        scale = float(np.std(outcomes)) + 1e-4
        expected |= {one.trajectory_id: (own - baseline) / scale for one, own in zip(group.trajectories, outcomes, strict=True)}
    assert {key[0] for key in batch.step_keys} == expected.keys()
    wanted = [expected[key[0]] for key in batch.step_keys]
    np.testing.assert_allclose(batch.advantage_S, wanted, rtol=1e-3, atol=1e-4)
    assert all(master.grad is None for master in trainer.policy.weights.masters.values()), "a look leaves no gradient behind"
    assert math.isfinite(trainer.update(batch)["loss"])


def test_a_look_that_is_not_finite_leaves_the_groups_mean() -> None:
    trainer = make_trainer(name="vcpo")
    batch = trainer.algorithm.prepare(random_groups(num_groups=1), ages=PolicyAges(0))
    assert isinstance(trainer.algorithm, Refines)
    tokens = tuple(step.behavior_logprobs for step in batch.samples)
    look = FirstLook(tokens, tokens, None, np.full(len(batch.trajectory_ids), np.nan))
    np.testing.assert_array_equal(trainer.algorithm.refine(batch, look).advantage_S, batch.advantage_S)


def test_a_trajectory_whose_early_steps_are_too_old_counts_with_the_steps_that_train() -> None:
    trainer = make_trainer(name="vcpo", max_age=2)
    (group,) = random_groups(num_groups=1, size=4, seed=1, version=5)
    first = group.trajectories[0]
    old = replace(first.steps[0], policy_versions=np.zeros_like(first.steps[0].policy_versions))
    aged = replace(group, trajectories=(replace(first, steps=(old, *first.steps[1:])), *group.trajectories[1:]))
    batches = [trainer.algorithm.prepare([one], ages=PolicyAges(5)) for one in (group, aged)]
    whole, cut = (trainer.refine(batch) for batch in batches)
    kept = dataclasses.replace(batches[0]).subset(np.flatnonzero([key != (first.trajectory_id, 0) for key in whole.step_keys]))
    np.testing.assert_allclose(cut.advantage_S, trainer.refine(kept).advantage_S, rtol=1e-6)
