"""What the families of text documents share: a letter or report before, a change to it, a script that makes the change."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Unpack

from computerrl.env_server.tasks.forge import content
from computerrl.env_server.tasks.forge.documents import Plan, document_task
from computerrl.env_server.tasks.forge.papers import Paper, Par, par
from computerrl.env_server.tasks.forge.plan import Forged, call

NUM_PARAGRAPHS = {1: 3, 2: 5, 3: 7}
"""Besides the heading, by level."""
SAVE = call("writer.save")


def report(rng: random.Random, level: int) -> list[Par]:
    """A heading of two words or more (number 0) and paragraphs that all begin with other words."""
    heading = f"{rng.choice(('Report', 'Minutes', 'Notes', 'Agenda'))} of the {rng.choice(content.EVENTS)}"
    pars = [par(heading)]
    beginnings = {beginning(heading)}
    while len(pars) <= NUM_PARAGRAPHS[level]:
        text = content.paragraph(rng, 1 if len(pars) % 2 else 2)
        if beginning(text) not in beginnings:
            beginnings.add(beginning(text))
            pars.append(par(text))
    return pars


def beginning(text: str) -> str:
    """The words that a paragraph is named by."""
    return " ".join(text.split()[:4])


def paper_task(rng: random.Random, level: int, pars: Sequence[Par], **plan: Unpack[Plan[Paper]]) -> Forged:
    """One document to change and save; from level 2 on it ends with a table that must stay as it is."""
    path = f"{content.file_stem(rng, rng.choice(('report', 'letter', 'minutes')))}.docx"
    grid = [(name, str(rng.randrange(10, 99))) for name in content.people(rng, 3)] if level >= 2 else []
    return document_task(rng, path, lambda: Paper(list(pars), grid), kind="document", usual_save=SAVE, **plan)
