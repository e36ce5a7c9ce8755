"""Stored screenshots as a model gets them: what the env_server stores is read, everything else is refused with its reason."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from computerrl.common.errors import PictureError
from computerrl.common.messages import ScreenshotRef
from computerrl.common.vision.processor import ImageProcessor
from computerrl.common.vision.screens import Screens
from computerrl.env_server.drivers.screenshots import ScreenshotStore, content_hash, read_screenshot

SIZE = (40, 30)
RGB = Image.fromarray(np.random.default_rng(0).integers(0, 256, (SIZE[1], SIZE[0], 3), dtype=np.uint8))


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of_size(width: int, height: int) -> bytes:
    """A PNG that only says its size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = png_chunk(b"IHDR", header) + png_chunk(b"IDAT", zlib.compress(b"")) + png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def no_processor(**_: Any) -> None:
    raise AssertionError("no image that is refused is processed")


class Folder:
    """A folder of segments, and the screens in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        processor = ImageProcessor(no_processor, image_token=1, arrangement="grid")
        self.screens = Screens(lambda ref: read_screenshot(path, ref), processor)

    def ref(self, data: bytes, *, size: tuple[int, int] = SIZE, **changes: Any) -> ScreenshotRef:
        (self.path / "segment.bin").write_bytes(data)
        given = {"content_hash": content_hash(data), "num_bytes": len(data)} | changes
        return ScreenshotRef(given["content_hash"], "segment.bin", 0, given["num_bytes"], *size)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.mark.parametrize("kind", ["webp", "png", "jpeg"])
def test_decode_what_the_env_server_stores(tmp_path: Path, kind: str) -> None:
    store = ScreenshotStore(tmp_path, picture_format=kind, incarnation="test")
    ref = store.put(np.asarray(RGB))
    image = Folder(tmp_path).screens.decode(ref)
    assert (image.size, image.mode) == (SIZE, "RGB")
    assert kind != "png" or (np.asarray(image) == np.asarray(RGB)).all()


PALETTE = RGB.convert("P")
OTHERS: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "cannot be read"),
    "no image": (lambda: b"hello" * 40, "cannot be read"),
    "html": (lambda: b"<html><body>not found</body></html>", "cannot be read"),
    "cut in the header": (lambda: encoded(RGB, "PNG")[:20], "cannot be read"),
    "cut in the pixels": (lambda: encoded(RGB, "PNG")[:-900], "cannot be read"),
    "cut jpeg": (lambda: encoded(RGB, "JPEG")[:400], "cannot be read"),
    "cut webp": (lambda: encoded(RGB, "WEBP")[:-200], "cannot be read"),
    "damaged": (lambda: encoded(RGB, "PNG").replace(b"IDAT", b"IDAX"), "cannot be read"),
    "no width": (lambda: png_of_size(0, SIZE[1]), "cannot be read"),
    "billions of pixels": (lambda: png_of_size(60_000, 60_000), "cannot be read"),
    "a larger one": (lambda: encoded(RGB.resize((80, 60)), "PNG"), "is 80 x 60, and 40 x 30 by its reference"),
    "gif": (lambda: encoded(PALETTE, "GIF"), "cannot be read"),
    "bmp": (lambda: encoded(RGB, "BMP"), "cannot be read"),
    "tiff": (lambda: encoded(RGB, "TIFF"), "cannot be read"),
    "postscript": (lambda: encoded(RGB, "EPS"), "cannot be read"),
    "grey": (lambda: encoded(RGB.convert("L"), "PNG"), "has mode L"),
    "palette": (lambda: encoded(PALETTE, "PNG"), "has mode P"),
    "one bit": (lambda: encoded(RGB.convert("1"), "PNG"), "has mode 1"),
    "16 bits": (lambda: encoded(Image.new("I;16", SIZE), "PNG"), "has mode I;16"),
    "alpha": (lambda: encoded(RGB.convert("RGBA"), "PNG"), "has mode RGBA"),
    "alpha webp": (lambda: encoded(RGB.convert("RGBA").rotate(45), "WEBP"), "has mode RGBA"),
    "cmyk": (lambda: encoded(RGB.convert("CMYK"), "JPEG"), "has mode CMYK"),
    "animated png": (lambda: encoded(RGB, "PNG", save_all=True, append_images=[RGB.rotate(180)]), "has 2 frames"),
    "animated webp": (lambda: encoded(RGB, "WEBP", save_all=True, append_images=[RGB.rotate(180)]), "has 2 frames"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_decode_anything_else_is_refused_with_its_reason(folder: Folder, name: str) -> None:
    make, reason = OTHERS[name]
    with pytest.raises(PictureError, match=reason):
        folder.screens.decode(folder.ref(make()))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"content_hash": "0" * 32}, "holds another screenshot"),
        ({"num_bytes": 50}, "holds another screenshot"),
        ({"num_bytes": 10_000}, "before the end of"),
        ({"num_bytes": 10**9}, "more than its pixels"),
    ],
)
def test_decode_bytes_that_are_not_those_of_the_reference_is_refused(
    folder: Folder, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(PictureError, match=reason):
        folder.screens.decode(folder.ref(encoded(RGB, "PNG"), **changes))


def test_decode_missing_file_is_refused(folder: Folder) -> None:
    ref = folder.ref(encoded(RGB, "PNG"))
    (folder.path / "segment.bin").unlink()
    with pytest.raises(PictureError, match="cannot be read") as caught:
        folder.screens.decode(ref)
    assert not caught.value.mismatch
