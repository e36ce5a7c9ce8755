"""AgentRL, AdaGRPO, ARPO, GRPO-RoC, M-GRPO, ReBN, DART and UI-S1: batches against slow formulas; memories are bounded and
persisted."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from computerrl.common.config import AlgorithmConfig, LearnerConfig
from computerrl.common.errors import ConfigError, ResumeError
from computerrl.common.messages import EndReason, Step, TaskRef, Trajectory, TrajectoryGroup
from computerrl.learner.accounts.summary import TrainedSteps
from computerrl.learner.algorithms import Algorithm, FirstLook, PolicyAges, Refines, TrainBatch, WantsGuidance, make_algorithm
from computerrl.learner.algorithms.grpo_roc import untidiness
from computerrl.learner.objective.memory import Remembers, SuccessMemory
from tests.support.data.trainer_data import make_group, make_step, random_groups

DELTA = 1e-4


def make(name: str, *, max_age: int = 4, **options: object) -> Algorithm:
    return make_algorithm(LearnerConfig(algorithm=AlgorithmConfig(name=name, options=options), max_age=max_age))


def remembering(name: str, **options: object) -> tuple[Algorithm, Remembers]:
    algorithm = make(name, **options)
    assert isinstance(algorithm, Remembers)
    return algorithm, algorithm


def of_family(group: TrajectoryGroup, family: str) -> TrajectoryGroup:
    task = TaskRef(family, group.task.seed, "training")
    return replace(group, task=task, trajectories=tuple(replace(one, task=task) for one in group.trajectories))


def ended(group: TrajectoryGroup, reasons: Sequence[EndReason]) -> TrajectoryGroup:
    both = zip(group.trajectories, reasons, strict=True)
    return replace(group, trajectories=tuple(replace(one, end_reason=reason) for one, reason in both))


def steps(count: int, *, num_tokens: int = 2, first: int = 5) -> list[Step]:
    return [make_step([1, 2, first + place], [first] * num_tokens) for place in range(count)]


def by_step(batch: TrainBatch, values: np.ndarray) -> dict[int, float]:
    return dict(zip(map(id, batch.samples), values.tolist(), strict=True))


def rows(groups: Sequence[TrajectoryGroup]) -> list[tuple[TrajectoryGroup, Trajectory, Step]]:
    return [(group, one, step) for group in groups for one in group.trajectories for step in one.steps]


def slow_grpo(rewards: Sequence[float]) -> list[float]:
    mean = math.fsum(rewards) / len(rewards)
    deviation = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / len(rewards))
    return [(r - mean) / (deviation + DELTA) if deviation else 0.0 for r in rewards]


@pytest.mark.parametrize("seed", range(3))
def test_agentrl_normalises_over_the_tokens_of_each_family_and_charges_abnormal_ends(seed: int) -> None:
    groups = random_groups(num_groups=6, size=4, seed=seed)
    groups = [of_family(group, "ab"[number % 2]) for number, group in enumerate(groups)]
    groups[0] = ended(groups[0], ["step_limit", "task_finished", "invalid_limit", "fail_action"])
    batch = make("agentrl").prepare(groups, ages=PolicyAges(0))
    expected: dict[int, float] = {}
    for family in "ab":
        found: list[tuple[Step, float]] = []
        for group in (group for group in groups if group.task.family == family):
            own = rows([group])
            rewards = [float(one.success) - 0.2 * (one.end_reason in ("step_limit", "invalid_limit")) for _, one, _ in own]
            found += zip((step for _, _, step in own), slow_grpo(rewards), strict=True)
        tokens = [a for step, a in found for _ in step.action_tokens]
        mean = math.fsum(tokens) / len(tokens)
        deviation = math.sqrt(math.fsum((a - mean) ** 2 for a in tokens) / len(tokens))
        expected |= {id(step): (a - mean) / (deviation + DELTA) for step, a in found}
    assert by_step(batch, batch.advantage_S) == pytest.approx({key: expected[key] for key in map(id, batch.samples)}, rel=1e-5)
    assert len(batch.samples) == len(expected)


def test_agentrl_leaves_a_group_without_signal_out_of_the_statistics() -> None:
    mixed = make_group([(True, steps(2)), (False, steps(1))], group_seq=0)
    flat = make_group([(True, steps(3)), (True, steps(3))], group_seq=1)
    alone, both = (make("agentrl").prepare(groups, ages=PolicyAges(0)) for groups in ([mixed], [mixed, flat]))
    np.testing.assert_array_equal(alone.advantage_S, both.advantage_S)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_adagrpo_pays_less_for_detours(alpha: float) -> None:
    lengths = [2, 4, 3, 5]
    group = make_group([(True, steps(2)), (True, steps(4)), (False, steps(3)), (True, steps(5))])
    batch = make("adagrpo", alpha=alpha, gamma=0.0).prepare([group], ages=PolicyAges(0))
    earned = [float(one.success) * (1 - alpha * (n - 2) / n) for one, n in zip(group.trajectories, lengths, strict=True)]
    rewards = [r for r, n in zip(earned, lengths, strict=True) for _ in range(n)]
    np.testing.assert_allclose(batch.advantage_S, slow_grpo(rewards), rtol=1e-5)


def test_adagrpo_charges_a_badly_formed_step_in_full_after_a_detour() -> None:
    clumsy = [replace(steps(1)[0], format_ok=False), *steps(9)]
    group = make_group([(True, clumsy), (True, steps(1)), (False, steps(1))])
    batch = make("adagrpo", alpha=1.0, gamma=0.0, format_penalty=1.0).prepare([group], ages=PolicyAges(0))
    np.testing.assert_allclose(batch.reward_S, [-1.0, *[0.1] * 9, 1.0, 0.0], rtol=1e-6)


def test_adagrpo_adds_its_share_of_stored_successes_where_some_rollout_failed() -> None:
    algorithm, remembers = remembering("adagrpo", gamma=0.25, memory_size=2)
    first = make_group([(True, steps(4)), (True, steps(1)), (True, steps(2)), (False, steps(1))], group_seq=0)
    remembers.remember([first])
    mixed = make_group([(True, steps(3))] + [(False, steps(3))] * 5, group_seq=1)
    solved = make_group([(True, steps(3))] * 6, group_seq=2)
    batch = algorithm.prepare([mixed, solved], ages=PolicyAges(9))
    # Two of the memory to six that came: a quarter. They are its two shortest, and older than any bound.
    assert batch.replayed_S.sum() == batch.metrics["num_steps_replayed"] == 1 + 2
    replayed = {id(step) for step, is_replayed in zip(batch.samples, batch.replayed_S, strict=True) if is_replayed}
    assert replayed == {id(step) for one in first.trajectories[1:3] for step in one.steps}
    # What came is of version 0, too: it is masked for its age, and keeps its place in the baseline.
    assert len(batch.samples) == 3 and batch.metrics["num_steps_too_old"] == 6 * 3 * 2


def test_adagrpo_sees_no_detour_beside_successes_of_other_instances() -> None:
    algorithm, remembers = remembering("adagrpo", gamma=0.2)
    remembers.remember([make_group([(True, steps(1))])])
    batch = algorithm.prepare([make_group([(True, steps(6)), (False, steps(6))], group_seq=1)], ages=PolicyAges(0))
    np.testing.assert_allclose(batch.advantage_S, slow_grpo([1] * 6 + [0] * 6 + [1]), rtol=1e-5)


def test_arpo_never_gives_a_success_away() -> None:
    algorithm, remembers = remembering("arpo", replay_std=0.5)
    remembers.remember([make_group([(True, steps(1))])])
    group = make_group([(False, steps(1))] * 7 + [(True, steps(1))], group_seq=1)
    assert algorithm.prepare([group], ages=PolicyAges(0)).not_chosen == {group.trajectories[6].trajectory_id}


def test_arpo_replaces_a_failed_groups_last_rollout_by_a_stored_success() -> None:
    algorithm, remembers = remembering("arpo")
    failed = make_group([(False, steps(1))] * 4, group_seq=1)
    assert algorithm.prepare([failed], ages=PolicyAges(0)).samples == ()
    success = make_group([(True, steps(2)), (False, steps(1))], group_seq=0)
    remembers.remember([success])
    batch = algorithm.prepare([failed], ages=PolicyAges(0))
    np.testing.assert_allclose(batch.advantage_S, slow_grpo([0, 0, 0, 1, 1]), rtol=1e-5)
    assert batch.replayed_S.tolist() == [False] * 3 + [True] * 2
    assert batch.not_chosen == {failed.trajectories[3].trajectory_id}
    # Another family's successes are none of its own; a group that succeeds once is left alone.
    assert algorithm.prepare([of_family(failed, "other")], ages=PolicyAges(0)).samples == ()
    assert not algorithm.prepare([success], ages=PolicyAges(0)).replayed_S.any()


def test_grpo_roc_keeps_the_cleanest_successes_and_failures_at_random() -> None:
    clean = steps(2)
    refused = [replace(step, action_error="no such element") for step in clean]
    malformed = [replace(step, format_ok=False) for step in clean]
    group = make_group([(True, clean), (True, refused), (True, malformed), (True, clean)] + [(False, steps(1))] * 4)
    assert [untidiness(one) for one in group.trajectories[:4]] == [0.0, 1.0, 1.5, 0.0]
    left_out = [make("grpo_roc").prepare([group], ages=PolicyAges(version)).not_chosen for version in range(20)]
    names = [one.trajectory_id for one in group.trajectories]
    assert all(len(one) == 4 and {names[1], names[2]} <= one for one in left_out)
    assert len({frozenset(one & set(names[4:])) for one in left_out}) > 3, "failures are drawn at random"
    assert left_out[0] == make("grpo_roc").prepare([group], ages=PolicyAges(0)).not_chosen, "and the draw follows from the update"


def test_grpo_roc_keeps_two_of_the_rarer_kind() -> None:
    group = make_group([(True, steps(1))] * 2 + [(False, steps(1))] * 14)
    left_out = make("grpo_roc").prepare([group], ages=PolicyAges(0)).not_chosen
    assert len(left_out) == 8 and not left_out & {one.trajectory_id for one in group.trajectories[:2]}


def test_m_grpo_compares_trajectories_whatever_their_length() -> None:
    group = make_group([(True, steps(2)), (False, steps(6)), (False, steps(6)), (False, steps(1))])
    batch = make("m_grpo").prepare([group], ages=PolicyAges(0))
    expected = slow_grpo([1, 0, 0, 0])
    np.testing.assert_allclose(batch.advantage_S, [expected[0]] * 2 + [expected[1]] * 13, rtol=1e-5)


def test_m_grpo_is_a_mean_over_trajectories_of_steps_of_tokens() -> None:
    groups = random_groups(num_groups=3, size=4, seed=5)
    batch = make("m_grpo").prepare(groups, ages=PolicyAges(0))
    num = sum(len(group.trajectories) for group in groups)
    expected = {id(step): 1 / (num * len(one.steps) * len(step.action_tokens)) for _, one, step in rows(groups)}
    assert by_step(batch, batch.token_weight_S) == pytest.approx({key: expected[key] for key in map(id, batch.samples)})


@pytest.mark.parametrize("gamma", [0.5, 1.0])
def test_rebn_normalises_discounted_returns_over_the_batch(gamma: float) -> None:
    groups = random_groups(num_groups=3, size=4, seed=6)
    batch = make("rebn", gamma=gamma).prepare(groups, ages=PolicyAges(0))
    trajectories = [one for group in groups for one in group.trajectories]
    returns = [gamma**left * one.success for one in trajectories for left in reversed(range(len(one.steps)))]
    mean = math.fsum(returns) / len(returns)
    deviation = math.sqrt(math.fsum((r - mean) ** 2 for r in returns) / len(returns))
    np.testing.assert_allclose(batch.advantage_S, [(r - mean) / (deviation + DELTA) for r in returns], rtol=1e-5)


def test_rebn_takes_the_format_penalty_where_it_is_due() -> None:
    first = replace(steps(1)[0], format_ok=False)
    group = make_group([(False, [first, *steps(5)]), (True, steps(1))])
    batch = make("rebn", gamma=0.9, format_penalty=0.5).prepare([group], ages=PolicyAges(0))
    np.testing.assert_allclose(batch.reward_S, [-0.5, 0, 0, 0, 0, 0, 1], atol=1e-6)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("digirl", {"eps_low": 0.1}),
        ("vtrace", {"length_alpha": 0.1}),
        ("m_grpo", {"format_penalty": 0.1}),
        ("ui_s1", {"format_penalty": 0.1}),
        ("grpo", {"lr_scaling": "effective_samples", "correction": "none"}),
        ("grpo", {"correction": "icepop", "correction_cap": 2.0}),
        ("grpo", {"objective": "cispo", "eps_low": 0.1}),
        ("grpo", {"correction": "none", "proximal": "recomputed"}),
        ("grpo", {"tv_limit": 0.1}),
        ("grpo", {"icepop_range": (0.5, 2.0)}),
        ("grpo", {"geometric_range": (0.9, 1.1)}),
        ("grpo", {"aggregation_constant": 3.0}),
    ],
)
def test_options_without_effect_are_errors(name: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="no effect"):
        make(name, **options)


def test_dart_leaves_out_the_surest_steps_of_each_group() -> None:
    groups = random_groups(num_groups=2, size=6, seed=7)
    algorithm = make("dart", kl_beta=0.0)
    assert isinstance(algorithm, Refines) and algorithm.needs == {"proximal_logprobs"}
    batch = algorithm.prepare(groups, ages=PolicyAges(0))
    rng = np.random.default_rng(0)
    entropy = [rng.random(len(step.action_tokens)).astype(np.float32) for step in batch.samples]
    refined = algorithm.refine(batch, FirstLook(tuple(entropy), tuple(entropy), None))
    means = np.array([one.mean() for one in entropy])
    kept = [
        i
        for i in range(len(means))
        if means[i] >= np.percentile([means[j] for j in range(len(means)) if batch.group_S[j] == batch.group_S[i]], 20)
    ]
    assert 0 < len(kept) < len(means) and refined.samples == tuple(batch.samples[i] for i in kept)
    np.testing.assert_array_equal(refined.advantage_S, batch.advantage_S[kept])
    np.testing.assert_array_equal(refined.token_weight_S, batch.token_weight_S[kept])
    assert refined.left_out_tokens - batch.left_out_tokens == sum(map(len, entropy)) - sum(len(entropy[i]) for i in kept)


def test_dart_as_released_counts_only_groups_with_both_outcomes() -> None:
    mixed, solved = make_group([(number % 2 == 0, steps(1)) for number in range(4)]), make_group([(True, steps(1))] * 4)
    groups = [mixed, replace(solved, group_seq=mixed.group_seq + 1)]
    for both_outcomes, expected in ((False, 8), (True, 4)):
        batch = make("dart", entropy_percentile=0.0, both_outcomes=both_outcomes).prepare(groups, ages=PolicyAges(0))
        assert len(batch.samples) == expected, "a KL term trains steps without a signal too"
        # Steps of two tokens each: the mean runs over those that count.
        np.testing.assert_allclose(batch.token_weight_S, np.full(expected, 0.5 / expected))


def test_dart_names_whom_its_filter_left_nothing_and_spares_the_look_without_one() -> None:
    group = make_group([(number % 2 == 0, steps(1)) for number in range(8)])
    algorithm = make("dart", kl_beta=0.0)
    assert isinstance(algorithm, Refines)
    batch = algorithm.prepare([group], ages=PolicyAges(0))
    entropy = tuple(np.full(2, 1.0 + number, np.float32) for number in range(8))
    refined = algorithm.refine(batch, FirstLook(entropy, entropy, None))
    outcomes, _ = TrainedSteps(refined, age_bound=4).outcomes([group], [group])
    assert outcomes == [["too_sure"] * 2 + ["trained"] * 6]
    # A number that is none stays, for the guard of the optimizer step to see.
    broken = (np.array([np.nan, 1.0], np.float32), *entropy[1:])
    assert batch.samples[0] in algorithm.refine(batch, FirstLook(broken, broken, None)).samples
    without = make("dart", entropy_percentile=0.0)
    assert isinstance(without, Refines) and algorithm.wants_look and not without.wants_look


def test_dart_adds_a_stored_success_when_all_failed() -> None:
    algorithm, remembers = remembering("dart", kl_beta=0.0)
    remembers.remember([make_group([(True, steps(1)), (False, steps(1))])])
    batch = algorithm.prepare([make_group([(False, steps(1))] * 4, group_seq=1)], ages=PolicyAges(0))
    np.testing.assert_allclose(batch.advantage_S, slow_grpo([0, 0, 0, 0, 1]), rtol=1e-5)
    assert batch.not_chosen == frozenset()


def beside(matches: Sequence[bool]) -> list[Step]:
    """Steps of an episode, and whether each was the demonstrator's."""
    return [replace(step, matched=matched) for step, matched in zip(steps(len(matches)), matches, strict=True)]


def test_ui_s1_adds_advantages_of_episode_and_step() -> None:
    played = [[True, True, True], [True, False, True], [False, True], [False, False, False]]
    group = make_group([(all(matches), beside(matches)) for matches in played])
    algorithm = make("ui_s1", gamma=0.5, step_weight=0.7, kl_beta=0.0)
    assert isinstance(algorithm, WantsGuidance) and algorithm.num_patches == 2
    batch = algorithm.prepare([group], ages=PolicyAges(0))
    # Up to and with the next mismatch: 1 + 1/2 + 1/4; then what follows a patch counts for itself.
    returns = [[1.75, 1.5, 1.0], [1.0, 0.0, 1.0], [0.0, 1.0], [0.0, 0.0, 0.0]]
    of_episode = slow_grpo([3, 2, 1, 0])
    expected = []
    for number, one in enumerate(returns):
        for place in range(len(one)):
            column = [other[place] for other in returns if len(other) > place]
            own = slow_grpo(column)[[i for i, other in enumerate(returns) if len(other) > place].index(number)]
            expected.append(of_episode[number] + 0.7 * own)
    np.testing.assert_allclose(batch.advantage_S, [a for a in expected if a != 0.0], rtol=1e-5)
    assert batch.metrics["reward"] == pytest.approx(6 / 11)


def test_ui_s1_drops_groups_whose_first_returns_hardly_differ() -> None:
    alike = make_group([(True, beside([True] * 5)), (False, beside([True] * 4 + [False]))], group_seq=0)
    mixed = make_group([(True, beside([True, True])), (False, beside([False]))], group_seq=1)
    batch = make("ui_s1").prepare([alike, mixed], ages=PolicyAges(0))
    assert set(batch.group_S.tolist()) == {1}


# --- memories --------------------------------------------------------------------------------------------------------


def success(number: int, length: int) -> Trajectory:
    return make_group([(True, steps(length, first=number + 5))], group_seq=number).trajectories[0]


@pytest.mark.parametrize(("keep", "lengths"), [("newest", [3, 1, 2]), ("shortest", [2, 1, 2])])
def test_memory_keeps_at_most_so_many_of_a_family(keep: str, lengths: list[int]) -> None:
    memory = SuccessMemory(per_family=3, keep=keep)  # type: ignore[arg-type]
    for number, length in enumerate([2, 3, 1, 2]):
        memory.add(success(number, length))
        memory.add(replace(success(number, length), success=False))
    assert sorted(len(one.steps) for one in memory.of("family")) == sorted(lengths) and len(memory) == 3


def test_memory_goes_on_from_a_checkpoint_as_it_was() -> None:
    memory, again = SuccessMemory(per_family=3), SuccessMemory(per_family=3)
    for number in range(5):
        memory.add(success(number, number + 1))
    again.restore(*memory.state())
    assert [one.trajectory_id for one in again.of("family")] == [one.trajectory_id for one in memory.of("family")]
    for one, other in zip(again.of("family"), memory.of("family"), strict=True):
        for step, was in zip(one.steps, other.steps, strict=True):
            np.testing.assert_array_equal(step.behavior_logprobs, was.behavior_logprobs)
            np.testing.assert_array_equal(step.policy_versions, was.policy_versions)
    arrays, rest = memory.state()
    with pytest.raises(ResumeError, match="another release"):
        again.restore({"frames": arrays["frames"][::-1].copy()}, rest)
    again.restore(*SuccessMemory(per_family=1).state())
    assert len(again) == 0


def slow_gigpo(groups: Sequence[TrajectoryGroup], options: dict[str, Any]) -> list[float]:
    """A step's advantage by the formulas of arXiv 2505.10978, equations 3, 6 and 7, one step at a time."""
    found = []
    for group in groups:
        outcomes = [float(one.success) for one in group.trajectories]
        steps = [
            (one, step, (one.success and step.format_ok) * options["gamma"] ** (len(one.steps) - 1 - place))
            for one in group.trajectories
            for place, step in enumerate(one.steps)
        ]

        def value(one: Step, steps: Sequence[tuple[Trajectory, Step, float]]) -> float:
            """Mean return of the steps with the prompt and, with action_values, the action of ``one``."""
            alike = [
                own
                for _, step, own in steps
                if list(step.prompt_tokens) == list(one.prompt_tokens) and list(step.action_tokens) == list(one.action_tokens)
            ]
            return sum(alike) / len(alike)

        for trajectory, step, own in steps:
            anchored = [(other, ret) for _, other, ret in steps if list(other.prompt_tokens) == list(step.prompt_tokens)]
            values = [value(other, steps) if options["action_values"] else ret for other, ret in anchored]
            mine = value(step, steps) if options["action_values"] else own
            spread = float(np.std(values))
            a_state = (mine - float(np.mean(values))) / (spread + 1e-4) if spread > 1e-12 else 0.0
            a_episode = (float(trajectory.success) - np.mean(outcomes)) / (np.std(outcomes) + 1e-4) if np.ptp(outcomes) else 0.0
            found.append(float(options["episode_weight"] * a_episode + options["step_weight"] * a_state))
    return found


def shared_states(seed: int) -> list[TrajectoryGroup]:
    """Groups whose rollouts meet in few states and take few actions."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(4):
        members = []
        for _ in range(8):
            steps = [
                make_step([5, place, int(rng.integers(2))], [6, int(rng.integers(3))], format_ok=bool(rng.random() < 0.9))
                for place in range(int(rng.integers(1, 4)))
            ]
            members.append((bool(rng.random() < 0.4), steps))
        made.append(make_group(members, group_seq=number))
    return made


@pytest.mark.parametrize("negative_scale", [1.0, 0.1])
@pytest.mark.parametrize("action_values", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_gigpo_compares_episodes_and_the_steps_of_equal_states(seed: int, action_values: bool, negative_scale: float) -> None:
    options = {"gamma": 0.8, "episode_weight": 0.5, "step_weight": 2.0, "action_values": action_values}
    groups = shared_states(seed)
    expected = np.array(slow_gigpo(groups, options))
    expected = np.where(expected < 0, negative_scale * expected, expected)
    batch = make("gigpo", negative_scale=negative_scale, **options).prepare(groups, ages=PolicyAges(0))
    steps = [id(step) for group in groups for one in group.trajectories for step in one.steps]
    found = dict(zip(map(id, batch.samples), batch.advantage_S, strict=True))
    np.testing.assert_allclose([found.get(step, 0.0) for step in steps], expected, atol=1e-5)
    assert len(found) > 20


@pytest.mark.parametrize("seed", range(3))
def test_gigpo_by_screen_compares_what_saw_the_same_whatever_came_before(seed: int) -> None:
    """The same numbers as by prompt, when prompts tell histories apart and screens do not; an unknown screen is no state."""
    options = {"gamma": 0.8, "episode_weight": 0.5, "step_weight": 2.0, "action_values": False}
    groups = shared_states(seed)
    expected = slow_gigpo(groups, options)
    counter = itertools.count(100)

    def told_apart(step: Step) -> Step:
        return replace(step, state=str(step.prompt_tokens.tolist()), prompt_tokens=np.array([next(counter)], dtype=np.int32))

    made = [
        replace(group, trajectories=tuple(replace(one, steps=tuple(map(told_apart, one.steps))) for one in group.trajectories))
        for group in groups
    ]
    batch = make("gigpo", state="screen", **options).prepare(made, ages=PolicyAges(0))
    steps = [id(step) for group in made for one in group.trajectories for step in one.steps]
    found = by_step(batch, batch.advantage_S)
    np.testing.assert_allclose([found.get(step, 0.0) for step in steps], expected, atol=1e-5)
    unknown = make("gigpo", state="screen", episode_weight=0.0, step_weight=1.0).prepare(groups, ages=PolicyAges(0))
    assert not unknown.samples


@pytest.mark.parametrize("gamma", [0.95, 0.7])
def test_gigpo_has_no_signal_where_values_differ_by_rounding_alone(gamma: float) -> None:
    """The mean of equal returns need not be the same float: of three times 0.95 it is 0.9499999999999998."""
    for num_alike in range(2, 9):
        actions = [6] * num_alike + [7]
        group = make_group([(True, [make_step([5], [action]), make_step([9], [8])]) for action in actions])
        batch = make("gigpo", action_values=True, gamma=gamma).prepare([group], ages=PolicyAges(0))
        assert not batch.samples and set(batch.left_out.values()) == {"no_signal"}


def test_gigpo_takes_the_format_penalty_in_full_however_early() -> None:
    """Returns of a state: -0.4 for the badly formed step and 0 for the other one, whatever follows them."""
    bad = make_step([5], [6], format_ok=False)
    group = make_group([(False, [bad, *(make_step([9, n], [8]) for n in range(3))]), (False, [make_step([5], [7])])])
    batch = make("gigpo", gamma=0.5, format_penalty=0.4, advantage_delta=1.0).prepare([group], ages=PolicyAges(0))
    np.testing.assert_allclose(batch.advantage_S, [-0.2 / 1.2, 0.2 / 1.2], rtol=1e-6)


def test_gigpo_does_not_punish_the_right_step_of_a_failed_episode() -> None:
    finish, early = make_step([1, 2], [4]), make_step([1, 2], [9])
    first = {"right": [2], "wrong": [3]}
    wrong = (False, "wrong", None)
    begun = [(True, "right", finish), (False, "right", early), (False, "right", early), wrong, wrong]
    members = [(success, [make_step([1], first[name]), *([last] if last else [])]) for success, name, last in begun]
    group = make_group(members, group_seq=0)
    failed_right, failed_wrong = group.trajectories[1].steps[0], group.trajectories[3].steps[0]

    def advantages(name: str, **options: object) -> dict[int, float]:
        batch = make(name, **options).prepare([group], ages=PolicyAges(0))
        return by_step(batch, batch.advantage_S)

    by_trajectory, by_state = advantages("grpo"), advantages("gigpo", action_values=True, episode_weight=0.0, gamma=1.0)
    assert by_trajectory[id(failed_right)] < 0 < by_state[id(failed_right)]
    assert by_state[id(failed_wrong)] < 0
