"""What the families of spreadsheets share: a workbook before, a change to it, and a script that makes the change."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from env_server.tasks.forge.books import Book
from env_server.tasks.forge.content import Table, file_stem, table
from env_server.tasks.forge.facts import Check
from env_server.tasks.forge.plan import Forged, Move, call
from env_server.tasks.forge.scripts import and_save

NUM_ROWS = {1: 5, 2: 8, 3: 12}
"""Entries by level; all of them are on screen at once."""
SAVE = call("calc.save")
Change = Callable[[Book], object]


def book_task(
    rng: random.Random,
    tables: Sequence[Table],
    *,
    said: str,
    change: Change,
    near: Change,
    solution: Sequence[Move],
    near_miss: Sequence[Move],
    begin: Change | None = None,
    save: Sequence[Move] = (SAVE,),
    checks: Mapping[str, Check] | None = None,
) -> Forged:
    """One workbook to change and save; ``begin``: what it has besides the tables."""
    path = f"{file_stem(rng, tables[0].title)}.xlsx"

    def made(*changes: Change | None) -> bytes:
        book = Book(*tables)
        for step in (begin, *changes):
            if step is not None:
                step(book)
        return book.to_bytes()

    return Forged(
        instruction=f"{said}{and_save(rng, 'workbook')}",
        files={path: made()},
        wanted=lambda: {path: made(change)},
        nearly=lambda: {path: made(near)},
        solution=(*solution, *save),
        near_miss=(*near_miss, *save),
        opened=(path,),
        checks=checks or {},
    )


def tables(rng: random.Random, level: int, first: Table | None = None) -> list[Table]:
    """The table to work on, and from level 2 on a second sheet that must stay as it is."""
    found = [first or table(rng, NUM_ROWS[level])]
    while level >= 2 and len(found) < 2:
        other = table(rng, 4)
        if other.title != found[0].title:
            found.append(other)
    return found


def letter(index: int) -> str:
    """A column's letter, from 0."""
    return chr(ord("A") + index)
