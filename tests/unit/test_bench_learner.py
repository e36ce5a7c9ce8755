"""The learner's benchmark: the batch it makes up."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks._learner_batch import (
    MAX_ACTION_TOKENS,
    MAX_PROMPT_TOKENS,
    MIN_ACTION_TOKENS,
    MIN_PROMPT_TOKENS,
    make_groups,
    with_logprobs,
)
from common.messages import Step, TrajectoryGroup
from learner.batching import make_packs
from learner.model_store import ensure_model


@pytest.fixture(scope="module")
def groups() -> list[TrajectoryGroup]:
    # The tiny model has the tokenizer of the one that is measured.
    return make_groups(ensure_model("tiny-random"), num_groups=2, max_steps=2)


def steps_of(groups: list[TrajectoryGroup]) -> list[Step]:
    return [step for group in groups for one in group.trajectories for step in one.steps]


def test_make_groups_steps_have_the_sizes_it_promises(groups: list[TrajectoryGroup]) -> None:
    steps = steps_of(groups)
    assert all(MIN_PROMPT_TOKENS <= len(step.prompt_tokens) <= MAX_PROMPT_TOKENS for step in steps)
    assert all(MIN_ACTION_TOKENS <= len(step.action_tokens) <= MAX_ACTION_TOKENS for step in steps)
    assert {one.success for group in groups for one in group.trajectories} == {True, False}


def test_make_groups_rollouts_share_most_of_what_they_hold(groups: list[TrajectoryGroup]) -> None:
    for group in groups:
        steps = steps_of([group])
        total = sum(len(step.prompt_tokens) + len(step.action_tokens) for step in steps)
        (pack,) = make_packs(steps, max_tokens=total)
        assert pack.num_nodes < total / 2


def test_with_logprobs_each_step_gets_its_own(groups: list[TrajectoryGroup]) -> None:
    given = [np.full(len(step.action_tokens), -float(i), dtype=np.float32) for i, step in enumerate(steps_of(groups))]
    found = steps_of(with_logprobs(groups, given))
    assert [float(step.behavior_logprobs[0]) for step in found] == [-float(i) for i in range(len(given))]
