"""Places on a screen as a policy writes them, and actions that name places instead of elements.

Pure. A policy that sees the screen as an image writes places on a scale of its own: 0 to 1000 over the whole screen, or pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from computerrl.common.actions import ACTIONS, ActionSyntaxError
from computerrl.common.actions.targets import find_target
from computerrl.common.messages import Action, Element

VISION_SCALE = 1000
"""Coordinates of the formats that show images go from 0 to this."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Coordinates that a policy writes, on a screen of so many pixels."""

    width: int
    height: int
    scale: int | None = None
    """Coordinates run from 0 to this over the whole screen, whatever its size; None: they are pixels."""

    def pixel(self, place: Sequence[float]) -> tuple[int, int]:
        """Where ``place`` lies. Raises `ActionSyntaxError` unless it is two numbers on the screen."""
        if len(place) != 2:
            raise ActionSyntaxError(f"coordinates are two numbers [x, y], not {len(place)}")
        if _are_fractions(place):
            last = self.scale or f"{self.width - 1} for x and {self.height - 1} for y"
            raise ActionSyntaxError(f"{list(place)} are fractions of the screen: coordinates go from 0 to {last}")
        return self._along(place[0], self.width, "x"), self._along(place[1], self.height, "y")

    def _along(self, value: float, size: int, axis: str) -> int:
        last = size - 1 if self.scale is None else self.scale
        if value < 0 or round(value) > last:
            raise ActionSyntaxError(f"{axis} = {value} is not on the screen: it goes from 0 to {last}")
        return round(value) if self.scale is None else min(size - 1, round(value * size / self.scale))

    def place(self, x: int, y: int) -> list[int]:
        """How a policy writes pixel (x, y). Raises `LookupError` when it is not on the screen."""
        if not (0 <= x < self.width and 0 <= y < self.height):
            raise LookupError(f"({x}, {y}) is not on the screen")
        if self.scale is None:
            return [x, y]
        return [round(x * self.scale / self.width), round(y * self.scale / self.height)]


def _are_fractions(place: Sequence[float]) -> bool:
    """A number between 0 and 1 is part of no pixel; 1.0 beside another such number may be the far edge. 0 is a place."""
    return any(0 < value < 1 for value in place) or (all(isinstance(v, float) and v <= 1 for v in place) and 1.0 in place)


def centre(target: Any, y: Any, elements: Sequence[Element]) -> tuple[int, int]:
    """The pixel that ``target`` means: itself the column where ``y`` is given, else the centre of an element.

    Raises `LookupError` when the element is not on the screen."""
    if y is not None:
        if isinstance(target, str):
            raise LookupError(f"{target!r:.80} is no pixel column")
        return target, y
    element = find_target(elements, target)
    return element.x, element.y


def to_places(action: Action, grid: Grid, elements: Sequence[Element]) -> Action:
    """``action`` with places of ``grid`` in place of elements and pixels. Raises `LookupError` when a target is not on the
    screen."""
    if action.name == "drag":
        path = [number for end in ("source", "target") for number in grid.place(*centre(action.args[end], None, elements))]
        return Action(name="drag_pixels", args={"path": path})
    if action.name == "drag_pixels":
        pixels = action.args["path"]
        path = [number for i in range(0, len(pixels) - 1, 2) for number in grid.place(pixels[i], pixels[i + 1])]
        return Action(name=action.name, args={"path": path})
    if not _takes_place(action) or action.args.get("target") is None:
        return action
    x, y = grid.place(*centre(action.args["target"], action.args.get("y"), elements))
    return Action(name=action.name, args={**action.args, "target": x, "y": y})


def from_places(action: Action, grid: Grid) -> Action:
    """The action with pixels that ``action`` means, which names places of ``grid``.

    Raises `ActionSyntaxError` for elements, and for places that are not on the screen."""
    if action.name == "drag":
        raise ActionSyntaxError("drag takes elements; write drag_pixels([x, y, x, y])")
    if action.name == "drag_pixels":
        path = action.args["path"]
        if len(path) % 2:
            raise ActionSyntaxError(f"a path is x, y, x, y, ..., not {len(path)} numbers")
        return Action(name=action.name, args={"path": [n for i in range(0, len(path), 2) for n in grid.pixel(path[i : i + 2])]})
    if not _takes_place(action) or action.args.get("target") is None:
        return action
    target, y = action.args["target"], action.args.get("y")
    if y is None or isinstance(target, str):
        raise ActionSyntaxError(f"the target is a place: write x, y from 0 to {grid.scale or 'the last pixel'}")
    x, y = grid.pixel([target, y])
    return Action(name=action.name, args={**action.args, "target": x, "y": y})


def has_place(action: Action) -> bool:
    """Does ``action``, as `to_places` gives it, name a place?"""
    return action.name == "drag_pixels" or (_takes_place(action) and action.args.get("target") is not None)


def _takes_place(action: Action) -> bool:
    return {"target", "y"} <= {param.name for param in ACTIONS[action.name].params}
