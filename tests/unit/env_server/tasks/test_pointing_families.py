"""Families that ask where something is: what is asked for, and which pixels answer it."""

from __future__ import annotations

from typing import Any

import pytest

from computerrl.common.actions import render_action
from computerrl.common.errors import TaskFailed
from computerrl.common.messages import Element, Observation
from computerrl.env_server.tasks import FAMILIES
from computerrl.env_server.tasks.pointing import _PURPOSES

WIDTH, HEIGHT = 800, 600


def element(number: int, role: str, text: str, x: int = 100, y: int = 100, *, states: tuple[str, ...] = ()) -> Element:
    return Element(number, role, text, x, y, 40, 20, states, True)


def screen(*elements: Element) -> Observation:
    return Observation("calc", "Sheet", elements, None, WIDTH, HEIGHT, "quiet", 0.01, "")


def asked(*elements: Element, app: str = "calc", seed: int = 0) -> tuple[str, Any, Observation]:
    """(instruction, instance, screen)."""
    seen, task = screen(*elements), FAMILIES[f"point-{app}"].make(seed)
    assert task.prepare is not None and task.is_pointed
    task.prepare(lambda kind, **_: {"screen": seen}[kind])
    return task.outputs["instruction"], task, seen


def succeeds(task: Any, pointed: tuple[int, int] | None) -> bool:
    return bool(task.evaluate(lambda kind, **_: {"outputs": task.outputs, "pointed": pointed}[kind]).success)


@pytest.mark.parametrize(
    ("one", "app", "question"),
    [
        (element(1, "menu", "Format"), "calc", "Click Format."),
        (element(1, "page-tab", "Sheet1"), "calc", "Click Sheet1."),
        (element(1, "table-cell", "river"), "calc", "Click the cell with river."),
        (element(1, "table-cell", "plan.txt"), "files", "Click the file plan.txt."),
        (element(1, "list-item", "Slide 1"), "impress", "Click Slide 1 in the list of slides."),
    ],
)
def test_thing_is_asked_for_by_its_name_or_by_its_text(one: Element, app: str, question: str) -> None:
    instruction, task, seen = asked(one, app=app)
    assert instruction == question
    action = task.demonstrate(instruction, seen, (), None)
    assert render_action(action) == f'click("{one.text}")'


def test_icon_is_asked_for_by_its_name_and_by_what_it_does() -> None:
    found = {asked(element(1, "toggle-button", "Bold"), seed=seed)[0] for seed in range(20)}
    assert found == {"Click Bold.", "Click the icon that makes letters thick."}


def test_every_way_of_asking_and_every_thing_has_its_turn() -> None:
    things = [element(n, "menu", name) for n, name in enumerate(("File", "Edit", "View"))]
    things += [element(9, "table-cell", "river"), element(10, "button", "Print")]
    found = {asked(*things, seed=seed)[0] for seed in range(200)}
    names = {"Click File.", "Click Edit.", "Click View.", "Click Print."}
    assert found == names | {"Click the cell with river.", "Click the icon that puts the file on paper."}


@pytest.mark.parametrize(
    "others",
    [
        (element(2, "menu", "File "), element(3, "label", "File")),
        (element(2, "menu", "Off", 790, 100), element(3, "menu", "Above", 100, -3)),
        (element(2, "button", "Undo", states=("disabled",)),),
        (element(2, "button", "x" * 41), element(3, "button", "  ")),
        (element(2, "label", "Name"),),
    ],
)
def test_what_cannot_be_told_from_others_seen_whole_or_used_is_not_asked_for(others: tuple[Element, ...]) -> None:
    for seed in range(10):
        assert asked(element(1, "menu", "Right"), *others, seed=seed)[0] == "Click Right."


def test_screen_without_anything_to_ask_for_is_no_task() -> None:
    with pytest.raises(TaskFailed, match="nothing on the screen of calc"):
        asked(element(1, "label", "Name"))


@pytest.mark.parametrize(
    ("pointed", "success"),
    [(None, False), ((100, 100), True), ((80, 90), True), ((120, 110), True), ((79, 100), False), ((100, 111), False)],
)
def test_every_pixel_of_the_thing_answers_and_no_other(pointed: tuple[int, int] | None, success: bool) -> None:
    _, task, _ = asked(element(1, "menu", "File"))
    assert succeeds(task, pointed) is success


def test_no_purpose_names_its_icon() -> None:
    assert len(set(_PURPOSES.values())) == len(_PURPOSES)
    told = [name for name, purpose in _PURPOSES.items() if name.lower() in purpose.lower().split()]
    assert not told


def test_instances_are_not_played_unless_they_are_named() -> None:
    pointing = [family for name, family in FAMILIES.items() if name.startswith("point-")]
    assert len(pointing) == 5 and not any(family.is_default for family in pointing)
