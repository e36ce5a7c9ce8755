"""What an action's target means: an element of the last observation, by its number or by its text.

Pure. A text must be exactly one element's (blanks apart); where several share it, those that are more than plain text count.
Errors are `LookupError` with a message for the agent.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.messages import Element

MAX_LABEL_CHARS = 32
"""Longer texts are named by number in demonstrations: a prompt may show them cut."""


def find_target(elements: Sequence[Element], target: int | str) -> Element:
    """The element that ``target`` names. Raises `LookupError`."""
    if isinstance(target, int):
        for element in elements:
            if element.number == target:
                return element
        raise LookupError(f"there is no element {target}")
    label = _plain(target)
    named = [element for element in elements if _plain(element.text) == label] if label else []
    found = [element for element in named if not element.is_plain_text] or named
    if not found:
        raise LookupError(f"there is no element {target!r:.80}")
    if len(found) > 1:
        numbers = ", ".join(str(element.number) for element in found[:8])
        raise LookupError(f"{len(found)} elements are {target!r:.80}: give one's number ({numbers})")
    return found[0]


def name_of(elements: Sequence[Element], element: Element) -> int | str:
    """The target that names ``element``: its text where that is short and no other's, else its number."""
    label = _plain(element.text)
    if not label or len(label) > MAX_LABEL_CHARS:
        return element.number
    try:
        return label if find_target(elements, label) == element else element.number
    except LookupError:
        return element.number


def _plain(text: str) -> str:
    return " ".join(text.split())
