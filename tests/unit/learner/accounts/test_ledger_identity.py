"""The ledger is right whatever an algorithm copies: steps are known by trajectory and place, never by an object's address."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from computerrl.common.config import AlgorithmConfig, LearnerConfig
from computerrl.common.messages import Step, Trajectory, TrajectoryGroup
from computerrl.common.metrics import read_json_lines
from computerrl.learner.accounts.ledger import Ledger
from computerrl.learner.accounts.summary import TrainedSteps
from computerrl.learner.algorithms import Algorithm, FirstLook, PolicyAges, Refines, TrainBatch, make_algorithm
from computerrl.learner.algorithms.grpo import GRPO
from computerrl.learner.algorithms.replaying import ReplayingGRPO
from computerrl.learner.algorithms.step_table import Chosen, StepTable
from computerrl.learner.training.batch_check import check_batch
from tests.support.data.trainer_data import make_group, make_step, random_groups
from tests.support.loop_fakes import Bench, make_config

MAX_AGE = 4


def copied(step: Step, **changes: Any) -> Step:
    """An equal step at another address, its arrays too."""
    arrays = {name: getattr(step, name).copy() for name in ("prompt_tokens", "action_tokens", "behavior_logprobs")}
    return replace(step, **{**arrays, **changes})


def copy_of(trajectory: Trajectory, keep: Callable[[int], bool] = lambda place: True) -> Trajectory:
    steps = tuple(copied(step) for place, step in enumerate(trajectory.steps) if keep(place))
    return replace(trajectory, steps=steps)


def copies_of(groups: Sequence[TrajectoryGroup], **options: Any) -> list[TrajectoryGroup]:
    return [replace(group, trajectories=tuple(copy_of(one, **options) for one in group.trajectories)) for group in groups]


class Plain(GRPO):
    """Copies nothing."""


class CopiesInChoose(GRPO):
    def choose(self, groups: Sequence[TrajectoryGroup], *, ages: PolicyAges) -> Chosen:
        return Chosen(copies_of(groups))


class CopiesBeforePrepare(GRPO):
    def prepare(self, groups: Sequence[TrajectoryGroup], *, ages: PolicyAges) -> TrainBatch:
        return super().prepare(copies_of(groups), ages=ages)


class CopiesSamples(GRPO):
    def prepare(self, groups: Sequence[TrajectoryGroup], *, ages: PolicyAges) -> TrainBatch:
        batch = super().prepare(groups, ages=ages)
        return dataclasses.replace(batch, samples=tuple(map(copied, batch.samples)))


class CopiesInRefine(GRPO):
    wants_look = True

    def refine(self, batch: TrainBatch, look: FirstLook) -> TrainBatch:
        return dataclasses.replace(batch, samples=tuple(map(copied, batch.samples)))


class CopiesInReplay(ReplayingGRPO):
    def replay(
        self, trajectories: tuple[Trajectory, ...], kept: tuple[Trajectory, ...], rng: np.random.Generator
    ) -> tuple[Trajectory, ...]:
        return (*map(copy_of, trajectories), copy_of(kept[0]))


class SaysAllIsReplayed(GRPO):
    """Calls what came a replay, which would have no age bound."""

    def choose(self, groups: Sequence[TrajectoryGroup], *, ages: PolicyAges) -> Chosen:
        ids = frozenset(one.trajectory_id for group in groups for one in group.trajectories)
        return Chosen(copies_of(groups), ids)


COPYING = (CopiesInChoose, CopiesBeforePrepare, CopiesSamples, CopiesInRefine, CopiesInReplay, SaysAllIsReplayed)


def make(kind: type[GRPO], **options: Any) -> Algorithm:
    name = f"{__name__}:{kind.__name__}"
    return make_algorithm(LearnerConfig(algorithm=AlgorithmConfig(name=name, options=options), max_age=MAX_AGE))


def stored() -> TrajectoryGroup:
    """A success of another group, for a memory."""
    return make_group([(True, [make_step([901], [902, 903])])], group_seq=90)


def update(algorithm: Algorithm, groups: Sequence[TrajectoryGroup], *, version: int) -> tuple[TrainBatch, TrainedSteps]:
    batch = algorithm.prepare(list(groups), ages=PolicyAges(version))
    if isinstance(algorithm, Refines) and algorithm.wants_look:
        tokens = tuple(np.ones(len(step.action_tokens), np.float32) for step in batch.samples)
        batch = algorithm.refine(batch, FirstLook(tokens, tokens, None))
    return batch, TrainedSteps(batch, age_bound=MAX_AGE)


def told(trained: TrainedSteps, groups: Sequence[TrajectoryGroup]) -> tuple[Any, Any, Mapping[str, Any]]:
    """All that the books get: outcomes, spans, advantages."""
    outcomes, spans = trained.outcomes(list(groups), groups)
    return outcomes, spans, trained.advantages(groups)


def aged_groups(seed: int) -> list[TrajectoryGroup]:
    """Groups at version 6 of steps from version 0 (age 6, beyond the bound) to 6."""
    rng = np.random.default_rng(seed)
    return [
        replace(
            group,
            trajectories=tuple(
                replace(
                    one,
                    steps=tuple(
                        copied(step, policy_versions=np.full(len(step.action_tokens), int(rng.integers(0, 7)), np.int32))
                        for step in one.steps
                    ),
                )
                for one in group.trajectories
            ),
        )
        for group in random_groups(num_groups=4, size=4, seed=seed)
    ]


@pytest.mark.parametrize("kind", COPYING, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("seed", range(2))
def test_books_of_an_algorithm_that_copies_are_those_of_one_that_does_not(kind: type[GRPO], seed: int) -> None:
    groups = aged_groups(seed)
    algorithm = make(kind)
    if isinstance(algorithm, CopiesInReplay):
        # No memory of these families: the outcomes are comparable; with one, see the next test.
        assert not len(algorithm.memory)
    batch, trained = update(algorithm, groups, version=6)
    plain, expected = update(make(Plain), groups, version=6)
    assert told(trained, groups) == told(expected, groups)
    num_steps = sum(len(one.steps) for group in groups for one in group.trajectories)
    assert batch.step_keys == plain.step_keys and 0 < len(plain.step_keys) < num_steps
    assert trained.num_steps_by_age == expected.num_steps_by_age and trained.max_age_trained <= MAX_AGE
    assert not batch.replayed_S.any()


def test_copies_in_replay_stay_within_the_age_bound_and_only_the_memorys_are_replayed() -> None:
    algorithm = make(CopiesInReplay)
    assert isinstance(algorithm, CopiesInReplay)
    algorithm.remember([stored()])
    groups = aged_groups(3)
    batch, trained = update(algorithm, groups, version=6)
    replayed = {key for key, is_replayed in zip(batch.step_keys, batch.replayed_S, strict=True) if is_replayed}
    assert replayed == {("rl-1/90/0", 0)}
    fresh = [step for step, is_replayed in zip(batch.samples, batch.replayed_S, strict=True) if not is_replayed]
    assert fresh and max(6 - step.min_policy_version for step in fresh) <= MAX_AGE
    assert trained.max_age_trained <= MAX_AGE and batch.metrics["policy_age_max"] <= MAX_AGE
    assert batch.metrics["num_steps_too_old"] > 0 and batch.not_chosen == frozenset()


class Invents(ReplayingGRPO):
    """Gives what came another name, as if it came out of the memory."""

    def replay(
        self, trajectories: tuple[Trajectory, ...], kept: tuple[Trajectory, ...], rng: np.random.Generator
    ) -> tuple[Trajectory, ...]:
        return tuple(replace(one, trajectory_id=f"{one.trajectory_id}-again") for one in trajectories)


def test_replay_of_a_trajectory_that_neither_came_nor_is_kept_is_an_error() -> None:
    algorithm = make(Invents)
    assert isinstance(algorithm, Invents)
    algorithm.remember([stored()])
    with pytest.raises(ValueError, match=r"rl-1/0/0-again.*neither came nor is in the memory"):
        algorithm.prepare(random_groups(num_groups=1), ages=PolicyAges(0))


# --- parts of trajectories ---------------------------------------------------------------------------------------------


class Shortens(GRPO):
    """Trains on every other step only, of copies."""

    def choose(self, groups: Sequence[TrajectoryGroup], *, ages: PolicyAges) -> Chosen:
        return Chosen(copies_of(groups, keep=lambda place: place % 2 == 1))


def test_steps_of_a_shortened_copy_keep_their_places_and_the_others_have_a_reason() -> None:
    steps = [[make_step([10 * number, place], [place + 3]) for place in range(4)] for number in range(2)]
    group = make_group([(True, steps[0]), (False, steps[1])])
    batch, trained = update(make(Shortens), [group], version=0)
    assert batch.step_keys == [(f"rl-1/0/{number}", place) for number in range(2) for place in (1, 3)]
    outcomes, spans, advantages = told(trained, [group])
    assert outcomes == [["trained", "trained"]]
    assert all(span.left_out == {"not_chosen": (2, 2)} for span in spans.values())
    assert [value is not None for value in advantages["rl-1/0/0"]] == [False, True, False, True]


@pytest.mark.parametrize(
    ("given", "places"),
    [([0, 1, 2], [0, 1, 2]), ([2], [2]), ([1, 2], [1, 2]), ([2, 0, 1], [2, 0, 1]), ([0, 1, 2, 1, 1], [0, 1, 2, 1, 1]), ([], [])],
)
def test_places_of_copied_steps_are_found_by_what_they_hold(given: list[int], places: list[int]) -> None:
    group = make_group([(True, [make_step([5, place], [6]) for place in range(3)])])
    own = group.trajectories[0]
    taken = replace(own, steps=tuple(copied(own.steps[place]) for place in given))
    table = StepTable.of([replace(group, trajectories=(taken,))], ages=PolicyAges(0), came=[group])
    assert table.position_n.tolist() == places


def test_steps_left_are_those_of_the_trajectory_as_it_came() -> None:
    group = make_group([(True, [make_step([5, place], [6]) for place in range(4)]), (False, [make_step([9], [6])])])
    table = StepTable.of(copies_of([group], keep=lambda place: place != 2), ages=PolicyAges(0), came=[group])
    assert table.position_n.tolist() == [0, 1, 3, 0] and table.steps_left_n.tolist() == [3, 2, 0, 0]


def test_places_of_equal_steps_are_taken_one_after_the_other() -> None:
    group = make_group([(True, [make_step([5], [6])] * 3)])
    table = StepTable.of(copies_of([group]), ages=PolicyAges(0), came=[group])
    assert table.position_n.tolist() == [0, 1, 2]


def test_rewritten_steps_of_as_many_keep_their_places_and_of_other_numbers_are_an_error() -> None:
    group = make_group([(True, [make_step([5, place], [6]) for place in range(3)])])
    own = group.trajectories[0]
    rewritten = [copied(step, action_tokens=np.array([7], np.int32)) for step in own.steps]
    table = StepTable.of([replace(group, trajectories=(replace(own, steps=tuple(rewritten)),))], ages=PolicyAges(0), came=[group])
    assert table.position_n.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"rl-1/0/0.*step 0 of 2.*not among the 3 that came"):
        StepTable.of([replace(group, trajectories=(replace(own, steps=tuple(rewritten[:2])),))], ages=PolicyAges(0), came=[group])


# --- batches that name wrong steps -------------------------------------------------------------------------------------


def wrong(name: str) -> tuple[TrainBatch, list[TrajectoryGroup]]:
    """A batch at version 6 that is wrong in the way ``name``, and the groups that came."""
    groups = random_groups(num_groups=1, seed=4, version=6)
    batch = make(Plain).prepare(groups, ages=PolicyAges(6))
    if name == "another place":
        place = next(i for i, key in enumerate(batch.step_keys) if key[1] == 1)
        return dataclasses.replace(batch, step_S=np.where(np.arange(len(batch.samples)) == place, 0, batch.step_S)), groups
    if name == "no such place":
        return dataclasses.replace(batch, step_S=batch.step_S + 9), groups
    if name == "another trajectory":
        return dataclasses.replace(batch, trajectory_ids=("elsewhere", *batch.trajectory_ids[1:])), groups
    if name == "called replayed":
        return dataclasses.replace(batch, replayed_S=np.ones_like(batch.replayed_S)), groups
    if name == "too old":
        groups = random_groups(num_groups=1, seed=4, version=0)
        steps = {one.trajectory_id: one.steps for group in groups for one in group.trajectories}
        return dataclasses.replace(batch, samples=tuple(steps[owner][place] for owner, place in batch.step_keys)), groups
    if name == "another action":
        first = copied(batch.samples[0], policy_versions=batch.samples[0].policy_versions + 1)
        return dataclasses.replace(batch, samples=(first, *batch.samples[1:])), groups
    if name in ("no prompt", "prompt of another model"):
        prompt = np.array([5, 1000] if name == "prompt of another model" else [], np.int32)
        return dataclasses.replace(batch, samples=tuple(replace(step, prompt_tokens=prompt) for step in batch.samples)), groups
    if name == "twice":
        return batch.subset(np.array([0, 0, 1])), groups
    if name == "other ages":
        return dataclasses.replace(batch, ages=PolicyAges(7)), groups
    if name == "no number":
        return dataclasses.replace(batch, advantage_S=np.full_like(batch.advantage_S, np.nan)), groups
    if name == "no weight":
        return dataclasses.replace(batch, token_weight_S=np.full_like(batch.token_weight_S, np.inf)), groups
    if name == "no such reason":
        return dataclasses.replace(batch, left_out={("rl-1/0/0", 0): "boring"}), groups  # type: ignore[dict-item]
    assert name == "nothing"
    return batch, groups


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("another place", "holds what came as step 1"),
        ("no such place", "has [0-9] steps"),
        ("another trajectory", "did not come"),
        ("called replayed", "came with it"),
        ("too old", "6 updates old.*allows 4"),
        ("another action", "holds another action than came"),
        ("twice", "twice: give it a larger token_weight_S"),
        ("no prompt", "prompt that is empty"),
        ("prompt of another model", "tokens outside 0..999"),
        ("other ages", r"ages of its batch are PolicyAges\(version=7, .*given PolicyAges\(version=6, "),
        ("no number", "advantage_S .* not finite"),
        ("no weight", "token_weight_S .* not finite"),
        ("no such reason", "boring; the reasons are no_signal, not_chosen"),
    ],
)
def test_a_batch_that_names_wrong_steps_is_not_trained(name: str, said: str) -> None:
    batch, groups = wrong(name)
    with pytest.raises(ValueError, match=said):
        check_batch(batch, groups, ages=PolicyAges(6), age_bound=MAX_AGE, vocabulary_size=1000)
    check_batch(*wrong("nothing"), ages=PolicyAges(6), age_bound=MAX_AGE, vocabulary_size=1000)


# --- one step twice ----------------------------------------------------------------------------------------------------


def test_one_object_at_two_places_has_the_advantage_of_each() -> None:
    same = make_step([5], [6])
    group = make_group([(True, [same, same]), (False, [same])])
    batch = make(Plain).prepare([group], ages=PolicyAges(0))
    batch = dataclasses.replace(batch, advantage_S=np.array([9.0, 1.0, -2.0], np.float32))
    advantages = TrainedSteps(batch, age_bound=MAX_AGE).advantages([group])
    assert advantages == {"rl-1/0/0": [9.0, 1.0], "rl-1/0/1": [-2.0]}


def test_a_batch_that_does_not_name_its_steps_is_refused() -> None:
    batch = make(Plain).prepare(random_groups(num_groups=1), ages=PolicyAges(0))
    with pytest.raises(ValueError, match="step_S"):
        dataclasses.replace(batch, step_S=batch.step_S[:-1])
    with pytest.raises(ValueError, match="beyond its 1 trajectory_ids"):
        dataclasses.replace(batch, trajectory_ids=batch.trajectory_ids[:1])


# --- what a first look leaves out --------------------------------------------------------------------------------------


def sure(batch: TrainBatch, surest: Sequence[int]) -> FirstLook:
    values = [0.0 if number in surest else 1.0 for number in range(len(batch.samples))]
    lengths = [len(step.action_tokens) for step in batch.samples]
    entropy = tuple(np.full(length, value, np.float32) for length, value in zip(lengths, values, strict=True))
    return FirstLook(entropy, entropy, None)


def test_steps_that_are_too_sure_have_their_own_reason_in_books_and_waste() -> None:
    group = make_group([(True, [make_step([5, n], [6, 7]) for n in range(3)]), (False, [make_step([5, 9], [8])] * 2)])
    options = {"kl_beta": 0.0, "entropy_percentile": 70}
    algorithm = make_algorithm(LearnerConfig(algorithm=AlgorithmConfig(name="dart", options=options)))
    assert isinstance(algorithm, Refines)
    batch = algorithm.prepare([group], ages=PolicyAges(0))
    # One of the first rollout's three steps, and all of the second's.
    refined = algorithm.refine(batch, sure(batch, [1, 3, 4]))
    trained = TrainedSteps(refined, age_bound=MAX_AGE)
    outcomes, spans, _ = told(trained, [group])
    assert outcomes == [["trained", "too_sure"]]
    lines: list[Mapping[str, Any]] = []
    ledger = Ledger(lines.append)
    for one, outcome in zip(group.trajectories, outcomes[0], strict=True):
        ledger.record(one, outcome, group_seq=0, update=1, policy_version=0, ages=spans[one.trajectory_id])
    assert [line.get("steps_left_out") for line in lines] == [{"too_sure": 1}, {"too_sure": 2}]
    waste = ledger.waste.figures()
    assert waste["lost"]["too_sure"]["steps"] == 1 + 2 and waste["lost"]["too_sure"]["action_tokens"] == 2 + 2
    assert (waste["trained"]["trajectories"], waste["trained"]["steps"], waste["trained"]["action_tokens"]) == (1, 2, 4)
    assert ledger.drops == {"too_sure": 1}
    again = Ledger(lines.append)
    again.restore(ledger.state())
    assert again.waste.figures() == waste


# --- whole runs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [CopiesInChoose, CopiesSamples, CopiesInReplay], ids=lambda kind: kind.__name__)
def test_a_run_that_copies_has_the_books_of_one_that_does_not(kind: type[GRPO], tmp_path: Path) -> None:
    books = []
    for number, one in enumerate((Plain, kind)):
        name = f"{__name__}:{one.__name__}"
        bench = Bench(tmp_path / str(number), make_config(algorithm={"name": name}, recipe={"max_updates": 3}))
        bench.run(bench.start())
        lines = read_json_lines(bench.folder.metrics_path)
        figures = [(line["waste"], line["num_steps_by_age"]) for line in lines if line["event"] == "update"]
        books.append((read_json_lines(bench.folder.folder / "ledger.jsonl"), figures))
    plain, copying = books
    assert any(line["outcome"] == "trained" for line in plain[0])
    if kind is not CopiesInReplay:
        assert copying == plain
    else:
        assert [line["outcome"] for line in copying[0]] == [line["outcome"] for line in plain[0]]
