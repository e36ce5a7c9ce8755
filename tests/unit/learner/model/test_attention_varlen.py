"""The layout for GPUs, with a slow kernel of its signature: the same outputs and gradients as block by block."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given

from computerrl.learner.model.attention import layout_of, trie_attention
from computerrl.learner.model.attention_blocks import BlockLayout
from computerrl.learner.model.attention_varlen import VarlenLayout, installed_kernel, kernel_serves, torch_kernel
from computerrl.learner.model.batching import make_packs
from tests.unit.learner.model.test_batching_packs import Sample, branching_samples, path_of, sample_lists

CPU = torch.device("cpu")


def slow_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_ends: torch.Tensor,
    key_ends: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
) -> torch.Tensor:
    """Sequence by sequence; causal from the end, as flash attention's: the last query sees all keys."""
    parts = []
    for run in range(len(query_ends) - 1):
        q = query[query_ends[run] : query_ends[run + 1]].transpose(0, 1)
        k = key[key_ends[run] : key_ends[run + 1]].transpose(0, 1)
        v = value[key_ends[run] : key_ends[run + 1]].transpose(0, 1)
        assert q.shape[1] <= max_q and k.shape[1] <= max_k
        visible = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
        repeat = q.shape[0] // k.shape[0]
        scores = (q @ k.repeat_interleave(repeat, 0).transpose(1, 2) * scale).masked_fill(~visible, -torch.inf)
        parts.append((scores.softmax(-1) @ v.repeat_interleave(repeat, 0)).transpose(0, 1))
    return torch.cat(parts)


@given(samples=sample_lists)
def test_keys_of_each_query_are_the_path_to_it(samples: list[Sample]) -> None:
    (pack,) = make_packs(samples, max_tokens=1000)
    layout = VarlenLayout.of(pack, device=CPU)
    queries, keys = layout.query_ends.tolist(), layout.key_ends.tolist()
    assert queries[-1] == pack.num_nodes
    assert keys[-1] == len(layout.key_nodes_K)
    for run in range(len(queries) - 1):
        seen = layout.key_nodes_K[keys[run] : keys[run + 1]].tolist()
        for node in range(queries[run], queries[run + 1]):
            visible = seen[: len(seen) - (queries[run + 1] - 1 - node)]
            assert [int(pack.tokens_N[key]) for key in visible] == path_of(pack, node)
            assert visible[-1] == node


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2)])
def test_outputs_and_gradients_equal_those_of_blocks(heads: int, kv_heads: int) -> None:
    rng = torch.Generator().manual_seed(0)
    for pack in make_packs(branching_samples(), max_tokens=4096):
        shapes = [(1, count, pack.num_nodes, 8) for count in (heads, kv_heads, kv_heads)]
        inputs = [torch.randn(shape, generator=rng, requires_grad=True) for shape in shapes]
        weights = torch.randn(1, pack.num_nodes, heads, 8, generator=rng)
        found: list[Any] = []
        for layout in (BlockLayout.of(pack, device=CPU), VarlenLayout.of(pack, device=CPU, kernel=slow_kernel)):
            out, _ = trie_attention(torch.nn.Identity(), *inputs, layout)
            found.append((out, *torch.autograd.grad((out * weights).sum(), inputs)))
        for ours, expected in zip(*found, strict=True):
            np.testing.assert_allclose(ours.detach().numpy(), expected.detach().numpy(), atol=2e-5)


def test_kernel_of_torch_gets_no_argument_that_its_version_lacks() -> None:
    seen: list[dict[str, Any]] = []

    def older(query: Any, *, scale: float, window_size: tuple[int, int]) -> None:
        seen.append({"scale": scale, "window_size": window_size})

    def newer(query: Any, *, scale: float, window_size: tuple[int, int], enable_gqa: bool = False) -> None:
        seen.append({"scale": scale, "window_size": window_size, "enable_gqa": enable_gqa})

    for version in (older, newer):
        torch_kernel(version)(None, scale=0.5)
    causal = {"scale": 0.5, "window_size": (-1, 0)}
    assert seen == [causal, {**causal, "enable_gqa": True}]


def test_kernel_of_the_package_flash_attn_is_taken_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    class Package:
        @staticmethod
        def flash_attn_varlen_func(*arguments: Any, **options: Any) -> torch.Tensor:
            seen.update(options, arguments=arguments)
            return torch.zeros(1)

    monkeypatch.setitem(sys.modules, "flash_attn", Package)  # type: ignore[arg-type]
    installed_kernel.cache_clear()
    try:
        installed_kernel()(1, 2, scale=0.5)
    finally:
        installed_kernel.cache_clear()
    assert seen == {"arguments": (1, 2), "softmax_scale": 0.5, "causal": True}


@pytest.mark.parametrize(
    ("device", "dtype", "head_size", "capability", "expected"),
    [
        ("cuda", torch.bfloat16, 64, (9, 0), True),
        ("cuda", torch.float16, 128, (8, 0), True),
        ("cuda", torch.float32, 64, (9, 0), False),
        ("cuda", torch.bfloat16, 4, (9, 0), False),
        ("cuda", torch.bfloat16, 512, (9, 0), False),
        ("cuda", torch.bfloat16, 64, (7, 5), False),
        ("cpu", torch.bfloat16, 64, (9, 0), False),
    ],
)
def test_kernel_is_used_where_it_serves(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    dtype: torch.dtype,
    head_size: int,
    capability: tuple[int, int],
    expected: bool,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert kernel_serves(torch.device(device), dtype, head_size) == expected


def test_layout_without_the_kernel_is_blocks() -> None:
    (pack,) = make_packs(branching_samples(), max_tokens=4096)
    assert isinstance(layout_of(pack, device=CPU, dtype=torch.bfloat16, head_size=64), BlockLayout)
