"""Each file of configs/algorithms: batches as slow formulas with the numbers of the papers make them, written here once more.

The loss of each is compared in test_algorithms_grpo.py (and test_algorithms_values.py, where values are learned).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from computerrl.common.config import RunConfig, load_config
from computerrl.common.messages import Step, Trajectory, TrajectoryGroup
from computerrl.learner.algorithms import FirstLook, PolicyAges, Refines, TrainBatch, make_algorithm
from tests.support.data.trainer_data import random_groups
from tests.unit.learner.algorithms.test_algorithms_values import looked, sequences, slow_gae, slow_vtrace

FOLDER = Path(__file__).resolve().parents[4] / "configs" / "algorithms"
DELTA = 1e-4

Rows = list[tuple[TrajectoryGroup, Trajectory, Step]]
Values = dict[int, float]
"""id(step) -> number; steps that are left out of the batch are not in it."""


def load(name: str) -> RunConfig:
    return load_config(FOLDER / f"{name}.yaml")


def rows_of(groups: Sequence[TrajectoryGroup]) -> Rows:
    return [(group, one, step) for group in groups for one in group.trajectories for step in one.steps]


def reward(one: Trajectory, step: Step) -> float:
    return float(one.success and step.format_ok)


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float:
    return math.sqrt(mean([(value - mean(values)) ** 2 for value in values]))


def standard(values: Sequence[float]) -> list[float]:
    scale = deviation(values)
    return [(value - mean(values)) / (scale + DELTA) if scale else 0.0 for value in values]


def each_group(of: Callable[[TrajectoryGroup], Sequence[float]]) -> Callable[[Sequence[TrajectoryGroup]], Values]:
    """Advantages that a group makes alone, one for each of its steps in order."""

    def of_all(groups: Sequence[TrajectoryGroup]) -> Values:
        both = [zip(rows_of([group]), of(group), strict=True) for group in groups]
        return {id(step): value for pairs in both for (_, _, step), value in pairs}

    return of_all


def step_rewards(group: TrajectoryGroup) -> list[float]:
    return [reward(one, step) for _, one, step in rows_of([group])]


def less_detours(group: TrajectoryGroup) -> list[float]:
    shortest = min((len(one.steps) for one in group.trajectories if one.success), default=0)
    kept = {id(one): 1 - 0.5 * (len(one.steps) - shortest) / len(one.steps) for one in group.trajectories}
    return [reward(one, step) * kept[id(one)] for _, one, step in rows_of([group])]


def of_trajectories(group: TrajectoryGroup) -> list[float]:
    found = standard([float(one.success) for one in group.trajectories])
    return [found[one.index] for _, one, _ in rows_of([group])]


def leave_one_out(group: TrajectoryGroup) -> list[float]:
    rows = rows_of([group])
    return [reward(one, step) - mean([reward(o, s) for _, o, s in rows if o is not one]) for _, one, step in rows]


def centred(group: TrajectoryGroup) -> list[float]:
    rewards = step_rewards(group)
    return [value - mean(rewards) for value in rewards]


def over_the_batch(groups: Sequence[TrajectoryGroup]) -> Values:
    found = each_group(centred)(groups)
    scale = deviation(list(found.values()))
    return {key: value / (scale + DELTA) for key, value in found.items()}


def by_family(groups: Sequence[TrajectoryGroup]) -> Values:
    """AgentRL: -0.2 for an abnormal end, then over all token advantages of the one family there is."""

    def charged(group: TrajectoryGroup) -> list[float]:
        abnormal = {"step_limit", "invalid_limit", "context_limit"}
        return standard([reward(one, step) - 0.2 * (one.end_reason in abnormal) for _, one, step in rows_of([group])])

    found = each_group(charged)(groups)
    tokens = [found[id(step)] for _, _, step in rows_of(groups) for _ in step.action_tokens]
    return {key: (value - mean(tokens)) / (deviation(tokens) + DELTA) for key, value in found.items()}


def returns(groups: Sequence[TrajectoryGroup]) -> Values:
    trajectories = [one for group in groups for one in group.trajectories]
    steps = [(step, 0.9 ** (len(one.steps) - 1 - j) * one.success) for one in trajectories for j, step in enumerate(one.steps)]
    return dict(zip((id(step) for step, _ in steps), standard([value for _, value in steps]), strict=True))


def over_the_mean(group: TrajectoryGroup) -> list[float]:
    """MaxRL: the outcome over the success rate of the group, less 1."""
    rate = mean([float(one.success) for one in group.trajectories])
    return [one.success / rate - 1 if 0 < rate < 1 else 0.0 for _, one, _ in rows_of([group])]


def per_token(_groups: Sequence[TrajectoryGroup], rows: Rows) -> Values:
    total = sum(len(step.action_tokens) for _, _, step in rows)
    return {id(step): 1 / total for _, _, step in rows}


def per_group(groups: Sequence[TrajectoryGroup], rows: Rows) -> Values:
    """ComputerRL: a mean over a task's steps of means over tokens, then over tasks."""
    num_steps = {group.group_seq: len(rows_of([group])) for group in groups}
    return {id(step): 1 / (len(groups) * num_steps[group.group_seq] * len(step.action_tokens)) for group, _, step in rows}


def per_trajectory(groups: Sequence[TrajectoryGroup], rows: Rows) -> Values:
    num = sum(len(group.trajectories) for group in groups)
    return {id(step): 1 / (num * len(one.steps) * len(step.action_tokens)) for _, one, step in rows}


def per_token_of_trajectory(groups: Sequence[TrajectoryGroup], rows: Rows) -> Values:
    num = sum(len(group.trajectories) for group in groups)
    return {id(step): 1 / (num * sum(len(other.action_tokens) for other in one.steps)) for _, one, step in rows}


def constant(_groups: Sequence[TrajectoryGroup], rows: Rows) -> Values:
    return {id(step): 1 / 1000 for _, _, step in rows}


standardised = each_group(lambda group: standard(step_rewards(group)))
PLAIN = (
    "computerrl",
    "dppo_tv",
    "geometric",
    "grpo",
    "gmpo",
    "gspo",
    "icepop",
    "loglinear",
    "opsm",
    "sapo",
    "sequence_mask",
    "topr",
    "vespo",
    "scaling_inter",
    "tis",
    "behaviour_cloning",
    "coda",
    "arpo",
    "dart_release",
    "gui_g1",
    "gui_g2",
    "gui_r1",
    "se_gui",
)
"""Which have GRPO's batch where no memory has anything to give and no step a target; of the two that clone, a batch is none of
their business."""
EXPECTED = {
    **dict.fromkeys(PLAIN, (standardised, per_group)),
    "adagrpo": (each_group(lambda group: standard(less_detours(group))), per_group),
    "agentrl": (by_family, per_group),
    "cispo": (standardised, per_token),
    "clip_cov": (standardised, per_token),
    "kl_cov": (standardised, per_token),
    "m2po": (standardised, per_token),
    "max_rl": (each_group(over_the_mean), per_token),
    "top_entropy": (standardised, per_token),
    "dapo": (standardised, per_token),
    "distillation": (each_group(lambda group: [1.0] * len(rows_of([group]))), per_token),
    "dr_grpo": (each_group(centred), constant),
    "m_grpo": (each_group(of_trajectories), per_trajectory),
    "rebn": (returns, per_group),
    "reinforce_pp": (over_the_batch, per_group),
    "rloo": (each_group(leave_one_out), per_group),
    "vcpo": (each_group(of_trajectories), per_token_of_trajectory),
}
REFINED = {"dart", "ppo", "vtrace", "digirl"}
CHOOSING = {"grpo_roc", "ui_s1", "self_distillation"}
STATES = {"gigpo"}
"""Compared in test_algorithms_family: of random batches here no two steps share a state."""


def test_every_file_is_compared() -> None:
    assert EXPECTED.keys() | REFINED | CHOOSING | STATES == {path.stem for path in FOLDER.glob("*.yaml")}


def groups_of(seed: int) -> list[TrajectoryGroup]:
    """Of four rollouts, some steps badly formed, some ends abnormal."""
    rng, groups = np.random.default_rng(seed), []
    for group in random_groups(num_groups=4, size=4, seed=seed):
        ended = [
            replace(
                one,
                end_reason="task_finished" if one.success else ("step_limit", "fail_action")[int(rng.integers(2))],
                steps=tuple(replace(step, format_ok=bool(one.success or rng.random() < 0.7)) for step in one.steps),
            )
            for one in group.trajectories
        ]
        groups.append(replace(group, trajectories=tuple(ended)))
    return groups


def assert_values(batch: TrainBatch, found: np.ndarray, expected: Values) -> None:
    want = [expected[id(step)] for step in batch.samples]
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_batch_as_configured_equals_slow_formulas(name: str) -> None:
    advantages, weights = EXPECTED[name]
    for seed in range(3):
        groups = groups_of(seed)
        batch = make_algorithm(load(name).learner).prepare(groups, ages=PolicyAges(0))
        assert_values(batch, batch.advantage_S, advantages(groups))
        assert_values(batch, batch.token_weight_S, weights(groups, rows_of(groups)))
        assert len(batch.samples) == len(rows_of(groups))


def test_dart_as_configured_trains_all_but_the_surest_fifth() -> None:
    groups = groups_of(5)
    algorithm = make_algorithm(load("dart").learner)
    assert isinstance(algorithm, Refines)
    batch = algorithm.prepare(groups, ages=PolicyAges(0))
    assert_values(batch, batch.advantage_S, standardised(groups))
    look = looked(batch, 1)
    refined = algorithm.refine(batch, look)
    kept = []
    for i, step in enumerate(batch.samples):
        own = [float(look.entropy[j].mean()) for j in range(len(batch.samples)) if batch.group_S[j] == batch.group_S[i]]
        kept += [step] if look.entropy[i].mean() >= np.percentile(own, 20) else []
    assert list(map(id, refined.samples)) == list(map(id, kept)) and 0 < len(kept) < len(batch.samples)
    assert_values(refined, refined.token_weight_S, per_group(groups, rows_of(groups)))


@pytest.mark.parametrize("name", ["ppo", "vtrace", "digirl"])
def test_tokens_as_configured_equal_slow_formulas(name: str) -> None:
    algorithm = make_algorithm(load(name).learner)
    assert isinstance(algorithm, Refines)
    groups = random_groups(num_groups=3, size=2, seed=3)
    batch = algorithm.prepare(groups, ages=PolicyAges(0))
    look = looked(batch, 4)
    refined = algorithm.refine(batch, look)
    assert refined.token_advantages is not None and refined.value_targets is not None
    order: list[int] = []
    advantages: list[float] = []
    for members, rewards, values, weights in sequences(batch, look):
        order += members
        if name == "ppo":
            # lambda 1 - 1 / (0.05 l) of a trajectory of l tokens, no discount.
            advantages += slow_gae(rewards, values, gamma=1.0, lam=max(0.0, 1 - 1 / (0.05 * len(rewards))))
        elif name == "vtrace":
            advantages += slow_vtrace(rewards, values, weights, gamma=1.0, lam=1.0, rho_bar=1.0, c_bar=1.0)[0]
        else:
            advantages += imitated(batch, look, members)
    found = np.concatenate([refined.token_advantages[i] for i in order])
    flat = np.array(advantages)
    want = (flat - flat.mean()) / (flat.std() + DELTA) if name == "ppo" else flat
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)
    assert_values(refined, refined.token_weight_S, per_token(groups, rows_of(groups)))


def imitated(batch: TrainBatch, look: FirstLook, members: list[int]) -> list[float]:
    """DigiRL with lambda 0.5 and thresholds 0: 1 for the tokens of steps that were better than expected."""
    assert look.values is not None
    begins = [float(look.values[i][0]) for i in members] + [0.0]
    outcome = float(batch.reward_S[members[-1]])
    found: list[float] = []
    for h, i in enumerate(members):
        share = 0.5 ** (len(members) - 1 - h)
        advantage = share * outcome + (1 - share) * (begins[h + 1] + float(batch.reward_S[i]) - begins[h])
        found += [float(advantage > 0 and outcome > begins[0])] * len(batch.samples[i].action_tokens)
    return found


def test_grpo_roc_as_configured_trains_half_of_sixteen_and_two_of_each_kind() -> None:
    config = load("grpo_roc")
    (group,) = random_groups(num_groups=1, size=config.learner.group_size)
    batch = make_algorithm(config.learner).prepare([group], ages=PolicyAges(0))
    left = [one for one in group.trajectories if one.trajectory_id not in batch.not_chosen]
    assert len(left) == 8 and min(sum(one.success for one in left), sum(not one.success for one in left)) >= 2
    kept = replace(group, trajectories=tuple(replace(one, index=place) for place, one in enumerate(left)))
    assert_values(batch, batch.advantage_S, standardised([kept]))
    assert_values(batch, batch.token_weight_S, per_group([kept], rows_of([kept])))


def test_ui_s1_as_configured_adds_advantages_of_episode_and_step() -> None:
    matches = [[True, True], [True, False], [False, False]]
    (group,) = random_groups(num_groups=1, size=3, seed=1)
    played = [
        replace(one, steps=tuple(replace(one.steps[0], matched=match) for match in row))
        for one, row in zip(group.trajectories, matches, strict=True)
    ]
    group = replace(group, trajectories=tuple(played))
    config = load("ui_s1")
    batch = make_algorithm(config.learner).prepare([group], ages=PolicyAges(0))
    # gamma 0.5, cut at a mismatch: returns 1.5, 1; 1, 0; 0, 0. First returns 1.5, 1, 0 deviate by more than 0.3.
    columns = standard([1.5, 1.0, 0.0]), standard([1.0, 0.0, 0.0])
    expected = [sums + columns[j][i] for i, sums in enumerate(standard([2, 1, 0])) for j in range(2)]
    np.testing.assert_allclose(batch.advantage_S, expected, rtol=1e-5, atol=1e-7)
    assert config.learner.algorithm.options["kl_beta"] == 1e-4
