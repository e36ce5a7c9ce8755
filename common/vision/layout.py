"""An image inside a prompt: how many tokens stand for it, in which rows and columns, and at which rotary positions.

Pure numpy. A prompt holds one image token for each *piece* of an image: a square of pixels whose features take the place of the
token's embedding. Families arrange pieces in one of two ways:

- *grid* (Qwen2-VL, Qwen2.5-VL, Qwen3-VL, GLM-4.1V): one uninterrupted run of pieces, row by row. Rotary positions have three
  rows, which count time, height and width.
- *tiles* (Idefics3, SmolVLM): the image is cut into tiles of equal size and followed by the whole image at the size of a tile.
  Marker tokens stand between the runs of pieces. Positions are those of text.

Shape legend: N nodes of a trie in depth-first order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class PieceGrid:
    """Rows and columns of pieces."""

    height: int
    width: int

    @property
    def num_pieces(self) -> int:
        return self.height * self.width


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """The image tokens of one image."""

    num_pieces: int
    """Number of image tokens."""
    grid: PieceGrid | None = None
    """Rows and columns of the run of pieces; None in a family of tiles."""
    tiles: PieceGrid = PieceGrid(0, 0)
    """Rows and columns of tiles beside the whole image; none where the image fits one tile, and none in a family of grids."""


def image_text(layout: ImageLayout, image_token: str) -> str:
    """The text of one image's tokens, which takes the place of the one ``image_token`` that a chat template writes for an image.

    Tiles as in Idefics3 (arXiv 2408.12637, section 2.3) and SmolVLM: each begins with a marker and its row and column, the whole
    image comes last."""
    if layout.grid is not None:
        return image_token * layout.num_pieces
    tiles = layout.tiles
    pieces = image_token * (layout.num_pieces // (tiles.num_pieces + 1))
    rows = [
        "".join(f"{_AROUND}<row_{row + 1}_col_{column + 1}>{pieces}" for column in range(tiles.width)) + "\n"
        for row in range(tiles.height)
    ]
    whole = f"{_AROUND}<global-img>{pieces}{_AROUND}"
    return "".join(rows) + "\n" + whole if rows else whole


def image_markers(layout: ImageLayout) -> list[str]:
    """The texts between the pieces of an image, each of which has to be one token; none in a family of grids."""
    if layout.grid is not None:
        return []
    tiles = layout.tiles
    rows = [f"<row_{row + 1}_col_{column + 1}>" for row in range(tiles.height) for column in range(tiles.width)]
    return [_AROUND, "<global-img>", *rows]


_AROUND = "<fake_token_around_image>"


def rope_positions(depth_N: np.ndarray, end_N: np.ndarray, grids: Mapping[int, PieceGrid]) -> np.ndarray:
    """Positions for a rotary embedding with three rows (Qwen2-VL, arXiv 2409.12191, section 2.1): [3, N] int64, time, height and
    width.

    Text counts on by one in all rows. The pieces of an image count its rows and columns from the position at which the text
    before it stopped, and the text after it goes on behind its longer side:

        token      a  b  [ image of 2 x 3 ]    c  d
        time       0  1   2  2  2  2  2  2     5  6
        height     0  1   2  2  2  3  3  3     5  6
        width      0  1   2  3  4  2  3  4     5  6

    A position depends only on the tokens before it, so all samples that share a node of a trie agree on its position. Still
    images only. ``depth_N`` and ``end_N`` as in `learner.model.batching.Pack`; one sequence is the trie with
    ``depth_N = arange(N)`` and ``end_N = N``. ``grids``: first node of an image -> its grid, whose nodes follow one another
    without branching.
    """
    ahead_N = np.zeros(len(depth_N), dtype=np.int64)
    """A node's position less its depth; at most 0."""
    positions = np.empty((3, len(depth_N)), dtype=np.int64)
    for node in sorted(grids):
        grid = grids[node]
        ahead_N[node + grid.num_pieces : end_N[node]] += max(grid.height, grid.width) - grid.num_pieces
    positions[:] = depth_N + ahead_N
    for node, grid in grids.items():
        start = positions[0, node]
        row, column = np.divmod(np.arange(grid.num_pieces), grid.width)
        positions[:, node : node + grid.num_pieces] = start + np.stack([np.zeros_like(row), row, column])
    return positions
