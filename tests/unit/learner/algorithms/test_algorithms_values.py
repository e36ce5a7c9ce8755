"""PPO, V-trace and DigiRL: targets and advantages of random trajectories against sums written as in the papers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from computerrl.common.config import AlgorithmConfig, LearnerConfig
from computerrl.learner.algorithms import FirstLook, LossBatch, PolicyAges, PolicyOutputs, TrainBatch, make_algorithm
from computerrl.learner.algorithms.ppo import PPO
from computerrl.learner.objective.advantages import generalised_advantages, length_adaptive_lambda, vtrace
from tests.support.data.trainer_data import make_group, make_step, random_groups


def make(name: str, **options: object) -> PPO:
    algorithm = make_algorithm(LearnerConfig(algorithm=AlgorithmConfig(name=name, options=options)))
    assert isinstance(algorithm, PPO)
    return algorithm


def looked(batch: TrainBatch, seed: int) -> FirstLook:
    rng = np.random.default_rng(seed)
    lengths = [len(step.action_tokens) for step in batch.samples]
    return FirstLook(
        logprobs=tuple(
            (step.behavior_logprobs + rng.normal(0, 0.5, n)).astype(np.float32)
            for step, n in zip(batch.samples, lengths, strict=True)
        ),
        entropy=tuple(rng.random(n).astype(np.float32) for n in lengths),
        values=tuple(rng.normal(0.5, 0.3, n).astype(np.float32) for n in lengths),
    )


def sequences(batch: TrainBatch, look: FirstLook) -> list[tuple[list[int], list[float], list[float], list[float]]]:
    """(members, rewards, values, weights) of each trajectory, token by token."""
    assert look.values is not None
    found = []
    for trajectory in sorted(set(batch.trajectory_S.tolist())):
        members = [i for i in range(len(batch.samples)) if batch.trajectory_S[i] == trajectory]
        rewards: list[float] = []
        values: list[float] = []
        weights: list[float] = []
        for i in members:
            num_tokens = len(batch.samples[i].action_tokens)
            rewards += [float(batch.reward_S[i]) if token == num_tokens - 1 else 0.0 for token in range(num_tokens)]
            values += look.values[i].tolist()
            weights += np.exp(look.logprobs[i].astype(np.float64) - batch.samples[i].behavior_logprobs).tolist()
        found.append((members, rewards, values, weights))
    return found


def slow_gae(rewards: list[float], values: list[float], *, gamma: float, lam: float) -> list[float]:
    end = len(rewards)
    padded = [*values, 0.0]
    deltas = [rewards[t] + gamma * padded[t + 1] - padded[t] for t in range(end)]
    return [math.fsum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, end)) for t in range(end)]


def slow_vtrace(
    rewards: list[float], values: list[float], weights: list[float], *, gamma: float, lam: float, rho_bar: float, c_bar: float
) -> tuple[list[float], list[float]]:
    end = len(rewards)
    padded = [*values, 0.0]
    deltas = [min(rho_bar, weights[t]) * (rewards[t] + gamma * padded[t + 1] - padded[t]) for t in range(end)]
    traces = [lam * min(c_bar, weight) for weight in weights]
    targets = [
        padded[s] + math.fsum(gamma ** (t - s) * math.prod(traces[s:t]) * deltas[t] for t in range(s, end)) for s in range(end)
    ]
    following = [*targets[1:], 0.0]
    return [min(rho_bar, weights[t]) * (rewards[t] + gamma * following[t] - padded[t]) for t in range(end)], targets


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (1.0, 0.0), (0.97, 0.9)])
def test_gae_equals_the_sum_of_its_definition(gamma: float, lam: float) -> None:
    rng = np.random.default_rng(1)
    rewards, values = rng.normal(size=12), rng.normal(size=12)
    found = generalised_advantages(rewards, values, gamma=gamma, lam=lam)
    np.testing.assert_allclose(found, slow_gae(rewards.tolist(), values.tolist(), gamma=gamma, lam=lam), atol=1e-12)


@pytest.mark.parametrize(("gamma", "lam", "rho_bar", "c_bar"), [(1.0, 1.0, 1.0, 1.0), (0.95, 0.8, 2.0, 0.7)])
def test_vtrace_equals_the_sum_of_its_definition(gamma: float, lam: float, rho_bar: float, c_bar: float) -> None:
    rng = np.random.default_rng(2)
    rewards, values, weights = rng.normal(size=9), rng.normal(size=9), np.exp(rng.normal(size=9))
    settings = {"gamma": gamma, "lam": lam, "rho_bar": rho_bar, "c_bar": c_bar}
    advantages, targets = slow_vtrace(rewards.tolist(), values.tolist(), weights.tolist(), **settings)
    found = vtrace(rewards, values, weights, **settings)
    np.testing.assert_allclose(found, (advantages, targets), atol=1e-12)


def test_vtrace_on_policy_is_gae_with_lambda_1() -> None:
    rng = np.random.default_rng(3)
    rewards, values = rng.normal(size=7), rng.normal(size=7)
    _, targets = vtrace(rewards, values, np.ones(7), gamma=0.9, lam=1.0, rho_bar=1.0, c_bar=1.0)
    np.testing.assert_allclose(targets - values, generalised_advantages(rewards, values, gamma=0.9, lam=1.0), atol=1e-12)


@pytest.mark.parametrize(("num_tokens", "expected"), [(0, 0.0), (10, 0.0), (40, 0.5), (200, 0.9)])
def test_length_adaptive_lambda_feels_the_end_from_farther_in_longer_trajectories(num_tokens: int, expected: float) -> None:
    assert length_adaptive_lambda(num_tokens, alpha=0.05) == pytest.approx(expected)


def normalised(values: list[float]) -> np.ndarray:
    flat = np.array(values)
    return (flat - flat.mean()) / (flat.std() + 1e-4)


@pytest.mark.parametrize("name", ["ppo", "vtrace"])
def test_refine_gives_every_token_its_advantage_and_target(name: str) -> None:
    algorithm = make(name, gamma=0.99, **({"length_alpha": 0.2} if name == "ppo" else {"trace_lambda": 0.9}))
    batch = algorithm.prepare(random_groups(num_groups=3, size=4, seed=4), ages=PolicyAges(0))
    look = looked(batch, 5)
    refined = algorithm.refine(batch, look)
    assert refined.token_advantages is not None and refined.value_targets is not None
    order: list[int] = []
    advantages: list[float] = []
    targets: list[float] = []
    for members, rewards, values, weights in sequences(batch, look):
        order += members
        if name == "ppo":
            lam = max(0.0, 1 - 1 / (0.2 * len(rewards)))
            advantages += slow_gae(rewards, values, gamma=0.99, lam=lam)
            both = zip(values, slow_gae(rewards, values, gamma=0.99, lam=1.0), strict=True)
            targets += [value + advantage for value, advantage in both]
        else:
            made = slow_vtrace(rewards, values, weights, gamma=0.99, lam=0.9, rho_bar=1.0, c_bar=1.0)
            advantages, targets = advantages + made[0], targets + made[1]
    in_order = [np.concatenate([found[i] for i in order]) for found in (refined.token_advantages, refined.value_targets)]
    want = normalised(advantages) if name == "ppo" else advantages
    np.testing.assert_allclose(in_order[0], want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(in_order[1], targets, rtol=1e-5, atol=1e-6)


def test_vtrace_trains_no_token_that_the_present_policy_would_not_sample() -> None:
    algorithm = make("vtrace")
    batch = algorithm.prepare(random_groups(num_groups=3, size=4, seed=4), ages=PolicyAges(0))
    look = looked(batch, 5)
    gone = 3
    unlikely = replace(look, logprobs=tuple(one - 40 if i == gone else one for i, one in enumerate(look.logprobs)))
    refined = algorithm.refine(batch, unlikely)
    assert refined.token_advantages is not None
    assert np.abs(refined.token_advantages[gone]).max() < 1e-12 < np.abs(np.concatenate(refined.token_advantages)).max()


def test_ppo_pays_a_success_once_at_the_last_step() -> None:
    batch = make("ppo").prepare(random_groups(num_groups=2, size=4, seed=6), ages=PolicyAges(0))
    for trajectory in set(batch.trajectory_S.tolist()):
        earned = batch.reward_S[batch.trajectory_S == trajectory]
        assert not earned[:-1].any() and earned[-1] == (trajectory % 2 == 0)


@pytest.mark.parametrize("name", ["ppo", "vtrace", "digirl"])
def test_a_success_is_paid_at_the_last_step_that_trains_when_a_later_one_is_too_old(name: str) -> None:
    """As when each action is sampled by a random one of two policies."""
    ages = [[1, 0, 9], [9, 9, 2], [9, 9, 9], [0, 9, 9]]
    episodes = [
        (number != 3, [make_step([number, place], [7, 8], version=9 - age) for place, age in enumerate(own)])
        for number, own in enumerate(ages)
    ]
    batch = make(name).prepare([make_group(episodes)], ages=PolicyAges(9))
    earned = dict(zip(batch.step_keys, batch.reward_S.tolist(), strict=True))
    assert earned == {("rl-1/0/0", 0): 0, ("rl-1/0/0", 1): 1, ("rl-1/0/1", 2): 1, ("rl-1/0/3", 0): 0}


def test_digirl_imitates_better_steps_of_trajectories_that_went_better_than_expected() -> None:
    algorithm = make("digirl", step_lambda=0.5)
    batch = algorithm.prepare(random_groups(num_groups=4, size=4, seed=8), ages=PolicyAges(0))
    look = looked(batch, 9)
    assert look.values is not None
    refined = algorithm.refine(batch, look)
    assert refined.token_advantages is not None and refined.value_targets is not None
    num_chosen = 0
    for members, _, _, _ in sequences(batch, look):
        begins = [float(look.values[i][0]) for i in members] + [0.0]
        outcome = float(batch.reward_S[members[-1]])
        for h, i in enumerate(members):
            share = 0.5 ** (len(members) - 1 - h)
            reward = outcome if i == members[-1] else 0.0
            advantage = share * outcome + (1 - share) * (begins[h + 1] + reward - begins[h])
            chosen = advantage > 0 and outcome - begins[0] > 0
            num_chosen += chosen
            assert (refined.token_advantages[i] == float(chosen)).all()
            assert refined.value_targets[i][0] == outcome and np.isnan(refined.value_targets[i][1:]).all()
    assert 0 < num_chosen < len(batch.samples)


@pytest.mark.parametrize("name", ["ppo", "vtrace", "digirl"])
def test_loss_equals_the_formula_token_by_token(name: str) -> None:
    rng = np.random.default_rng(10)
    algorithm = make(name)
    number = 12
    behavior = -rng.random(number)
    proximal, current = behavior + rng.normal(0, 0.3, number), behavior + rng.normal(0, 0.3, number)
    advantage, weight, values = rng.normal(size=number), rng.random(number), rng.normal(size=number)
    target = np.where(rng.random(number) < 0.3, np.nan, rng.normal(size=number))
    as_tensor = lambda array: torch.tensor(array, dtype=torch.float64)  # noqa: E731
    outputs = PolicyOutputs(
        logprobs_M=as_tensor(current).requires_grad_(),
        entropy_M=as_tensor(np.ones(number)),
        proximal_logprobs_M=as_tensor(proximal),
        reference_logprobs_M=None,
        values_M=as_tensor(values).requires_grad_(),
    )
    batch = LossBatch(
        step_M=torch.arange(number) // 3,
        advantage_M=as_tensor(advantage),
        token_weight_M=as_tensor(weight),
        behavior_logprobs_M=as_tensor(behavior),
        age_M=as_tensor(np.zeros(number)),
        value_target_M=as_tensor(target),
        is_replayed_M=torch.zeros(number, dtype=torch.bool),
    )
    expected = 0.0
    for m in range(number):
        ratio = math.exp(current[m] - proximal[m])
        clipped = min(ratio * advantage[m], min(max(ratio, 0.8), 1.2) * advantage[m])
        correction = min(math.exp(proximal[m] - behavior[m]), 5.0) if name == "ppo" else 1.0
        expected -= weight[m] * (advantage[m] * current[m] if name == "digirl" else correction * clipped)
        expected += 0.5 * weight[m] * (0.0 if math.isnan(target[m]) else (values[m] - target[m]) ** 2 / 2)
    result = algorithm.loss(outputs, batch)
    assert result.loss.item() == pytest.approx(expected, rel=1e-9)
    result.loss.backward()
    assert outputs.values_M is not None and outputs.values_M.grad is not None
    assert (outputs.values_M.grad[torch.isnan(batch.value_target_M)] == 0).all(), "no target, no gradient"
