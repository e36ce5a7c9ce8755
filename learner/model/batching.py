"""Trie packing: every distinct (context, token) of a batch is computed once.

The rollouts of a group share their prompt, the steps of an episode share its beginning, a system prompt is shared by all,
and a confident policy often repeats whole actions. So the samples of a batch are merged into prefix tries whose nodes are
tokens: a node's position is its depth and it attends to its ancestors only. Log-probs and gradients are exactly those of
computing each sample alone; only the repeated work is gone.

    sample 0: T a s k  o k | c l i c k      nodes in depth-first order, `end` = one past the node's subtree:
    sample 1: T a s k  o k | c l o s e         k is an ancestor of q   <=>   k <= q < end[k]
    sample 2: T a s k  n o | t y p e

Pure numpy; no torch, no model. The last action token of a sample is never a node: nothing is predicted from it.

Shape legend: N nodes of a pack, Q nodes whose logits are needed, U distinct (node, next token) pairs, M action tokens of
the pack's samples (sample after sample), S samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from computerrl.common.messages import ScreenshotRef

BLOCK_TOKENS = 384
"""Subtrees are put together into attention blocks of about this many tokens: dense scores stay in the CPU's cache, and
there are few enough blocks that calling each costs little (measured: 384 and 512 best of 96..512, 1 Zen 5 core)."""


class Sample(Protocol):
    """A sample to pack; `common.messages.Step` is one."""

    @property
    def prompt_tokens(self) -> np.ndarray: ...

    @property
    def action_tokens(self) -> np.ndarray: ...


@dataclass(frozen=True, slots=True)
class Block:
    """Nodes that attend together: queries ``start..stop`` see keys ``chain`` + ``start..stop``, as `Pack.end` says."""

    start: int
    stop: int
    chain: np.ndarray
    """[C] ancestors of all nodes of the block that lie outside it, from the root down."""


@dataclass(frozen=True, slots=True)
class PackImages:
    """Images of a pack (`learner.model.images`). V nodes stand for a piece of one: its features take the place of an
    embedding."""

    refs: tuple[ScreenshotRef, ...]
    """Each image once."""
    nodes_V: np.ndarray
    rows_V: np.ndarray
    """Row of each node in the features of all ``refs``, one image after the other."""
    positions_3N: np.ndarray | None
    """Rotary positions of all nodes of the pack (`common.vision.layout.rope_positions`); None: depths, as for text."""


@dataclass(frozen=True, slots=True)
class Pack:
    """One forward pass."""

    tokens_N: np.ndarray
    depth_N: np.ndarray
    """Position ids, where no image shifts them."""
    end_N: np.ndarray
    """One past the last node of each node's subtree."""
    blocks: tuple[Block, ...]
    """Cover 0..N in order."""
    logit_nodes_Q: np.ndarray
    pair_node_U: np.ndarray
    """Index into ``logit_nodes_Q``; sorted."""
    pair_token_U: np.ndarray
    token_pair_M: np.ndarray
    """Pair of each action token."""
    samples_S: np.ndarray
    """Indices into the list given to `make_packs`, in the order of M."""
    num_sample_tokens: int
    """Tokens the samples have in sum, prompt and action: what a computation without sharing would run through."""
    images: PackImages | None = None
    """None: text alone."""

    @property
    def num_nodes(self) -> int:
        return len(self.tokens_N)


def make_packs(samples: Sequence[Sample], *, max_tokens: int, groups: Sequence[int] | None = None) -> list[Pack]:
    """Merge ``samples`` into packs of at most ``max_tokens`` nodes (a longer single sample gets a pack of its own).

    Samples of one of the ``groups`` stay together where they fit, since they share most; groups are first sorted by
    content, so that neighbours share too, then placed first-fit. Every sample lies in exactly one pack.
    """
    paths = [_path(sample) for sample in samples]
    # Bytes of big-endian numbers are in the order of the numbers, and are compared without a step in Python for each.
    keys = [path.astype(">u8").tobytes() for path in paths]
    order = sorted(range(len(samples)), key=keys.__getitem__)
    by_group: dict[int, list[int]] = {}
    for index in order:
        by_group.setdefault(groups[index] if groups is not None else 0, []).append(index)
    pieces = [piece for members in by_group.values() for piece in _cut(members, paths, max_tokens)]
    bins = [members for members, _ in pieces] if groups is None else _first_fit(pieces, max_tokens)
    return [_pack(samples, paths, sorted(members, key=keys.__getitem__)) for members in bins]


def padded_tokens(samples: Sequence[Sample], *, batch_size: int) -> int:
    """Tokens that plain padded batches of ``batch_size`` consecutive samples would compute."""
    lengths = [len(sample.prompt_tokens) + len(sample.action_tokens) for sample in samples]
    batches = [lengths[i : i + batch_size] for i in range(0, len(lengths), batch_size)]
    return sum(max(batch) * len(batch) for batch in batches)


def _path(sample: Sample) -> np.ndarray:
    if not len(sample.prompt_tokens) or not len(sample.action_tokens):
        raise ValueError("a sample needs at least one prompt token and one action token")
    return np.concatenate([sample.prompt_tokens, sample.action_tokens[:-1]])


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """Length of the common prefix."""
    length = min(len(a), len(b))
    differs = a[:length] != b[:length]
    return int(differs.argmax()) if differs.any() else length


def _cut(members: Sequence[int], paths: Sequence[np.ndarray], max_tokens: int) -> Iterator[tuple[list[int], int]]:
    """Cut sorted ``members`` into runs whose tries have at most ``max_tokens`` nodes; yields (run, number of nodes)."""
    run: list[int] = []
    size = 0
    for index in members:
        new = len(paths[index]) - (_common(paths[run[-1]], paths[index]) if run else 0)
        if run and size + new > max_tokens:
            yield run, size
            run, size, new = [], 0, len(paths[index])
        run.append(index)
        size += new
    if run:
        yield run, size


def _first_fit(pieces: Sequence[tuple[list[int], int]], max_tokens: int) -> list[list[int]]:
    bins: list[tuple[list[int], int]] = []
    for members, size in sorted(pieces, key=lambda piece: -piece[1]):
        for i, (placed, used) in enumerate(bins):
            if used + size <= max_tokens:
                bins[i] = (placed + members, used + size)
                break
        else:
            bins.append((members, size))
    return [members for members, _ in bins]


def _pack(samples: Sequence[Sample], paths: Sequence[np.ndarray], members: Sequence[int]) -> Pack:
    """Build one trie. ``members`` are sorted by path, so each shares its longest common prefix with its predecessor and
    lexicographic order is depth-first order."""
    tokens: list[int] = []
    depths: list[int] = []
    nodes: list[int] = []
    previous = np.zeros(0, dtype=np.int64)
    pairs: dict[tuple[int, int], int] = {}
    token_pair: list[int] = []
    for index in members:
        path = paths[index]
        shared = _common(previous, path)
        nodes[shared:] = range(len(tokens), len(tokens) + len(path) - shared)
        tokens += path[shared:].tolist()
        depths += range(shared, len(path))
        previous = path
        actions = samples[index].action_tokens.tolist()
        for node, token in zip(nodes[len(path) - len(actions) :], actions, strict=True):
            token_pair.append(pairs.setdefault((node, token), len(pairs)))
    pair_list = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    by_node = np.argsort(pair_list[:, 0], kind="stable")
    rank = np.empty_like(by_node)
    rank[by_node] = np.arange(len(by_node))
    logit_nodes, pair_node = np.unique(pair_list[by_node, 0], return_inverse=True)
    depth = np.array(depths, dtype=np.int64)
    end = _subtree_ends(depth)
    return Pack(
        tokens_N=np.array(tokens, dtype=np.int64),
        depth_N=depth,
        end_N=end,
        blocks=tuple(_blocks(end)),
        logit_nodes_Q=logit_nodes,
        pair_node_U=pair_node,
        pair_token_U=pair_list[by_node, 1],
        token_pair_M=rank[np.array(token_pair, dtype=np.int64)],
        samples_S=np.array(members, dtype=np.int64),
        num_sample_tokens=sum(len(paths[index]) + 1 for index in members),
    )


def _subtree_ends(depth: np.ndarray) -> np.ndarray:
    """A node's subtree ends before the next node that is not deeper."""
    end = np.full(len(depth), len(depth), dtype=np.int64)
    open_nodes: list[int] = []
    for node, level in enumerate(depth.tolist()):
        while len(open_nodes) > level:
            end[open_nodes.pop()] = node
        open_nodes.append(node)
    return end


def _blocks(end: np.ndarray) -> Iterator[Block]:
    """Neighbouring subtrees together while they are small; a large subtree is its unbranched top, then its children."""
    pending: list[tuple[int, int, list[int]]] = [(0, len(end), [])]
    while pending:
        start, stop, chain = pending.pop()
        if start == stop:
            continue
        past = start
        while past < stop and end[past] - start <= BLOCK_TOKENS:
            past = int(end[past])
        if past > start:
            pending.append((past, stop, chain))
        else:
            subtree = int(end[start])
            past = start + 1
            while past < subtree and end[past] == subtree:
                past += 1
            pending.append((subtree, stop, chain))
            pending.append((past, subtree, [*chain, *range(start, past)]))
        yield Block(start, past, np.array(chain, dtype=np.int64))
