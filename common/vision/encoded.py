"""Screenshots as encoded images: their type, their form in a page or a request, and marks where an action pointed.

Pillow only. Places are pixels of the screenshot: x, y, or x, y of each place of a drag, its start first
(`common.messages.Step.places`).
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

from PIL import Image, ImageDraw

_MARK = (229, 57, 53)
"""Colour of a mark: red, with white around it, is seen on light and on dark screens."""
_AROUND = (255, 255, 255)
_MIN_RADIUS, _RADIUS_SHARE = 4, 0.018
"""Radius of a mark in pixels, and as a share of the image's longer side."""


def image_type(encoded: bytes) -> str:
    """MIME type of a stored screenshot."""
    return "image/png" if encoded.startswith(b"\x89PNG") else "image/jpeg" if encoded.startswith(b"\xff\xd8") else "image/webp"


def data_uri(encoded: bytes) -> str:
    """``encoded`` as the address of an image."""
    return f"data:{image_type(encoded)};base64,{base64.b64encode(encoded).decode()}"


def as_png(encoded: bytes) -> bytes:
    """``encoded`` as PNG of the same pixels; a PNG stays as it is. Raises `OSError` when it cannot be read."""
    if image_type(encoded) == "image/png":
        return encoded
    buffer = io.BytesIO()
    with Image.open(io.BytesIO(encoded)) as image:
        image.convert("RGB").save(buffer, format="PNG")
    return buffer.getvalue()


def black_image(width: int, height: int, picture_format: str) -> bytes:
    """A black screen, encoded as `desktop.screenshot_format` names it."""
    buffer = io.BytesIO()
    Image.new("RGB", (width, height)).save(buffer, format=picture_format.upper())
    return buffer.getvalue()


def mark_places(image: Image.Image, places: Sequence[int], *, width: int, height: int) -> None:
    """Draw ``places`` of a screen of ``width`` x ``height`` pixels on ``image``, which shows that screen at any size.

    One place is a ring with a dot. Several are a line that ends in the ring, with a square at its start."""
    points = [
        (x * image.width / width, y * image.height / height)
        for x, y in zip(places[::2], places[1::2], strict=True)
        if 0 <= x < width and 0 <= y < height
    ]
    if not points:
        return
    draw = ImageDraw.Draw(image)
    radius = max(_MIN_RADIUS, round(_RADIUS_SHARE * max(image.size)))
    if len(points) > 1:
        draw.line(points, fill=_AROUND, width=5)
        draw.line(points, fill=_MARK, width=2)
        draw.rectangle(_box(points[0], radius - 1), fill=_MARK, outline=_AROUND)
    draw.ellipse(_box(points[-1], radius + 1), outline=_AROUND, width=4)
    draw.ellipse(_box(points[-1], radius), outline=_MARK, width=2)
    draw.ellipse(_box(points[-1], 2), fill=_MARK)


def _box(centre: tuple[float, float], radius: float) -> tuple[float, float, float, float]:
    x, y = centre
    return x - radius, y - radius, x + radius, y + radius
