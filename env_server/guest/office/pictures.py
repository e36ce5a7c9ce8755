"""Picture files in documents, and lengths. Only inside the office's calls."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from .process import DocumentError, Office
from .uno_values import properties, refusing, url

MM100_PER_PIXEL = 2540 / 96
"""1/100 mm, the office's unit, of one pixel at 96 per inch."""
MM100_PER_CM = 1000
_MAX_MM100 = 100_000
"""A metre: what is longer is a mistake."""


def load_picture(office: Office, place: Path, shown: str) -> Any:
    """The file as com.sun.star.graphic.XGraphic. Raises `DocumentError` when it is no picture."""
    provider = office.create("com.sun.star.graphic.GraphicProvider")
    try:
        with refusing():
            found = provider.queryGraphic(properties(URL=url(place)))
    except DocumentError as error:
        raise DocumentError(f"{shown} is no picture that the office can read") from error
    if found is None or found.GraphicType == 0:
        raise DocumentError(f"{shown} is no picture that the office can read")
    return found


def picture_size(picture: Any) -> tuple[int, int]:
    """Its own width and height in 1/100 mm."""
    size = picture.Size100thMM
    if size.Width > 0 and size.Height > 0:
        return size.Width, size.Height
    pixels = picture.SizePixel
    return max(1, round(pixels.Width * MM100_PER_PIXEL)), max(1, round(pixels.Height * MM100_PER_PIXEL))


def length(value: float | None, name: str, unit_mm100: float) -> int | None:
    """A length of the agent in 1/100 mm. Raises `DocumentError` for one that nothing can have."""
    if value is None:
        return None
    if not math.isfinite(value) or value <= 0 or value * unit_mm100 > _MAX_MM100:
        raise DocumentError(f"{name} must lie above 0 and below {_MAX_MM100 / unit_mm100:.0f}, not {value}")
    return max(1, round(value * unit_mm100))


def fitted_size(own: tuple[int, int], width: int | None, height: int | None, *, room: tuple[int, int]) -> tuple[int, int]:
    """Width and height: as asked for; one alone keeps the proportions; none is the own size, made smaller to fit ``room``."""
    own_width, own_height = own
    if width is not None and height is not None:
        return width, height
    if width is not None:
        return width, max(1, round(own_height * width / own_width))
    if height is not None:
        return max(1, round(own_width * height / own_height)), height
    scale = min(1.0, room[0] / own_width, room[1] / own_height)
    return max(1, round(own_width * scale)), max(1, round(own_height * scale))
