"""What lies where on a page: things, and the parts of them that are seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from PIL import Image

WIDTH, HEIGHT = 320, 420
"""Pixels of a screen that a page of a small web task fills."""
HEADER = 100
"""Height of the instruction."""
_LEAST_SIDE = 12
"""Nobody asks for a thing of which less is seen."""

Box = tuple[float, float, float, float]
"""Left, upper, right and lower edge in pixels."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing on a page."""

    box: Box
    words: tuple[str, ...]
    """What it is and what it says."""
    names: tuple[str, ...] = ()
    """Ways to ask for it; empty: nobody asks for it."""

    @property
    def middle(self) -> tuple[float, float]:
        """Pixels."""
        left, top, right, bottom = self.box
        return (left + right) / 2, (top + bottom) / 2


@dataclass(frozen=True, slots=True)
class Page:
    """One page."""

    image: Image.Image
    items: tuple[Item, ...]
    """In drawing order: later ones lie in front."""

    @classmethod
    def of(cls, image: Image.Image, items: Sequence[Item]) -> Page:
        """``items`` as they were drawn. Of a named one that lies partly behind others, the largest part that is seen stays."""
        return cls(image, tuple(_seen(item, items[number + 1 :]) for number, item in enumerate(items)))


def _seen(item: Item, later: Sequence[Item]) -> Item:
    if not item.names:
        return item
    left, top, right, bottom = item.box
    box = (max(0.0, left), max(0.0, top), min(float(WIDTH), right), min(float(HEIGHT), bottom))
    for other in later:
        if other.names and _overlap(box, other.box):
            box = _largest_beside(box, other.box)
    if min(box[2] - box[0], box[3] - box[1]) < _LEAST_SIDE:
        return replace(item, names=())
    return replace(item, box=box)


def _overlap(one: Box, other: Box) -> bool:
    return max(one[0], other[0]) < min(one[2], other[2]) and max(one[1], other[1]) < min(one[3], other[3])


def _largest_beside(box: Box, cover: Box) -> Box:
    left, top, right, bottom = box
    parts = [
        (left, top, cover[0], bottom),
        (cover[2], top, right, bottom),
        (left, top, right, cover[1]),
        (left, cover[3], right, bottom),
    ]
    return max(parts, key=lambda part: max(0.0, part[2] - part[0]) * max(0.0, part[3] - part[1]))
