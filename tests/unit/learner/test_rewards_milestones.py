"""The reward milestones against its formula: sums telescope, undone facts are paid back, and what is unknown is named."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from computerrl.common.config import LearnerConfig, RewardConfig
from computerrl.common.errors import ConfigError
from computerrl.common.messages import Trajectory, TrajectoryGroup
from computerrl.learner.algorithms import PolicyAges, make_algorithm
from computerrl.learner.algorithms.step_table import StepTable
from computerrl.learner.rewards import Reward, Rewards, RewardSetting
from tests.support.data.trainer_data import make_group, make_step

SETTING = RewardSetting(Path(), decode=lambda tokens: "", read_image=lambda ref: b"")
AGES = PolicyAges(0)


def rewards_of(weight: float = 0.5, *, terminal: str = "kept", **others: Any) -> Rewards:
    shaping = RewardConfig(name="milestones", weight=weight, options={"terminal": terminal})
    return Rewards.of([RewardConfig(), shaping], SETTING, algorithm=SimpleNamespace(pays_outcomes=True))


def played(*potentials: list[float | None], success: list[bool] | None = None) -> TrajectoryGroup:
    """A trajectory for each of ``potentials``: before each step, and in the end."""
    outcomes = success or [False] * len(potentials)
    steps = [[make_step([place], [7]) for place in range(len(one) - 1)] for one in potentials]
    group = make_group(list(zip(outcomes, steps, strict=True)))
    made = [
        replace(
            trajectory,
            steps=tuple(replace(step, progress=value) for step, value in zip(trajectory.steps, values, strict=False)),
            progress=values[-1],
        )
        for trajectory, values in zip(group.trajectories, potentials, strict=True)
    ]
    return replace(group, trajectories=tuple(made))


def returns(group: TrajectoryGroup) -> np.ndarray:
    return StepTable.of([group], ages=AGES).returns_n


@pytest.mark.parametrize("terminal", ["kept", "zero"])
def test_each_step_is_paid_the_potential_that_it_adds_and_the_sum_telescopes(terminal: str) -> None:
    rng = random.Random(1)
    for _ in range(50):
        walk = [rng.choice([0.0, 0.25, 0.5, 1.0]) for _ in range(rng.randint(2, 9))]
        success = rng.random() < 0.5
        (paid,), _ = rewards_of(0.5, terminal=terminal).pay([played(walk, success=[success])])
        ends = [*walk[:-1], walk[-1] if terminal == "kept" else 0.0]
        of_steps = [0.5 * (after - before) for before, after in itertools.pairwise(ends)]
        expected = [success + sum(of_steps[place:]) for place in range(len(of_steps))]
        np.testing.assert_allclose(returns(paid), expected, atol=1e-12)
        assert paid.trajectories[0].total_reward == pytest.approx(success + 0.5 * (ends[-1] - ends[0]))


def test_a_fact_that_is_undone_is_paid_back_however_often_it_is_brought_about() -> None:
    (paid,), _ = rewards_of().pay([played([0.0, 0.5] * 6 + [0.0], [0.0, 0.5, 0.0], [0.0, 0.0])])
    assert [one.total_reward for one in paid.trajectories] == [0.0, 0.0, 0.0]


def test_a_success_earns_more_than_any_failure_and_more_facts_earn_more() -> None:
    group = played([0.0, 0.5, 1.0], [0.0, 1.0], [0.0, 0.5], [0.0, 0.25], [0.0, 0.0], success=[True, False, False, False, False])
    (paid,), metrics = rewards_of().pay([group])
    earned = [one.total_reward for one in paid.trajectories]
    assert earned == [1.5, 0.5, 0.25, 0.125, 0.0]
    assert metrics["reward_milestones"] == pytest.approx(2.75 / 5) and metrics["rewards_unknown"] == 0


def test_a_group_in_which_all_fail_has_a_signal_and_without_facts_it_has_none() -> None:
    algorithm = make_algorithm(LearnerConfig())
    (paid,), _ = rewards_of().pay([played([0.0, 0.5, 0.5], [0.0, 0.0])])
    batch = algorithm.prepare([paid], ages=AGES)
    # The step that brought the fact about stands above the one that came after it, and above the rollout without.
    assert batch.reward_S.tolist() == pytest.approx([0.25, 0.0, 0.0])
    assert batch.advantage_S[0] > 0 > batch.advantage_S[1] == batch.advantage_S[2]
    (plain,), _ = rewards_of().pay([played([0.0, 0.0, 0.0], [0.0, 0.0])])
    assert not algorithm.prepare([plain], ages=AGES).samples


@pytest.mark.parametrize("missing", [[None, None, None], [0.0, None, 0.5], [0.0, 0.5, None]])
def test_an_episode_whose_facts_are_not_counted_leaves_its_group_as_the_evaluator_pays_it(missing: list[float | None]) -> None:
    group = played([0.0, 1.0], missing, success=[True, False])
    (paid,), metrics = rewards_of().pay([group])
    assert [one.total_reward for one in paid.trajectories] == [1.0, 0.0]
    assert all(one.earned_before == () for one in paid.trajectories) and metrics["rewards_unknown"] == 1


class Short(Reward):
    def score(self, trajectory: Trajectory) -> float:
        return 1.0

    def earned_before(self, trajectory: Trajectory) -> list[float]:
        return [0.0]


def test_a_plug_in_that_pays_another_number_of_steps_is_named() -> None:
    rewards = Rewards.of([RewardConfig(name=f"{__name__}:Short")], SETTING, algorithm=SimpleNamespace(pays_outcomes=True))
    with pytest.raises(ConfigError, match="gives 1 numbers for the 2 steps"):
        rewards.pay([played([0.0, 0.5, 0.5])])


def test_facts_are_asked_for_only_where_a_reward_wants_them() -> None:
    assert rewards_of().wants_facts and not Rewards(()).wants_facts


def test_milestones_alone_are_refused() -> None:
    with pytest.raises(ConfigError, match="milestones is the only reward"):
        Rewards.of([RewardConfig(name="milestones")], SETTING, algorithm=SimpleNamespace(pays_outcomes=True))
