"""Attention over a packed trie: each node attends to its ancestors, by a layout that is made once per pack.

The attention is registered with transformers under the name `ATTENTION`. A `TrieLayout` takes the place of the attention mask,
which decoder layers hand through untouched. `attention_varlen` is the layout for GPUs, `attention_blocks` for all else.

A layout may have a slice of the nodes as queries: the rank's own, where several share a pack (`learner.model.parallel`).

Shape legend: N nodes, n queries, which are all nodes or a slice of them, H query heads, G key/value heads, D head size.
"""

from __future__ import annotations

import math
from typing import Any, Protocol, runtime_checkable

import torch
from transformers import AttentionInterface

from computerrl.learner.model.attention_blocks import BlockLayout
from computerrl.learner.model.attention_varlen import VarlenLayout, kernel_serves
from computerrl.learner.model.batching import Pack

ATTENTION = "computerrl_trie"
"""Name in transformers' attention interface."""


@runtime_checkable
class TrieLayout(Protocol):
    """Description of a pack for attention; shared by all layers and passes."""

    @property
    def max_depth(self) -> int:
        """Tokens of the longest path."""
        ...

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, scale: float) -> torch.Tensor:
        """query [H, n, D], key and value [G, N, D] -> [n, H, D]: out[i] = softmax(q[i] k[path to i]^T * scale) v[path to i]."""
        ...


def layout_of(
    pack: Pack, *, device: torch.device, dtype: torch.dtype, head_size: int, queries: slice | None = None
) -> TrieLayout:
    """The fastest one that can do it. ``queries``: the nodes that attend; None: all."""
    if kernel_serves(device, dtype, head_size):
        return VarlenLayout.of(pack, device=device, queries=queries)
    return BlockLayout.of(pack, device=device, queries=queries)


def trie_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: TrieLayout | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention signature: query [1, H, n, D], key and value [1, G, n, D] -> [1, n, H, D]."""
    if not isinstance(attention_mask, TrieLayout):
        raise TypeError(f"attention {ATTENTION!r} needs a TrieLayout as mask, got {type(attention_mask).__name__}")
    if sliding_window is not None and attention_mask.max_depth > sliding_window:
        raise ValueError(
            f"a sample of {attention_mask.max_depth} tokens is longer than the model's sliding window {sliding_window}; "
            "shorten prompts (actor.prompt.max_prompt_tokens)"
        )
    scale = scaling if scaling is not None else 1.0 / math.sqrt(query.shape[-1])
    # Not `query[0]`, whose backward pass fills a tensor with zeros first.
    heads = (tensor.squeeze(0) for tensor in (query, key, value))
    return attention_mask.attend(*heads, scale=scale)[None], None


AttentionInterface.register(ATTENTION, trie_attention)
