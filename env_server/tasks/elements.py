"""Finding an element of an observation by what a person would see: its role and its text.

Drivers name roles the way their accessibility bridge does, so roles are compared in groups (`button` = `push-button` = ...).
A missing element is the task's fault (`TaskFailed`): the demonstrator cannot show what the screen does not offer.
"""

from __future__ import annotations

from collections.abc import Collection

from computerrl.common.errors import TaskFailed
from computerrl.common.messages import Element, Observation

BUTTON = frozenset({"button", "push button"})
ENTRY = frozenset({"entry", "text", "textbox", "text box", "text field", "password text"})
RADIO = frozenset({"radio", "radio button"})
CHECK = frozenset({"check", "checkbox", "check box"})
CELL = frozenset({"cell", "table cell"})
ANY: frozenset[str] = frozenset()
"""No condition on the role."""


def role_of(element: Element) -> str:
    """The role in lower case with spaces."""
    return element.role.lower().replace("-", " ").replace("_", " ")


def select(observation: Observation, roles: Collection[str], text: str | None = None) -> list[Element]:
    """Elements with one of ``roles`` (any when empty) and exactly ``text`` (any when None), in reading order."""
    return [
        element
        for element in observation.elements
        if (not roles or role_of(element) in roles) and (text is None or element.text.strip() == text)
    ]


def find(observation: Observation, roles: Collection[str], text: str | None = None) -> Element:
    """The first such element; content rows come before toolbars. Raises `TaskFailed` when there is none."""
    found = select(observation, roles, text)
    if not found:
        seen = ", ".join(f"{element.role} {element.text!r}" for element in observation.elements[:20])
        wanted = f"{'/'.join(sorted(roles)) or 'element'} {text!r}"
        which = f"on screen, the first of {len(observation.elements)}: {seen}"
        raise TaskFailed(f"the demonstrator finds no {wanted} in {observation.window_title!r}; {which}")
    return next((element for element in found if element.in_content), found[0])
