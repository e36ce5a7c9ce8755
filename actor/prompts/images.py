"""Images of a prompt: the text that each stands for, by the model folder's own image processor."""

from __future__ import annotations

from pathlib import Path

from computerrl.actor.prompts.tokenizer import Tokenizer
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.messages import ScreenshotRef
from computerrl.common.vision.layout import image_text
from computerrl.common.vision.processor import ImageProcessor, load_processor


class ImageTokens:
    """Image tokens of one model; safe to share between threads."""

    def __init__(self, processor: ImageProcessor, *, image_token: str) -> None:
        """``image_token``: text of the token that stands for a piece of an image."""
        self._processor = processor
        self._image_token = image_token

    @classmethod
    def of(cls, folder: Path, tokenizer: Tokenizer) -> ImageTokens:
        """Those of a model folder. Raises `ConfigError` for a model without images, or of a family that cannot be run here."""
        if tokenizer.image_token is None:
            reason = f"the model in {str(folder)!r} takes no images: config.json or its tokenizer names no image token"
            raise ConfigError([Problem("actor.prompt.format", reason, "use a vision-language model, or the format compact")])
        return cls(load_processor(folder), image_token=tokenizer.image_token)

    def text(self, ref: ScreenshotRef) -> str:
        """Text of the tokens of ``ref``. Raises `PictureError` for a size that the model does not take."""
        return image_text(self._processor.layout(ref.width, ref.height), self._image_token)

    def num_pieces(self, ref: ScreenshotRef) -> int:
        """Number of image tokens among them."""
        return self._processor.layout(ref.width, ref.height).num_pieces

    @property
    def token(self) -> int:
        """Id of the image token."""
        return self._processor.image_token
