"""The scene that a demonstrator of a MiniWoB++ page sees, and the ways it points at things.

A demonstrator is a function from a `Scene` to the next action. It works from the instruction and the accessibility elements
as the agent sees them, and from `Scene.shapes` where only pixels show something (shapes, colours, icons). It keeps no state: its
actions so far are the scene's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from computerrl.common.errors import TaskFailed
from computerrl.common.messages import Action, Element, Observation
from computerrl.env_server.driver import Getter
from computerrl.env_server.tasks.elements import ANY, BUTTON, ENTRY, role_of
from computerrl.env_server.tasks.family import click, type_text

_QUERY_HEIGHT = 50
"""CSS pixels of a page's yellow instruction, above the area that is played."""
_PAGE_SIZE = (160, 210)

STATIC = frozenset({"static", "label", "paragraph", "heading", "section"})


class NotShown(TaskFailed):
    """The page does not show what the demonstrator looks for; on a busy machine, perhaps not yet."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One leaf or shape of the page as a picture shows it."""

    tag: str
    id: str
    kind: str
    """Its CSS classes."""
    text: str
    color: str
    picture: str
    """File name of an icon."""
    x: float
    y: float
    width: float
    height: float

    @property
    def left(self) -> float:
        """Its left edge."""
        return self.x - self.width / 2

    @property
    def top(self) -> float:
        """Its upper edge."""
        return self.y - self.height / 2

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.y + self.height / 2


@dataclass(frozen=True)
class Scene:
    """One moment of an episode."""

    instruction: str
    observation: Observation
    actions: Sequence[Action]
    get: Getter

    @property
    def step(self) -> int:
        """Actions done so far."""
        return len(self.actions)

    @property
    def scale(self) -> float:
        """Screen pixels per CSS pixel, as the browser's window was started."""
        width, height = self.observation.screen_width, self.observation.screen_height
        return max(1.0, int(min(width / _PAGE_SIZE[0], height / _PAGE_SIZE[1]) * 4) / 4)

    @cached_property
    def area(self) -> list[Element]:
        """Elements below the instruction, in reading order."""
        top = _QUERY_HEIGHT * self.scale - 2
        return [element for element in self.observation.elements if element.in_content and element.y - element.height / 2 >= top]

    @cached_property
    def shapes(self) -> list[Shape]:
        """What a picture shows, in document order."""
        return [Shape(**shape) for shape in self.get("web_shapes")]

    # --- reading ---

    def said(self, pattern: str) -> tuple[str, ...]:
        """The groups of ``pattern``, which the instruction must match as a whole."""
        match = re.fullmatch(pattern, self.instruction.strip())
        if match is None:
            raise TaskFailed(f"the page says {self.instruction!r}, which does not read like {pattern!r}")
        return match.groups()

    def all(self, roles: Collection[str] = ANY, text: str | None = None) -> list[Element]:
        """Elements of the area with one of ``roles`` and exactly ``text`` (blanks apart)."""
        wanted = None if text is None else plain(text)
        return [
            element
            for element in self.area
            if (not roles or role_of(element) in roles) and (wanted is None or plain(element.text) == wanted)
        ]

    def one(self, roles: Collection[str] = ANY, text: str | None = None, *, nth: int = 0) -> Element:
        """The ``nth`` such element; where several share a text, those that are more than plain text come first."""
        found = self.all(roles, text)
        if text is not None:
            found = [element for element in found if not element.is_plain_text] or found
        if not -len(found) <= nth < len(found):
            raise NotShown(f"the demonstrator finds no {'/'.join(sorted(roles)) or 'element'} {text!r}; {self.seen()}")
        return found[nth]

    def seen(self) -> str:
        """What is on screen, for a message."""
        return "on screen: " + ", ".join(f"{element.role} {element.text!r}" for element in self.observation.elements[:30])

    def texts(self, roles: Collection[str] = ANY) -> list[str]:
        """Texts of the area's elements."""
        return [plain(element.text) for element in self.all(roles)]

    def shape(self, test: Callable[[Shape], bool]) -> Shape:
        """The first shape that passes ``test``."""
        return self.nth_shape(0, test)

    def nth_shape(self, nth: int, test: Callable[[Shape], bool]) -> Shape:
        """The ``nth`` shape that passes ``test``, counted from 0."""
        found = [shape for shape in self.shapes if test(shape)]
        if nth < len(found):
            return found[nth]
        drawn = ", ".join(f"{shape.tag}.{shape.kind} {shape.text!r} {shape.color}" for shape in self.shapes[:30])
        raise NotShown(f"the demonstrator does not see the shape it looks for; drawn: {drawn}")

    def has(self, shape_id: str) -> bool:
        """Is there a visible shape with this id?"""
        return any(shape.id == shape_id for shape in self.shapes)

    def failure(self, what: str) -> TaskFailed:
        """The error that says that the page ``what``."""
        return TaskFailed(f"the page says {self.instruction!r} and {what}; {self.seen()}")

    # --- acting ---

    def click(self, element: Element, *, hold: str = "") -> Action:
        """Click on ``element``."""
        action = click(self.observation, element)
        return Action(action.name, {**action.args, "hold": hold}) if hold else action

    def hover(self, element: Element) -> Action:
        """The pointer over ``element``."""
        return Action("hover", {"target": self.click(element).args["target"]})

    def press(self, text: str = "Submit", *, nth: int = 0) -> Action:
        """Click on the button with ``text``."""
        return self.click(self.one(BUTTON, text, nth=nth))

    def enter(self, nth: int = 0) -> Action:
        """Click into the ``nth`` text field."""
        return self.click(self.one(ENTRY, nth=nth))

    def in_turn(self, *moves: Callable[[], Action]) -> Action:
        """The move whose turn it is, the last one ever after."""
        return moves[min(self.step, len(moves) - 1)]()

    def click_on(self, shape: Shape) -> Action:
        """Click on ``shape``, by the element that is there where one says the same."""
        for element in self.all(ANY, shape.text) if shape.text else ():
            if abs(element.x - shape.x) <= shape.width / 2 and abs(element.y - shape.y) <= shape.height / 2:
                return self.click(element)
        return click_at(shape.x, shape.y)

    def num(self, name: str) -> int:
        """How many actions ``name`` were done."""
        return sum(action.name == name for action in self.actions)


Demonstrator = Callable[[Scene], Action]


def plain(text: str) -> str:
    """``text`` with single blanks."""
    return " ".join(text.split())


def click_at(x: float, y: float) -> Action:
    """A click on a pixel."""
    return Action("click", {"target": round(x), "y": round(y)})


def drag(start: tuple[float, float], end: tuple[float, float]) -> Action:
    """A drag from pixel to pixel."""
    return drag_along(start, end)


def drag_along(*path: tuple[float, float]) -> Action:
    """A drag through pixels."""
    return Action("drag_pixels", {"path": [round(number) for place in path for number in place]})


def key(keys: str, times: int = 1) -> Action:
    """Keys pressed together."""
    return Action("key", {"keys": keys, **({"times": times} if times != 1 else {})})


def turn_wheel(x: float, y: float, direction: str, *, clicks: int = 5) -> Action:
    """The wheel over a pixel."""
    return Action("scroll", {"target": round(x), "y": round(y), "direction": direction, "clicks": clicks})


def write(text: str) -> Action:
    """Typing where the focus is."""
    return type_text(text)


def ordinal(text: str) -> int:
    """`1st` -> 0, `2nd` -> 1, ..."""
    match = re.match(r"(\d+)(st|nd|rd|th)", text)
    if match is None:
        raise TaskFailed(f"{text!r} is no ordinal")
    return int(match.group(1)) - 1


__all__ = [
    "ANY",
    "BUTTON",
    "ENTRY",
    "STATIC",
    "Demonstrator",
    "Scene",
    "Shape",
    "click_at",
    "drag",
    "drag_along",
    "key",
    "ordinal",
    "plain",
    "turn_wheel",
    "write",
]
