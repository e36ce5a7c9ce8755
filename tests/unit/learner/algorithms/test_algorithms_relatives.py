"""RLOO, REINFORCE++, Dr.GRPO and DAPO: advantages and weights of random batches against slow formulas, one step at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from computerrl.common.config import AlgorithmConfig, LearnerConfig
from computerrl.common.messages import Step, Trajectory, TrajectoryGroup
from computerrl.learner.algorithms import PolicyAges, TrainBatch, make_algorithm
from tests.support.data.trainer_data import make_group, make_step, random_groups

DELTA = 1e-4


def prepare(name: str, groups: Sequence[TrajectoryGroup], **options: object) -> TrainBatch:
    algorithm = make_algorithm(LearnerConfig(algorithm=AlgorithmConfig(name=name, options=options)))
    return algorithm.prepare(groups, ages=PolicyAges(0))


def reward(trajectory: Trajectory, step: Step) -> float:
    return float(trajectory.success and step.format_ok)


def rewards(trajectories: Sequence[Trajectory]) -> list[float]:
    return [reward(one, step) for one in trajectories for step in one.steps]


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def slow_advantages(name: str, groups: Sequence[TrajectoryGroup]) -> dict[int, float]:
    """id(step) -> advantage."""
    found: dict[int, float] = {}
    for group in groups:
        for one in group.trajectories:
            others = [other for other in group.trajectories if other is not one]
            baseline = mean(rewards(others)) if name == "rloo" else mean(rewards(group.trajectories))
            found |= {id(step): reward(one, step) - baseline for step in one.steps}
    if name == "reinforce_pp":
        centre = mean(list(found.values()))
        deviation = math.sqrt(mean([(value - centre) ** 2 for value in found.values()]))
        found = {key: value / (deviation + DELTA) for key, value in found.items()}
    return found


@pytest.mark.parametrize("name", ["rloo", "reinforce_pp", "dr_grpo"])
@pytest.mark.parametrize("seed", range(4))
def test_advantages_of_a_random_batch_equal_the_formula(name: str, seed: int) -> None:
    groups = random_groups(num_groups=4, size=5, seed=seed)
    batch, expected = prepare(name, groups), slow_advantages(name, groups)
    assert len(batch.samples) == len(expected)
    np.testing.assert_allclose(batch.advantage_S, [expected[id(step)] for step in batch.samples], rtol=1e-6)


@pytest.mark.parametrize("name", ["rloo", "reinforce_pp", "dr_grpo", "dapo"])
def test_group_without_signal_and_lone_rollout_train_nothing(name: str) -> None:
    steps = [make_step([5], [6, 7])]
    flat = make_group([(True, steps), (True, steps)], group_seq=0)
    lone = make_group([(True, steps)], group_seq=1)
    batch = prepare(name, [flat, lone])
    assert batch.samples == () and np.isfinite(list(batch.metrics.values())).all()


def test_dr_grpo_counts_every_token_the_same_whatever_its_step_is_long() -> None:
    batch = prepare("dr_grpo", random_groups(), aggregation_constant=500.0)
    np.testing.assert_allclose(batch.token_weight_S, 1 / 500)


def test_dapo_is_a_mean_over_the_tokens_of_groups_with_a_signal() -> None:
    mixed = random_groups(num_groups=2, seed=1)
    steps = [make_step([5], [6] * 50)]
    flat = make_group([(False, steps), (False, steps)], group_seq=7)
    num_tokens = sum(len(step.action_tokens) for group in mixed for one in group.trajectories for step in one.steps)
    for groups in (mixed, [*mixed, flat]):
        batch = prepare("dapo", groups)
        np.testing.assert_allclose(batch.token_weight_S, 1 / num_tokens, rtol=1e-6)
    # With a KL term, a group that teaches nothing stays out all the same.
    assert all(len(step.action_tokens) < 50 for step in prepare("dapo", [*mixed, flat], kl_beta=0.1).samples)


def test_grpo_on_the_same_batch_divides_by_each_groups_own_deviation() -> None:
    groups = random_groups(num_groups=3, size=5, seed=2)
    grpo, centred = prepare("grpo", groups), prepare("dr_grpo", groups)
    for number, group in enumerate(groups):
        members = grpo.group_S == number
        np.testing.assert_allclose(
            grpo.advantage_S[members], centred.advantage_S[members] / (np.std(rewards(group.trajectories)) + DELTA), rtol=1e-5
        )


@pytest.mark.parametrize("name", ["grpo", "rloo", "dapo", "gigpo"])
def test_imitation_weight_is_added_where_a_well_formed_step_belongs_to_a_success(name: str) -> None:
    solved = make_group([(True, [make_step([5], [6])]), (True, [make_step([5], [7]), make_step([5, 7], [8])])], group_seq=9)
    groups = [*random_groups(num_groups=3, size=5, seed=3), solved]
    weight = 0.25
    options = {"gamma": 1.0} if name == "gigpo" else {}
    plain, added = prepare(name, groups, **options), prepare(name, groups, imitation_weight=weight, **options)
    before = dict(zip(map(id, plain.samples), plain.advantage_S, strict=True))
    after = dict(zip(map(id, added.samples), added.advantage_S, strict=True))
    for group in groups:
        for one in group.trajectories:
            for step in one.steps:
                expected = before.get(id(step), 0.0) + weight * (one.success and step.format_ok)
                assert after.get(id(step), 0.0) == pytest.approx(expected, abs=1e-6)
    assert {id(step) for one in solved.trajectories for step in one.steps} <= after.keys() - before.keys()
