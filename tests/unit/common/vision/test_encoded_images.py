"""Stored screenshots as encoded images, and marks drawn on them."""

from __future__ import annotations

import base64
import io

import pytest
from PIL import Image, ImageChops

from computerrl.common.vision.encoded import as_png, data_uri, image_type, mark_places


def encoded(kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (30, 20), "teal").save(buffer, format=kind)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "JPEG"])
def test_type_and_address_are_those_of_the_bytes_themselves(kind: str) -> None:
    data = encoded(kind)
    assert image_type(data) == f"image/{kind.lower()}"
    head, _, body = data_uri(data).partition(",")
    assert head == f"data:image/{kind.lower()};base64" and base64.b64decode(body) == data
    with Image.open(io.BytesIO(as_png(data))) as png, Image.open(io.BytesIO(data)) as stored:
        assert png.format == "PNG" and png.convert("RGB").tobytes() == stored.convert("RGB").tobytes()


def changed(places: tuple[int, ...], *, size: tuple[int, int] = (400, 300)) -> tuple[int, int, int, int] | None:
    """The box of pixels that marks of a screen of 800 x 600 change on a picture of ``size``."""
    before = Image.new("RGB", size, "gray")
    after = before.copy()
    mark_places(after, places, width=800, height=600)
    return ImageChops.difference(before, after).getbbox()


def test_mark_lies_where_the_place_is_at_the_size_of_the_picture() -> None:
    for size in ((400, 300), (800, 600), (200, 150)):
        box = changed((600, 150), size=size)
        assert box is not None
        x, y = (box[0] + box[2] - 1) / 2, (box[1] + box[3] - 1) / 2
        assert (x, y) == pytest.approx((600 * size[0] / 800, 150 * size[1] / 600), abs=2)
        assert box[2] - box[0] < size[0] / 5


def test_drag_is_marked_from_its_start_to_its_end() -> None:
    box = changed((100, 100, 700, 500))
    assert box is not None and box[0] < 52 and box[1] < 52 and box[2] > 348 and box[3] > 248


@pytest.mark.parametrize("places", [(), (900, 10), (10, -1)])
def test_nothing_is_drawn_where_there_is_no_place(places: tuple[int, ...]) -> None:
    assert changed(places) is None
