"""Families in a spreadsheet: set a cell by API, overwrite a cell by mouse and keyboard."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from computerrl.common.messages import Action, Element, Evaluation, Observation
from computerrl.env_server.driver import Getter, SetupStep, TaskInstance
from computerrl.env_server.tasks.elements import CELL, find, select
from computerrl.env_server.tasks.family import DONE, Family, click, type_text, verdict
from computerrl.env_server.tasks.words import nouns

_COLUMNS = "ABCDEF"
_NUM_ROWS = 9
GO_TO = Action(name="key", args={"keys": "ctrl+shift+t"})
"""Puts the cursor into Calc's name box, which takes a cell's address."""
_RANGE = f"A1:{_COLUMNS[-1]}{_NUM_ROWS}"
"""What the evaluators read: the wanted cell and everything that must not have changed."""


def _rows(cells: dict[str, str]) -> list[list[str]]:
    return [[cells.get(f"{column}{row}", "") for column in _COLUMNS] for row in range(1, _NUM_ROWS + 1)]


def _sheet_evaluator(before: dict[str, str], changes: dict[str, str]) -> Callable[[Getter], Evaluation]:
    expected = _rows({**before, **changes})

    def evaluate(get: Getter) -> Evaluation:
        found = [[str(text) for text in row] for row in get("calc_cells", range=_RANGE)]
        if found == expected:
            return verdict(changes, changes)
        differing = {
            f"{_COLUMNS[column]}{row + 1}": found[row][column]
            for row in range(_NUM_ROWS)
            for column in range(len(_COLUMNS))
            if found[row][column] != expected[row][column]
        }
        wanted = {cell: changes.get(cell, before.get(cell, "")) for cell in differing}
        return verdict(wanted, differing)

    return evaluate


def _block(rng: random.Random, *, columns: str, num_rows: int) -> dict[str, str]:
    """A block of different words below row 1."""
    words = iter(nouns(rng, len(columns) * num_rows))
    return {f"{column}{row}": next(words) for row in range(2, num_rows + 2) for column in columns}


def _new_value(rng: random.Random, cells: dict[str, str]) -> str | int:
    """A number or a word that is not in the sheet yet."""
    if rng.random() < 0.5:
        return rng.randrange(10, 1000)
    return next(word for word in nouns(rng, len(cells) + 1) if word not in cells.values())


def _open(cells: dict[str, str], active_cell: str) -> SetupStep:
    return SetupStep("calc_open", {"cells": cells, "active_cell": active_cell})


# --- by API ----------------------------------------------------------------------------------------------------------


def _build_set_cell(rng: random.Random) -> TaskInstance:
    cells = _block(rng, columns=rng.choice(("AB", "BC", "CD")), num_rows=3)
    cell = f"{rng.choice(_COLUMNS)}{rng.randrange(1, _NUM_ROWS + 1)}"
    value = _new_value(rng, cells)
    instruction = rng.choice(("Set cell {cell} to {value}.", "Put {value} into cell {cell}.")).format(cell=cell, value=value)

    def demonstrate(text: str, observation: Observation, actions: Sequence[Action], get: Getter) -> Action:
        return DONE if actions else Action(name="calc.set_cell", args={"cell": cell, "value": value})

    def by_hand(text: str, observation: Observation, actions: Sequence[Action], get: Getter) -> Action:
        script = (GO_TO, type_text(cell, enter=True), type_text(str(value), enter=True), DONE)
        return script[min(len(actions), 3)]

    evaluate = _sheet_evaluator(cells, {cell: str(value)})
    return TaskInstance(
        instruction, (_open(cells, "A1"),), evaluate, demonstrate, calls_applications=True, demonstrate_by_hand=by_hand
    )


# --- by mouse and keyboard -------------------------------------------------------------------------------------------


def _cell_holding(observation: Observation, text: str) -> Element:
    """The element that shows ``text``; a driver may write the address in front (`B3 pencil`)."""
    for element in select(observation, CELL):
        if re.fullmatch(rf"(?:[A-Z]+[0-9]+:? )?{re.escape(text)}", element.text.strip()):
            return element
    return find(observation, CELL, text)


def _build_type_cell(rng: random.Random) -> TaskInstance:
    # Four words: a policy that cannot yet tell them apart is right one time in four, which is enough to learn from.
    cells = _block(rng, columns=rng.choice(("AB", "BC", "CD")), num_rows=2)
    cell = rng.choice(sorted(cells))
    old = cells[cell]
    new = str(_new_value(rng, cells))
    instruction = f"Click the cell {old} and type {new}."

    def demonstrate(text: str, observation: Observation, actions: Sequence[Action], get: Getter) -> Action:
        if not actions:
            return click(observation, _cell_holding(observation, old))
        return type_text(new, enter=True) if len(actions) == 1 else DONE

    return TaskInstance(instruction, (_open(cells, "A1"),), _sheet_evaluator(cells, {cell: new}), demonstrate)


FAMILIES = (
    Family("calc-set-cell", "calc", "set the named cell by the API", _build_set_cell),
    Family("calc-type-cell", "calc", "find the cell with a word and type another over it", _build_type_cell),
)
