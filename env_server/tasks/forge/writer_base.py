"""What the families of text documents share: a letter or report before, a change to it, a script that makes the change."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from env_server.tasks.forge import content
from env_server.tasks.forge.facts import Check
from env_server.tasks.forge.papers import Paper, Par, par
from env_server.tasks.forge.plan import Forged, Move, call
from env_server.tasks.forge.scripts import and_save

NUM_PARAGRAPHS = {1: 3, 2: 5, 3: 7}
"""Besides the heading, by level."""
SAVE = call("writer.save")
Change = Callable[[Paper], object]


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


def paper_task(
    rng: random.Random,
    level: int,
    pars: Sequence[Par],
    *,
    said: str,
    change: Change,
    near: Change,
    solution: Sequence[Move],
    near_miss: Sequence[Move],
    save: Sequence[Move] = (SAVE,),
    checks: Mapping[str, Check] | None = None,
) -> Forged:
    """One document to change and save; from level 2 on it ends with a table that must stay as it is."""
    path = f"{content.file_stem(rng, rng.choice(('report', 'letter', 'minutes')))}.docx"
    grid = [(name, str(rng.randrange(10, 99))) for name in content.people(rng, 3)] if level >= 2 else []

    def made(change: Change | None) -> bytes:
        paper = Paper(list(pars), grid)
        if change is not None:
            change(paper)
        return paper.to_bytes()

    return Forged(
        instruction=f"{said}{and_save(rng, 'document')}",
        files={path: made(None)},
        wanted=lambda: {path: made(change)},
        nearly=lambda: {path: made(near)},
        solution=(*solution, *save),
        near_miss=(*near_miss, *save),
        opened=(path,),
        checks=checks or {},
    )
