"""Places on a screen as a policy writes them, and actions that name places instead of elements.

Pure. A policy that sees the screen as an image writes places in coordinates of its own: 0 to 1000 over the whole screen, or
pixels of the image as its model's processor resizes it. A policy that reads rows writes pixels of the screen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from computerrl.common.actions import ACTIONS, ActionSyntaxError
from computerrl.common.actions.targets import find_target
from computerrl.common.messages import Action, Element

Extent = tuple[int, int]
"""Largest coordinates: those of the right and the lower edge of the screen."""
Extents = Callable[[int, int], Extent]
"""(width, height) of the screen in pixels -> extent. Raises `PictureError` for a size that the model does not take."""
Aim = Callable[[Element], tuple[int, int]]
"""Element -> the pixel at which a demonstration acts on it."""


def thousand(_width: int, _height: int) -> Extent:
    """Coordinates from 0 to 1000 over the whole screen, whatever its size."""
    return 1000, 1000


def at_centre(element: Element) -> tuple[int, int]:
    """The centre of ``element``."""
    return element.x, element.y


@dataclass(frozen=True, slots=True)
class Grid:
    """Coordinates that a policy writes, on a screen of so many pixels."""

    width: int
    height: int
    extent: Extent | None = None
    """Coordinates run from 0 to these over the whole screen; None: they are pixels of the screen."""

    @property
    def ends(self) -> Extent:
        """Largest coordinates that a policy may write."""
        return self.extent or (self.width - 1, self.height - 1)

    @property
    def words(self) -> str:
        """The range of coordinates, for a policy."""
        across, down = self.ends
        return f"from 0 to {across}" if across == down else f"from 0 to {across} for x and {down} for y"

    def pixel(self, place: Sequence[float]) -> tuple[int, int]:
        """Where ``place`` lies. Raises `ActionSyntaxError` unless it is two numbers on the screen."""
        if len(place) != 2:
            raise ActionSyntaxError(f"coordinates are two numbers [x, y], not {len(place)}")
        if _are_fractions(place):
            raise ActionSyntaxError(f"{list(place)} are fractions of the screen: coordinates go {self.words}")
        return self._along(place[0], self.width, 0), self._along(place[1], self.height, 1)

    def _along(self, value: float, size: int, axis: int) -> int:
        last = self.ends[axis]
        if value < 0 or round(value) > last:
            raise ActionSyntaxError(f"{'xy'[axis]} = {value} is not on the screen: it goes from 0 to {last}")
        return round(value) if self.extent is None else min(size - 1, round(value * size / last))

    def place(self, x: int, y: int) -> list[int]:
        """How a policy writes pixel (x, y). Raises `LookupError` when it is not on the screen."""
        if not (0 <= x < self.width and 0 <= y < self.height):
            raise LookupError(f"({x}, {y}) is not on the screen")
        if self.extent is None:
            return [x, y]
        return [round(x * self.extent[0] / self.width), round(y * self.extent[1] / self.height)]


def _are_fractions(place: Sequence[float]) -> bool:
    """A number between 0 and 1 is part of no pixel; 1.0 beside another such number may be the far edge. 0 is a place."""
    return any(0 < value < 1 for value in place) or (all(isinstance(v, float) and v <= 1 for v in place) and 1.0 in place)


def pixel_of(target: Any, y: Any, elements: Sequence[Element], *, aim: Aim = at_centre) -> tuple[int, int]:
    """The pixel that ``target`` means: itself the column where ``y`` is given, else the one that ``aim`` chooses in an element.

    Raises `LookupError` when the element is not on the screen."""
    if y is not None:
        if isinstance(target, str):
            raise LookupError(f"{target!r:.80} is no pixel column")
        return target, y
    return aim(find_target(elements, target))


def to_places(action: Action, grid: Grid, elements: Sequence[Element], *, aim: Aim = at_centre) -> Action:
    """``action`` with places of ``grid`` in place of elements and pixels. Raises `LookupError` when a target is not on the
    screen."""
    places = written_places(action, grid, elements, aim=aim)
    if action.name in ("drag", "drag_pixels"):
        return Action(name="drag_pixels", args={"path": [number for place in places for number in place]})
    return Action(name=action.name, args={**action.args, "target": places[0][0], "y": places[0][1]}) if places else action


def written_places(action: Action, grid: Grid, elements: Sequence[Element], *, aim: Aim = at_centre) -> list[list[int]]:
    """The places of ``grid`` at which ``action`` acts, in its order; none for an action without a place.

    Raises `LookupError` when a target is not on the screen."""
    if action.name in ("drag", "drag_pixels"):
        return [grid.place(*pixel) for pixel in drag_path(action, elements, aim=aim)]
    if not takes_place(action) or action.args.get("target") is None:
        return []
    return [grid.place(*pixel_of(action.args["target"], action.args.get("y"), elements, aim=aim))]


def drag_path(action: Action, elements: Sequence[Element], *, aim: Aim = at_centre) -> list[tuple[int, int]]:
    """The pixels through which a `drag` or `drag_pixels` goes. Raises `LookupError` when an element is not on the screen."""
    if action.name == "drag":
        return [pixel_of(action.args[end], None, elements, aim=aim) for end in ("source", "target")]
    path = action.args["path"]
    return list(zip(path[::2], path[1::2], strict=False))


def from_places(action: Action, grid: Grid) -> Action:
    """The action with pixels that ``action`` means, which names places of ``grid``.

    Raises `ActionSyntaxError` for elements, and for places that are not on the screen."""
    if action.name == "drag":
        raise ActionSyntaxError("drag takes elements; write drag_pixels([x, y, x, y])")
    if action.name == "drag_pixels":
        return Action(name=action.name, args={"path": pixels_of_path(action.args["path"], grid)})
    if not takes_place(action) or action.args.get("target") is None:
        return action
    target, y = action.args["target"], action.args.get("y")
    if y is None or isinstance(target, str):
        raise ActionSyntaxError(f"the target is a place: write x, y {grid.words}")
    x, y = grid.pixel([target, y])
    return Action(name=action.name, args={**action.args, "target": x, "y": y})


def has_place(action: Action) -> bool:
    """Does ``action``, as `to_places` gives it, name a place?"""
    return action.name == "drag_pixels" or (takes_place(action) and action.args.get("target") is not None)


def pixels_of_path(path: Sequence[float], grid: Grid) -> list[int]:
    """``path`` (x, y, x, y, ...) in pixels. Raises `ActionSyntaxError` for a place that is not on the screen."""
    if len(path) % 2:
        raise ActionSyntaxError(f"a path is x, y, x, y, ..., not {len(path)} numbers")
    return [number for i in range(0, len(path), 2) for number in grid.pixel(path[i : i + 2])]


def takes_place(action: Action) -> bool:
    """Whether ``action`` has a target that can be a place."""
    return {"target", "y"} <= {param.name for param in ACTIONS[action.name].params}
