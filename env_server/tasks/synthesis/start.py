"""A start state of walks, drawn from a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from computerrl.common.messages import Action


@dataclass(frozen=True, slots=True)
class Start:
    """Where a walk begins, and the moves that it may be made of."""

    thing: str
    """Name of the document in instructions."""
    files: Mapping[str, bytes]
    """Files of the agent's folder by path."""
    draw: Callable[[random.Random], Sequence[Action]]
    """Draws one move: an action, or a few that belong together."""
    opened: Sequence[str] = (".",)
    """What is opened, the last one in front."""
    folders: Sequence[str] = ()
    """Folders of the agent's folder."""
    save: Action | None = None
    """Action that saves the document; None: actions change files at once."""
