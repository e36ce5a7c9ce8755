"""What the families of presentations share: slides before, a change to them, a script that makes the change.

Instructions count slides from 1 and name boxes by their words; every slide's box 0 is its title.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Unpack

from computerrl.env_server.tasks.forge import content
from computerrl.env_server.tasks.forge.decks import Box, Deck, Slide
from computerrl.env_server.tasks.forge.documents import Plan, document_task
from computerrl.env_server.tasks.forge.plan import Forged, call

NUM_SLIDES = {1: 2, 2: 3, 3: 5}
SAVE = call("impress.save")

_TOPICS = (
    "Figures of {month}",
    "Plans for {city}",
    "The new {product}",
    "Visit to {city}",
    "Budget of {department}",
    "Team {department}",
)


def slides(rng: random.Random, level: int) -> list[Slide]:
    """Slides with different titles; each has the boxes title (0), points (1) and note (2), in order of height."""
    found: list[Slide] = []
    titles: set[str] = set()
    while len(found) < NUM_SLIDES[level]:
        title = rng.choice(_TOPICS).format(
            month=rng.choice(content.MONTHS),
            city=rng.choice(content.CITIES),
            product=rng.choice(content.PRODUCTS).lower(),
            department=rng.choice(content.DEPARTMENTS),
        )
        if title in titles:
            continue
        titles.add(title)
        items = [f"{product}: {rng.randrange(11, 99)}" for product in rng.sample(content.PRODUCTS, 2 + level)]
        note = f"Questions: {content.people(rng, 1)[0]}"
        found.append(
            Slide(
                [
                    Box((title,), left=2, top=1, width=21.4, height=2.5, is_title=True, size=32),
                    Box(tuple(items), left=3, top=5, width=13, height=6, size=20),
                    Box((note,), left=8, top=14, width=9, height=1.5, size=14),
                ]
            )
        )
    return found


def copied(found: Sequence[Slide]) -> list[Slide]:
    """The same slides; boxes are never changed in place."""
    return [Slide(list(slide.boxes), slide.background) for slide in found]


def deck_task(
    rng: random.Random, found: Sequence[Slide], *, beside: Mapping[str, bytes] | None = None, **plan: Unpack[Plan[Deck]]
) -> Forged:
    """One presentation to change and save, ``beside`` other files."""
    path = f"{content.file_stem(rng, rng.choice(('slides', 'talk', 'overview')))}.pptx"
    return document_task(rng, path, lambda: Deck(copied(found)), kind="presentation", usual_save=SAVE, beside=beside, **plan)
