"""Algorithms of other packages: whatever they do to steps, each trajectory is trained once and within the age bound, or dropped
with a named reason, or the run ends with an error that names the algorithm."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from computerrl.common.config import AlgorithmConfig, LearnerConfig
from computerrl.common.errors import ConfigError
from computerrl.common.messages import Trajectory, TrajectoryGroup
from computerrl.common.metrics import read_json_lines
from computerrl.learner.accounts.ledger import DROPS, Ledger
from computerrl.learner.accounts.summary import TrainedSteps
from computerrl.learner.algorithms import LossBatch, LossResult, PolicyAges, PolicyOutputs, TrainBatch, make_algorithm
from computerrl.learner.algorithms.grpo import GRPO
from computerrl.learner.algorithms.step_table import Chosen
from computerrl.learner.training.batch_check import make_batch
from computerrl.learner.training.loss_batch import check_loss
from tests.support.data.trainer_data import make_group, make_step
from tests.support.loop_fakes import Bench, make_config
from tests.unit.learner.training.test_trainer_updates import make_trainer, on_policy_batch

BOUND, POSITION = 3, 5
Deed = Callable[[TrainBatch, np.random.Generator], Any]
Groups = Sequence[TrajectoryGroup]


def of(batch: TrainBatch, order: Sequence[int]) -> TrainBatch:
    """The samples ``order`` of ``batch``, which says nothing of those left out."""
    return dataclasses.replace(batch.subset(np.array(order, dtype=np.int64)), left_out=batch.left_out)


def with_sample(batch: TrainBatch, place: int, **changes: Any) -> TrainBatch:
    samples = list(batch.samples)
    samples[place] = replace(samples[place], **changes)
    return dataclasses.replace(batch, samples=tuple(samples))


def merged(batch: TrainBatch, rng: np.random.Generator) -> TrainBatch:
    """Two steps become one, with the name of the second."""
    if len(batch.samples) < 2:
        return batch
    one, other = batch.samples[0], batch.samples[1]
    names = ("action_tokens", "behavior_logprobs", "policy_versions")
    both = {name: np.concatenate([getattr(one, name), getattr(other, name)]) for name in names}
    return of(with_sample(batch, 1, prompt_tokens=one.prompt_tokens, **both), range(1, len(batch.samples)))


def split(batch: TrainBatch, rng: np.random.Generator) -> TrainBatch:
    """One step becomes two, with its name."""
    twice = of(batch, [*range(len(batch.samples)), 0])
    step = batch.samples[0]
    for place, part in ((0, slice(None, 1)), (len(batch.samples), slice(1, None))):
        names = ("action_tokens", "behavior_logprobs", "policy_versions")
        twice = with_sample(twice, place, **{name: getattr(step, name)[part] for name in names})
    return twice


def changed_in_place(batch: TrainBatch, rng: np.random.Generator) -> TrainBatch:
    for step in batch.samples:
        step.policy_versions[:] = POSITION
    return batch


def renamed(batch: TrainBatch, rng: np.random.Generator) -> TrainBatch:
    return dataclasses.replace(batch, trajectory_ids=tuple(rng.permutation(batch.trajectory_ids).tolist()))


def exchanged(batch: TrainBatch, rng: np.random.Generator) -> TrainBatch:
    """Samples in another order, and their names as they were."""
    order = rng.permutation(len(batch.samples))
    return dataclasses.replace(batch, samples=tuple(batch.samples[i] for i in order))


def raises(batch: TrainBatch, rng: np.random.Generator) -> TrainBatch:
    raise KeyError("oops")


def younger(batch: TrainBatch, rng: np.random.Generator) -> TrainBatch:
    return with_sample(batch, 0, policy_versions=batch.samples[0].policy_versions + 1)


DEEDS: dict[str, Deed] = {
    "nothing": lambda batch, rng: batch,
    "drops": lambda batch, rng: of(batch, np.flatnonzero(rng.random(len(batch.samples)) < 0.5).tolist()),
    "reorders": lambda batch, rng: of(batch, rng.permutation(len(batch.samples)).tolist()),
    "copies": lambda batch, rng: dataclasses.replace(
        batch, samples=tuple(replace(step, action_tokens=step.action_tokens.copy()) for step in batch.samples)
    ),
    "other prompts": lambda batch, rng: dataclasses.replace(
        batch, samples=tuple(replace(step, prompt_tokens=step.prompt_tokens[-1:]) for step in batch.samples)
    ),
    "drops all": lambda batch, rng: of(batch, []),
    "repeats": lambda batch, rng: of(batch, [*range(len(batch.samples)), 0]),
    "merges": merged,
    "splits": split,
    "changes in place": changed_in_place,
    "renames": renamed,
    "exchanges": exchanged,
    "calls all replayed": lambda batch, rng: dataclasses.replace(batch, replayed_S=np.ones_like(batch.replayed_S)),
    "makes younger": younger,
    "fewer weights": lambda batch, rng: dataclasses.replace(batch, token_weight_S=batch.token_weight_S[:-1]),
    "more weights": lambda batch, rng: dataclasses.replace(batch, token_weight_S=np.append(batch.token_weight_S, 1.0)),
    "weights of tokens": lambda batch, rng: dataclasses.replace(batch, token_weight_S=np.ones((len(batch.samples), 3))),
    "list of advantages": lambda batch, rng: dataclasses.replace(batch, advantage_S=batch.advantage_S.tolist()),
    "not finite": lambda batch, rng: dataclasses.replace(batch, advantage_S=batch.advantage_S * np.nan),
    "tokens of others": lambda batch, rng: dataclasses.replace(
        batch, token_advantages=tuple(np.zeros(len(step.action_tokens) + 1, np.float32) for step in batch.samples)
    ),
    "mask for places": lambda batch, rng: batch.subset(np.ones(len(batch.samples), dtype=bool)),
    "metric in words": lambda batch, rng: dataclasses.replace(batch, metrics={"mood": "good"}),
    "metric of numpy": lambda batch, rng: dataclasses.replace(batch, metrics={"mood": np.float32(0.5)}),
    "other ages": lambda batch, rng: dataclasses.replace(batch, ages=PolicyAges(POSITION - 1)),
    "raises": raises,
    "returns nothing": lambda batch, rng: None,
}
FINE = {"nothing", "drops", "reorders", "copies", "other prompts", "drops all", "metric of numpy"}


class Foreign(GRPO):
    """GRPO, and then what `deed` does to its batch."""

    deed: Deed
    rng = np.random.default_rng(0)

    def prepare(self, groups: Groups, *, ages: PolicyAges) -> TrainBatch:
        return self.deed(super().prepare(groups, ages=ages), self.rng)


def foreign(kind: type[GRPO] = Foreign) -> GRPO:
    config = AlgorithmConfig(name=f"{__name__}:{kind.__name__}")
    algorithm = make_algorithm(LearnerConfig(algorithm=config, max_age=BOUND))
    assert isinstance(algorithm, kind)
    return algorithm


@st.composite
def groups_of_any_age(draw: st.DrawFn) -> list[TrajectoryGroup]:
    """Groups of one to four episodes of up to four steps; tokens of one step may be of several versions.

    Log-probs differ from step to step, as those after different prompts do: they tell a step that was renamed."""
    made = []
    for number in range(draw(st.integers(1, 3))):
        episodes = []
        for index in range(draw(st.integers(1, 4))):
            steps = [
                make_step(
                    [number, index, place],
                    [7] * len(versions),
                    version=versions,
                    logprobs=[-1 - number / 4 - index / 16 - place / 64] * len(versions),
                )
                for place, versions in enumerate(
                    draw(st.lists(st.lists(st.integers(0, POSITION), min_size=1, max_size=3), max_size=4))
                )
            ]
            episodes.append((draw(st.booleans()), steps))
        made.append(make_group(episodes, group_seq=number))
    return made


def books(batch: TrainBatch, groups: Groups, **skipped: Any) -> tuple[Ledger, dict[str, dict[str, Any]]]:
    """The ledger after an update on ``batch``, and its lines by trajectory."""
    trained = TrainedSteps(batch, age_bound=BOUND, **skipped)
    outcomes, spans = trained.outcomes(list(groups), groups)
    lines: list[Any] = []
    ledger = Ledger(lines.append)
    for group, of_group in zip(groups, outcomes, strict=True):
        for one, outcome in zip(group.trajectories, of_group, strict=True):
            ages = spans.get(one.trajectory_id)
            ledger.record(one, outcome, group_seq=group.group_seq, update=1, policy_version=POSITION, ages=ages)
    ledger.note_age_trained(trained.max_age_trained)
    return ledger, {line["trajectory_id"]: line for line in lines}


@pytest.mark.parametrize("deed", DEEDS)
@settings(max_examples=15, deadline=None)
@given(groups=groups_of_any_age(), seed=st.integers(0, 9))
def test_each_trajectory_is_trained_once_within_the_bound_or_dropped_for_a_reason(
    deed: str, groups: list[TrajectoryGroup], seed: int
) -> None:
    algorithm = foreign()
    algorithm.deed, algorithm.rng = DEEDS[deed], np.random.default_rng(seed)  # type: ignore[attr-defined]
    trainer = SimpleNamespace(algorithm=algorithm, refine=lambda batch: batch, vocabulary_size=1000)
    came = {
        (one.trajectory_id, place): step for group in groups for one in group.trajectories for place, step in enumerate(one.steps)
    }
    versions = {key: step.policy_versions.copy() for key, step in came.items()}
    batch, said = None, ""
    try:
        batch = make_batch(trainer, groups, ages=PolicyAges(POSITION), age_bound=BOUND)  # type: ignore[arg-type]
    except ConfigError as error:
        said = str(error)
    if batch is None:
        assert deed not in FINE and f"{__name__}:Foreign.prepare" in said
        return
    assert all((step.policy_versions == versions[key]).all() for key, step in came.items())
    plain = foreign()
    plain.deed = DEEDS["nothing"]  # type: ignore[attr-defined]
    signal = set(plain.prepare(groups, ages=PolicyAges(POSITION)).step_keys)
    keys = batch.step_keys
    assert len(set(keys)) == len(keys) and set(keys) <= signal
    assert all(POSITION - versions[key].min() <= BOUND for key in keys)
    ledger, lines = books(batch, groups)
    assert ledger.max_age_trained <= BOUND
    for group in groups:
        for one in group.trajectories:
            line, own = lines[one.trajectory_id], [(one.trajectory_id, place) for place in range(len(one.steps))]
            if set(own) & set(keys):
                expected = "trained"
            elif set(own) & signal:
                expected = "not_chosen"
            elif own and all(POSITION - versions[key].min() > BOUND for key in own):
                expected = "too_old"
            else:
                expected = "no_signal"
            assert line["outcome"] == expected
            if expected == "trained":
                left_out = len(set(own) & signal - set(keys))
                assert line.get("steps_left_out", {}) == ({"not_chosen": left_out} if left_out else {})
                assert line["steps_masked"] == sum(POSITION - versions[key].min() > BOUND for key in own)
    assert sum(ledger.counts.values()) == len(lines) == sum(len(group.trajectories) for group in groups)


def test_trajectories_of_an_optimizer_step_that_was_skipped_are_not_trained() -> None:
    groups = [
        make_group(
            [(True, [make_step([g], [5], version=POSITION)]), (False, [make_step([g, 1], [6], version=POSITION)])], group_seq=g
        )
        for g in range(2)
    ]
    algorithm = foreign()
    algorithm.deed = DEEDS["nothing"]  # type: ignore[attr-defined]
    batch = algorithm.prepare(groups, ages=PolicyAges(POSITION))
    ledger, lines = books(batch, groups, skipped=frozenset({0, 1}))
    assert [line["outcome"] for line in lines.values()] == ["skipped", "skipped", "trained", "trained"]
    assert ledger.drops == {"skipped": 2} and "skipped" in DROPS
    waste = ledger.waste.figures()
    assert waste["trained"]["trajectories"] == 2 and waste["lost"]["skipped"]["steps"] == 2


def test_a_step_that_is_not_finite_names_the_samples_that_it_did_not_train() -> None:
    trainer = make_trainer(num_minibatches=2)
    batch = on_policy_batch(trainer, num_groups=2)
    ill = int(batch.group_S[0])
    advantages = np.where(batch.group_S == ill, np.nan, batch.advantage_S).astype(np.float32)
    assert trainer.update(dataclasses.replace(batch, advantage_S=advantages))["num_skipped"] == 1
    assert trainer.skipped == set(np.flatnonzero(batch.group_S == ill).tolist())
    trainer.update(batch)
    assert trainer.skipped == frozenset()


# --- losses ------------------------------------------------------------------------------------------------------------

ONE = torch.ones(3, requires_grad=True)
LOSSES: dict[str, tuple[LossResult, str]] = {
    "number": (LossResult(0.5, {}), "loss is 0.5"),  # type: ignore[arg-type]
    "of each token": (LossResult(ONE * 2, {}), r"loss is a tensor \[3\]"),
    "without graph": (LossResult(torch.zeros(()), {}), "no gradient"),
    "log weights of others": (LossResult(ONE.sum(), {}, torch.zeros(2)), r"log_weights_M is a tensor \[2\]"),
    "metric": (LossResult(ONE.sum(), {"x": 1.0}), "metric 'x' is 1.0"),  # type: ignore[dict-item]
    "the trainer's metric": (LossResult(ONE.sum(), {"entropy": (0.0, 1.0)}), "metrics have entropy, which the trainer makes"),
    "metric of each token": (LossResult(ONE.sum(), {"x": (ONE, 1.0)}), "metric 'x'"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_cannot_be_trained_says_why(name: str) -> None:
    result, said = LOSSES[name]
    with pytest.raises(ValueError, match=said):
        check_loss(result, num_tokens=3)


class BadLoss(GRPO):
    def loss(self, outputs: PolicyOutputs, batch: LossBatch) -> LossResult:
        return LossResult(torch.zeros(()), {})


class BadFactor(GRPO):
    def lr_factor(self, effective_sample_share: float) -> float:
        return float("nan")


@pytest.mark.parametrize(("kind", "said"), [(BadLoss, "BadLoss.loss: .*no gradient"), (BadFactor, "BadFactor.lr_factor: .*nan")])
def test_an_update_with_what_an_algorithm_did_wrong_names_it(kind: type[GRPO], said: str) -> None:
    trainer = make_trainer(name=f"{__name__}:{kind.__name__}")
    with pytest.raises(ConfigError, match=said):
        trainer.update(on_policy_batch(trainer, num_groups=1))


# --- whole runs --------------------------------------------------------------------------------------------------------


class Raises(GRPO):
    def prepare(self, groups: Groups, *, ages: PolicyAges) -> TrainBatch:
        raise IndexError("out of range")


class RaisesInTeaches(GRPO):
    def teaches(self, group: TrajectoryGroup) -> bool:
        raise ZeroDivisionError("by zero")


class RaisesInRemember(GRPO):
    memory: Any = SimpleNamespace(state=lambda: ({}, {}), restore=lambda arrays, rest: None)

    def remember(self, groups: Groups) -> None:
        raise ValueError("forgot")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Raises, "Raises.prepare: IndexError: out of range"),
        (RaisesInTeaches, "RaisesInTeaches.teaches: ZeroDivisionError"),
        (RaisesInRemember, "RaisesInRemember.remember: ValueError: forgot"),
    ],
)
def test_a_run_whose_algorithm_raises_ends_with_its_name_and_line(kind: type[GRPO], said: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, make_config(algorithm={"name": f"{__name__}:{kind.__name__}"}))
    with pytest.raises(ConfigError, match=rf"{said}.*{Path(__file__).name}:\d+"):
        bench.run(bench.start())


class TrainsHalf(GRPO):
    """Leaves out half of the rollouts without saying so."""

    def choose(self, groups: Groups, *, ages: PolicyAges) -> Chosen:
        def first(trajectories: Sequence[Trajectory]) -> tuple[Trajectory, ...]:
            return tuple(trajectories[: len(trajectories) // 2])

        return Chosen([replace(group, trajectories=first(group.trajectories)) for group in groups])


def test_a_run_whose_algorithm_leaves_rollouts_out_has_books_that_say_so(tmp_path: Path) -> None:
    bench = Bench(tmp_path, make_config(algorithm={"name": f"{__name__}:TrainsHalf"}, recipe={"max_updates": 2}))
    bench.run(bench.start())
    lines = [line for line in read_json_lines(bench.folder.folder / "ledger.jsonl") if line["update"]]
    counts = {outcome: sum(line["outcome"] == outcome for line in lines) for outcome in ("trained", "not_chosen")}
    assert counts == {"trained": 8, "not_chosen": 8}


class Watches(GRPO):
    """Keeps all that `prepare` is given: numbers of the groups, the versions of their tokens, and their ages."""

    seen: ClassVar[list[tuple[list[int], list[int], list[int]]]] = []

    def prepare(self, groups: Groups, *, ages: PolicyAges) -> TrainBatch:
        steps = [step for group in groups for one in group.trajectories for step in one.steps]
        versions = [int(version) for step in steps for version in step.policy_versions]
        found = [int(age) for step in steps for age in ages.of(step)]
        self.seen.append(([group.group_seq for group in groups], versions, found))
        return super().prepare(groups, ages=ages)


def test_an_algorithm_is_given_policy_versions_and_ages_after_a_restart_too(tmp_path: Path) -> None:
    Watches.seen.clear()
    algorithm = {"name": f"{__name__}:Watches"}
    bench = Bench(tmp_path, make_config(algorithm=algorithm, checkpoint_every_updates=5, recipe={"max_updates": 12}))
    loop = bench.start()
    while loop.state.update < 9:
        loop.tick()
    bench.checkpoints.wait()
    bench.run(bench.start())
    by_seq = {group.group_seq: group for group in bench.broker.groups}
    first, again = Watches.seen[:9], Watches.seen[9:]
    for numbers, versions, _ in Watches.seen:
        steps = [step for seq in numbers for one in by_seq[seq].trajectories for step in one.steps]
        assert versions == [int(version) for step in steps for version in step.policy_versions], (
            "policy versions are as they came"
        )
    # Updates 6 to 9 are done again with other numbers on the same groups: their tokens are as old as they were.
    assert [one[0] for one in again[:4]] == [one[0] for one in first[5:]]
    assert [one[2] for one in again[:4]] == [one[2] for one in first[5:]]
    # Later tokens were sampled under the new numbers.
    assert max(again[-1][1]) > max(first[-1][1]) and max(again[-1][2]) <= bench.config.learner.max_age
