"""Pictures of a grounding data set: checked against their annotations, and as the bytes that a prompt shows.

A prompt shows RGB. A whole PNG, JPEG or WebP file in RGB is shown as it is; one with transparency, a palette or shades of grey is
written anew as a PNG of the same size.
"""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from computerrl.common.errors import PictureError
from computerrl.launch.grounding.entries import Entry, LeftOut, LeftOutReason

if TYPE_CHECKING:
    from computerrl.common.messages import ScreenshotRef

FORMATS = ("PNG", "JPEG", "WEBP")
"""Formats of Pillow that are read; it opens dozens of others."""
BROKEN = (OSError, ValueError, OverflowError, SyntaxError, Image.DecompressionBombError)
"""Errors of Pillow for a file that is no picture, or is cut."""
MAX_KEPT = 16
"""Maximum number of pictures whose bytes are kept. Neighbouring entries often share a picture."""


def check_pictures(entries: Iterable[Entry]) -> tuple[list[tuple[Entry, tuple[int, int]]], list[LeftOut]]:
    """Entries that can be played with the size of their picture in pixels, and those that cannot. Only the heads of the files are
    read: a file that is cut is found when it is played."""
    sizes: dict[Path, tuple[int, int] | LeftOut] = {}
    fitting, left_out = [], []
    for entry in entries:
        if entry.picture not in sizes:
            sizes[entry.picture] = _read_size(entry)
        size = sizes[entry.picture]
        if isinstance(size, LeftOut):
            left_out.append(LeftOut(entry.key, size.reason, size.detail))
            continue
        wrong = _disagreement(entry, size)
        if wrong is None:
            fitting.append((entry, size))
        else:
            left_out.append(LeftOut(entry.key, *wrong))
    return fitting, left_out


def _read_size(entry: Entry) -> tuple[int, int] | LeftOut:
    try:
        with Image.open(entry.picture, formats=FORMATS) as image:
            return image.size
    except FileNotFoundError:
        return LeftOut(entry.key, "picture_missing", f"there is no {entry.picture}")
    except BROKEN as error:
        return LeftOut(entry.key, "picture_unreadable", f"{entry.picture}: {error}")


def _disagreement(entry: Entry, size: tuple[int, int]) -> tuple[LeftOutReason, str] | None:
    """Reason and detail why ``entry`` does not belong to a picture of ``size``; None where it does."""
    there = f"{entry.picture} has {size[0]} x {size[1]} pixels"
    if entry.said_size is not None and entry.said_size != size:
        return "picture_mismatch", f"{there}, and {entry.said_size[0]} x {entry.said_size[1]} by the annotation"
    if entry.region.is_outside(*size):
        edges = ", ".join(f"{edge:g}" for edge in entry.region.bounds)
        return "box_outside", f"{there}, and the region goes from left, top to right, bottom ({edges})"
    return None


class Pictures:
    """The bytes of pictures as prompts show them; safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Path, tuple[ScreenshotRef, bytes]] = OrderedDict()
        self._files: dict[str, Path] = {}
        """Content hash -> file."""

    def ref(self, file: Path) -> ScreenshotRef:
        """Name and size of the picture in ``file``. Raises `PictureError` when it is missing, cut or of another format."""
        return self._load(file)[0]

    def read(self, ref: ScreenshotRef) -> bytes:
        """A `ReadScreenshot` for references that `ref` gave. Raises `PictureError` like it."""
        with self._lock:
            file = self._files[ref.content_hash]
        return self._load(file)[1]

    def _load(self, file: Path) -> tuple[ScreenshotRef, bytes]:
        from computerrl.common.messages import ScreenshotRef, content_hash

        with self._lock:
            if file in self._kept:
                self._kept.move_to_end(file)
                return self._kept[file]
        data, (width, height) = _shown(file)
        loaded = ScreenshotRef(content_hash(data), file.name, 0, len(data), width, height), data
        with self._lock:
            self._kept[file] = loaded
            self._files[loaded[0].content_hash] = file
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return loaded


def _shown(file: Path) -> tuple[bytes, tuple[int, int]]:
    """Bytes and size of the picture in ``file`` as a prompt shows it. Raises `PictureError`."""
    try:
        data = file.read_bytes()
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if getattr(image, "n_frames", 1) != 1:
                raise PictureError(f"{file} has several frames", mismatch=False)
            image.load()
            if image.mode == "RGB":
                return data, image.size
            buffer = io.BytesIO()
            image.convert("RGB").save(buffer, format="PNG", compress_level=1)
            return buffer.getvalue(), image.size
    except BROKEN as error:
        raise PictureError(f"{file} cannot be read: {error}", mismatch=False) from error
