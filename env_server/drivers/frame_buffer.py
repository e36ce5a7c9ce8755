"""Xvfb's frame buffer as an open file that the guest handed over: pixels of its screen without a request to the guest.

The file is the guest's: it is read, never mapped, and may be shorter at any time.
"""

from __future__ import annotations

import os
import stat
import struct
import weakref

import numpy as np

from computerrl.common.errors import DesktopBroken

_HEADER = struct.Struct(">25I")
"""Header of an X window dump (XWDFile.h)."""
_COLOR_BYTES = 12
"""Bytes of an entry of the dump's colour map."""


class FrameBuffer:
    """The screen of desktop ``index``, ``width`` x ``height`` pixels of 32 bits."""

    def __init__(self, descriptor: int, *, width: int, height: int, index: int) -> None:
        """Takes ``descriptor`` over. Raises `DesktopBroken` when it is no such frame buffer."""
        self._width = width
        self._height = height
        self._index = index
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise DesktopBroken(f"desktop {index} handed over no frame buffer")
        self._descriptor = descriptor
        # The last frame can be read for as long as somebody holds this object.
        weakref.finalize(self, os.close, descriptor)
        header = _HEADER.unpack(self._read(_HEADER.size, offset=0))
        num_header_bytes, num_colors, found_width, found_height, bits = header[0], header[19], header[4], header[5], header[11]
        if bits != 32 or (found_width, found_height) != (width, height):
            raise DesktopBroken(f"desktop {index}: a frame buffer of {found_width}x{found_height} with {bits} bits per pixel")
        self._first_pixel = num_header_bytes + num_colors * _COLOR_BYTES
        self.pixels()

    def pixels(self) -> np.ndarray:
        """[height, width, 4] uint8, a copy: blue, green, red, and a byte of any value. Raises `DesktopBroken`."""
        data = self._read(self._width * self._height * 4, offset=self._first_pixel)
        return np.frombuffer(data, dtype=np.uint8).reshape(self._height, self._width, 4)

    def frame(self) -> np.ndarray:
        """[height, width, 3] uint8 RGB, a copy. Raises `DesktopBroken`."""
        screen = self.pixels()
        pixels = np.empty((*screen.shape[:2], 3), np.uint8)
        # One channel at a time takes a third of the time of turning each pixel around.
        for channel in range(3):
            pixels[:, :, channel] = screen[:, :, 2 - channel]
        return pixels

    def _read(self, num_bytes: int, *, offset: int) -> bytes:
        try:
            data = os.pread(self._descriptor, num_bytes, offset)
        except OSError as error:
            raise DesktopBroken(f"desktop {self._index}: its frame buffer cannot be read: {error}") from error
        if len(data) < num_bytes:
            raise DesktopBroken(f"desktop {self._index}: its frame buffer was cut")
        return data
