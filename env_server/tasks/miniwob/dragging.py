"""Demonstrators of pages where things are dragged or lines drawn."""

from __future__ import annotations

import math

from computerrl.common.messages import Action
from computerrl.env_server.tasks.miniwob.scene import Demonstrator, Scene, Shape, drag, drag_along, ordinal, plain
from computerrl.env_server.tasks.miniwob.shapes import drawn, name_of

_WAYS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
_PLURALS = {"rectangles": "rectangle", "circles": "circle", "triangles": "triangle"}
_CIRCLE_POINTS = 12


def _center(shape: Shape) -> tuple[float, float]:
    return shape.x, shape.y


def _drag_shape(scene: Scene) -> Action:
    way = _WAYS[scene.said(r"Drag the (?:circle|item) (\w+) then press Submit\.")[0]]
    if scene.step:
        return scene.press()
    shape = drawn(scene)[0]
    reach = 25 * scene.scale
    return drag(_center(shape), (shape.x + reach * way[0], shape.y + reach * way[1]))


def _box_into_box(scene: Scene) -> Action:
    if scene.step:
        return scene.press()
    small = scene.shape(lambda shape: shape.id == "draggableSmall")
    large = scene.shape(lambda shape: shape.id == "draggableLarge")
    return drag(_center(small), _center(large))


def _inside(shape: Shape, box: Shape) -> bool:
    return box.left < shape.x < box.right and box.top < shape.y < box.bottom


def _shapes_into_box(scene: Scene) -> Action:
    wanted = _PLURALS[scene.said(r"Drag all (\w+) into the black box\.")[0]]
    box = scene.shape(lambda shape: shape.id == "shape-container")
    for shape in drawn(scene):
        if name_of(shape) == wanted and not _inside(shape, box):
            return drag(_center(shape), _center(box))
    return scene.press()


def _shapes_into_boxes(scene: Scene) -> Action:
    wanted = scene.said(r"Drag all (\w+)(?: shapes)? into the left box, and everything else into the right box\.")[0]
    boxes = sorted((shape for shape in scene.shapes if shape.id == "shape-container"), key=lambda shape: shape.x)
    for shape in drawn(scene):
        belongs = shape.color == wanted or name_of(shape) == _PLURALS.get(wanted)
        box = boxes[0] if belongs else boxes[1]
        if not _inside(shape, box):
            return drag(_center(shape), _center(box))
    return scene.press()


# --- lists ---------------------------------------------------------------------------------------------------------------


def _items(scene: Scene) -> list[Shape]:
    """The list's items with their own text, as they lie now."""
    return [shape for shape in scene.shapes if shape.tag == "div" and shape.text and not shape.id and shape.kind == ""]


def _past(start: Shape, end: Shape) -> tuple[float, float]:
    """A little beyond the middle of ``end``, coming from ``start``: a list makes room only then."""
    x = end.x + math.copysign(0.2 * end.width, end.x - start.x) if abs(end.x - start.x) > 5 else start.x
    y = end.y + math.copysign(0.3 * end.height, end.y - start.y) if abs(end.y - start.y) > 5 else start.y
    return x, y


def _drag_item(scene: Scene) -> Action:
    name, where = scene.said(r"Drag (.+?) ((?:to|up|down|left|right) .*)\.")
    items = sorted(_items(scene), key=lambda shape: shape.y)
    texts = [plain(shape.text) for shape in items]
    start = texts.index(name)
    if where == "to the top":
        end = 0
    elif where == "to the bottom":
        end = len(items) - 1
    elif where.startswith(("up", "down")):
        end = start + (1 if where.startswith("down") else -1)
    else:
        end = ordinal(where.split()[2])
    return drag(_center(items[start]), _past(items[start], items[end]))


def _drag_in_grid(scene: Scene) -> Action:
    name, where = scene.said(r"Drag (.+?) ((?:to|up|down|left|right) .*)\.")
    items = sorted(_items(scene), key=lambda shape: (round(shape.y / 10), shape.x))
    start = [plain(shape.text) for shape in items].index(name)
    row, column = divmod(start, 3)
    words = where.split()
    if words[0] == "to":
        row = 0 if "top" in words else 2 if "bottom" in words else 1
        column = 0 if "left" in words else 2 if "right" in words else 1
    else:
        across, down = _WAYS[words[0]]
        row, column = row + down, column + across
    return drag(_center(items[start]), _past(items[start], items[3 * row + column]))


def _sort_numbers(scene: Scene) -> Action:
    items = sorted(_items(scene), key=lambda shape: shape.y)
    numbers = [int(shape.text) for shape in items]
    for place, number in enumerate(sorted(numbers)):
        if numbers[place] != number:
            start = numbers.index(number, place)
            return drag(_center(items[start]), _past(items[start], items[place]))
    return scene.press()


# --- drawing -------------------------------------------------------------------------------------------------------------


def _draw_line(scene: Scene) -> Action:
    direction = scene.said(r"Draw a (horizontal|vertical) line that runs through the dot, then press submit\.")[0]
    if scene.step:
        return scene.press()
    dot = scene.shape(lambda shape: shape.tag == "circle")
    # The page measures the distance from the dot's upper left corner.
    x, y = dot.left, dot.top
    reach = 24 * scene.scale
    if direction == "horizontal":
        return drag((x - reach, y), (x + reach, y))
    return drag((x, y - reach), (x, y + reach))


def _draw_circle(scene: Scene) -> Action:
    dot = scene.shape(lambda shape: shape.tag == "circle")
    if scene.step:
        return scene.press()
    reach = 20 * scene.scale
    angles = [2 * math.pi * point / _CIRCLE_POINTS for point in range(_CIRCLE_POINTS + 1)]
    return drag_along(*((dot.x + reach * math.cos(angle), dot.y + reach * math.sin(angle)) for angle in angles))


DEMONSTRATORS: dict[str, Demonstrator] = {
    "drag-circle": _drag_shape,
    "drag-single-shape": _drag_shape,
    "drag-box": _box_into_box,
    "drag-shapes": _shapes_into_box,
    "drag-shapes-2": _shapes_into_boxes,
    "drag-items": _drag_item,
    "drag-items-grid": _drag_in_grid,
    "drag-sort-numbers": _sort_numbers,
    "draw-line": _draw_line,
    "draw-circle": _draw_circle,
}
