"""Demonstrators of pages that show shapes and colours: which is meant, how many there are, where their middle is."""

from __future__ import annotations

import math
import re

from PIL import ImageColor

from computerrl.common.messages import Action
from computerrl.env_server.tasks.miniwob.scene import ENTRY, Demonstrator, NotShown, Scene, Shape, click_at, key, write

_DRAWN = {"text": "", "rect": "rectangle", "circle": "circle", "polygon": "triangle"}
"""SVG tags of the pages' shapes."""
_LARGE = 15
"""CSS pixels: small shapes measure 10, large ones 20."""


def drawn(scene: Scene) -> list[Shape]:
    """Shapes of the page's picture, in drawing order."""
    return [shape for shape in scene.shapes if shape.tag in _DRAWN and shape.id != "shape-container"]


def name_of(shape: Shape) -> str:
    """`circle`, `rectangle`, `triangle`, or the letter or digit itself."""
    return _DRAWN[shape.tag] or shape.text


def _type_of(shape: Shape) -> str:
    return "shape" if shape.tag != "text" else "digit" if shape.text.isdigit() else "letter"


def _fits(scene: Scene, shape: Shape, words: list[str]) -> bool:
    size = "large" if max(shape.width, shape.height) > _LARGE * scene.scale else "small"
    known = {size, shape.color, name_of(shape), _type_of(shape), "item"}
    return all(word in known for word in words)


def _click_shape(scene: Scene) -> Action:
    words = scene.said(r"Click on an? (.+)")[0].split()
    return scene.click_on(next(shape for shape in drawn(scene) if _fits(scene, shape, words)))


def _count_shapes(scene: Scene) -> Action:
    words = scene.said(r"How many (.+)s are there\?")[0].split()
    return scene.press(str(sum(_fits(scene, shape, words) for shape in drawn(scene))))


def _identify(scene: Scene) -> Action:
    shape = drawn(scene)[0]
    name = name_of(shape) if shape.tag != "text" else {"digit": "number"}.get(_type_of(shape), "letter")
    return scene.press(name.capitalize())


def _click_color(scene: Scene) -> Action:
    color = scene.said(r"Click on the (.+) colored box\.")[0]
    boxes = [shape for shape in scene.shapes if shape.kind == "color" and shape.id != "query-color"]
    return scene.click_on(next(box for box in boxes if box.color == color))


def _click_shades(scene: Scene) -> Action:
    wanted = {"red": 0, "green": 1, "blue": 2}[scene.said(r"Select all the shades of (\w+) and press Submit\.")[0]]
    for shape in scene.shapes:
        if shape.tag == "span" and shape.color.startswith("rgb(") and shape.kind != "selected":
            levels = rgb(shape.color)
            if levels.index(max(levels)) == wanted:
                return scene.click_on(shape)
    return scene.press()


def rgb(color: str) -> tuple[int, int, int]:
    """Levels of a colour written as `rgb(1, 2, 3)` or by name."""
    numbers = re.findall(r"\d+", color)
    if color.startswith("rgb"):
        return int(numbers[0]), int(numbers[1]), int(numbers[2])
    named = ImageColor.getrgb(color)
    return named[0], named[1], named[2]


def _grid_point(scene: Scene) -> Action:
    x, y = map(int, scene.said(r"Click on the grid coordinate \((-?\d),(-?\d)\)\."))
    points = [shape for shape in drawn(scene) if shape.tag == "circle"]
    across, down = sorted({round(p.x) for p in points}), sorted({round(p.y) for p in points})
    return click_at(across[x + 2], down[2 - y])


# --- a point to mark: the page draws it where a click was, but for the picture's own offset ------------------------------


def _mark(scene: Scene, x: float, y: float) -> Action:
    if scene.step:
        return scene.press()
    picture = scene.shape(lambda shape: shape.tag == "svg")
    return click_at(x - picture.left, y - (picture.top - 50 * scene.scale))


def _circles(scene: Scene) -> list[Shape]:
    return [shape for shape in drawn(scene) if shape.tag == "circle" and "blue" not in shape.kind.split()]


def _mark_center(scene: Scene) -> Action:
    circle = _circles(scene)[0]
    return _mark(scene, circle.x, circle.y)


def _mark_midpoint(scene: Scene) -> Action:
    first, second = _circles(scene)[:2]
    return _mark(scene, (first.x + second.x) / 2, (first.y + second.y) / 2)


def _mark_bisector(scene: Scene) -> Action:
    vertex = next(circle for circle in _circles(scene) if circle.color == "blue")
    ways = [_unit(circle.x - vertex.x, circle.y - vertex.y) for circle in _circles(scene) if circle.color == "black"]
    way = _unit(ways[0][0] + ways[1][0], ways[0][1] + ways[1][1])
    return _mark(scene, *_inside(scene, vertex, way))


def _mark_right_angle(scene: Scene) -> Action:
    vertex = next(circle for circle in _circles(scene) if circle.color == "blue")
    other = next(circle for circle in _circles(scene) if circle.color == "black")
    x, y = _unit(other.x - vertex.x, other.y - vertex.y)
    places = [_inside(scene, vertex, way) for way in ((-y, x), (y, -x))]
    return _mark(scene, *max(places, key=lambda place: math.dist(place, (vertex.x, vertex.y))))


def _inside(scene: Scene, start: Shape, way: tuple[float, float]) -> tuple[float, float]:
    """As far from ``start`` in that direction as the picture's middle allows: angles get exact with distance."""
    picture = scene.shape(lambda shape: shape.tag == "svg")
    margin = 8 * scene.scale
    reach = 60 * scene.scale
    for position, step, low, high in (
        (start.x, way[0], picture.left + margin, picture.right - margin),
        (start.y, way[1], picture.top + margin, picture.bottom - 2 * margin),
    ):
        if abs(step) > 1e-6:
            reach = min(reach, max(0.0, ((high if step > 0 else low) - position) / step))
    return start.x + reach * way[0], start.y + reach * way[1]


def _unit(x: float, y: float) -> tuple[float, float]:
    length = math.hypot(x, y) or 1.0
    return x / length, y / length


# --- others --------------------------------------------------------------------------------------------------------------


def _ascending(scene: Scene) -> Action:
    """Numbers show until the first is clicked; then boxes cover the others, drawn in the numbers' order."""
    numbers = {shape.text: shape for shape in drawn(scene) if shape.tag == "text"}
    return scene.click_on(numbers["1"] if numbers else next(shape for shape in drawn(scene) if shape.tag == "rect"))


def _greatest_card(scene: Scene) -> Action:
    """Cards show their number one at a time."""
    cards = [shape for shape in scene.shapes if shape.kind.split()[:1] == ["card"]]
    if scene.step < len(cards):
        return click_at(cards[scene.step].x, cards[scene.step].y)
    best = max(cards, key=lambda card: int(card.text))
    return scene.press() if "hidden" not in best.kind.split() else click_at(best.x, best.y)


def _pick_color(scene: Scene) -> Action:
    """The colour's code typed into the field. The picker lies over the button, which the keyboard still reaches."""
    color = next((shape.color for shape in scene.shapes if shape.kind == "cc"), "")
    levels = rgb(color or scene.said(r"Select (\w+) with the color picker and hit Submit\.")[0])
    code = "".join(f"{level:02X}" for level in levels)
    return scene.in_turn(
        lambda: scene.click(scene.one(ENTRY)),
        lambda: key("ctrl+a"),
        lambda: write(code),
        lambda: key("tab"),
        lambda: key("enter"),
    )


def _pie(scene: Scene) -> Action:
    return _pie_slice(scene) if scene.step else _pie_middle(scene)


def _flying_pie(scene: Scene) -> Action:
    """Slices are clicked when they have come to rest: until then they move away from where they were seen. The first one is
    clicked while it moves: at rest it takes no click, because the page puts it in front anew whenever the pointer is on it."""
    moves = scene.observation.settled_by == "deadline"
    label = _pie_label(scene)
    is_first = any(shape.id.endswith("-title-0") and shape.text == label for shape in scene.shapes)
    if scene.step and moves == is_first:
        return _pie_slice(scene)
    if moves:
        raise NotShown("the slices of the menu still move")
    return _pie_middle(scene)


def _pie_label(scene: Scene) -> str:
    return scene.said(r'Expand the pie menu below and click on the item labeled "(.)"\.')[0]


def _pie_slice(scene: Scene) -> Action:
    label = scene.shape(lambda shape: shape.tag == "tspan" and shape.text == _pie_label(scene))
    return click_at(label.x, label.y)


def _pie_middle(scene: Scene) -> Action:
    middle = scene.shape(lambda shape: shape.id.endswith("-spreader"))
    return click_at(middle.x, middle.y)


DEMONSTRATORS: dict[str, Demonstrator] = {
    "click-shape": _click_shape,
    "count-shape": _count_shapes,
    "identify-shape": _identify,
    "click-color": _click_color,
    "click-shades": _click_shades,
    "grid-coordinate": _grid_point,
    "circle-center": _mark_center,
    "find-midpoint": _mark_midpoint,
    "bisect-angle": _mark_bisector,
    "right-angle": _mark_right_angle,
    "ascending-numbers": _ascending,
    "find-greatest": _greatest_card,
    "use-colorwheel": _pick_color,
    "use-colorwheel-2": _pick_color,
    "click-pie": _flying_pie,
    "click-pie-nodelay": _pie,
}
