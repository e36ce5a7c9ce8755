"""Similarity of pictures: structural similarity (Wang et al. 2004, doi 10.1109/TIP.2003.819861) and mean squared error."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from env_server.tasks.osworld.metrics.files import load

if TYPE_CHECKING:
    from PIL import Image

_WINDOW = 7
"""Side of the square that means and variances are taken over, pixels."""
_MAX_PIXELS = 40_000_000


def open_image(path: str | Path) -> Image.Image:
    """A picture, fully decoded, in its own mode. Raises `BrokenFile`."""
    from PIL import Image

    def parse(place: Path) -> Any:
        with Image.open(place) as image:
            if image.width * image.height > _MAX_PIXELS:
                raise ValueError(f"{image.width}x{image.height} pixels are too many")
            image.load()
            return image.copy()

    return load(path, parse)


def rgb(image: Image.Image) -> Any:
    """Pixels as float array, height x width x 3."""
    import numpy as np

    return np.asarray(image.convert("RGB"), dtype=np.float64)


def resized(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """The picture at that size."""
    from PIL import Image

    return image if image.size == size else image.convert("RGB").resize(size, Image.Resampling.LANCZOS)


def ssim(first: Any, second: Any) -> float:
    """Mean structural similarity of two arrays of the same shape (height x width, or x channels), values 0..255."""
    import numpy as np

    if first.shape != second.shape:
        raise ValueError(f"shapes {first.shape} and {second.shape} differ")
    if first.ndim == 3:
        return float(np.mean([ssim(first[:, :, channel], second[:, :, channel]) for channel in range(first.shape[2])]))
    side = min(_WINDOW, *first.shape)
    first, second = first.astype(np.float64), second.astype(np.float64)
    mean_1, mean_2 = _box_mean(first, side), _box_mean(second, side)
    # Sample covariance: n / (n - 1).
    correction = side * side / max(1, side * side - 1)
    var_1 = correction * (_box_mean(first * first, side) - mean_1 * mean_1)
    var_2 = correction * (_box_mean(second * second, side) - mean_2 * mean_2)
    cov = correction * (_box_mean(first * second, side) - mean_1 * mean_2)
    c_1, c_2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    similarity = ((2 * mean_1 * mean_2 + c_1) * (2 * cov + c_2)) / ((mean_1**2 + mean_2**2 + c_1) * (var_1 + var_2 + c_2))
    return float(similarity.mean())


def _box_mean(values: Any, side: int) -> Any:
    """Means over all side x side squares that lie inside."""
    import numpy as np

    sums = np.pad(values.cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))
    return (sums[side:, side:] - sums[:-side, side:] - sums[side:, :-side] + sums[:-side, :-side]) / (side * side)


def mean_squared_error(first: Any, second: Any) -> float:
    """Of two arrays of the same shape with values 0..255, on the scale 0..1."""
    import numpy as np

    return float(np.mean(((first - second) / 255) ** 2))


def average_hash(image: Image.Image) -> Sequence[bool]:
    """256 bits: is this of 16 x 16 grey fields brighter than the mean? Alike pictures differ in few of them."""
    import numpy as np
    from PIL import Image

    fields = np.asarray(image.convert("L").resize((16, 16), Image.Resampling.LANCZOS), dtype=np.float64)
    return [bool(bit) for bit in (fields > fields.mean()).ravel()]
