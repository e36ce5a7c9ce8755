"""The screenshot store: written once, found again, whole or not at all."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image

from computerrl.common.errors import DiskFull
from computerrl.common.messages import ScreenshotRef
from computerrl.env_server.client import read_screenshot
from computerrl.env_server.drivers.screenshots import ScreenshotStore


def picture(seed: int, depth: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (30, 40, depth), dtype=np.uint8)


@pytest.mark.parametrize("picture_format", ["webp", "png", "jpeg"])
def test_put_picture_reads_back_as_that_format(tmp_path: Path, picture_format: str) -> None:
    store = ScreenshotStore(tmp_path, picture_format=picture_format, incarnation="i")
    flat = np.full((30, 40, 3), (200, 30, 60), dtype=np.uint8)
    ref = store.put(flat)
    image = Image.open(io.BytesIO(read_screenshot(tmp_path, ref)))
    assert image.format == picture_format.upper() and image.size == (40, 30) == (ref.width, ref.height)
    assert np.abs(np.asarray(image.convert("RGB")).astype(int) - flat).max() <= 8


def test_put_bgrx_swaps_channels(tmp_path: Path) -> None:
    store = ScreenshotStore(tmp_path, picture_format="png", incarnation="i")
    bgrx = np.zeros((2, 2, 4), dtype=np.uint8)
    bgrx[..., 0] = 255  # blue
    image = Image.open(io.BytesIO(store.get(store.put(bgrx))))
    assert image.convert("RGB").getpixel((0, 0)) == (0, 0, 255)


def stored_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_put_same_pixels_again_writes_nothing(tmp_path: Path) -> None:
    store = ScreenshotStore(tmp_path, incarnation="i")
    first = store.put(picture(1))
    assert store.put(picture(1)) == first
    second = store.put(picture(2))
    assert second != first
    assert stored_bytes(tmp_path) == first.num_bytes + second.num_bytes


def test_put_same_bytes_other_shape_is_another_picture(tmp_path: Path) -> None:
    store = ScreenshotStore(tmp_path, picture_format="png", incarnation="i")
    flat = np.zeros((20, 60, 3), dtype=np.uint8)
    assert store.put(flat).content_hash != store.put(flat.reshape(60, 20, 3)).content_hash


def test_put_many_rolls_segments_and_all_read_back(tmp_path: Path) -> None:
    store = ScreenshotStore(tmp_path, picture_format="png", incarnation="i", segment_bytes=10_000)
    refs = [store.put(picture(seed)) for seed in range(12)]
    assert len({ref.segment for ref in refs}) > 1
    for seed, ref in enumerate(refs):
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(read_screenshot(tmp_path, ref)))), picture(seed))
    assert len(list(tmp_path.iterdir())) == len({ref.segment for ref in refs})


def test_put_from_many_threads_every_ref_reads_back(tmp_path: Path) -> None:
    store = ScreenshotStore(tmp_path, picture_format="png", incarnation="i", segment_bytes=20_000)
    found: dict[tuple[int, int], ScreenshotRef] = {}

    def put_all(thread: int) -> None:
        for seed in range(20):
            found[thread, seed] = store.put(picture(seed))

    threads = [threading.Thread(target=put_all, args=(thread,)) for thread in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert stored_bytes(tmp_path) == sum(found[0, seed].num_bytes for seed in range(20))
    for (_, seed), ref in found.items():
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(read_screenshot(tmp_path, ref)))), picture(seed))


def test_put_disk_full_raises_disk_full_and_goes_on_when_there_is_space(tmp_path: Path) -> None:
    store = ScreenshotStore(tmp_path, picture_format="png", incarnation="i")
    whole = store.put(picture(1))
    (tmp_path / "full").symlink_to("/dev/full")
    os.close(store._file)  # type: ignore[arg-type]
    store._file = os.open(tmp_path / "full", os.O_WRONLY)
    with pytest.raises(DiskFull, match="no space"):
        store.put(picture(2))
    late = store.put(picture(2))
    assert late.segment != whole.segment
    assert read_screenshot(tmp_path, whole) and read_screenshot(tmp_path, late)


@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 2), (0, 4, 3)])
def test_put_wrong_shape_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="pixels must be"):
        ScreenshotStore(tmp_path, incarnation="i").put(np.zeros(shape, dtype=np.uint8))


@pytest.mark.parametrize(("segment", "offset"), [("../secret", 0), ("segment-i-0.bin", 10**6)])
def test_read_screenshot_bad_ref_is_refused(tmp_path: Path, segment: str, offset: int) -> None:
    ScreenshotStore(tmp_path, incarnation="i").put(picture(1))
    with pytest.raises(ValueError):
        read_screenshot(tmp_path, ScreenshotRef("0", segment, offset, 10, 1, 1))


@pytest.mark.parametrize("picture_format", ["webp", "png", "jpeg"])
def test_name_is_the_hash_of_the_stored_bytes(tmp_path: Path, picture_format: str) -> None:
    store = ScreenshotStore(tmp_path, picture_format=picture_format, incarnation="i")
    refs = [store.put(picture(seed)) for seed in range(3)]
    for ref in refs:
        stored = (tmp_path / ref.segment).read_bytes()[ref.offset : ref.offset + ref.num_bytes]
        assert ref.content_hash == hashlib.blake2b(stored, digest_size=16).hexdigest()
    assert len({ref.content_hash for ref in refs}) == 3


def test_read_screenshot_refuses_other_bytes_than_were_named(tmp_path: Path) -> None:
    store = ScreenshotStore(tmp_path, picture_format="png", incarnation="i")
    first, second = store.put(picture(1)), store.put(picture(2))
    wrong = msgspec.structs.replace(first, offset=second.offset, num_bytes=second.num_bytes)
    segment = tmp_path / first.segment
    for ref, damaged in ((wrong, None), (first, first.num_bytes // 2)):
        if damaged is not None:
            data = bytearray(segment.read_bytes())
            data[damaged] ^= 1
            segment.write_bytes(data)
        with pytest.raises(ValueError, match="another screenshot"):
            read_screenshot(tmp_path, ref)
