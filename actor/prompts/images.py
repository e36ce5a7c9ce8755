"""Images of a prompt, by the model folder's own image processor: the text that each stands for, and its pixels for the engine."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace
from PIL import Image

from computerrl.actor.engines.base import RequestImage, SentImage
from computerrl.actor.prompts.formats.coordinates import Extents, thousand
from computerrl.actor.prompts.tokenizer import Tokenizer
from computerrl.common.config import Coordinates
from computerrl.common.errors import ConfigError, PictureError, Problem
from computerrl.common.messages import ScreenshotRef, ShownImages, content_hash
from computerrl.common.models.folder import named_image_token
from computerrl.common.sampling_limits import MAX_PREPARED_BYTES, MAX_SENT
from computerrl.common.vision.encoded import black_image
from computerrl.common.vision.layout import image_markers, image_text
from computerrl.common.vision.processor import load_processor
from computerrl.common.vision.screens import ReadScreenshot, Screens


class ImageTokens:
    """Images for the prompts of one model; safe to share between threads."""

    def __init__(self, screens: Screens, *, image_token: str) -> None:
        """``image_token``: text of the token that stands for a piece of an image."""
        self._screens = screens
        self._image_token = image_token
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, RequestImage] = OrderedDict()
        self._kept_bytes = 0
        self._sent: OrderedDict[str, tuple[tuple[int, int], bytes]] = OrderedDict()
        """Content hash -> size and stored bytes."""

    @classmethod
    def of(cls, folder: Path, tokenizer: Tokenizer, *, read: ReadScreenshot) -> ImageTokens:
        """Those of a model folder. Raises `ConfigError` for a model without images, or of a family that cannot be run here."""
        if tokenizer.image_token is None:
            reason = f"the model in {str(folder)!r} takes no images: config.json or its tokenizer names no image token"
            raise ConfigError([Problem("actor.prompt.format", reason, "use a vision-language model, or the format compact")])
        processor = load_processor(folder)
        problem = _image_token_problem(folder, tokenizer, processor.image_token)
        if problem:
            raise ConfigError([Problem("model.name", problem, "copy tokenizer and config.json of the same model")])
        return cls(Screens(read, processor), image_token=tokenizer.image_token)

    @property
    def token(self) -> int:
        """Id of the image token."""
        return self._screens.image_token

    def extents(self, coordinates: Coordinates) -> Extents:
        """Extents of the coordinates that the policy writes. Raises `ConfigError` for those that the family does not have."""
        kind = self._screens.coordinates if coordinates == "auto" else coordinates
        if kind == "thousand":
            return thousand
        if not self._screens.has_pixels:
            reason = "pixels, but the model cuts an image into tiles, and none of its sizes is the image's"
            raise ConfigError([Problem("actor.prompt.coordinates", reason, "set it to auto or thousand")])
        return self._screens.resized

    def require_screen(self, ref: ScreenshotRef | None, tokenizer: Tokenizer) -> int:
        """Number of image tokens of a screen like ``ref``. Raises `ConfigError` for a size that the model does not take, and for
        a ``tokenizer`` without the tokens that mark its tiles."""
        assert ref is not None
        try:
            markers = image_markers(self._screens.layout(ref))
        except PictureError as error:
            raise ConfigError([Problem("desktop.screen_width", str(error), "choose another size of the screen")]) from error
        missing = [marker for marker in markers if len(tokenizer.encode_image(marker)) != 1]
        if missing:
            reason = f"the tokenizer writes {', '.join(missing[:4])} as plain text, and these mark the model's images"
            raise ConfigError([Problem("model.name", reason, "use the model's own tokenizer")])
        return self.num_pieces(ref)

    def text(self, ref: ScreenshotRef) -> str:
        """Text of the tokens of ``ref``. Raises `PictureError` for a size that the model does not take."""
        return image_text(self._screens.layout(ref), self._image_token)

    def num_pieces(self, ref: ScreenshotRef) -> int:
        """Number of image tokens among them."""
        return self._screens.layout(ref).num_pieces

    def require_written(self, tokens: Sequence[int], refs: Sequence[ScreenshotRef]) -> None:
        """Raises `ConfigError` when ``tokens`` hold another number of image tokens than ``refs`` take."""
        written, needed = list(tokens).count(self.token), sum(map(self.num_pieces, refs))
        if written != needed:
            reason = f"the tokenizer writes {written} image tokens for images that take {needed}"
            raise ConfigError([Problem("model.name", reason, "use the model's own tokenizer")])

    def blank(self, ref: ScreenshotRef) -> RequestImage:
        """A black image of the size of ``ref``."""
        size = (ref.width, ref.height)
        return RequestImage(f"blank-{ref.width}x{ref.height}", self._screens.process(Image.new("RGB", size)))

    def foreign(self, ref: ScreenshotRef) -> RequestImage:
        """The image, of as many tokens, that was given before ``ref`` to another prompt; ``blank`` where there was none. Raises
        `PictureError` when ``ref`` cannot be read."""
        own = self.image(ref)
        with self._lock:
            others = [one for name, one in self._kept.items() if name != ref.content_hash]
        fitting = [one for one in others if one.processed.layout == own.processed.layout]
        return fitting[-1] if fitting else self.blank(ref)

    def asked(self, refs: Sequence[ScreenshotRef], shown: ShownImages = "own") -> tuple[RequestImage, ...]:
        """``refs`` for an engine of this process, or what is ``shown`` in place of them. Raises `PictureError` when one cannot be
        read."""
        give = {"own": self.image, "blank": self.blank, "foreign": self.foreign}[shown]
        return tuple(map(give, refs))

    def encoded(self, ref: ScreenshotRef, shown: ShownImages = "own") -> bytes:
        """The stored bytes of ``ref``, or an encoded image to show in place of it: as in `blank`, or in `foreign` of the same
        size. Raises `PictureError` when it cannot be read."""
        size, own = (ref.width, ref.height), self._screens.encoded(ref)
        with self._lock:
            others = [data for name, (of_size, data) in self._sent.items() if of_size == size and name != ref.content_hash]
            self._sent[ref.content_hash] = (size, own)
            self._sent.move_to_end(ref.content_hash)
            if len(self._sent) > MAX_SENT:
                self._sent.popitem(last=False)
        if shown == "own":
            return own
        return others[-1] if shown == "foreign" and others else black_image(*size, "png")

    def sent(self, ref: ScreenshotRef, shown: ShownImages = "own") -> SentImage:
        """`encoded`, for an engine process."""
        data = self.encoded(ref, shown)
        return SentImage(ref if shown == "own" else replace(ref, content_hash=content_hash(data), num_bytes=len(data)), data)

    def image(self, ref: ScreenshotRef) -> RequestImage:
        """``ref`` for an engine. Raises `PictureError` when it cannot be read."""
        with self._lock:
            if ref.content_hash in self._kept:
                self._kept.move_to_end(ref.content_hash)
                return self._kept[ref.content_hash]
        made = RequestImage(ref.content_hash, self._screens.processed(ref))
        with self._lock:
            if ref.content_hash not in self._kept:
                self._kept[ref.content_hash] = made
                self._kept_bytes += made.processed.nbytes
            while self._kept_bytes > MAX_PREPARED_BYTES:
                self._kept_bytes -= self._kept.popitem(last=False)[1].processed.nbytes
        return made


def _image_token_problem(folder: Path, tokenizer: Tokenizer, token: int) -> str:
    """Why ``token``, by config.json, cannot stand for pieces of images in ``tokenizer``'s texts; empty where it can."""
    text, named = tokenizer.image_token, named_image_token(folder)
    assert text is not None
    if tokenizer.encode_image(text * 2) != [token, token] or tokenizer.encode_text(text) == [token]:
        return (
            f"the image token of {str(folder)!r} is {token} by config.json, and for its tokenizer that is the plain text {text!r}"
        )
    if named not in (None, text):
        return f"the image token of {str(folder)!r} is {text!r} by config.json, and {named!r} by its processor"
    return ""
