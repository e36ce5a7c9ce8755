"""Points for demonstrations in formats with images: where inside an element a demonstrator, who names elements, acts on it.

Pure. Always the exact centre would teach a brittle policy, and an element may be covered there. The point lies at random in the
middle of a visible part of the element: on the screen, and not under another element. An observation tells no stacking order;
these elements are taken to lie in front of an element where they overlap:

- a smaller one: a part of it, or a thing on top of it;
- a larger one that overlaps it partly. Where nothing of the element would be left, only those count that come later in the tree,
  which is the order of drawing.

The env_server leaves out elements whose centre lies under another window or another layer of a page.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from computerrl.actor.prompts.formats.base import Unsayable
from computerrl.actor.prompts.formats.coordinates import Aim, Grid
from computerrl.common.actions import ActionSyntaxError
from computerrl.common.actions.targets import element_at
from computerrl.common.messages import Element

INSET = 0.25
"""Share of a visible part's width and height that is left out on each side."""
_TRIES = 8
"""Random points of a part before its middle."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of pixels; right and bottom are outside."""

    left: int
    top: int
    right: int
    bottom: int

    @classmethod
    def of(cls, element: Element) -> Box:
        left, top = element.x - element.width // 2, element.y - element.height // 2
        return cls(left, top, left + element.width, top + element.height)

    @property
    def area(self) -> int:
        return max(0, self.right - self.left) * max(0, self.bottom - self.top)

    def common(self, other: Box) -> Box:
        """The pixels that are in both; its area is 0 where there are none."""
        left, top = max(self.left, other.left), max(self.top, other.top)
        return Box(left, top, min(self.right, other.right), min(self.bottom, other.bottom))

    def holds(self, other: Box) -> bool:
        return self.common(other) == other

    def without(self, cover: Box) -> list[Box]:
        """At most four rectangles that are the rest of this one beside ``cover``."""
        both = self.common(cover)
        if not both.area:
            return [self]
        rest = (
            Box(self.left, self.top, self.right, both.top),
            Box(self.left, both.bottom, self.right, self.bottom),
            Box(self.left, both.top, both.left, both.bottom),
            Box(both.right, both.top, self.right, both.bottom),
        )
        return [box for box in rest if box.area]


def make_aim(elements: Sequence[Element], grid: Grid, *, seed: str) -> Aim:
    """Chooses a pixel in an element; equal seeds choose alike. Written in coordinates of ``grid`` and read back, the pixel still
    is the element's, or that of one at the very same place. Raises `Unsayable` for an element without such a pixel."""
    rng = random.Random(seed)

    def aim(element: Element) -> tuple[int, int]:
        for x, y in _points(element, elements, grid, rng):
            met = element_at(elements, *_read_back(grid, x, y))
            if met is not None and Box.of(met) == Box.of(element):
                return x, y
        raise Unsayable("no_visible_point", f"no point of the {element.role} {element.number} is visible")

    return aim


def _read_back(grid: Grid, x: int, y: int) -> tuple[int, int]:
    try:
        return grid.pixel(grid.place(x, y))
    except ActionSyntaxError as error:
        # Such as place [1, 1] in a tiny image: nothing that a policy could write.
        raise Unsayable("no_visible_point", str(error)) from error


def _points(element: Element, elements: Sequence[Element], grid: Grid, rng: random.Random) -> Iterator[tuple[int, int]]:
    """Pixels to try, the best first."""
    for is_in_front in (_may_cover, _covers):
        for part in _visible_parts(element, elements, grid, is_in_front):
            x, y = _inner(part.left, part.right), _inner(part.top, part.bottom)
            for _ in range(_TRIES):
                yield rng.randrange(*x), rng.randrange(*y)
            yield (part.left + part.right) // 2, (part.top + part.bottom) // 2
    if 0 <= element.x < grid.width and 0 <= element.y < grid.height:
        yield element.x, element.y


def _inner(low: int, high: int) -> tuple[int, int]:
    """Range of the middle of ``low`` to ``high``, at least one pixel."""
    margin = min(round((high - low) * INSET), (high - low - 1) // 2)
    return low + margin, high - margin


Covers = Callable[[Element, Element, bool], bool]
"""(element, other, whether the other comes later) -> whether the other lies in front where both are."""


def _may_cover(element: Element, other: Element, _is_later: bool) -> bool:
    return _is_smaller(other, element) or not Box.of(other).holds(Box.of(element))


def _covers(element: Element, other: Element, is_later: bool) -> bool:
    return _is_smaller(other, element) or (is_later and not Box.of(other).holds(Box.of(element)))


def _is_smaller(one: Element, other: Element) -> bool:
    return one.width * one.height < other.width * other.height


def _visible_parts(element: Element, elements: Sequence[Element], grid: Grid, is_in_front: Covers) -> list[Box]:
    """The part with the centre first, then the largest."""
    screen = Box(0, 0, grid.width, grid.height)
    place = next(number for number, other in enumerate(elements) if other == element)
    covers = [
        Box.of(other) for number, other in enumerate(elements) if number != place and is_in_front(element, other, number > place)
    ]
    parts = _without([Box.of(element).common(screen)], covers)
    centre = Box(element.x, element.y, element.x + 1, element.y + 1)
    return sorted(parts, key=lambda part: (not part.holds(centre), -part.area))


def _without(parts: Iterable[Box], covers: Iterable[Box]) -> list[Box]:
    rest = [part for part in parts if part.area]
    for cover in covers:
        rest = list(itertools.chain.from_iterable(part.without(cover) for part in rest))
    return rest
