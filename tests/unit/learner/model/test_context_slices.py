"""Slices of a pack without ranks: what each computes of attention, and what belongs to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from computerrl.common.config import RunConfig
from computerrl.common.errors import ConfigError
from computerrl.common.models.folder import sharing_problems
from computerrl.launch.plan.machine import Machine
from computerrl.launch.run.preflight import check_model
from computerrl.learner.model import batching
from computerrl.learner.model.attention import TrieLayout, layout_of, trie_attention
from computerrl.learner.model.attention_blocks import BlockLayout
from computerrl.learner.model.attention_varlen import VarlenLayout
from computerrl.learner.model.batching import Pack, make_packs
from computerrl.learner.model.parallel.context import PackShare
from computerrl.learner.model.policy import load_policy
from tests.support.data.trainer_data import make_mixture
from tests.unit.learner.model.test_attention_varlen import slow_kernel
from tests.unit.learner.model.test_batching_packs import Sample, branching_samples, path_of, sample_lists

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Place:
    """A rank without others: only its place is read."""

    index: int
    size: int

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        raise AssertionError("no rank is there")

    reduce_scatter = all_gather


def blocks(pack: Pack, queries: slice | None) -> TrieLayout:
    return BlockLayout.of(pack, device=CPU, queries=queries)


def varlen(pack: Pack, queries: slice | None) -> TrieLayout:
    return VarlenLayout.of(pack, device=CPU, kernel=slow_kernel, queries=queries)


def shares_of(pack: Pack, size: int) -> list[PackShare]:
    return [PackShare.of(pack, Place(index, size)) for index in range(size)]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("make", [blocks, varlen])
def test_slices_attend_as_the_whole_pack_and_their_gradients_add_up(
    make: Callable[[Pack, slice | None], TrieLayout], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "BLOCK_TOKENS", 24)
    rng = torch.Generator().manual_seed(0)
    for pack in make_packs(branching_samples(), max_tokens=4096):
        inputs = [torch.randn((1, count, pack.num_nodes, 8), generator=rng, requires_grad=True) for count in (6, 2, 2)]
        weights = torch.randn(1, pack.num_nodes, 6, 8, generator=rng)
        whole, _ = trie_attention(torch.nn.Identity(), *inputs, blocks(pack, None))
        expected = torch.autograd.grad((whole * weights).sum(), inputs)
        totals = [torch.zeros_like(one) for one in inputs]
        for share in shares_of(pack, size):
            nodes = share.own_nodes
            assert share.num_given == nodes.stop - nodes.start
            own = [inputs[0][:, :, nodes], inputs[1], inputs[2]]
            out, _ = trie_attention(torch.nn.Identity(), *own, make(pack, nodes))
            torch.testing.assert_close(out, whole[:, nodes], atol=2e-5, rtol=0)
            for total, grad in zip(totals, torch.autograd.grad((out * weights[:, nodes]).sum(), inputs), strict=True):
                total += grad
        for total, grad in zip(totals, expected, strict=True):
            torch.testing.assert_close(total, grad, atol=5e-5, rtol=0)


@given(samples=sample_lists, size=st.integers(1, 9), index=st.integers(0, 8))
def test_keys_of_each_query_of_a_slice_are_the_path_to_it(samples: list[Sample], size: int, index: int) -> None:
    (pack,) = make_packs(samples, max_tokens=1000)
    nodes = PackShare.of(pack, Place(index % size, size)).own_nodes
    assert nodes.start < nodes.stop
    layout = VarlenLayout.of(pack, device=CPU, kernel=slow_kernel, queries=nodes)
    queries, keys = layout.query_ends.tolist(), layout.key_ends.tolist()
    assert queries[-1] == nodes.stop - nodes.start and keys[-1] == len(layout.key_nodes_K)
    assert layout.max_queries == max(np.diff(queries), default=0)
    for run in range(len(queries) - 1):
        seen = layout.key_nodes_K[keys[run] : keys[run + 1]].tolist()
        assert len(seen) <= layout.max_depth
        for query in range(queries[run], queries[run + 1]):
            visible = seen[: len(seen) - (queries[run + 1] - 1 - query)]
            assert visible[-1] == nodes.start + query
            assert [int(pack.tokens_N[key]) for key in visible] == path_of(pack, nodes.start + query)


@given(samples=sample_lists, size=st.integers(1, 9))
def test_slices_hold_each_node_state_and_pair_once(samples: list[Sample], size: int) -> None:
    (pack,) = make_packs(samples, max_tokens=1000)
    shares = shares_of(pack, size)
    found: dict[str, list[Any]] = {}
    for share in shares:
        own = share.local_arrays(pack)
        nodes, states = share.own_nodes, share.states[share.group.index]
        assert (own["logit_nodes_Q"] < nodes.stop - nodes.start).all() and (own["logit_nodes_Q"] >= 0).all()
        assert (own["pair_node_U"] < len(own["logit_nodes_Q"])).all() and (own["pair_node_U"] >= 0).all()
        own["logit_nodes_Q"] = own["logit_nodes_Q"] + nodes.start
        own["pair_node_U"] = own["pair_node_U"] + states.start
        for name, array in own.items():
            if name in ("tokens_N", "depth_N"):
                array = array[: share.num_given]
            found.setdefault(name, []).append(array)
    for name, parts in found.items():
        np.testing.assert_array_equal(np.concatenate(parts), getattr(pack, name))
    lengths = [share.num_given for share in shares]
    assert max(lengths) == -(-pack.num_nodes // size) and sorted(lengths, reverse=True) == lengths


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({}, ""),
        ({"vision_config": {}, "text_config": {}}, "takes images"),
        ({"num_experts": 8}, "mixture of experts"),
        ({"num_local_experts": 8}, "mixture of experts"),
        ({"text_config": {"n_routed_experts": 64}}, "mixture of experts"),
        ({"num_local_experts": 0}, ""),
    ],
)
def test_models_whose_packs_cannot_be_shared_are_refused_by_name(settings: dict[str, Any], refused: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **settings}))
    problems = sharing_problems(str(tmp_path))
    assert [one.field for one in problems] == (["learner.context_parallel_size"] if refused else [])
    assert all(refused in one.reason for one in problems)


def test_learner_and_preflight_refuse_a_mixture_before_they_load_it(tmp_path: Path) -> None:
    folder = make_mixture(tmp_path / "experts")
    learner = {"num_ranks": 2, "context_parallel_size": 2, "device": "cpu"}
    config = RunConfig.model_validate({"model": {"name": str(folder)}, "learner": learner})
    with pytest.raises(ConfigError, match="context_parallel_size"):
        load_policy(config)
    found = check_model(config, Machine("Debian", "6.1", "cpu", 2, 64_000, 60_000, ()))
    assert "learner.context_parallel_size" in [one.problem.field for one in found]


def test_layout_of_a_slice_is_blocks_without_the_kernel() -> None:
    (pack,) = make_packs(branching_samples(), max_tokens=4096)
    layout = layout_of(pack, device=CPU, dtype=torch.bfloat16, head_size=64, queries=slice(5, 9))
    assert isinstance(layout, BlockLayout) and sum(len(one.hidden_BK) for one in layout.blocks) == 4
