"""The frame buffer that a guest hands over: its pixels, and descriptors that are none."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from computerrl.common.errors import DesktopBroken
from computerrl.env_server.drivers.frame_buffer import FrameBuffer

WIDTH, HEIGHT = 4, 2


def dump(folder: Path, *, width: int = WIDTH, bits: int = 32, num_bytes: int | None = None) -> int:
    """Descriptor of an X window dump with one colour, whose pixels count up."""
    header = [0] * 25
    header[0], header[4], header[5], header[11], header[19] = 100, width, HEIGHT, bits, 1
    pixels = bytes(range(WIDTH * HEIGHT * 4))
    path = folder / "screen"
    path.write_bytes((struct.pack(">25I", *header) + bytes(12) + pixels)[:num_bytes])
    return os.open(path, os.O_RDONLY)


def test_frame_is_rgb_of_the_buffers_blue_green_red(tmp_path: Path) -> None:
    screen = FrameBuffer(dump(tmp_path), width=WIDTH, height=HEIGHT, index=0)
    assert screen.pixels().shape == (HEIGHT, WIDTH, 4)
    assert screen.frame()[0, 1].tolist() == [6, 5, 4] and screen.frame().dtype == np.uint8


@pytest.mark.parametrize("changes", [{"width": 5}, {"bits": 16}, {"num_bytes": 60}, {"num_bytes": 120}])
def test_other_buffer_is_the_desktops_fault(tmp_path: Path, changes: dict[str, int]) -> None:
    with pytest.raises(DesktopBroken, match="frame buffer"):
        FrameBuffer(dump(tmp_path, **changes), width=WIDTH, height=HEIGHT, index=0)


def test_descriptor_of_a_folder_is_closed_and_the_desktops_fault(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(DesktopBroken, match="no frame buffer"):
        FrameBuffer(descriptor, width=WIDTH, height=HEIGHT, index=0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
