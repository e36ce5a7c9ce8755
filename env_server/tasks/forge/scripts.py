"""Moves that look at the screen first, and wordings that all families share."""

from __future__ import annotations

import random
from collections.abc import Collection

from computerrl.common.messages import Action, Observation
from computerrl.env_server.tasks.calc import GO_TO
from computerrl.env_server.tasks.elements import ANY, CELL, find
from computerrl.env_server.tasks.family import click
from computerrl.env_server.tasks.forge.plan import Move, key, typed


def click_on(text: str | None, roles: Collection[str] = ANY) -> Move:
    """A click on the element that shows exactly ``text``; None: on the first one of these roles."""

    def move(observation: Observation) -> Action:
        return click(observation, find(observation, roles, text))

    return move


def click_cell(text: str) -> Move:
    """A click on the spreadsheet's cell that shows ``text``."""
    return click_on(text, CELL)


def into_cell(cell: str, text: str) -> list[Move]:
    """Type into a spreadsheet's cell, which the name box leads to."""
    return [GO_TO, typed(cell, enter=True), typed(text, enter=True)]


def at_paragraph(number: int) -> list[Move]:
    """The text cursor to the beginning of a text document's paragraph, from 0."""
    return [key("ctrl+home"), *[key("ctrl+down")] * number]


def wording(rng: random.Random, *forms: str, **values: object) -> str:
    """One of several ways to say it."""
    return rng.choice(forms).format(**values)


def and_save(rng: random.Random, thing: str) -> str:
    """The last sentence of an instruction."""
    return wording(rng, " Then save the {thing}.", " Save the {thing} when you are done.", " Save it.", thing=thing)


def listed(words: Collection[str]) -> str:
    """`a, b and c`."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
