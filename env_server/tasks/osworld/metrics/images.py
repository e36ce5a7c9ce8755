"""Metrics that compare pictures as wholes."""

from __future__ import annotations

from collections.abc import Sequence

from computerrl.env_server.tasks.osworld.metrics.similarity import open_image, resized, rgb, ssim

_BASE_MARGIN = 0.01
"""By how much a picture must be nearer to the expected one than the picture that was there at the start."""


def compare_images(result: str, expected: str, *, reference_base_result: float | None = None) -> float:
    """Structural similarity of two pictures, the expected one brought to the result's size.

    ``reference_base_result``: the similarity of the untouched picture; what lies above it is stretched to 0..1. It was measured
    in shades of grey, so that the pictures are compared in grey as well.
    """
    found, wanted = open_image(result), open_image(expected)
    wanted = resized(wanted, found.size)
    if reference_base_result is None:
        return min(1.0, max(0.0, ssim(rgb(found), rgb(wanted))))
    similarity = ssim(rgb(found.convert("L")), rgb(wanted.convert("L")))
    if similarity < reference_base_result + _BASE_MARGIN:
        return 0.0
    return min(1.0, (similarity - reference_base_result) / (1 - reference_base_result))


def compare_image_list(result: str | Sequence[str], expected: str | Sequence[str]) -> float:
    """Every picture has exactly the pixels of its partner."""
    found = [result] if isinstance(result, str) else list(result)
    wanted = [expected] if isinstance(expected, str) else list(expected)
    if len(found) != len(wanted):
        return 0.0
    for one, other in zip(found, wanted, strict=True):
        first, second = open_image(one), open_image(other)
        if first.size != second.size or not (rgb(first) == rgb(second)).all():
            return 0.0
    return 1.0
