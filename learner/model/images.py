"""Screenshots as inputs of a vision-language model: their places in prompts, packs that keep them apart, pixels out of files.

A step names the screenshots that its prompt shows, in their order (`Step.images`). Each stands in the prompt as a number of the
model's image tokens, as an engine hands them to the model (`common.vision.layout`). In an action the image token is an ordinary
token: engines embed sampled tokens as text.

Samples share a prefix only while tokens and images are the same. Image tokens are all equal, so for packing each stands for
its piece of its image (a number below 0), and is an image token again afterwards. No torch model here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from computerrl.common.errors import PictureError
from computerrl.common.messages import ScreenshotRef
from computerrl.common.vision.layout import ImageLayout, rope_positions
from computerrl.common.vision.screens import Screens
from computerrl.learner.model.batching import Pack, PackImages, Sample, make_packs
from computerrl.learner.poison import Poison


class Shown(Sample, Protocol):
    """A sample with images; `common.messages.Step` is one."""

    @property
    def images(self) -> Sequence[ScreenshotRef]: ...


@dataclass(frozen=True, slots=True)
class _Place:
    """Place of an image in a prompt."""

    at_I: np.ndarray
    """[I] indices of its image tokens in the prompt."""
    ref: ScreenshotRef
    layout: ImageLayout


@dataclass(frozen=True, slots=True)
class _Keyed:
    """A sample whose image tokens stand for pieces of images."""

    prompt_tokens: np.ndarray
    action_tokens: np.ndarray


class PromptImages:
    """The screenshots of a run as inputs of one model."""

    def __init__(self, screens: Screens) -> None:
        self.screens = screens
        self._image_token = screens.image_token

    # --- what may be trained on --------------------------------------------------------------------------------------

    def poison_of(self, step: Shown) -> Poison | None:
        """Why ``step`` must not be trained on: an image is not there, not readable, or not the one its prompt has room for."""
        try:
            for place in self._places_of(step):
                self.screens.decode(place.ref)
        except PictureError as error:
            return "picture_mismatch" if error.mismatch else "picture_missing"
        return None

    def _places_of(self, sample: Shown) -> list[_Place]:
        """The images of a prompt in their order. Raises `PictureError`."""
        at = np.flatnonzero(sample.prompt_tokens == self._image_token)
        if len(at) and not sample.images:
            raise PictureError(f"a prompt holds {len(at)} image tokens, but its step names no image", mismatch=False)
        places: list[_Place] = []
        begin = 0
        for number, ref in enumerate(sample.images, start=1):
            layout = self.screens.layout(ref)
            at_I = at[begin : begin + layout.num_pieces]
            is_run = layout.grid is None or not len(at_I) or at_I[-1] - at_I[0] + 1 == len(at_I)
            if len(at_I) < layout.num_pieces or not is_run:
                held = f"{len(at_I)} image tokens" if is_run else "image tokens with others between them"
                reason = f"a prompt holds {held} for image {number} of {len(sample.images)}"
                size = f"{ref.width} x {ref.height}"
                raise PictureError(f"{reason}, and one of {size} takes {layout.num_pieces}", mismatch=True)
            places.append(_Place(at_I, ref, layout))
            begin += layout.num_pieces
        if begin < len(at):
            reason = f"a prompt holds {len(at)} image tokens, but its {len(sample.images)} images take {begin}"
            raise PictureError(reason, mismatch=True)
        return places

    # --- packs -------------------------------------------------------------------------------------------------------

    def packs(self, samples: Sequence[Shown], *, max_tokens: int, groups: Sequence[int] | None = None) -> list[Pack]:
        """As `make_packs`, with images. Raises `PictureError` for a prompt that does not fit its images; reads no file."""
        places = [self._places_of(sample) for sample in samples]
        shown: dict[str, _Place] = {place.ref.content_hash: place for of_sample in places for place in of_sample}
        if not shown:
            return make_packs(samples, max_tokens=max_tokens, groups=groups)
        sizes = [place.layout.num_pieces for place in shown.values()]
        first_P = np.concatenate([[0], np.cumsum(sizes)])
        first = dict(zip(shown, first_P.tolist(), strict=False))
        keyed = [_keyed(sample, of_sample, first) for sample, of_sample in zip(samples, places, strict=True)]
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
        grids = {
            int(node): grid
            for node, image, piece in zip(nodes_V, image_V, piece_V, strict=True)
            if piece == 0 and (grid := shown[image].layout.grid) is not None
        }
        return dataclasses.replace(
            pack,
            tokens_N=np.where(pack.tokens_N < 0, self._image_token, pack.tokens_N),
            images=PackImages(
                refs=tuple(shown[i].ref for i in used),
                nodes_V=nodes_V,
                rows_V=rows_V,
                positions_3N=rope_positions(pack.depth_N, pack.end_N, grids) if grids else None,
            ),
        )


def _keyed(sample: Shown, places: Sequence[_Place], first: Mapping[str, int]) -> _Keyed:
    tokens = sample.prompt_tokens.astype(np.int64)
    for place in places:
        tokens[place.at_I] = -1 - first[place.ref.content_hash] - np.arange(place.layout.num_pieces)
    return _Keyed(tokens, sample.action_tokens)


def after_images(pack: Pack) -> np.ndarray:
    """[M] bool, which action tokens of ``pack`` have an image before them."""
    num_M = len(pack.token_pair_M)
    if pack.images is None:
        return np.zeros(num_M, dtype=np.bool_)
    # Piece v is an ancestor of the nodes v to end[v].
    begins = np.bincount(pack.images.nodes_V, minlength=pack.num_nodes + 1)
    ends = np.bincount(pack.end_N[pack.images.nodes_V], minlength=pack.num_nodes + 1)
    is_below_N = np.cumsum(begins - ends)[: pack.num_nodes] > 0
    found: np.ndarray = is_below_N[pack.logit_nodes_Q[pack.pair_node_U[pack.token_pair_M]]]
    return found
