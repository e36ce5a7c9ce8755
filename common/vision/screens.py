"""Stored screenshots as inputs of a vision-language model: read, checked, decoded, processed."""

from __future__ import annotations

import io
from collections.abc import Callable

from PIL import Image

from computerrl.common.errors import PictureError
from computerrl.common.messages import ScreenshotRef
from computerrl.common.vision.layout import ImageLayout
from computerrl.common.vision.processor import CoordinateKind, ImageProcessor, Processed

ReadScreenshot = Callable[[ScreenshotRef], bytes]
"""The encoded image. Raises `OSError`, or `ValueError` when it is cut off or another one lies there."""

_FORMATS = ("WEBP", "PNG", "JPEG")
"""Those that `desktop.screenshot_format` names. Pillow opens dozens of others."""


class Screens:
    """The screenshots of a run, for one model."""

    def __init__(self, read: ReadScreenshot, processor: ImageProcessor) -> None:
        self._read = read
        self._processor = processor

    @property
    def image_token(self) -> int:
        """Id of the token that stands for a piece of an image."""
        return self._processor.image_token

    @property
    def coordinates(self) -> CoordinateKind:
        """Coordinates of places in the answers of the model's family."""
        return self._processor.coordinates

    @property
    def has_pixels(self) -> bool:
        """Whether `resized` is defined for the model's family."""
        return self._processor.arrangement == "grid"

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """See `ImageProcessor.resized`."""
        return self._processor.resized(width, height)

    def layout(self, ref: ScreenshotRef) -> ImageLayout:
        """The image tokens of ``ref``. Raises `PictureError` for a size that the model does not take."""
        return self._processor.layout(ref.width, ref.height)

    def processed(self, ref: ScreenshotRef) -> Processed:
        """Inputs of the vision tower. Raises `PictureError`."""
        layout = self.layout(ref)
        found = self._processor.process(self.decode(ref))
        assert found.layout == layout
        return found

    def process(self, image: Image.Image) -> Processed:
        """Inputs of the vision tower for pixels that are not stored."""
        return self._processor.process(image)

    def decode(self, ref: ScreenshotRef) -> Image.Image:
        """The pixels. Raises `PictureError`. `layout` has accepted the size: memory is taken for it here."""
        where = _where(ref)
        if ref.num_bytes > 4 * ref.width * ref.height + 2**16:
            raise PictureError(f"{where} takes {ref.num_bytes} bytes, more than its pixels", mismatch=True)
        try:
            image = Image.open(io.BytesIO(self._read(ref)), formats=_FORMATS)
            self._require_screenshot(image, ref, where)
            image.load()
        except (OSError, ValueError, OverflowError, SyntaxError, Image.DecompressionBombError) as error:
            # Pillow says of some broken files that their syntax is wrong.
            raise PictureError(f"{where} cannot be read: {error}", mismatch=False) from error
        return image

    @staticmethod
    def _require_screenshot(image: Image.Image, ref: ScreenshotRef, where: str) -> None:
        """Raise `PictureError` for an image that no env_server stores: two readers could see two different ones in it."""
        if image.size != (ref.width, ref.height):
            reason = f"{where} is {image.width} x {image.height}, and {ref.width} x {ref.height} by its reference"
            raise PictureError(reason, mismatch=True)
        if image.mode != "RGB":
            raise PictureError(f"{where} has mode {image.mode}, and screenshots have RGB", mismatch=True)
        num_frames = getattr(image, "n_frames", 1)
        if num_frames != 1:
            raise PictureError(f"{where} has {num_frames} frames", mismatch=True)

    def encoded(self, ref: ScreenshotRef) -> bytes:
        """The stored bytes. Raises `PictureError` when they cannot be read."""
        try:
            return self._read(ref)
        except (OSError, ValueError) as error:
            raise PictureError(f"{_where(ref)} cannot be read: {error}", mismatch=False) from error


def _where(ref: ScreenshotRef) -> str:
    return f"screenshot {ref.content_hash} in {ref.segment} at {ref.offset}"
