"""The screenshot store: every screenshot once, in append-only segment files.

Millions of small files would choke a parallel file system, and most screens repeat (the same start screen for a whole group, no
change after a wrong click), so repeats are found by a hash of their raw pixels before anything is encoded. The name of a
screenshot is the hash of its stored bytes: lossy formats make other pixels of them, and a reader can check what it read. Several
desktops' threads use one store at a time; every env_server process writes segments of its own.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from computerrl.common.errors import DiskFull
from computerrl.common.messages import MAX_IMAGE_BYTES, ScreenshotRef, content_hash

SEGMENT_BYTES = 64 * 2**20
"""A segment is closed when it is at least this long: few files, each still quick to copy."""

_KNOWN_LIMIT = 50_000
"""Pictures remembered for finding repeats (about 20 MB); older ones are written again, which only costs disk."""

_OUT_OF_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_ENCODERS: dict[str, dict[str, Any]] = {
    # On 800x600 desktops: webp method 0 takes a third longer than png level 1 and a third of its bytes, and is sharp at 70.
    "webp": {"format": "WEBP", "method": 0, "quality": 70},
    "png": {"format": "PNG", "compress_level": 1},
    "jpeg": {"format": "JPEG", "quality": 85},
}


class Screenshots(Protocol):
    """Where a driver puts the pictures of its observations."""

    def put(self, pixels: np.ndarray) -> ScreenshotRef:
        """Take [height, width, 3] RGB or [height, width, 4] BGRX bytes. Raises `DiskFull`; then nothing was taken."""


class ScreenshotStore:
    """Writes screenshots below ``folder`` (made when missing). Thread-safe."""

    def __init__(
        self, folder: Path, *, picture_format: str = "webp", incarnation: str, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self._folder = folder
        self._encoder = _ENCODERS[picture_format]
        self._incarnation = incarnation
        self._segment_bytes = segment_bytes
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, ScreenshotRef] = OrderedDict()
        """Hash of raw pixels -> where they were stored."""
        self._file: int | None = None
        self._segment = ""
        self._offset = 0
        self._num_segments = 0
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, pixels: np.ndarray) -> ScreenshotRef:
        """Store [height, width, 3] RGB or [height, width, 4] BGRX bytes. Raises `DiskFull`; then nothing was stored."""
        pixels = _checked(pixels)
        digest = hashlib.blake2b(pixels.data, digest_size=16, key=str(pixels.shape).encode()).digest()
        with self._lock:
            ref = self._known.get(digest)
            if ref is not None:
                self._known.move_to_end(digest)
                return ref
        # Encoding runs outside the lock: Pillow lets go of the GIL, so desktops encode side by side.
        encoded = _encode(pixels, self._encoder)
        height, width = pixels.shape[:2]
        with self._lock:
            ref = self._known.get(digest)
            if ref is None:
                segment, offset = self._append(encoded)
                ref = ScreenshotRef(
                    content_hash=content_hash(encoded),
                    segment=segment,
                    offset=offset,
                    num_bytes=len(encoded),
                    width=width,
                    height=height,
                )
                self._remember(digest, ref)
            return ref

    def get(self, ref: ScreenshotRef) -> bytes:
        """The encoded picture, see `read_screenshot`."""
        return read_screenshot(self._folder, ref)

    def close(self) -> None:
        """Close the open segment; a later `put` opens a new one."""
        with self._lock:
            self._close_segment()

    def _remember(self, digest: bytes, ref: ScreenshotRef) -> None:
        self._known[digest] = ref
        if len(self._known) > _KNOWN_LIMIT:
            self._known.popitem(last=False)

    def _append(self, data: bytes) -> tuple[str, int]:
        """Write ``data`` whole or not at all; gives segment name and offset."""
        try:
            if self._file is None:
                self._open_segment()
            assert self._file is not None
            start, view = self._offset, memoryview(data)
            while view:
                written = os.pwrite(self._file, view, self._offset)
                self._offset += written
                view = view[written:]
        except OSError as error:
            # What was written of it is junk after the last good record; the next segment starts clean.
            self._close_segment()
            if error.errno in _OUT_OF_SPACE:
                raise DiskFull(f"no space for screenshots in {self._folder}: {error.strerror}") from error
            raise
        segment = self._segment
        if self._offset >= self._segment_bytes:
            self._close_segment()
        return segment, start

    def _open_segment(self) -> None:
        name = f"segment-{self._incarnation}-{self._num_segments}.bin"
        self._file = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._segment, self._offset = name, 0
        self._num_segments += 1

    def _close_segment(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class RecentScreenshots:
    """The last ``limit`` screenshots, in memory: for programs that take each one at once. Thread-safe."""

    def __init__(self, *, picture_format: str, limit: int) -> None:
        self._encoder = _ENCODERS[picture_format]
        self._limit = limit
        self._lock = threading.Lock()
        self._data: OrderedDict[str, bytes] = OrderedDict()
        """Content hash -> encoded picture."""

    def put(self, pixels: np.ndarray) -> ScreenshotRef:
        """As `ScreenshotStore.put`; there is no disk to be full."""
        pixels = _checked(pixels)
        encoded = _encode(pixels, self._encoder)
        name = content_hash(encoded)
        with self._lock:
            self._data[name] = encoded
            self._data.move_to_end(name)
            if len(self._data) > self._limit:
                self._data.popitem(last=False)
        height, width = pixels.shape[:2]
        return ScreenshotRef(name, "memory", 0, len(encoded), width, height)

    def get(self, ref: ScreenshotRef) -> bytes:
        """The encoded picture. Raises `FileNotFoundError` for one that newer ones have replaced."""
        with self._lock:
            data = self._data.get(ref.content_hash)
        if data is None:
            raise FileNotFoundError(f"screenshot {ref.content_hash} is no longer kept")
        return data


def encode(pixels: np.ndarray, picture_format: str) -> bytes:
    """Pixels [height, width, 3 (RGB) or 4 (BGRX)] uint8 as ``webp``, ``png`` or ``jpeg``."""
    return _encode(_checked(pixels), _ENCODERS[picture_format])


def _checked(pixels: np.ndarray) -> np.ndarray:
    pixels = np.ascontiguousarray(pixels, dtype=np.uint8)
    if pixels.ndim != 3 or pixels.shape[2] not in (3, 4) or not pixels.size:
        raise ValueError(f"pixels must be [height, width, 3 or 4], got {pixels.shape}")
    return pixels


def _encode(pixels: np.ndarray, encoder: dict[str, Any]) -> bytes:
    height, width, depth = pixels.shape
    raw_mode = "RGB" if depth == 3 else "BGRX"
    image = Image.frombuffer("RGB", (width, height), pixels, "raw", raw_mode, 0, 1)
    buffer = io.BytesIO()
    image.save(buffer, **encoder)
    return buffer.getvalue()


def read_screenshot(trajectories_folder: Path, ref: ScreenshotRef) -> bytes:
    """The encoded screenshot (webp, png or jpeg) that ``ref`` names.

    Raises `FileNotFoundError`, or `ValueError` when it is cut off or another one lies there."""
    if Path(ref.segment).name != ref.segment:
        raise ValueError(f"segment {ref.segment!r} is no file name")
    if not (ref.offset >= 0 and 1 <= ref.num_bytes <= MAX_IMAGE_BYTES):
        raise ValueError(f"no screenshot has {ref.num_bytes} bytes at {ref.offset}; at most {MAX_IMAGE_BYTES} are allowed")
    with (trajectories_folder / ref.segment).open("rb") as file:
        data = os.pread(file.fileno(), ref.num_bytes, ref.offset)
    if len(data) != ref.num_bytes:
        raise ValueError(f"{ref.segment} ends at {ref.offset + len(data)}, before the end of {ref.content_hash}")
    if content_hash(data) != ref.content_hash:
        raise ValueError(f"{ref.segment} holds another screenshot than {ref.content_hash} at {ref.offset}")
    return data
