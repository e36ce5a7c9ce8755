"""Rewards: what each pays, how they are added, what algorithms make of the sum, and which configurations are refused."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from computerrl.common.config import AlgorithmConfig, LearnerConfig, RewardConfig
from computerrl.common.errors import ConfigError
from computerrl.common.messages import Trajectory, TrajectoryGroup
from computerrl.common.metrics import read_json_lines
from computerrl.learner.algorithms import PolicyAges, TrainBatch, make_algorithm
from computerrl.learner.rewards import REWARDS, Reward, Rewards, RewardSetting, RewardUnknown
from tests.support.data.trainer_data import make_group, make_step
from tests.support.loop_fakes import Bench, make_config

SETTING = RewardSetting(Path(), decode=lambda tokens: "", read_image=lambda ref: b"")
PAYS = SimpleNamespace(pays_outcomes=True)


class Lucky(Reward):
    """Pays 0.25, 0.5, ... by the place in the group; knows nothing of a trajectory that ``options.unknown`` names."""

    def __init__(self, options: Mapping[str, Any], setting: RewardSetting) -> None:
        super().__init__(options, setting)
        self._unknown = options.get("unknown", ())

    def score(self, trajectory: Trajectory) -> float:
        if trajectory.trajectory_id in self._unknown:
            raise RewardUnknown("no_luck")
        return 0.25 * (trajectory.index + 1)


class Broken(Reward):
    def score(self, trajectory: Trajectory) -> float:
        raise KeyError("nothing")


class Boundless(Reward):
    def score(self, trajectory: Trajectory) -> float:
        return float("inf")


LUCKY = f"{__name__}:Lucky"


def rewards_of(*entries: dict[str, Any], algorithm: object = PAYS) -> Rewards:
    return Rewards.of([RewardConfig(**one) for one in entries], SETTING, algorithm=algorithm)


def group_of(*lengths: int, success: Sequence[bool], group_seq: int = 0) -> TrajectoryGroup:
    """A trajectory of so many steps of two tokens for each of ``lengths``."""
    made = [[make_step([place], [7, 8]) for place in range(length)] for length in lengths]
    return make_group(list(zip(success, made, strict=True)), group_seq=group_seq)


def totals(paid: list[TrajectoryGroup]) -> list[float | None]:
    return [one.total_reward for group in paid for one in group.trajectories]


def test_the_evaluator_alone_changes_nothing() -> None:
    group = group_of(1, 2, success=[True, False])
    for configured in (LearnerConfig().rewards, (RewardConfig(),)):
        paid, metrics = Rewards.of(configured, SETTING, algorithm=object()).pay([group])
        assert paid == [group] and paid[0].trajectories[0] is group.trajectories[0] and not metrics


def test_rewards_are_weighed_and_added() -> None:
    group = group_of(1, 4, 6, success=[True, True, False])
    rewards = rewards_of(
        {"weight": 2.0},
        {"name": "step", "weight": 0.1, "options": {"free": 1, "per": 2.0}},
        {"name": "length", "weight": 0.01, "options": {"only_successes": False}},
        {"name": LUCKY, "weight": -1.0},
    )
    paid, metrics = rewards.pay([group])
    # Two tokens a step; the failure pays for its length alone.
    expected = [2.0 - 0.0 - 0.02 - 0.25, 2.0 - 0.1 * 1.5 - 0.08 - 0.5, 0.0 - 0.0 - 0.12 - 0.75]
    assert totals(paid) == pytest.approx(expected)
    assert metrics["reward_evaluator"] == pytest.approx(2 / 3) and metrics["reward_Lucky"] == pytest.approx(0.5)
    assert metrics["reward_step"] == pytest.approx(-0.5) and metrics["rewards_unknown"] == 0
    assert [one.success for one in paid[0].trajectories] == [True, True, False]
    assert group.trajectories[0].total_reward is None, "what came is as it was"


def test_partial_credit_counts_where_it_is_asked_for() -> None:
    group = group_of(1, 1, success=[False, True])
    group = replace(group, trajectories=(replace(group.trajectories[0], reward=0.4), group.trajectories[1]))
    assert totals(rewards_of({"options": {"partial": True}}).pay([group])[0]) == [0.4, 1.0]


def test_a_group_does_without_a_reward_that_is_unknown_for_one_of_it() -> None:
    groups = [group_of(1, 1, success=[True, False], group_seq=number) for number in range(2)]
    unknown = groups[0].trajectories[1].trajectory_id
    paid, metrics = rewards_of({}, {"name": LUCKY, "options": {"unknown": [unknown]}}).pay(groups)
    assert totals(paid) == [1.0, 0.0, 1.25, 0.5]
    assert metrics["rewards_unknown"] == 1
    assert metrics["reward_Lucky"] == 0.375, "a mean over what is known"


@pytest.mark.parametrize(("name", "said"), [("Broken", "KeyError: 'nothing'"), ("Boundless", "ValueError: its score is inf")])
def test_what_a_plug_in_raises_names_it(name: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rewards_of({}, {"name": f"{__name__}:{name}"}).pay([group_of(1, success=[True])])
    assert f"test_rewards_sums:{name}' cannot score rl-1/0/0: {said}" in str(caught.value)


def test_a_reward_of_another_package_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = importlib.metadata.EntryPoint("lucky", LUCKY, "computerrl.rewards")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point] if group == "computerrl.rewards" else [])
    assert totals(rewards_of({"name": "lucky"}).pay([group_of(1, 1, success=[True, False])])[0]) == [0.25, 0.5]


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([{"name": "evaluater"}], "did you mean 'evaluator'"),
        ([{"name": "something"}], f"use one of {', '.join(REWARDS)}, or module:Class"),
        ([{}, {"name": "step", "options": {"every": 3}}], "learner.rewards.1.options.every: unknown option"),
        ([{}, {"name": "length", "options": {"per": 0}}], "learner.rewards.1.options.per"),
        ([{}, {"name": "step"}, {"name": "step"}], "step is there twice"),
        ([{}, {"name": "no.such.module:Class"}], "cannot be imported"),
        ([{"name": f"{__name__}:SETTING"}], "cannot be made: TypeError"),
    ],
)
def test_a_wrong_entry_is_named(entries: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rewards_of(*entries)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["ui_s1", "distillation"])
def test_an_algorithm_that_reads_no_rewards_refuses_others(name: str) -> None:
    options = {"teacher": "tiny-random"} if name == "distillation" else {}
    algorithm = make_algorithm(LearnerConfig(algorithm=AlgorithmConfig(name=name, options=options)))
    with pytest.raises(ConfigError, match="does not read the rewards of episodes"):
        rewards_of({}, {"name": "step"}, algorithm=algorithm)
    assert rewards_of({}, algorithm=algorithm).pay([])[0] == []


# --- what algorithms make of it ---------------------------------------------------------------------------------------------


def prepared(name: str, totals: Sequence[float], **options: Any) -> TrainBatch:
    """Of one group of rollouts of one well-formed step each, which earned ``totals``."""
    group = group_of(*[1] * len(totals), success=[total > 0.5 for total in totals])
    paid = zip(group.trajectories, totals, strict=True)
    group = replace(group, trajectories=tuple(replace(one, total_reward=total) for one, total in paid))
    config = AlgorithmConfig(name=name, options=options)
    return make_algorithm(LearnerConfig(algorithm=config)).prepare([group], ages=PolicyAges(0))


@pytest.mark.parametrize("name", ["grpo", "m_grpo", "vcpo", "gigpo"])
def test_advantages_compare_total_rewards(name: str) -> None:
    earned = np.array([0.9, 0.7, -0.2, 0.1])
    wanted = (earned - earned.mean()) / (earned.std() + 1e-4)
    # The four steps share no prompt but the first of each rollout: for gigpo, the state's part is the same again.
    factor = 2.0 if name == "gigpo" else 1.0
    np.testing.assert_allclose(prepared(name, earned.tolist()).advantage_S, factor * wanted, rtol=1e-5)


def test_max_rl_divides_by_the_mean_of_total_rewards() -> None:
    """Mean 0.5; the second one earned just that, and has no signal."""
    np.testing.assert_allclose(prepared("max_rl", [1.5, 0.5, 0.0, 0.0]).advantage_S, [2.0, -1.0, -1.0], rtol=1e-6)


def test_a_badly_formed_step_earns_nothing_and_keeps_what_is_below_nothing() -> None:
    bad = make_step([1], [2], format_ok=False)
    group = make_group([(True, [bad, make_step([1], [3])]), (False, [bad, make_step([1], [3])])])
    first, second = group.trajectories
    group = replace(group, trajectories=(replace(first, total_reward=0.8), replace(second, total_reward=-0.4)))
    algorithm = make_algorithm(LearnerConfig(algorithm=AlgorithmConfig(options={"format_penalty": 0.1})))
    batch = algorithm.prepare([group], ages=PolicyAges(0))
    np.testing.assert_allclose(batch.reward_S, [-0.1, 0.8, -0.5, -0.4], rtol=1e-6)


def test_a_run_pays_its_rewards_and_tells_of_them(tmp_path: Path) -> None:
    config = make_config(rewards=(RewardConfig(), RewardConfig(name="step", weight=0.1, options={"only_successes": False})))
    bench = Bench(tmp_path, config.model_copy(update={"run_dir": str(tmp_path)}))
    bench.run(bench.start())
    updates = [line for line in read_json_lines(bench.folder.metrics_path) if line["event"] == "update"]
    assert updates and all(one["reward_step"] == -2.0 and one["rewards_unknown"] == 0 for one in updates)
    assert all(one["reward"] == pytest.approx(one["reward_evaluator"] - 0.2, abs=1e-6) for one in updates)
