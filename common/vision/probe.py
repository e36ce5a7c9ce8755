"""The image of the probe that proves weights (`common.weight_plan`): with a vision tower, the fixed sequence holds one.

Learner and engines score the same tokens after the same pixels, so that a tower with older weights is found. The pixels are made
by integer arithmetic, and nothing is read from a file.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from computerrl.common.vision.processor import ImageProcessor, Processed
from computerrl.common.weight_plan import PROBE_TOKENS, probe_tokens

PROBE_HASH = "probe"
"""Name of the image in caches; no content hash, which are hexadecimal."""

PROBE_SIZE = (112, 84)
"""Width and height in pixels: unequal, so that a mix-up shows."""

_NUM_BEFORE = 4
"""Tokens of the probe before the image."""


@dataclass(frozen=True, slots=True)
class ImageProbe:
    """The probe of a vision-language model."""

    prompt_tokens: np.ndarray
    """[P] int32, the image's tokens last."""
    scored_tokens: np.ndarray
    """[12] int32, the rest of `probe_tokens`: learner and engines compare the log-probs of these."""
    processed: Processed
    """The image."""


def probe_image() -> Image.Image:
    """The pixels."""
    width, height = PROBE_SIZE
    row, column, channel = np.indices((height, width, 3))
    # Squares and products: neighbouring patches differ, and so do rows from columns.
    return Image.fromarray(((3 * column * column + 7 * row * row + 5 * row * column + 97 * channel) % 256).astype(np.uint8))


def make_image_probe(processor: ImageProcessor, *, vocabulary: int) -> ImageProbe:
    """The probe for a model that knows ``vocabulary`` tokens."""
    image_token = processor.image_token
    # In a small vocabulary one of the probe's tokens may be the one that stands for images.
    tokens = [token if token != image_token else (token + 1) % vocabulary for token in probe_tokens(vocabulary)]
    processed = processor.process(probe_image())
    prompt = [*tokens[:_NUM_BEFORE], *[image_token] * processed.layout.num_pieces]
    return ImageProbe(np.array(prompt, dtype=np.int32), np.array(tokens[_NUM_BEFORE:], dtype=np.int32), processed)


def num_probe_tokens(processor: ImageProcessor | None) -> int:
    """Length of the probe's sequence for a model that takes images with ``processor``; 0 for a model that takes none, whose probe
    is shorter than any prompt."""
    if processor is None:
        return 0
    return len(PROBE_TOKENS) + processor.layout(*PROBE_SIZE).num_pieces
