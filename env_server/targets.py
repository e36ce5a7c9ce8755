"""What to call an element in a demonstration, so that `common.targets.find_target` finds it again. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from common.messages import Element
from common.targets import find_target, plain

MAX_LABEL_CHARS = 32
"""Longer texts are named by number in demonstrations: a prompt may show them cut."""


def name_of(elements: Sequence[Element], element: Element) -> int | str:
    """The target that names ``element``: its text where that is short and no other's, else its number."""
    label = plain(element.text)
    if not label or len(label) > MAX_LABEL_CHARS:
        return element.number
    try:
        return label if find_target(elements, label) == element else element.number
    except LookupError:
        return element.number
