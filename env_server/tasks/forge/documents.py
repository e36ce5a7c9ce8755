"""One document to change and save: what the families of spreadsheets, texts and presentations share."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NotRequired, Protocol, TypedDict, TypeVar, Unpack

from computerrl.env_server.tasks.forge.facts import Check
from computerrl.env_server.tasks.forge.plan import SAVE_BY_KEYS, Forged, Move
from computerrl.env_server.tasks.forge.scripts import and_save


class Document(Protocol):
    """A file in the making."""

    def to_bytes(self) -> bytes:
        """The file."""


D = TypeVar("D", bound=Document)


class Plan(TypedDict, Generic[D]):
    """What is to be done to the document."""

    said: str
    """The instruction, without the request to save."""
    change: Callable[[D], object]
    """Makes it as it is wanted."""
    near: Callable[[D], object]
    """Makes it as the near miss leaves it."""
    solution: Sequence[Move]
    near_miss: Sequence[Move]
    by_hand: NotRequired[Sequence[Move]]
    """The solution with mouse and keyboard alone, where ``solution`` calls the application."""
    save: NotRequired[Sequence[Move]]
    """How both scripts save; left out: by the application's API."""
    checks: NotRequired[Mapping[str, Check]]
    """See `Forged.checks`."""


def document_task(
    rng: random.Random,
    path: str,
    make: Callable[[], D],
    *,
    kind: str,
    usual_save: Move,
    beside: Mapping[str, bytes] | None = None,
    **plan: Unpack[Plan[D]],
) -> Forged:
    """Change the document at ``path`` and save it.

    ``make``: the document as it is before; ``kind``: what the instruction calls it; ``beside``: other files.
    """

    def made(change: Callable[[D], object]) -> bytes:
        document = make()
        change(document)
        return document.to_bytes()

    save = plan.get("save", (usual_save,))
    by_hand = plan.get("by_hand")
    return Forged(
        instruction=f"{plan['said']}{and_save(rng, kind)}",
        files={**(beside or {}), path: make().to_bytes()},
        wanted=lambda: {path: made(plan["change"])},
        nearly=lambda: {path: made(plan["near"])},
        solution=(*plan["solution"], *save),
        near_miss=(*plan["near_miss"], *save),
        by_hand=None if by_hand is None else (*by_hand, SAVE_BY_KEYS),
        opened=(path,),
        checks=plan.get("checks", {}),
    )
