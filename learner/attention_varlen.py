"""Attention over a packed trie in one call of a variable-length flash kernel: CUDA, 16 bits.

In depth-first order the nodes fall into runs in which each node is the child of the one before it. To the kernel a run is a
sequence of its own: its queries are the run, its keys the path to the run and then the run itself, causal from the end.

    nodes   T a s k o k c l i c k | o s e        keys of the second run: T a s k o k c l o s e

So prompts that samples share are run through all layers once; only their keys are read again by every run below them.

Shape legend: N nodes, R runs, K keys of all runs, H query heads, G key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.attention.varlen import varlen_attn

from learner.batching import Pack

_KERNEL_TYPES = (torch.bfloat16, torch.float16)
_MIN_CAPABILITY = (8, 0)
"""Ampere."""
_MAX_HEAD_SIZE = 256


def kernel_serves(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """Flash attention computes this."""
    if device.type != "cuda" or dtype not in _KERNEL_TYPES or head_size % 8 or head_size > _MAX_HEAD_SIZE:
        return False
    return torch.cuda.get_device_capability(device) >= _MIN_CAPABILITY


@dataclass(frozen=True, slots=True)
class VarlenLayout:
    """See `learner.attention.Layout`."""

    key_nodes_K: torch.Tensor
    """int64: the nodes whose keys each run sees, run after run."""
    query_ends: torch.Tensor
    """[R + 1] int32, from 0."""
    key_ends: torch.Tensor
    """[R + 1] int32, from 0."""
    max_queries: int
    max_depth: int
    kernel: Callable[..., Any] = varlen_attn
    """Another one with its signature, where there is no GPU."""

    @classmethod
    def of(cls, pack: Pack, *, device: torch.device, kernel: Callable[..., Any] = varlen_attn) -> VarlenLayout:
        """Made once per pack and shared by all layers and passes."""
        depth = pack.depth_N
        starts = np.flatnonzero(np.diff(depth, prepend=-2) != 1)
        stops = np.append(starts[1:], len(depth))
        path = np.empty(int(depth.max()) + 1, dtype=np.int64)
        keys = []
        for start, stop in zip(starts, stops, strict=True):
            path[depth[start] : depth[start] + stop - start] = np.arange(start, stop)
            keys.append(path[: depth[start] + stop - start].copy())
        key_ends = np.cumsum([0, *map(len, keys)])
        return cls(
            key_nodes_K=torch.from_numpy(np.concatenate(keys)).to(device),
            query_ends=torch.from_numpy(np.append(starts, len(depth)).astype(np.int32)).to(device),
            key_ends=torch.from_numpy(key_ends.astype(np.int32)).to(device),
            max_queries=int((stops - starts).max()),
            max_depth=len(path),
            kernel=kernel,
        )

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, scale: float) -> torch.Tensor:
        """See `learner.attention.Layout`."""
        heads, kv_heads = query.shape[0], key.shape[0]
        out: torch.Tensor = self.kernel(
            query.transpose(0, 1).contiguous(),
            _Gather.apply(key.transpose(0, 1), self.key_nodes_K),
            _Gather.apply(value.transpose(0, 1), self.key_nodes_K),
            self.query_ends,
            self.key_ends,
            self.max_queries,
            self.max_depth,
            scale=scale,
            window_size=(-1, 0),
            enable_gqa=heads != kv_heads,
        )
        return out


class _Gather(torch.autograd.Function):
    """Rows ``nodes`` of what belongs to nodes. A prompt's keys are read by many runs: float32 keeps the sum of their gradients
    exact."""

    @staticmethod
    def forward(ctx: Any, of_nodes: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(nodes)
        ctx.like = (of_nodes.shape, of_nodes.dtype)
        return of_nodes.index_select(0, nodes)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        (nodes,) = ctx.saved_tensors
        shape, dtype = ctx.like
        total = torch.zeros(shape, dtype=torch.float32, device=nodes.device)
        return total.index_add_(0, nodes, grads[0].float()).to(dtype), None
