"""With `window_title: false`, no text of a prompt with images tells what the image shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from computerrl.actor.prompts.formats import make_format
from computerrl.actor.prompts.formats.base import PastAction, PromptFormat
from computerrl.common.actions import FINAL_ACTIONS, render_action
from computerrl.common.config import DesktopConfig, PromptConfig
from computerrl.common.messages import Action, Observation
from computerrl.env_server.drivers.screenshots import ScreenshotStore
from computerrl.env_server.drivers.scripted import ScriptedDriver
from computerrl.env_server.tasks import FAMILIES
from tests.support.data.format_data import PICTURE, SCREEN, told_names

FORMATS = ("compact_vision", "computerrl_vision", "ui_tars", "qwen_computer_use")
ON_SCREEN = replace(SCREEN, screenshot=PICTURE, window_title="Budget.ods")
REFUSED = "3 elements are 'Submit': give one's number (1, 4, 7)"


def form_of(name: str, *, window_title: bool = False) -> PromptFormat:
    return make_format(PromptConfig.model_validate({"format": name, "window_title": window_title}))


def text_of(form: PromptFormat, screen: Observation, *past: PastAction) -> str:
    return "\n".join(f"{one.text}" for one in form.messages("Do it.", screen, [], past, num_images=2))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("family", sorted(n for n, f in FAMILIES.items() if n.startswith("web-") and "scripted" in f.drivers))
def test_played_demonstration_tells_no_name(tmp_path: Path, family: str, name: str) -> None:
    form = form_of(name)
    driver = ScriptedDriver(DesktopConfig(driver="scripted"), screenshots=ScreenshotStore(tmp_path, incarnation="t"))
    task = FAMILIES[family].make(3)
    instruction, seen = driver.reset(task)
    past: list[PastAction] = []
    done: list[Action] = []
    finished = False
    while not finished and len(past) < 8:
        assert told_names(form, instruction, seen, past) == []
        action = task.demonstrate(instruction, seen, done, driver.get)
        if action.name in FINAL_ACTIONS:
            break
        said = form.render(render_action(action), seen, seed=str(len(past)))
        result = driver.step(form.parse(said, seen))
        past.append(PastAction(said, error=REFUSED if len(past) % 2 else "", screenshot=seen.screenshot))
        done.append(action)
        seen, finished = result.observation, result.finished
    assert finished and task.evaluate(driver.get).success and past


@pytest.mark.parametrize("name", FORMATS)
def test_error_of_the_desktop_is_not_quoted_and_one_of_the_parser_is(name: str) -> None:
    refused, malformed = PastAction("x", error=REFUSED), PastAction("x", error="write x, y", is_malformed=True)
    hidden = text_of(form_of(name), ON_SCREEN, refused)
    assert "Submit" not in hidden and "not done" in hidden
    assert "write x, y" in text_of(form_of(name), ON_SCREEN, malformed)
    assert "elements are 'Submit'" in text_of(form_of(name, window_title=True), ON_SCREEN, refused)


@pytest.mark.parametrize("name", FORMATS)
def test_neither_application_nor_title_is_told(name: str) -> None:
    hidden = text_of(form_of(name), ON_SCREEN)
    assert "Budget" not in hidden and "calc" not in hidden.lower()
    assert told_names(form_of(name), "Do it.", ON_SCREEN, [PastAction(form_of(name).render("click(1)", ON_SCREEN))]) == []


def test_switch_is_what_hides_them() -> None:
    form = form_of("computerrl_vision", window_title=True)
    said = form.render("click(1)", ON_SCREEN)
    assert told_names(form, "Do it.", ON_SCREEN, [PastAction(said)]) == ["the system text", "Budget.ods", "Submit", "calc"]
