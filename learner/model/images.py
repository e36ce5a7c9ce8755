"""Screenshots as inputs of a vision-language model: the image of each step, packs that keep images apart, patches of a file.

A prompt shows at most one image, the step's screenshot: the vision format shows the screen of now and leaves out earlier ones.
It stands in the prompt as a row of the model's image tokens, one for each piece of the image's grid, as an engine hands it to
the model. In an action the image token is an ordinary token: engines embed sampled tokens as text.

Samples share a prefix only while tokens and images are the same. Image tokens are all equal, so for packing each stands for
its piece of its image (a number below 0), and is an image token again afterwards. No torch model here.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from PIL import Image

from computerrl.common.errors import PictureError
from computerrl.common.messages import ScreenshotRef
from computerrl.learner.model.batching import Pack, PackImages, Sample, make_packs
from computerrl.learner.poison import Poison


@dataclass(frozen=True, slots=True)
class ImageGrid:
    """The pieces of an image, one a token."""

    height: int
    width: int

    @property
    def num_tokens(self) -> int:
        return self.height * self.width


def rope_positions(depth_N: np.ndarray, end_N: np.ndarray, grids: Mapping[int, ImageGrid]) -> np.ndarray:
    """Positions for a rotary embedding with three rows (Qwen2-VL, arXiv 2409.12191): [3, N] int64, time, height and width.

    Text counts on by one in all rows. The pieces of an image count its rows and columns from where the text before it stopped,
    and the text after it goes on behind its longer side:

        token      a  b  [  image of 2 x 3  ]   c  d
        time       0  1   2  2  2  2  2  2      5  6
        height     0  1   2  2  2  3  3  3      5  6
        width      0  1   2  3  4  2  3  4      5  6

    A position depends on what comes before it alone, so all samples that share a node of a trie agree on its position. Still
    images only. ``depth_N`` and ``end_N`` as in `batching.Pack`, for N nodes in depth-first order; ``grids``: first node of a
    image -> its grid, whose nodes follow one another without branching.
    """
    ahead_N = np.zeros(len(depth_N), dtype=np.int64)
    """Position of a node minus its depth; at most 0."""
    positions = np.empty((3, len(depth_N)), dtype=np.int64)
    pieces: list[tuple[int, ImageGrid]] = []
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


_MAX_PIXELS = 2**26
"""Twice an 8K screen. A reference comes from another process, so its size must not decide how much memory is allocated."""

ReadScreenshot = Callable[[ScreenshotRef], bytes]
"""The encoded image. Raises `OSError`, or `ValueError` when it is cut off."""


class Shown(Sample, Protocol):
    """A sample with an image; `common.messages.Step` is one."""

    @property
    def screenshot(self) -> ScreenshotRef | None: ...


@dataclass(frozen=True, slots=True)
class _Place:
    """Place of an image in a prompt."""

    start: int
    ref: ScreenshotRef
    grid: ImageGrid


@dataclass(frozen=True, slots=True)
class _Keyed:
    """A sample whose image tokens stand for pieces of images."""

    prompt_tokens: np.ndarray
    action_tokens: np.ndarray


class PromptImages:
    """The screenshots of a run as inputs of one model."""

    def __init__(self, read: ReadScreenshot, *, processor: Any, image_token: int) -> None:
        """``processor``: the image processor of the model's folder (of Qwen's kind, with ``merge_size``)."""
        self._read = read
        self._processor = processor
        self._image_token = image_token
        self._grids: dict[tuple[int, int], ImageGrid] = {}
        """(width, height) in pixels -> grid; a run has few sizes of screens."""

    # --- what may be trained on --------------------------------------------------------------------------------------

    def poison_of(self, step: Shown) -> Poison | None:
        """Why ``step`` must not be trained on: its image is not there, not readable, or not the one its prompt has room for."""
        try:
            place = self._place_of(step)
            if place is not None:
                self._decode(place.ref)
        except PictureError as error:
            return "picture_mismatch" if error.mismatch else "picture_missing"
        return None

    def _place_of(self, sample: Shown) -> _Place | None:
        """None when the prompt shows nothing. Raises `PictureError`."""
        at = np.flatnonzero(sample.prompt_tokens == self._image_token)
        if not len(at):
            return None
        start, ref = int(at[0]), sample.screenshot
        if ref is None:
            raise PictureError(f"a prompt holds {len(at)} image tokens, but its step has no screenshot", mismatch=False)
        grid = self._grid_of(ref)
        if at[-1] - start + 1 != len(at):
            raise PictureError("a prompt shows several images, and a step has one screenshot", mismatch=True)
        if len(at) != grid.num_tokens:
            size = f"{ref.width} x {ref.height}"
            reason = f"a prompt holds {len(at)} image tokens, but its image of {size} takes {grid.num_tokens}"
            raise PictureError(reason, mismatch=True)
        return _Place(start, ref, grid)

    def num_tokens(self, ref: ScreenshotRef) -> int:
        """Image tokens that the image takes. Raises `PictureError`."""
        return self._grid_of(ref).num_tokens

    def _grid_of(self, ref: ScreenshotRef) -> ImageGrid:
        size = (ref.width, ref.height)
        if min(size) < 1 or ref.width * ref.height > _MAX_PIXELS:
            raise PictureError(f"no screen is {ref.width} x {ref.height}", mismatch=True)
        if size not in self._grids:
            # Asked of the processor itself, with a black image: how it rounds sizes is its own business.
            try:
                self._grids[size] = self._patches(Image.new("RGB", size))[1]
            except ValueError as error:
                raise PictureError(f"the model takes no image of {ref.width} x {ref.height}: {error}", mismatch=True) from error
        return self._grids[size]

    # --- patches -----------------------------------------------------------------------------------------------------

    def patches_of(self, ref: ScreenshotRef) -> tuple[np.ndarray, tuple[int, int, int]]:
        """([patches, values] float32, (time, height, width) in patches): what the vision tower takes. Raises `PictureError`."""
        patches, grid = self._patches(self._decode(ref))
        assert grid == self._grid_of(ref)
        merge = int(self._processor.merge_size)
        return patches, (1, grid.height * merge, grid.width * merge)

    def _patches(self, image: Image.Image) -> tuple[np.ndarray, ImageGrid]:
        found = self._processor(images=[image], return_tensors="np")
        ((time, height, width),) = np.asarray(found["image_grid_thw"]).tolist()
        assert time == 1
        merge = int(self._processor.merge_size)
        return np.asarray(found["pixel_values"], dtype=np.float32), ImageGrid(height // merge, width // merge)

    def _decode(self, ref: ScreenshotRef) -> Image.Image:
        """``ref`` has a size that `_grid_of` has taken."""
        where = f"screenshot {ref.content_hash} in {ref.segment} at {ref.offset}"
        if ref.num_bytes > 4 * ref.width * ref.height + 2**16:
            raise PictureError(f"{where} takes {ref.num_bytes} bytes, more than its pixels", mismatch=True)
        try:
            encoded = Image.open(io.BytesIO(self._read(ref)))
            image = encoded.convert("RGB") if encoded.size == (ref.width, ref.height) else encoded
        except (OSError, ValueError, OverflowError, SyntaxError, Image.DecompressionBombError) as error:
            # Pillow says of some broken files that their syntax is wrong.
            raise PictureError(f"{where} cannot be read: {error}", mismatch=False) from error
        if image.size != (ref.width, ref.height):
            reason = f"{where} is {image.width} x {image.height}, and {ref.width} x {ref.height} by its reference"
            raise PictureError(reason, mismatch=True)
        return image

    @contextmanager
    def reading(self, read: ReadScreenshot) -> Iterator[None]:
        """Take images from ``read`` meanwhile."""
        own, self._read = self._read, read
        try:
            yield
        finally:
            self._read = own

    # --- packs -------------------------------------------------------------------------------------------------------

    def packs(self, samples: Sequence[Shown], *, max_tokens: int, groups: Sequence[int] | None = None) -> list[Pack]:
        """As `make_packs`, with images. Raises `PictureError` for a prompt that does not fit its image; reads no file."""
        places = [self._place_of(sample) for sample in samples]
        shown: dict[str, _Place] = {place.ref.content_hash: place for place in places if place is not None}
        if not shown:
            return make_packs(samples, max_tokens=max_tokens, groups=groups)
        sizes = [place.grid.num_tokens for place in shown.values()]
        first_P = np.concatenate([[0], np.cumsum(sizes)])
        first = dict(zip(shown, first_P.tolist(), strict=False))
        keyed = [_keyed(sample, place, first) for sample, place in zip(samples, places, strict=True)]
        made = make_packs(keyed, max_tokens=max_tokens, groups=groups)
        return [self._with_images(pack, list(shown.values()), first_P) for pack in made]

    def _with_images(self, pack: Pack, shown: Sequence[_Place], first_P: np.ndarray) -> Pack:
        """``pack`` with image tokens where keys were. ``first_P``: the first key of each image, and one past the last."""
        nodes_V = np.flatnonzero(pack.tokens_N < 0)
        if not len(nodes_V):
            return pack
        keys_V = -1 - pack.tokens_N[nodes_V]
        image_V = np.searchsorted(first_P, keys_V, side="right") - 1
        piece_V = keys_V - first_P[image_V]
        used, of_used_V = np.unique(image_V, return_inverse=True)
        sizes = np.diff(first_P)[used]
        rows_V = (np.cumsum(sizes) - sizes)[of_used_V] + piece_V
        begins = piece_V == 0
        grids = {int(node): shown[i].grid for node, i in zip(nodes_V[begins], image_V[begins], strict=True)}
        return dataclasses.replace(
            pack,
            tokens_N=np.where(pack.tokens_N < 0, self._image_token, pack.tokens_N),
            images=PackImages(
                refs=tuple(shown[i].ref for i in used),
                nodes_V=nodes_V,
                rows_V=rows_V,
                positions_3N=rope_positions(pack.depth_N, pack.end_N, grids),
            ),
        )


def _keyed(sample: Shown, place: _Place | None, first: Mapping[str, int]) -> _Keyed:
    tokens = sample.prompt_tokens.astype(np.int64)
    if place is not None:
        num_tokens = place.grid.num_tokens
        tokens[place.start : place.start + num_tokens] = -1 - first[place.ref.content_hash] - np.arange(num_tokens)
    return _Keyed(tokens, sample.action_tokens)
