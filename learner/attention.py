"""Attention over a packed trie: each node sees its ancestors, block by block.

One autograd function does all blocks of a pack with plain matrix products: on the CPU that is 2 to 4 times faster than
scaled_dot_product_attention with a mask (its backward dominates below 512 tokens), and blocks skip what a dense mask over
the pack would compute for nothing. It is registered with transformers under the name `ATTENTION`, and a `TrieLayout` takes
the place of the attention mask, which decoder layers hand through untouched.

Shape legend: N nodes, H query heads, G key/value heads, R = H / G query heads per key head, D head size, B nodes of a block,
K keys of a block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface

from learner.batching import Pack

ATTENTION = "computerrl_trie"
"""Name in transformers' attention interface."""


@dataclass(frozen=True, slots=True)
class LayoutBlock:
    """A `batching.Block` as tensors."""

    start: int
    stop: int
    chain: torch.Tensor | None
    """[C] ancestors outside the block; None when there are none."""
    hidden_BK: torch.Tensor
    """True where the key is no ancestor of the query."""


@dataclass(frozen=True, slots=True)
class TrieLayout:
    """What attention needs to know of a pack."""

    blocks: tuple[LayoutBlock, ...]
    max_depth: int

    @classmethod
    def of(cls, pack: Pack, *, device: torch.device) -> TrieLayout:
        """Masks are made once per pack and shared by all layers and passes."""
        end = torch.from_numpy(pack.end_N)
        blocks = []
        for block in pack.blocks:
            nodes = torch.arange(block.start, block.stop)
            chain = torch.from_numpy(block.chain)
            visible = (nodes[None, :] <= nodes[:, None]) & (nodes[:, None] < end[nodes][None, :])
            hidden = torch.cat([torch.zeros(len(nodes), len(chain), dtype=torch.bool), ~visible], dim=1)
            blocks.append(LayoutBlock(block.start, block.stop, chain.to(device) if len(chain) else None, hidden.to(device)))
        return cls(tuple(blocks), int(np.max(pack.depth_N)) + 1)


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
    """transformers' attention signature: query [1, H, N, D], key and value [1, G, N, D] -> [1, N, H, D]."""
    if not isinstance(attention_mask, TrieLayout):
        raise TypeError(f"attention {ATTENTION!r} needs a TrieLayout as mask, got {type(attention_mask).__name__}")
    if sliding_window is not None and attention_mask.max_depth > sliding_window:
        raise ValueError(
            f"a sample of {attention_mask.max_depth} tokens is longer than the model's sliding window {sliding_window}; "
            "shorten prompts (actor.prompt.max_prompt_tokens)"
        )
    scale = scaling if scaling is not None else 1.0 / math.sqrt(query.shape[-1])
    out = _TrieAttention.apply(query[0], key[0], value[0], attention_mask, scale)
    return out[None], None


AttentionInterface.register(ATTENTION, trie_attention)


class _TrieAttention(torch.autograd.Function):
    """out[n] = softmax(q[n] k[ancestors]^T * scale) v[ancestors].

    The backward pass makes the probabilities again, by the same operations and so to the same bits: kept for all layers they
    would be much of a long pack's memory (SmolLM2-135M, 3,600 nodes, float32: an estimated 6 of 10 GB). It costs another matrix
    product and softmax (measured on 1,686 nodes in bfloat16: a step took about 10 % longer).
    """

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: TrieLayout, scale: float
    ) -> torch.Tensor:
        heads, num_nodes, size = query.shape
        kv_heads = key.shape[0]
        query = query.reshape(kv_heads, heads // kv_heads, num_nodes, size)
        out = query.new_empty(num_nodes, heads, size)
        for block in layout.blocks:
            q, k, v = _block_inputs(block, query, key, value)
            mixed = torch.matmul(_probabilities(q, k, block, scale), v)
            out[block.start : block.stop] = mixed.view(heads, block.stop - block.start, size).transpose(0, 1)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(query, key, value)
            ctx.layout, ctx.scale = layout, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value = ctx.saved_tensors
        grad_out = grads[0]
        kv_heads, repeat, num_nodes, size = query.shape
        grad_query = torch.empty_like(query)
        # Ancestors outside a block gather from several blocks: float32 keeps their sums exact.
        grad_key = torch.zeros(key.shape, dtype=torch.float32, device=key.device)
        grad_value = torch.zeros_like(grad_key)
        for block in ctx.layout.blocks:
            q, k, v = _block_inputs(block, query, key, value)
            probs = _probabilities(q, k, block, ctx.scale)
            length = block.stop - block.start
            g = grad_out[block.start : block.stop].transpose(0, 1).reshape(kv_heads, repeat * length, size)
            grad_probs = torch.matmul(g, v.transpose(1, 2))
            grad_scores = torch._softmax_backward_data(grad_probs, probs, -1, probs.dtype).mul_(ctx.scale)
            grad_query[:, :, block.start : block.stop] = torch.matmul(grad_scores, k).view(kv_heads, repeat, length, size)
            _add_to_keys(block, grad_value, torch.matmul(probs.transpose(1, 2), g))
            _add_to_keys(block, grad_key, torch.matmul(grad_scores.transpose(1, 2), q))
        return grad_query.view(-1, num_nodes, size), grad_key.to(key.dtype), grad_value.to(value.dtype), None, None


def _block_inputs(
    block: LayoutBlock, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [G, R * B, D], k and v [G, K, D]."""
    kv_heads, repeat, _, size = query.shape
    q = query[:, :, block.start : block.stop].reshape(kv_heads, repeat * (block.stop - block.start), size)
    k, v = key[:, block.start : block.stop], value[:, block.start : block.stop]
    if block.chain is not None:
        k = torch.cat([key[:, block.chain], k], dim=1)
        v = torch.cat([value[:, block.chain], v], dim=1)
    return q, k, v


def _probabilities(q: torch.Tensor, k: torch.Tensor, block: LayoutBlock, scale: float) -> torch.Tensor:
    """[G, R * B, K]"""
    scores = torch.matmul(q, k.transpose(1, 2)).mul_(scale)
    kv_heads, rows, num_keys = scores.shape
    length = block.stop - block.start
    scores.view(kv_heads, rows // length, length, num_keys).masked_fill_(block.hidden_BK, -math.inf)
    return torch.softmax(scores, dim=-1)


def _add_to_keys(block: LayoutBlock, total: torch.Tensor, part: torch.Tensor) -> None:
    num_chain = 0
    if block.chain is not None:
        num_chain = len(block.chain)
        total.index_add_(1, block.chain, part[:, :num_chain].to(total.dtype))
    total[:, block.start : block.stop] += part[:, num_chain:]
