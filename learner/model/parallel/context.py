"""Context parallelism: the ranks of a group share a pack, and each runs a slice of its nodes through all layers.

    nodes     0  1  2  3 | 4  5  6  7 | 8  9      three ranks, slices of equal length, the last ones shorter
    queries   a rank's own slice
    keys      those of the whole pack: each layer gathers keys and values before it attends

Gathering keys and values is how Llama 3 was trained (arXiv 2407.21783, section 3.3.2): they are few beside the queries, and no
number of heads has to be divisible. On the way back the gradients of keys and values are summed over the ranks, and each rank
gets those of its slice. The log-prob of a token is computed where the node before it lies. Log-probs are gathered as well, so
that every rank of a group computes the loss of the whole pack; its gradient goes back into the rank's own slice alone.

All ranks of a group run the same passes at the same time, or none ends. A rank whose slice is empty runs the pack's last node,
of which nothing is used: no layer has to run without tokens.

Shape legend: N nodes of a pack, n nodes of a slice, Q nodes with logits, U distinct (node, next token) pairs, G key/value heads,
D head size.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from computerrl.learner.model.attention import TrieLayout
from computerrl.learner.model.batching import Pack


class ContextGroup(Protocol):
    """The ranks that share a pack, as one of them sees them."""

    index: int
    """Of this rank."""
    size: int

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensors of all ranks, which have one shape, joined along the first dimension in the order of ranks."""
        ...

    def reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's part, along the first dimension, of the sum of the tensors of all ranks."""
        ...


@dataclass(frozen=True, slots=True)
class PackShare:
    """The slices of a pack. Each field that holds slices has one for each rank of ``group``."""

    group: ContextGroup
    num_nodes: int
    """Of the pack."""
    nodes: tuple[slice, ...]
    states: tuple[slice, ...]
    """Slices of Q."""
    pairs: tuple[slice, ...]
    """Slices of U."""

    @classmethod
    def of(cls, pack: Pack, group: ContextGroup) -> PackShare:
        """Equal slices, so that each rank keeps as many activations as the others. Pairs and states are in the order of nodes."""
        num_nodes, width = pack.num_nodes, num_rows(pack.num_nodes, group.size)
        edges = np.minimum(np.arange(group.size + 1) * width, num_nodes)
        of_states = np.searchsorted(pack.logit_nodes_Q, edges)
        of_pairs = np.searchsorted(pack.pair_node_U, of_states)
        return cls(group, num_nodes, *(_slices(one) for one in (edges, of_states, of_pairs)))

    @property
    def own_nodes(self) -> slice:
        """The nodes that this rank runs."""
        own = self.nodes[self.group.index]
        return own if own.start < own.stop else slice(self.num_nodes - 1, self.num_nodes)

    @property
    def num_given(self) -> int:
        """Nodes whose keys and values the others get from this rank: those of its slice."""
        own = self.nodes[self.group.index]
        return own.stop - own.start

    def local_arrays(self, pack: Pack) -> dict[str, np.ndarray]:
        """The arrays of ``pack`` that forward passes of this rank read, by their names in `PackTensors`; indices are those of
        the slice."""
        nodes, states, pairs = self.own_nodes, self.states[self.group.index], self.pairs[self.group.index]
        return {
            "tokens_N": pack.tokens_N[nodes],
            "depth_N": pack.depth_N[nodes],
            "logit_nodes_Q": pack.logit_nodes_Q[states] - nodes.start,
            "pair_node_U": pack.pair_node_U[pairs] - states.start,
            "pair_token_U": pack.pair_token_U[pairs],
        }

    def whole_pairs(self, own: torch.Tensor) -> torch.Tensor:
        """[U] of which this rank has its slice; gradients go back into that."""
        whole: torch.Tensor = _GatherRows.apply(own, self.group, self.pairs)
        return whole

    def whole_states(self, own: torch.Tensor) -> torch.Tensor:
        """[Q, ...] of which this rank has its slice; gradients go back into that."""
        whole: torch.Tensor = _GatherRows.apply(own, self.group, self.states)
        return whole


def num_rows(count: int, size: int) -> int:
    """Rows of a slice of ``count`` rows over ``size`` ranks; the last ones have fewer."""
    return -(-count // size)


def _slices(edges: np.ndarray) -> tuple[slice, ...]:
    ends = edges.tolist()
    return tuple(slice(start, stop) for start, stop in itertools.pairwise(ends))


@dataclass(frozen=True, slots=True)
class SharedLayout:
    """See `learner.model.attention.TrieLayout`: queries, keys and values are those of this rank's slice."""

    layout: TrieLayout
    """Takes the slice's queries and the pack's keys and values."""
    share: PackShare

    @property
    def max_depth(self) -> int:
        return self.layout.max_depth

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, scale: float) -> torch.Tensor:
        """query [H, n, D], key and value [G, n, D] -> [n, H, D]."""
        whole_key, whole_value = _GatherKeys.apply(key, value, self.share)
        return self.layout.attend(query, whole_key, whole_value, scale=scale)


class _GatherKeys(torch.autograd.Function):
    """Keys and values [G, n, D] of a rank's nodes -> those of the pack [G, N, D], in one collective each way. Gradients of a
    prompt's come from many ranks: they are summed in float32."""

    @staticmethod
    def forward(ctx: Any, key: torch.Tensor, value: torch.Tensor, share: PackShare) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.share, ctx.dtype = share, key.dtype
        given, width = slice(share.num_given), num_rows(share.num_nodes, share.group.size)
        own = _token_major(key[:, given], value[:, given], num_rows=width, dtype=key.dtype)
        whole = share.group.all_gather(own)[: share.num_nodes]
        return whole[:, 0].transpose(0, 1), whole[:, 1].transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        share, group = ctx.share, ctx.share.group
        num_padded = num_rows(share.num_nodes, group.size) * group.size
        own = group.reduce_scatter(_token_major(*grads, num_rows=num_padded, dtype=torch.float32)).to(ctx.dtype)
        # Where the slice is empty, the node that runs instead gets the zeros of the padding.
        own = own[: share.own_nodes.stop - share.own_nodes.start]
        return own[:, 0].transpose(0, 1), own[:, 1].transpose(0, 1), None


def _token_major(key: torch.Tensor, value: torch.Tensor, *, num_rows: int, dtype: torch.dtype) -> torch.Tensor:
    """[rows, 2, G, D], zeros after the last token."""
    heads, num_tokens, size = key.shape
    rows = torch.zeros((num_rows, 2, heads, size), dtype=dtype, device=key.device)
    rows[:num_tokens, 0] = key.transpose(0, 1)
    rows[:num_tokens, 1] = value.transpose(0, 1)
    return rows


class _GatherRows(torch.autograd.Function):
    """Rows of one rank -> those of all. Every rank computes the same loss of all rows: its gradient is not summed over ranks."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, group: ContextGroup, parts: Sequence[slice]) -> torch.Tensor:
        ctx.own = parts[group.index]
        lengths = [part.stop - part.start for part in parts]
        padded = own.new_zeros((max(lengths), *own.shape[1:]))
        padded[: len(own)] = own
        gathered = group.all_gather(padded).split(len(padded))
        return torch.cat([rows[:length] for rows, length in zip(gathered, lengths, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return grads[0][ctx.own], None, None
