"""Arguments of an action as the guest wants them: elements turned into pixels, defaults filled in. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from computerrl.common.actions.targets import find_target
from computerrl.common.messages import Action, Element

_WITH_TARGET = frozenset({"click", "double_click", "triple_click", "hover", "scroll"})
_MAX_DRAG_POINTS = 100


@dataclass(frozen=True, slots=True)
class ActionResolver:
    """Resolves targets among ``elements``, the latest ones that the agent saw, on a screen of ``width`` x ``height`` pixels."""

    elements: Sequence[Element]
    width: int
    height: int

    def arguments(self, action: Action) -> dict[str, Any]:
        """The action's arguments for the guest. Raises `LookupError` with a message for the agent."""
        args = dict(action.args)
        if action.name in _WITH_TARGET:
            y = args.pop("y", None)
            args["x"], args["y"] = self._point(args.pop("target"), y)
            args.setdefault("button", "left")
        elif action.name == "drag":
            args["x"], args["y"] = self._centre(args.pop("source"))
            args["to_x"], args["to_y"] = self._centre(args.pop("target"))
        elif action.name == "drag_pixels":
            args["path"] = self._drag_path(args["path"])
        elif action.name == "type":
            args.setdefault("enter", False)
            args.setdefault("overwrite", False)
            y, target = args.pop("y", None), args.pop("target", None)
            # The guest clicks at x, y before it types; None: it types where the focus is.
            args["x"], args["y"] = (None, None) if target is None else self._point(target, y)
        return args

    def _point(self, target: int | str, y: int | None) -> tuple[int, int]:
        """Pixel of an element, or of the column ``target`` and the row ``y``."""
        return self._centre(target) if y is None else self._pixel(target, y)

    def _centre(self, target: int | str) -> tuple[int, int]:
        element = find_target(self.elements, target)
        return element.x, element.y

    def _drag_path(self, path: list[int]) -> list[int]:
        if len(path) % 2 or not 2 <= len(path) <= 2 * _MAX_DRAG_POINTS:
            raise LookupError(f"a path is x, y, x, y, ...: 1 to {_MAX_DRAG_POINTS} pixels, not {len(path)} numbers")
        for x, y in zip(path[::2], path[1::2], strict=True):
            self._pixel(x, y)
        return path

    def _pixel(self, x: int | str, y: int) -> tuple[int, int]:
        if isinstance(x, str):
            raise LookupError(f"{x!r:.80} is no pixel column: give x and y as numbers, or the text alone")
        if not (0 <= x < self.width and 0 <= y < self.height):
            raise LookupError(f"({x}, {y}) is not on the screen")
        return x, y
