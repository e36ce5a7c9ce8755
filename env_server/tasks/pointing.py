"""Families that ask where something is on a screen of our own: one click answers, and nothing is done with it.

Three ways of asking: for a thing by its name ("Click Sort Ascending."), for what holds a text ("Click the cell with river."),
for the icon of an action ("Click the icon that makes letters thick."). What is asked for is chosen on the screen itself, by the
instance's seed, among things whose name nothing else there has. For policies that see screenshots: rows of elements give the
answer away.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from computerrl.common.actions.targets import plain
from computerrl.common.errors import TaskFailed
from computerrl.common.messages import Action, Element, Evaluation, Observation
from computerrl.env_server.driver import Getter, SetupStep, TaskInstance
from computerrl.env_server.tasks.family import REAL_DRIVERS, Family, click
from computerrl.env_server.tasks.words import file_names, nouns

_NAMED = frozenset({"button", "toggle-button", "menu", "table-column-header", "page-tab"})
"""Roles of things that people call by their name."""
_TEXTS: Mapping[str, Mapping[str, str]] = {
    "calc": {"table-cell": "Click the cell with {text}."},
    "files": {"table-cell": "Click the file {text}."},
    "impress": {"list-item": "Click {text} in the list of slides."},
}
"""Application -> role of what holds a text -> how it is asked for."""
_MAX_TEXT = 40
_PURPOSES = {
    "Align Center": "centers text",
    "Align Left": "moves text to the left edge",
    "Align Right": "moves text to the right edge",
    "AutoFilter": "shows only the rows that one chooses",
    "Bold": "makes letters thick",
    "Chart": "draws numbers as bars or lines",
    "Comment": "adds a note",
    "Currency": "shows numbers as amounts of money",
    "Cut": "cuts the selection out",
    "Copy": "copies the selection",
    "Export Directly as PDF": "makes a PDF",
    "Find and Replace": "replaces words",
    "Font Color": "colors letters",
    "Hyperlink": "makes a link",
    "Image": "inserts a picture",
    "Italic": "makes text slanted",
    "Open": "opens a file",
    "Percent": "shows numbers as percentages",
    "Print": "puts the file on paper",
    "Save": "saves the file",
    "Sort Ascending": "sorts from A to Z",
    "Sort Descending": "sorts from Z to A",
    "Spelling": "looks for wrongly written words",
    "Table": "inserts rows and columns",
    "Text Box": "adds a box for text",
    "Underline": "underlines text",
    "Undo": "takes the last change back",
}
"""Name of an icon in the office's tool bars -> what it does."""
_ICONS = frozenset({"button", "toggle-button"})


def _questions(app: str, seen: Observation) -> list[list[tuple[str, Element]]]:
    """All that can be asked about a screen, by the way of asking: (question, what it asks for).

    Only for what is whole on the screen, can be used, and alone has its name."""
    names = Counter(plain(one.text) for one in seen.elements)
    asked = [one for one in seen.elements if _is_whole(one, seen) and "disabled" not in one.states]
    asked = [one for one in asked if one.text.strip() and len(one.text) <= _MAX_TEXT and names[plain(one.text)] == 1]
    by_role = _TEXTS.get(app, {})
    ways = [
        [(f"Click {plain(one.text)}.", one) for one in asked if one.role in _NAMED],
        [(by_role[one.role].format(text=plain(one.text)), one) for one in asked if one.role in by_role],
        [(f"Click the icon that {_PURPOSES[one.text]}.", one) for one in asked if one.role in _ICONS and one.text in _PURPOSES],
    ]
    return [way for way in ways if way]


def _is_whole(element: Element, seen: Observation) -> bool:
    """Centres of elements are rounded."""
    across = element.x - element.width / 2 >= -1 and element.x + element.width / 2 <= seen.screen_width + 1
    return across and element.y - element.height / 2 >= -1 and element.y + element.height / 2 <= seen.screen_height + 1


def _box(element: Element) -> list[int]:
    return [element.x, element.y, element.width, element.height]


def _task(app: str, rng: random.Random, setup: Sequence[SetupStep]) -> TaskInstance:
    outputs: dict[str, str] = {}
    choice = rng.random()

    def prepare(get: Getter) -> None:
        ways = _questions(app, get("screen"))
        if not ways:
            raise TaskFailed(f"nothing on the screen of {app} can be asked for")
        question, element = _chosen(ways, choice)
        outputs.update(instruction=question, target=json.dumps(_box(element)))

    def evaluate(get: Getter) -> Evaluation:
        return _judged(json.loads(get("outputs")["target"]), get("pointed"))

    def demonstrate(said: str, observation: Observation, actions: Sequence[Action], get: Getter) -> Action:
        target = json.loads(outputs["target"])
        return click(observation, next(one for one in observation.elements if _box(one) == target))

    return TaskInstance(None, tuple(setup), evaluate, demonstrate, prepare=prepare, outputs=outputs, is_pointed=True)


def _chosen(ways: Sequence[Sequence[tuple[str, Element]]], choice: float) -> tuple[str, Element]:
    """One question, by a number from 0 to 1: first the way of asking, then the thing."""
    place = choice * len(ways)
    way = ways[int(place)]
    return way[int((place - int(place)) * len(way))]


def _judged(target: Sequence[int], pointed: Sequence[int] | None) -> Evaluation:
    if not pointed:
        return Evaluation(0.0, False, "nothing was pointed at")
    (x, y, width, height), (at_x, at_y) = target, pointed
    hit = abs(at_x - x) * 2 <= width and abs(at_y - y) * 2 <= height
    where = f"({at_x}, {at_y}) is {'in' if hit else 'not in'} {width} x {height} pixels around ({x}, {y})"
    return Evaluation(1.0 if hit else 0.0, hit, where)


def _calc(rng: random.Random) -> Sequence[SetupStep]:
    words = nouns(rng, 8)
    places = rng.sample([f"{column}{row}" for column in "ABCDEF" for row in range(1, 15)], 8)
    cells: dict[str, Any] = dict(zip(places, words, strict=True))
    return (SetupStep("calc_open", {"cells": cells, "active_cell": "A1"}),)


def _files(rng: random.Random) -> Sequence[SetupStep]:
    names = file_names(rng, 8)
    written = [SetupStep("write_file", {"path": f"shown/{name}", "text": name}) for name in names]
    return (*written, SetupStep("files_open", {"folder": "shown"}))


def _opened(app: str) -> Callable[[random.Random], Sequence[SetupStep]]:
    return lambda _: (SetupStep("open_app", {"app": app}),)


def _family(app: str, what: str, setup: Callable[[random.Random], Sequence[SetupStep]]) -> Family:
    return Family(
        name=f"point-{app}",
        app=app,
        description=f"one click on what is asked for: {what}",
        build=lambda rng: _task(app, rng, setup(rng)),
        drivers=REAL_DRIVERS,
        is_default=False,
    )


FAMILIES = (
    _family("calc", "a menu, a button, an icon by what it does, a cell by its text", _calc),
    _family("files", "a menu, a button, a file by its name", _files),
    _family("gimp", "a menu or a button", _opened("gimp")),
    _family("impress", "a menu, a button, an icon by what it does, a slide", _opened("impress")),
    _family("writer", "a menu, a button, an icon by what it does", _opened("writer")),
)
