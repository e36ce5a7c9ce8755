"""Typing on the scripted desktop: into a field that is clicked first, in place of what it holds; text that comes back."""

from __future__ import annotations

import pytest

from computerrl.common.actions import parse_action
from computerrl.common.config import DesktopConfig
from computerrl.common.messages import Evaluation, Observation
from computerrl.env_server.driver import SetupStep, TaskInstance
from computerrl.env_server.drivers.scripted import ScriptedDriver


def opened(*steps: SetupStep) -> tuple[ScriptedDriver, Observation]:
    driver = ScriptedDriver(DesktopConfig(driver="scripted", observation="tree"))
    task = TaskInstance("x", steps, lambda get: Evaluation(0.0, False, ""), lambda *_: parse_action("done()"))
    return driver, driver.reset(task)[1]


def act(driver: ScriptedDriver, *texts: str) -> Observation:
    results = [driver.step(parse_action(text)) for text in texts]
    assert [result.action_error for result in results] == [""] * len(texts)
    return results[-1].observation


def test_type_with_target_clicks_first_and_overwrite_replaces_only_that_field() -> None:
    driver, screen = opened(SetupStep("web_page", {"page": "enter-text", "seed": 3}))
    field = next(element for element in screen.elements if element.role == "entry")
    act(driver, f'type("old", target={field.number})', 'type("er")')
    assert act(driver, f'type("new", overwrite=True, target={field.x}, y={field.y})').elements[0].text == "new"


def test_type_with_overwrite_in_a_sheet_keeps_the_other_cells() -> None:
    driver, _ = opened(SetupStep("calc_open", {"cells": {"A1": "a", "B1": "b"}, "active_cell": "A1"}))
    act(driver, 'type("draft")', 'type("new", enter=True, overwrite=True, target="b")')
    assert driver.get("calc_cells", range="A1:B1") == [["draft", "new"]]


def test_type_with_overwrite_in_the_editor_replaces_the_text() -> None:
    driver, _ = opened(SetupStep("editor_open", {"path": "a.txt", "text": "old"}))
    act(driver, 'type("new", overwrite=True)')
    assert driver.get("editor_text") == "new"


@pytest.mark.parametrize("target", ["99", '"nothing"', "700, y=500"])
def test_type_at_a_target_that_is_not_there_types_nothing(target: str) -> None:
    driver, _ = opened(SetupStep("editor_open", {"path": "a.txt", "text": "old"}))
    assert driver.step(parse_action(f'type("new", target={target})')).action_error
    assert driver.get("editor_text") == "old"


def test_quote_comes_back_as_the_result() -> None:
    driver, _ = opened(SetupStep("editor_open", {"path": "a.txt", "text": ""}))
    assert act(driver, 'quote("it\'s \\"3\\"\\nlines")').result == 'it\'s "3"\nlines'
