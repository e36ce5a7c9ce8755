"""What an action's target means: an element of the last observation, by its number or by its text.

Pure. A text must be exactly one element's (blanks apart); where several share it, those that are more than plain text count.
Errors are `LookupError` with a message for the agent.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.messages import Element


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


def plain(text: str) -> str:
    """``text`` with every run of blanks as one: how texts of elements are compared."""
    return " ".join(text.split())
