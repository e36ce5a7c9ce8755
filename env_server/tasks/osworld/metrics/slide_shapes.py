"""Shapes with their places on the slide, those of groups too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from computerrl.env_server.tasks.osworld.metrics.slides import A

Box = tuple[float, float, float, float]
"""Left, top, width, height in EMU."""
Turn = tuple[int, bool, bool]
"""Rotation in 1/60000 degree, mirrored left to right, mirrored upside down."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A shape and where it lies on the slide."""

    shape: Any
    box: Box
    turns: tuple[Turn, ...] = ()
    """Turns of the groups that hold it, the outermost first."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """Scale and origin of a group's own coordinates on the slide."""

    x: float = 0
    y: float = 0
    scale_x: float = 1
    scale_y: float = 1
    turns: tuple[Turn, ...] = ()

    def place(self, shape: Any) -> Box:
        left, top, width, height = (int(value or 0) for value in (shape.left, shape.top, shape.width, shape.height))
        return self.x + left * self.scale_x, self.y + top * self.scale_y, width * self.scale_x, height * self.scale_y

    def inside(self, group: Any) -> _Frame:
        """The frame of a group's children: its box is given twice, in the outer and in its own coordinates."""
        transform = group._element.grpSpPr.find(f"{A}xfrm")
        offset, extent, child_offset, child_extent = _boxes(transform)
        scale_x = self.scale_x * (extent[0] / child_extent[0] if child_extent[0] else 1)
        scale_y = self.scale_y * (extent[1] / child_extent[1] if child_extent[1] else 1)
        return _Frame(
            self.x + offset[0] * self.scale_x - child_offset[0] * scale_x,
            self.y + offset[1] * self.scale_y - child_offset[1] * scale_y,
            scale_x,
            scale_y,
            (*self.turns, _turn(transform)),
        )


_SAME_FRAME = ((0, 0), (1, 1), (0, 0), (1, 1))


def _boxes(transform: Any) -> Sequence[tuple[int, int]]:
    """Offset and extent of a group, in the outer and in its own coordinates; one that does not say has those of the slide."""
    found = []
    for name, keys in (("off", "xy"), ("ext", ("cx", "cy")), ("chOff", "xy"), ("chExt", ("cx", "cy"))):
        node = transform.find(f"{A}{name}") if transform is not None else None
        if node is None:
            return _SAME_FRAME
        found.append((int(node.get(keys[0], 0)), int(node.get(keys[1], 0))))
    return found


def _turn(transform: Any) -> Turn:
    if transform is None:
        return 0, False, False
    mirrored = (transform.get(name) in ("1", "true") for name in ("flipH", "flipV"))
    return (int(transform.get("rot", 0)), *mirrored)  # type: ignore[return-value]


def placed_shapes(shapes: Iterable[Any], frame: _Frame = _Frame()) -> Iterator[Placed]:
    """All shapes in their order; the children of a group follow it."""
    for shape in shapes:
        yield Placed(shape, frame.place(shape), frame.turns)
        if hasattr(shape, "shapes"):
            yield from placed_shapes(shape.shapes, frame.inside(shape))
