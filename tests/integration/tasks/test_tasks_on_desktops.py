"""Every task family on a real contained desktop: untouched it scores 0, demonstrated 1, and pages show what was predicted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from computerrl.common.actions import parse_action, render_action
from computerrl.common.config import TasksConfig
from computerrl.common.messages import Action, Element, TaskRef
from computerrl.env_server.client import read_screenshot
from computerrl.env_server.driver import DesktopDriver, TaskInstance
from computerrl.env_server.tasks import FAMILIES, task_instance
from computerrl.env_server.tasks.pages import page
from tests.support.desktops import SharedDesktops
from tests.support.tiers import one_in

SEEDS = (0, 1, 2)
NAMES = sorted(name for name, family in FAMILIES.items() if family.is_default)
EXACT_PAGES = ("web-click-button", "web-click-option", "web-click-checkboxes", "web-enter-text")


@pytest.fixture(scope="module")
def folder(shared_desktops: SharedDesktops) -> Path:
    return shared_desktops.get("core").folder


@pytest.fixture(scope="module")
def desktop(shared_desktops: SharedDesktops) -> DesktopDriver:
    return shared_desktops.get("core").driver


@pytest.mark.parametrize("seed", one_in(3, SEEDS))
@pytest.mark.parametrize("family", NAMES)
def test_family_on_desktop_untouched_scores_zero_and_demonstrated_one(
    desktop: DesktopDriver, folder: Path, family: str, seed: int
) -> None:
    _untouched_zero_and_demonstrated_one(desktop, folder, FAMILIES[family].make(seed), app=FAMILIES[family].app)


@pytest.mark.parametrize("seed", one_in(3, SEEDS))
def test_cell_is_set_by_hand_where_calls_are_refused(desktop: DesktopDriver, folder: Path, seed: int) -> None:
    task = task_instance(TaskRef("calc-set-cell", seed, "demonstration"), tasks=TasksConfig(actions="gui"))
    actions = _untouched_zero_and_demonstrated_one(desktop, folder, task, app="calc")
    assert [action.name for action in actions] == ["key", "type", "type"]


def _untouched_zero_and_demonstrated_one(desktop: DesktopDriver, folder: Path, task: TaskInstance, *, app: str) -> list[Action]:
    instruction, observation = desktop.reset(task)
    assert observation.app == app
    assert observation.screenshot is not None and read_screenshot(folder, observation.screenshot)
    assert task.evaluate(desktop.get).reward == 0.0
    actions: list[Action] = []
    while len(actions) < 5:
        action = parse_action(render_action(task.demonstrate(instruction, observation, actions, desktop.get)))
        if action.name == "done":
            break
        result = desktop.step(action)
        assert result.action_error == "", (render_action(action), _seen(observation.elements))
        observation = result.observation
        actions.append(action)
        if result.finished:
            break
    outcome = task.evaluate(desktop.get)
    assert outcome.success, (instruction, list(map(render_action, actions)), outcome.detail, _seen(observation.elements))
    return actions


def test_file_manager_begins_with_its_first_file_selected_however_late_files_come(desktop: DesktopDriver) -> None:
    for seed in SEEDS:
        _, seen = desktop.reset(FAMILIES["files-move"].make(seed))
        first = min(element.number for element in seen.elements)
        selected = [element.number for element in seen.elements if "selected" in element.states]
        assert first in selected and len({_row(seen.elements, number) for number in selected}) == 1, _seen(seen.elements)


def _row(elements: Sequence[Element], number: int) -> int:
    return next(element.y for element in elements if element.number == number)


@pytest.mark.parametrize("family", EXACT_PAGES)
def test_page_on_desktop_shows_the_predicted_instance(desktop: DesktopDriver, family: str) -> None:
    for seed in SEEDS:
        task = FAMILIES[family].make(seed)
        args = task.setup[0].args
        expected = page(args["page"], args["seed"])
        instruction, observation = desktop.reset(task)
        assert instruction == expected.utterance
        seen = [element.text.strip() for element in observation.elements if element.in_content]
        for widget in expected.widgets:
            assert widget.role in ("static", "entry") or widget.text in seen


def _seen(elements: Sequence[object]) -> str:
    return "; ".join(str(element) for element in elements)
