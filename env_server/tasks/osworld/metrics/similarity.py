"""Similarity of pictures: structural similarity (Wang et al. 2004, doi 10.1109/TIP.2003.819861) and mean squared error."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from computerrl.env_server.tasks.osworld.metrics.files import load
from computerrl.env_server.tasks.reading.limits import MAX_PIXELS, within

if TYPE_CHECKING:
    from PIL import Image

_WINDOW = 7
"""Side of the square that means and variances are taken over, pixels."""
_STRIP_PIXELS = 500_000
"""Pixels that are compared at once: the memory for it is about 80 bytes each."""
_FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "TGA", "JPEG2000", "AVIF")
"""Formats that are read. Others start programs (EPS), hold pictures of another size than they say (ICO) or unpack without end."""


def open_image(path: str | Path) -> Image.Image:
    """A picture, fully decoded, in its own mode. Raises `BrokenFile`."""
    return load(path, decoded_image)


def decoded_image(source: Path | IO[bytes]) -> Image.Image:
    """A picture, fully decoded, in its own mode; of an animation the first. Raises errors of many kinds."""
    from PIL import Image

    with Image.open(source, formats=_FORMATS) as image:
        within("pixels", image.width * image.height, MAX_PIXELS)
        image.load()
        return image.copy()


def rgb(image: Image.Image) -> Any:
    """Pixels as array of bytes, height x width x 3."""
    import numpy as np

    return np.asarray(image.convert("RGB"))


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
    rows = max(1, _STRIP_PIXELS // first.shape[1])
    total, count = 0.0, 0
    for top in range(0, first.shape[0] - side + 1, rows):
        strip = slice(top, top + rows + side - 1)
        similarity = _similarity(first[strip].astype(np.float64), second[strip].astype(np.float64), side)
        total, count = total + float(similarity.sum()), count + similarity.size
    return total / count


def _similarity(first: Any, second: Any, side: int) -> Any:
    """Structural similarity at every square that lies inside."""
    mean_1, mean_2 = _box_mean(first, side), _box_mean(second, side)
    # Sample covariance: n / (n - 1).
    correction = side * side / max(1, side * side - 1)
    var_1 = correction * (_box_mean(first * first, side) - mean_1 * mean_1)
    var_2 = correction * (_box_mean(second * second, side) - mean_2 * mean_2)
    cov = correction * (_box_mean(first * second, side) - mean_1 * mean_2)
    c_1, c_2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    return ((2 * mean_1 * mean_2 + c_1) * (2 * cov + c_2)) / ((mean_1**2 + mean_2**2 + c_1) * (var_1 + var_2 + c_2))


def _box_mean(values: Any, side: int) -> Any:
    """Means over all side x side squares that lie inside."""
    import numpy as np

    sums = np.pad(values.cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))
    return (sums[side:, side:] - sums[:-side, side:] - sums[side:, :-side] + sums[:-side, :-side]) / (side * side)


def mean_squared_error(first: Any, second: Any, *, factors: tuple[float, float] = (1.0, 1.0)) -> float:
    """Of two arrays of the same shape with values 0..255, each multiplied by its factor and cut at 255, on the scale 0..1."""
    import numpy as np

    rows = max(1, _STRIP_PIXELS // first.shape[1])
    total = 0.0
    for top in range(0, first.shape[0], rows):
        strip = slice(top, top + rows)
        one, other = (first[strip] * factors[0]).clip(0, 255), (second[strip] * factors[1]).clip(0, 255)
        total += float(np.sum(((one - other) / 255) ** 2))
    return total / first.size


def average_hash(image: Image.Image) -> Sequence[bool]:
    """256 bits: is this of 16 x 16 grey fields brighter than the mean? Alike pictures differ in few of them."""
    import numpy as np
    from PIL import Image

    fields = np.asarray(image.convert("L").resize((16, 16), Image.Resampling.LANCZOS), dtype=np.float64)
    return [bool(bit) for bit in (fields > fields.mean()).ravel()]
