"""The learner's benchmark: the batch that was recorded for it."""

from __future__ import annotations

import numpy as np
import pytest

from computerrl.actor.prompts.builder import FolderTokenizer
from computerrl.benchmarks.learner._recorded_groups import load_groups, with_logprobs
from computerrl.common.messages import Step, TrajectoryGroup
from computerrl.learner.model.batching import make_packs
from computerrl.learner.model_store import ensure_model


@pytest.fixture(scope="module")
def groups() -> list[TrajectoryGroup]:
    return load_groups(num_groups=2)


def steps_of(groups: list[TrajectoryGroup]) -> list[Step]:
    return [step for group in groups for one in group.trajectories for step in one.steps]


def test_recorded_groups_are_of_both_formats_with_both_outcomes(groups: list[TrajectoryGroup]) -> None:
    lengths = [len(step.prompt_tokens) for step in steps_of(groups)]
    assert min(lengths) < 400 and 1000 < max(lengths) <= 2000
    for group in groups:
        assert {one.success for one in group.trajectories} == {True, False}


def test_recorded_tokens_are_those_of_the_recorded_answers(groups: list[TrajectoryGroup]) -> None:
    # The tiny model has the tokenizer of the one that sampled.
    tokenizer = FolderTokenizer(ensure_model("tiny-random"))
    for step in steps_of(groups):
        assert step.action_text.strip() in tokenizer.decode(step.action_tokens)


def test_loading_less_keeps_both_outcomes() -> None:
    for group in load_groups(num_groups=2, max_rollouts=2, max_steps=1):
        assert [one.success for one in group.trajectories] == [True, False]
        assert all(len(one.steps) == 1 for one in group.trajectories)


def test_recorded_rollouts_share_most_of_what_they_hold(groups: list[TrajectoryGroup]) -> None:
    for group in groups:
        steps = steps_of([group])
        total = sum(len(step.prompt_tokens) + len(step.action_tokens) for step in steps)
        (pack,) = make_packs(steps, max_tokens=total)
        assert pack.num_nodes < total / 2


def test_with_logprobs_each_step_gets_its_own(groups: list[TrajectoryGroup]) -> None:
    given = [np.full(len(step.action_tokens), -float(i), dtype=np.float32) for i, step in enumerate(steps_of(groups))]
    found = steps_of(with_logprobs(groups, given))
    assert [float(step.behavior_logprobs[0]) for step in found] == [-float(i) for i in range(len(given))]
