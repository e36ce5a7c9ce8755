"""From a pixel that a person pointed at to the action an agent would write. Pure.

A policy that reads element rows cannot know pixels, so pointing says ``click("Submit")`` where there is an element, as any
demonstrator would; the pixel itself is the fallback, and what a person gets who asks for it (``exact``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from computerrl.common.messages import Action, Element
from computerrl.env_server.tasks.targets import name_of

Button = Literal["left", "middle", "right"]
Direction = Literal["up", "down", "left", "right"]

PLACE_ROLES = frozenset({"canvas", "slider", "image"})
"""In these the place inside the element is what counts."""


class NothingThere(ValueError):
    """No element where an action needs one; the message is for the person."""


def element_at(elements: Sequence[Element], x: int, y: int) -> Element | None:
    """The element that a click at (x, y) meets.

    Observations name dialogs and open menus before what they cover, and parents before children: so it is the first that covers
    the pixel, or what lies wholly inside that one.
    """
    found: Element | None = None
    for element in elements:
        if _covers(element, x, y) and (found is None or _inside(element, found)):
            found = element
    return found


def click(elements: Sequence[Element], x: int, y: int, *, button: Button = "left", count: int = 1, exact: bool = False) -> Action:
    """A click, or a double click (``count`` 2)."""
    args = _target(elements, x, y, exact=exact)
    if count == 2:
        return Action(name="double_click", args=args)
    return Action(name="click", args={**args, "button": button})


def hover(elements: Sequence[Element], x: int, y: int, *, exact: bool = False) -> Action:
    """The pointer rests there."""
    return Action(name="hover", args=_target(elements, x, y, exact=exact))


def scroll(elements: Sequence[Element], x: int, y: int, *, direction: Direction, exact: bool = False) -> Action:
    """The wheel turned there."""
    return Action(name="scroll", args={**_target(elements, x, y, exact=exact), "direction": direction})


def drag(elements: Sequence[Element], start: tuple[int, int], end: tuple[int, int], *, exact: bool = False) -> Action:
    """One element pulled onto another, or from pixel to pixel. Raises `NothingThere` where an element is missing."""
    if exact:
        return Action(name="drag_pixels", args={"path": [*start, *end]})
    source, target = element_at(elements, *start), element_at(elements, *end)
    if source is None or target is None:
        where = "end" if source else "start"
        raise NothingThere(f"dragging goes from one element onto another: there is none at its {where} (Exact pixels needs none)")
    return Action(name="drag", args={"source": name_of(elements, source), "target": name_of(elements, target)})


def _target(elements: Sequence[Element], x: int, y: int, *, exact: bool) -> dict[str, int | str | None]:
    element = None if exact else element_at(elements, x, y)
    if element is None or element.role in PLACE_ROLES:
        return {"target": x, "y": y}
    return {"target": name_of(elements, element), "y": None}


def _covers(element: Element, x: int, y: int) -> bool:
    left, top = element.x - element.width // 2, element.y - element.height // 2
    return left <= x < left + element.width and top <= y < top + element.height


def _inside(inner: Element, outer: Element) -> bool:
    return (
        abs(inner.x - outer.x) <= (outer.width - inner.width + 1) // 2
        and abs(inner.y - outer.y) <= (outer.height - inner.height + 1) // 2
    )
