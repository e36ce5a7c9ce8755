"""Images of requests: features of the vision tower, and numbers that stand for pieces of images in prompts.

Image tokens are all equal, so a prompt's tokens alone do not tell one screen from another. Inside the engine each image token is
a number below 0 that belongs to one piece of one image: prefixes, the memo and drafts compare those numbers, and keys and values
of one image are never taken for those of another.

Shape legend: P prompt tokens, I image tokens, V new tokens of a pass that stand for pieces.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from computerrl.actor.engines.base import GenerationRequest
from computerrl.common.errors import EngineFailed
from computerrl.common.sampling_limits import MAX_FEATURE_BYTES, MAX_NUMBERED
from computerrl.common.vision.layout import PieceGrid, rope_positions
from computerrl.common.vision.processor import ImageProcessor
from computerrl.common.vision.tower import Features, Tower, joined, tower_parameters


@dataclass(frozen=True, slots=True)
class RequestImages:
    """The images of one request."""

    at_I: np.ndarray
    """[I] indices of its image tokens in the prompt, in order."""
    features: Features
    """One row for each of them."""
    rope_3P: np.ndarray | None
    """[3, P] rotary positions of the prompt; None: positions are indices."""

    def rope(self, begin: int, end: int) -> np.ndarray:
        """[3, end - begin] rotary positions of tokens ``begin`` to ``end`` of prompt and completion."""
        index = np.arange(begin, end)
        if self.rope_3P is None:
            return np.stack([index] * 3)
        num_prompt = self.rope_3P.shape[1]
        after = index + int(self.rope_3P[:, -1].max()) + 1 - num_prompt
        inside = self.rope_3P[:, np.minimum(index, num_prompt - 1)]
        return np.where(index < num_prompt, inside, after)


class EngineImages:
    """Images of one engine; used by its thread only."""

    def __init__(self, model: Any, processor: ImageProcessor) -> None:
        self._tower = Tower(model)
        self._tower_names = tower_parameters(model)
        self.has_rope_grid = processor.arrangement == "grid"
        """Whether rotary positions have three rows."""
        self._image_token = processor.image_token
        self._first: OrderedDict[str, int] = OrderedDict()
        """Content hash -> number of the image's first piece; numbers are never given twice."""
        self._next = -1
        self._kept: OrderedDict[str, Features] = OrderedDict()
        self._kept_bytes = 0

    def of(self, request: GenerationRequest) -> tuple[np.ndarray, RequestImages | None]:
        """[P] prompt tokens with numbers in place of image tokens, and the images. Encodes those that are not kept.

        Raises `EngineFailed` when the prompt does not hold the images of the request."""
        if not request.images:
            return request.prompt_tokens, None
        tokens = request.prompt_tokens.astype(np.int32)
        layouts = [image.processed.layout for image in request.images]
        num_pieces = sum(layout.num_pieces for layout in layouts)
        # A token behind the last image is text: it was sampled before the request was interrupted.
        at_I = np.flatnonzero(tokens == self._image_token)[:num_pieces]
        if len(at_I) < num_pieces:
            raise EngineFailed(f"the prompt holds {len(at_I)} image tokens for images that take {num_pieces}")
        grids: dict[int, PieceGrid] = {}
        begin = 0
        for image, layout in zip(request.images, layouts, strict=True):
            places = at_I[begin : begin + layout.num_pieces]
            if layout.grid is not None:
                if places[-1] - places[0] + 1 != len(places):
                    raise EngineFailed("the prompt holds other tokens between the tokens of one image")
                grids[int(places[0])] = layout.grid
            tokens[places] = self._number(image.content_hash, layout.num_pieces) - np.arange(layout.num_pieces)
            begin += layout.num_pieces
        length = len(tokens)
        rope_3P = rope_positions(np.arange(length), np.full(length, length), grids) if grids else None
        return tokens, RequestImages(at_I, self._features(request), rope_3P)

    def again(self, request: GenerationRequest, images: RequestImages) -> RequestImages:
        """``images`` of ``request`` with the features of the present tower."""
        return replace(images, features=self._features(request))

    def _number(self, content_hash: str, num_pieces: int) -> int:
        if content_hash not in self._first:
            self._first[content_hash] = self._next
            self._next -= num_pieces
            if len(self._first) > MAX_NUMBERED:
                self._first.popitem(last=False)
        self._first.move_to_end(content_hash)
        return self._first[content_hash]

    def _features(self, request: GenerationRequest) -> Features:
        wanted = {image.content_hash: image.processed for image in request.images}
        missing = [content_hash for content_hash in wanted if content_hash not in self._kept]
        if missing:
            encoded = self._tower.encode([wanted[content_hash] for content_hash in missing])
            for content_hash, features in zip(missing, encoded, strict=True):
                # A copy: a part of what several images gave would hold all of it.
                self._kept[content_hash] = features.clone()
                self._kept_bytes += features.nbytes
        for content_hash in wanted:
            self._kept.move_to_end(content_hash)
        features_of_all = joined([self._kept[image.content_hash] for image in request.images])
        while self._kept_bytes > MAX_FEATURE_BYTES:
            self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes
        return features_of_all

    def forget_changed(self, names: Iterable[str]) -> None:
        """The named tensors have changed: keep no features of an older tower."""
        if not self._tower_names.isdisjoint(names):
            self._kept.clear()
            self._kept_bytes = 0


@dataclass(frozen=True, slots=True)
class PassImages:
    """Pieces of images among the new tokens of a pass."""

    nodes_V: torch.Tensor
    """Indices of their tokens in the pass."""
    features: Features
    """A row for each of them."""


def pieces_between(images: RequestImages, begin: int, end: int) -> tuple[np.ndarray, slice]:
    """Offsets from ``begin`` of the pieces among tokens ``begin`` to ``end``, and their rows in the features."""
    first, last = np.searchsorted(images.at_I, [begin, end])
    return images.at_I[first:last] - begin, slice(int(first), int(last))
