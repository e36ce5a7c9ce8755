"""What the families of spreadsheets share: a workbook before, a change to it, and a script that makes the change."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Unpack

from computerrl.env_server.tasks.forge.books import Book
from computerrl.env_server.tasks.forge.content import Table, file_stem, table
from computerrl.env_server.tasks.forge.documents import Plan, document_task
from computerrl.env_server.tasks.forge.plan import Forged, call

NUM_ROWS = {1: 5, 2: 8, 3: 12}
"""Entries by level; all of them are on screen at once."""
SAVE = call("calc.save")
Change = Callable[[Book], object]


def book_task(rng: random.Random, tables: Sequence[Table], *, begin: Change | None = None, **plan: Unpack[Plan[Book]]) -> Forged:
    """One workbook to change and save; ``begin``: what it has besides the tables."""

    def make() -> Book:
        book = Book(*tables)
        if begin is not None:
            begin(book)
        return book

    path = f"{file_stem(rng, tables[0].title)}.xlsx"
    return document_task(rng, path, make, kind="workbook", usual_save=SAVE, **plan)


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
