"""Frames on their way to a browser: only the part that changed, as WebP. Pure."""

from __future__ import annotations

import io
import struct

import numpy as np
from PIL import Image

HEADER = struct.Struct(">HHHH")
"""Left, top, width, height of the part, before its WebP bytes; the page reads the same."""

_QUALITY = 82
"""Text is sharp, and a changed cell takes a few hundred bytes."""

Box = tuple[int, int, int, int]
"""Left, top, width, height."""


def changed_box(before: np.ndarray | None, after: np.ndarray) -> Box | None:
    """The smallest box outside which two [height, width, 3] frames are alike; None: they are; all of it without ``before``."""
    if before is None or before.shape != after.shape:
        return 0, 0, after.shape[1], after.shape[0]
    differs = (before != after).any(axis=2)
    rows = np.flatnonzero(differs.any(axis=1))
    if not rows.size:
        return None
    columns = np.flatnonzero(differs.any(axis=0))
    left, top = int(columns[0]), int(rows[0])
    return left, top, int(columns[-1]) - left + 1, int(rows[-1]) - top + 1


def encode_part(frame: np.ndarray, box: Box) -> bytes:
    """Header and WebP of ``box``."""
    left, top, width, height = box
    return HEADER.pack(*box) + encode(frame[top : top + height, left : left + width])


def encode(frame: np.ndarray) -> bytes:
    """WebP of a whole [height, width, 3] frame."""
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(frame)).save(stream, "WEBP", quality=_QUALITY, method=0)
    return stream.getvalue()
