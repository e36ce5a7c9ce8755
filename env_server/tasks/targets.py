"""What to call an element in a demonstration, so that `common.actions.targets.find_target` finds it again. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from computerrl.common.actions.targets import named_alone, plain
from computerrl.common.messages import Element


def name_of(elements: Sequence[Element], element: Element) -> int | str:
    """The target that names ``element``: its text where that is short and no other's, else its number."""
    return plain(element.text) if element.number in named_alone(elements) else element.number
