"""Positions for a rotary embedding with three rows, in which a picture is a grid (Qwen2-VL, arXiv 2409.12191). Pure numpy.

Text counts on by one in all rows. The pieces of a picture count its rows and columns from where the text before it stopped, and
the text after it goes on behind its longer side:

    token      a  b  [ picture of 2 x 3 ]   c  d
    time       0  1   2  2  2  2  2  2      5  6
    height     0  1   2  2  2  3  3  3      5  6
    width      0  1   2  3  4  2  3  4      5  6

A position depends on what comes before it alone, so all samples that share a node of a trie agree on its. Still pictures only:
no film, whose time row counts on. No tokens and no model here.

Shape legend: N nodes of a trie in depth-first order; a sequence is the trie without branches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Grid:
    """The pieces of a picture, one a token."""

    height: int
    width: int

    @property
    def num_tokens(self) -> int:
        return self.height * self.width


def rope_positions(depth_N: np.ndarray, end_N: np.ndarray, grids: Mapping[int, Grid]) -> np.ndarray:
    """[3, N] int64: time, height and width. ``depth_N`` and ``end_N`` as in `batching.Pack`; ``grids``: first node of a
    picture -> its grid, whose nodes follow one another without branching."""
    ahead_N = np.zeros(len(depth_N), dtype=np.int64)
    """What a node's position is beyond its depth; at most 0."""
    positions = np.empty((3, len(depth_N)), dtype=np.int64)
    pieces: list[tuple[int, Grid]] = []
    for node in sorted(grids):
        grid = grids[node]
        ahead_N[node + grid.num_tokens : end_N[node]] += max(grid.height, grid.width) - grid.num_tokens
        pieces.append((node, grid))
    positions[:] = depth_N + ahead_N
    for node, grid in pieces:
        start = positions[0, node]
        row, column = np.divmod(np.arange(grid.num_tokens), grid.width)
        positions[:, node : node + grid.num_tokens] = start + np.stack([np.zeros_like(row), row, column])
    return positions
