"""What an action's target means: an element of the last observation, by its number or by its text.

Pure. A text must be exactly one element's (blanks apart); where several share it, those that are more than plain text count.
Errors are `LookupError` with a message for the agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from computerrl.common.actions import ACTIONS
from computerrl.common.messages import MAX_PLACES, Action, Element, ElementTarget

MAX_LABEL_CHARS = 32
"""Elements with longer texts are shown and demonstrated by number: a prompt may cut them."""


def find_target(elements: Sequence[Element], target: int | str) -> Element:
    """The element that ``target`` names. Raises `LookupError`."""
    if isinstance(target, int):
        for element in elements:
            if element.number == target:
                return element
        raise LookupError(f"there is no element {target}")
    label = plain(target)
    named = [element for element in elements if plain(element.text) == label] if label else []
    found = [element for element in named if not element.is_plain_text] or named
    if not found:
        raise LookupError(f"there is no element {target!r:.80}")
    if len(found) > 1:
        numbers = ", ".join(str(element.number) for element in found[:8])
        raise LookupError(f"{len(found)} elements are {target!r:.80}: give one's number ({numbers})")
    return found[0]


def named_alone(elements: Sequence[Element]) -> frozenset[int]:
    """Numbers of the elements that a short text names: `find_target` finds these and no others by it."""
    by_label: dict[str, list[Element]] = {}
    for element in elements:
        by_label.setdefault(plain(element.text), []).append(element)
    alone = set()
    for label, named in by_label.items():
        found = [element for element in named if not element.is_plain_text] or named
        if 0 < len(label) <= MAX_LABEL_CHARS and len(found) == 1:
            alone.add(found[0].number)
    return frozenset(alone)


def same_action(elements: Sequence[Element], one: Action, other: Action) -> bool:
    """Do both actions mean the same on a screen with ``elements``? An element may be named by its number, its text or a point in
    it."""
    return one.name == other.name and _meant(elements, one.args) == _meant(elements, other.args)


def by_number(elements: Sequence[Element], action: Action) -> Action:
    """``action`` with the element at its pixel in place of the pixel, as far as an element is there. A drag between pixels stays
    as it is."""
    x, y = action.args.get("target"), action.args.get("y")
    element = element_at(elements, x, y) if isinstance(x, int) and isinstance(y, int) and _takes_a_place(action) else None
    return action if element is None else Action(action.name, {**action.args, "target": element.number, "y": None})


def _meant(elements: Sequence[Element], args: Mapping[str, Any]) -> dict[str, Any]:
    """``args`` with elements by number, as far as they name any."""
    meant = dict(args)
    for name in ("target", "source"):
        target = args.get(name)
        if name == "target" and isinstance(target, int) and args.get("y") is not None:
            element = element_at(elements, target, args["y"])
            if element is not None:
                meant |= {name: element.number, "y": None}
        elif isinstance(target, int | str):
            try:
                meant[name] = find_target(elements, target).number
            except LookupError:
                continue  # Whatever it is, it names no element: the words themselves are compared.
    return meant


def named_element(elements: Sequence[Element], action: Action) -> Element | None:
    """The one element that ``action`` names and points at. None where it names none (a pixel, text to type, a call of an
    application), two (a drag), or one that is not there."""
    target, y = action.args.get("target"), action.args.get("y")
    if target is None or y is not None or not _takes_a_place(action):
        return None
    try:
        return find_target(elements, target)
    except LookupError:
        return None


def holds(element: Element | ElementTarget, x: int, y: int) -> bool:
    """Does ``element`` hold a pixel? Its edges belong to it."""
    return abs(x - element.x) * 2 <= element.width and abs(y - element.y) * 2 <= element.height


def element_at(elements: Sequence[Element], x: int, y: int) -> Element | None:
    """The smallest element that holds a pixel; None: no element does."""
    holding = [one for one in elements if holds(one, x, y)]
    return min(holding, key=lambda one: one.width * one.height, default=None)


def plain(text: str) -> str:
    """``text`` with every run of blanks as one: how texts of elements are compared."""
    return " ".join(text.split())


def places_of(action: Action, elements: Sequence[Element], *, width: int, height: int) -> tuple[int, ...]:
    """Pixels of a screen with ``elements`` and ``width`` x ``height`` pixels at which ``action`` points: x, y, or x, y of each
    place of a drag, its start first. Of a longer path the first ones and the last.

    Empty where it points at none, at an element that is not there, or at a place outside the screen."""
    try:
        path = _path(action, elements)
    except LookupError:
        return ()
    points = list(zip(path[::2], path[1::2], strict=False))
    if not all(0 <= x < width and 0 <= y < height for x, y in points):
        return ()
    if len(points) > MAX_PLACES:
        points = [*points[: MAX_PLACES - 1], points[-1]]
    return tuple(number for point in points for number in point)


def _takes_a_place(action: Action) -> bool:
    """Is its target an element or a pixel? Those of application calls are neither (files.copy)."""
    return "y" in {param.name for param in ACTIONS[action.name].params}


def _path(action: Action, elements: Sequence[Element]) -> list[int]:
    """Raises `LookupError`."""
    args = action.args
    if action.name == "drag":
        ends = [find_target(elements, args[end]) for end in ("source", "target")]
        return [number for end in ends for number in (end.x, end.y)]
    if action.name == "drag_pixels":
        return list(args["path"])
    target, y = args.get("target"), args.get("y")
    if target is None or not _takes_a_place(action):
        return []
    if y is None:
        element = find_target(elements, target)
        return [element.x, element.y]
    if isinstance(target, str):
        raise LookupError(f"{target!r:.80} is no pixel column")
    return [target, y]
