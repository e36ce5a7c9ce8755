"""Ranks without torch.distributed: who does what, and what a batch looks like as bytes."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from computerrl.learner.algorithms import PolicyAges, TrainBatch
from computerrl.learner.model.ranks import SOLO, RankGroup
from computerrl.learner.training.ranked_trainer import batch_from_bytes, batch_to_bytes, steps_from_bytes, steps_to_bytes
from tests.support.data.trainer_data import make_step


def group(rank: int, num_ranks: int, *, context_size: int = 1) -> RankGroup:
    """Only what `share` reads: no group is formed."""
    found = RankGroup.__new__(RankGroup)
    found.rank, found.num_ranks, found._context_size = rank, num_ranks, context_size
    return found


@pytest.mark.parametrize("costs", [[], [5], [5, 5], [9, 1, 7], [3, 3, 8, 1, 2, 9, 9]])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
def test_share_every_piece_is_done_once_and_all_ranks_do_equally_many(costs: list[int], num_ranks: int) -> None:
    shares = [group(rank, num_ranks).share(costs) for rank in range(num_ranks)]
    done = [index for share in shares for index, idle in share if not idle]
    assert sorted(done) == list(range(len(costs)))
    assert len(set(map(len, shares))) == 1
    assert all(0 <= index < len(costs) for share in shares for index, _ in share)


@pytest.mark.parametrize("costs", [[], [5], [9, 1, 7], [3, 3, 8, 1, 2, 9, 9]])
@pytest.mark.parametrize("context_size", [2, 4])
def test_share_ranks_of_a_context_group_do_the_same_and_groups_share_the_rest(costs: list[int], context_size: int) -> None:
    shares = [group(rank, 8, context_size=context_size).share(costs) for rank in range(8)]
    assert all(share == shares[rank - rank % context_size] for rank, share in enumerate(shares))
    as_ranks = [group(number, 8 // context_size).share(costs) for number in range(8 // context_size)]
    assert shares[::context_size] == as_ranks


def test_share_pieces_done_at_the_same_time_are_neighbours_in_size() -> None:
    left, right = (group(rank, 2).share([10, 1, 9, 2]) for rank in range(2))
    assert left == [(0, False), (3, False)]
    assert right == [(2, False), (1, False)]


def test_solo_does_all_in_order_and_adds_nothing() -> None:
    assert SOLO.share([3, 9, 1]) == [(0, False), (1, False), (2, False)]
    assert SOLO.sum({"loss": (1.5, 2.0)}) == {"loss": (1.5, 2.0)}


def test_batch_as_bytes_keeps_every_field() -> None:
    steps = tuple(make_step([1, 2, i], [3, 4], version=[i, i + 1]) for i in range(3))
    values: dict[str, Any] = {
        "samples": steps,
        "trajectory_S": np.array([0, 1, 2]),
        "group_S": np.array([0, 0, 1]),
        "reward_S": np.array([1.0, 0.0, 0.0], np.float32),
        "advantage_S": np.array([0.5, np.nan, -1.0], np.float32),
        "token_weight_S": np.array([0.1, 0.2, 0.3], np.float32),
        "ages": PolicyAges(7, (4, 6), (2, 3)),
        "replayed_S": np.array([False, True, False]),
        "step_S": np.array([0, 2, 1]),
        "trajectory_ids": ("rl-1/0/0", "rl-1/0/1", "rl-1/1/0"),
        "not_chosen": frozenset({"rl-1/0/3", "rl-1/0/4"}),
        "left_out": {("rl-1/0/0", 1): "too_sure"},
        "token_advantages": tuple(np.array([i, -i], np.float32) for i in range(3)),
        "value_targets": None,
        "drift_penalties": tuple(np.array([0.0, i], np.float32) for i in range(3)),
        "start_logprobs": tuple(np.array([-i, -0.5], np.float32) for i in range(3)),
        "hints": tuple(np.arange(i, dtype=np.int32) for i in range(3)),
        "metrics": {"reward": 0.25, "mood": np.float32(0.5)},
        "left_out_nll": 1.25,
        "left_out_tokens": 3,
        "demonstrated": (make_step([7, 8], [9], logprobs=[], version=[]),),
        "demonstration_weight": 0.25,
    }
    # A field that is new in TrainBatch must be in this test.
    assert values.keys() == {field.name for field in dataclasses.fields(TrainBatch)}
    found = batch_from_bytes(batch_to_bytes(TrainBatch(**values)))
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(getattr(found, name), value)
            assert getattr(found, name).dtype == value.dtype
        elif name in ("token_advantages", "drift_penalties", "start_logprobs", "hints"):
            for own, sent in zip(getattr(found, name), value, strict=True):
                np.testing.assert_array_equal(own, sent)
                assert own.dtype == sent.dtype
        elif name not in ("samples", "demonstrated"):
            assert getattr(found, name) == value
    assert_same_steps(found.samples, steps)
    assert_same_steps(found.demonstrated, values["demonstrated"])


def test_batch_of_nothing_as_bytes_is_one_of_nothing() -> None:
    empty = np.zeros(0, np.float32)
    nobody = np.zeros(0, np.int64)
    batch = TrainBatch((), nobody, nobody, empty, empty, empty, ages=PolicyAges(1), replayed_S=np.zeros(0, bool))
    assert batch_from_bytes(batch_to_bytes(batch)).samples == ()
    nothing = replace(batch, token_advantages=(), value_targets=(), start_logprobs=(), hints=())
    assert batch_from_bytes(batch_to_bytes(nothing)).samples == ()


def test_demonstrated_steps_as_bytes_have_no_logprobs() -> None:
    steps = (make_step([1, 2], [3], logprobs=[], version=[]),)
    assert_same_steps(steps_from_bytes(steps_to_bytes(steps)), steps)


def assert_same_steps(left: Any, right: Any) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        for name in ("prompt_tokens", "action_tokens", "behavior_logprobs", "policy_versions"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert one.action_text == other.action_text
