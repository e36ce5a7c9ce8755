"""Attention over a packed trie in one call of a variable-length flash kernel: CUDA, 16 bits.

In depth-first order the nodes fall into runs in which each node is the child of the one before it. To the kernel a run is a
sequence of its own: its queries are the run, its keys the path to the run and then the run itself, causal from the end.

    nodes   T a s k o k c l i c k | o s e        keys of the second run: T a s k o k c l o s e

So prompts that samples share are run through all layers once; only their keys are read again by every run below them. Where a
slice of the nodes attends, a run that it cuts has the queries of the slice, and keys up to the last of them.

Shape legend: N nodes, n queries, R runs, K keys of all runs, H query heads, G key/value heads, D head size.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch.nn.attention import varlen

from computerrl.learner.model.batching import Pack
from computerrl.learner.model.transfers import to_device

_KERNEL_TYPES = (torch.bfloat16, torch.float16)
_MIN_CAPABILITY = (8, 0)
"""Ampere."""
_MAX_HEAD_SIZE = 256


def kernel_serves(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """Flash attention computes this."""
    if device.type != "cuda" or dtype not in _KERNEL_TYPES or head_size % 8 or head_size > _MAX_HEAD_SIZE:
        return False
    return torch.cuda.get_device_capability(device) >= _MIN_CAPABILITY


@lru_cache(maxsize=1)
def installed_kernel() -> Callable[..., torch.Tensor]:
    """The kernel of the package flash_attn where it can be imported, else torch's own; both take fewer key than query heads.

    Called as kernel(query, key, value, query_ends, key_ends, max_queries, max_keys, scale=...); causal from the end.
    """
    try:
        from flash_attn import flash_attn_varlen_func
    except ImportError:
        return torch_kernel(varlen.varlen_attn)

    def run(*arguments: Any, scale: float) -> torch.Tensor:
        out: torch.Tensor = flash_attn_varlen_func(*arguments, softmax_scale=scale, causal=True)
        return out

    return run


def torch_kernel(varlen_attn: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """torch's ``varlen_attn`` as `installed_kernel` describes it. Version 2.11 takes fewer key than query heads as they are and
    has no argument for it; 2.13 demands ``enable_gqa``."""
    options: dict[str, Any] = {"window_size": (-1, 0)}
    if "enable_gqa" in inspect.signature(varlen_attn).parameters:
        options["enable_gqa"] = True

    def run(*arguments: Any, scale: float) -> torch.Tensor:
        out: torch.Tensor = varlen_attn(*arguments, scale=scale, **options)
        return out

    return run


@dataclass(frozen=True, slots=True)
class VarlenLayout:
    """See `learner.model.attention.TrieLayout`."""

    key_nodes_K: torch.Tensor
    """int64: the nodes whose keys each run sees, run after run."""
    query_ends: torch.Tensor
    """[R + 1] int32, from 0, among the n queries."""
    key_ends: torch.Tensor
    """[R + 1] int32, from 0."""
    max_queries: int
    max_depth: int
    kernel: Callable[..., torch.Tensor]
    """See `installed_kernel`."""

    @classmethod
    def of(
        cls,
        pack: Pack,
        *,
        device: torch.device,
        kernel: Callable[..., torch.Tensor] | None = None,
        queries: slice | None = None,
    ) -> VarlenLayout:
        """Made once per pack and shared by all layers and passes. ``kernel``: another one where there is no GPU; None: the
        installed one. ``queries``: the nodes that attend, at least one; None: all."""
        depth = pack.depth_N
        first, past = (0, len(depth)) if queries is None else (queries.start, queries.stop)
        starts = np.flatnonzero(np.diff(depth, prepend=-2) != 1)
        stops = np.append(starts[1:], len(depth))
        path = np.empty(int(depth.max()) + 1, dtype=np.int64)
        keys, lengths = [np.zeros(0, dtype=np.int64)], [0]
        for start, stop in zip(starts, stops, strict=True):
            path[depth[start] : depth[start] + stop - start] = np.arange(start, stop)
            last = min(stop, past) - 1
            if max(start, first) <= last:
                keys.append(path[: depth[last] + 1].copy())
                lengths.append(last + 1 - max(start, first))
        arrays: dict[str, np.ndarray] = {
            "key_nodes_K": np.concatenate(keys),
            "query_ends": np.cumsum(lengths).astype(np.int32),
            "key_ends": np.cumsum([len(one) for one in keys]).astype(np.int32),
        }
        return cls(
            **to_device(arrays, device),
            max_queries=int(max(lengths)),
            max_depth=len(path),
            kernel=kernel or installed_kernel(),
        )

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, scale: float) -> torch.Tensor:
        """See `learner.model.attention.TrieLayout`."""
        return self.kernel(
            query.transpose(0, 1).contiguous(),
            *_Gather.apply(key.transpose(0, 1), value.transpose(0, 1), self.key_nodes_K),
            self.query_ends,
            self.key_ends,
            self.max_queries,
            self.max_depth,
            scale=scale,
        )


class _Gather(torch.autograd.Function):
    """Keys and values [N, G, D] -> those of ``nodes``. A prompt's are read by many runs: their gradients are summed exactly, in
    float32."""

    @staticmethod
    def forward(ctx: Any, key: torch.Tensor, value: torch.Tensor, nodes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(nodes)
        ctx.like = (key.shape, key.dtype)
        return key.index_select(0, nodes), value.index_select(0, nodes)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (nodes,) = ctx.saved_tensors
        shape, dtype = ctx.like
        totals = torch.zeros((2, *shape), dtype=torch.float32, device=nodes.device)
        for total, grad in zip(totals, grads, strict=True):
            total.index_add_(0, nodes, grad.float())
        of_keys, of_values = totals.to(dtype)
        return of_keys, of_values, None
