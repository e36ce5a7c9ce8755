"""Metrics that check one edit of a picture: is it done, and is everything else as it was?

The first argument is what the agent made; where there is a second file, it is the picture before the edit or the wanted one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from computerrl.env_server.tasks.osworld.metrics.files import load
from computerrl.env_server.tasks.osworld.metrics.general import Rules, score
from computerrl.env_server.tasks.osworld.metrics.matching import whole_number
from computerrl.env_server.tasks.osworld.metrics.similarity import mean_squared_error, open_image, resized, rgb, ssim

if TYPE_CHECKING:
    from PIL import Image

_SAME_STRUCTURE = 0.9
_SAME_CONTRAST_STRUCTURE = 0.65
"""More contrast changes the structure itself."""
_EDGE = 0.05
"""Share of a picture's width or height that counts as at the side, or as in the middle."""


def _structure(found: Image.Image, wanted: Image.Image) -> float:
    """Structural similarity; pictures of other sizes are not alike at all."""
    return ssim(rgb(found), rgb(wanted)) if found.size == wanted.size else 0.0


def _grey(image: Image.Image) -> Any:
    import numpy as np

    return np.asarray(image.convert("L"))


def _hsv(image: Image.Image) -> Any:
    import numpy as np

    return np.asarray(image.convert("RGB").convert("HSV"))


def check_structure_sim(result: str, expected: str) -> float:
    """Both pictures show the same."""
    return score(_structure(open_image(result), open_image(expected)) >= _SAME_STRUCTURE)


def check_file_exists_and_structure_sim(result: str, expected: str) -> float:
    """The picture was written, and shows the same."""
    return check_structure_sim(result, expected)


def check_structure_sim_with_threshold(result: str, expected: str, *, ssim_threshold: float = 0.85) -> float:
    """Both pictures show the same, by that measure, once the result is brought to the expected size."""
    found, wanted = open_image(result), open_image(expected)
    return score(_structure(resized(found, wanted.size), wanted) >= ssim_threshold)


def check_structure_sim_resized(result: str, expected: str) -> float:
    """Both pictures show the same once the result is brought to the expected size; transparent borders do not count."""
    found, wanted = open_image(result), open_image(expected)
    if "A" in found.getbands():
        found = found.crop(found.getchannel("A").getbbox())
    return score(_structure(resized(found, wanted.size), wanted) >= _SAME_STRUCTURE)


def check_image_size(result: str, rules: Rules) -> float:
    """The picture has the expected height and width; with ``ignore_transparent`` its visible part has."""
    image = open_image(result)
    width, height = image.size
    if rules.get("ignore_transparent") and "A" in image.getbands():
        box = image.getchannel("A").getbbox() or (0, 0, 0, 0)
        width, height = box[2] - box[0], box[3] - box[1]
    return score(rules.get("height") in (None, height) and rules.get("width") in (None, width))


def check_image_file_size(result: str, rules: Rules) -> float:
    """The file is smaller than ``max_size`` bytes."""
    open_image(result)
    return score(load(result, lambda place: place.stat().st_size) < whole_number(rules["max_size"]))


def check_image_mirror(result: str, expected: str) -> float:
    """The result is the other picture mirrored left to right."""
    from PIL import ImageOps

    return score(_structure(open_image(result), ImageOps.mirror(open_image(expected))) >= 0.99)


def check_brightness_decrease_and_structure_sim(result: str, expected: str, *, threshold: float = 0.03) -> float:
    """The result is darker than the picture before, and the same when both are brought to the same brightness."""
    found, before = open_image(result), open_image(expected)
    if found.size != before.size or not _grey(found).mean() < _grey(before).mean():
        return 0.0
    return score(mean_squared_error(rgb(found), rgb(before), factors=(_evening(found), _evening(before))) < threshold)


def _evening(image: Image.Image) -> float:
    """The factor that brings the mean brightness to 128."""
    brightness = float(_grey(image).mean())
    return 128 / brightness if brightness else 1.0


def check_saturation_increase_and_structure_sim(result: str, expected: str) -> float:
    """The result has stronger colours than the picture before, but the same hues and brightness."""
    found, before = open_image(result), open_image(expected)
    if found.size != before.size:
        return 0.0
    one, other = _hsv(found), _hsv(before)
    same = all(ssim(one[:, :, channel], other[:, :, channel]) >= _SAME_STRUCTURE for channel in (0, 2))
    return score(one[:, :, 1].mean() > other[:, :, 1].mean() and same)


def check_contrast_increase_and_structure_sim(result: str, expected: str) -> float:
    """The result has more contrast than the picture before, and shows the same."""
    found, before = open_image(result), open_image(expected)
    if not _grey(found).std() > _grey(before).std():
        return 0.0
    return score(_structure(found, before) >= _SAME_CONTRAST_STRUCTURE)


def check_sharper(result: str, expected: str) -> float:
    """The result has stronger edges than the picture before."""
    import numpy as np

    def edges(path: str) -> float:
        grey = _grey(open_image(path)).astype(np.int16)
        return float(np.var(4 * grey[1:-1, 1:-1] - grey[:-2, 1:-1] - grey[2:, 1:-1] - grey[1:-1, :-2] - grey[1:-1, 2:]))

    return score(edges(result) > edges(expected))


def check_palette_and_structure_sim(result: str, expected: str, **_: Any) -> float:
    """The result has a palette, and shows the same."""
    found = open_image(result)
    return score(found.mode == "P" and _structure(found, open_image(expected)) >= _SAME_STRUCTURE)


def check_green_background(result: str, expected: str) -> float:
    """What was white around the object is green now, and the object is as it was."""
    import numpy as np

    found, before = open_image(result), open_image(expected)
    if found.size != before.size:
        return 0.0
    pixels, old = rgb(found), rgb(before)
    background = (old > 250).all(axis=2)
    green = (pixels[:, :, 1] > pixels[:, :, 0]) & (pixels[:, :, 1] > pixels[:, :, 2])
    untouched = np.abs(pixels.astype(np.int16) - old).max(axis=2) < 32
    # The object's edge is blended with whatever lies behind it.
    inside = ~background
    edge = inside & _near(background)
    return score(bool(background.any() and green[background].all() and untouched[inside & ~edge].all()))


def _near(mask: Any) -> Any:
    """Pixels within three of the mask's."""
    grown = mask.copy()
    for _ in range(3):
        wider = grown.copy()
        wider[1:] |= grown[:-1]
        wider[:-1] |= grown[1:]
        wider[:, 1:] |= grown[:, :-1]
        wider[:, :-1] |= grown[:, 1:]
        grown = wider
    return grown


def check_textbox_on_leftside(result: str) -> float:
    """The leftmost dark pixel, where the text begins, is at the left side."""
    import numpy as np

    grey = _grey(open_image(result))
    columns = np.flatnonzero((grey < 128).any(axis=0))
    return score(len(columns) > 0 and columns[0] < grey.shape[1] * _EDGE)


def check_triangle_position(result: str) -> float:
    """The centre of everything yellow is in the middle of the picture."""
    import numpy as np

    pixels = rgb(open_image(result))
    yellow = (pixels[:, :, 0] > 200) & (pixels[:, :, 1] > 200) & (pixels[:, :, 2] < 100)
    rows, columns = np.nonzero(yellow)
    if not len(rows):
        return 0.0
    height, width = yellow.shape
    return score(abs(rows.mean() - height / 2) < height * _EDGE and abs(columns.mean() - width / 2) < width * _EDGE)
