"""One suite for every desktop driver: what `env_server.driver.DesktopDriver` promises.

The local driver takes part where this machine has its applications; the others always do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from computerrl.common.actions import parse_action
from computerrl.common.config import DesktopConfig
from computerrl.common.errors import DesktopBroken, EnvError, TaskFailed
from computerrl.common.messages import Action, Evaluation, Observation
from computerrl.env_server.client import read_screenshot
from computerrl.env_server.driver import DesktopDriver, LiveDesktop, SetupStep, TaskInstance
from computerrl.env_server.drivers import make_driver
from computerrl.env_server.drivers.local import missing_programs
from computerrl.env_server.drivers.screenshots import ScreenshotStore

DRIVERS = ("scripted", "apptainer", *(() if missing_programs() else ("local",)))

PAGE = SetupStep("web_page", {"page": "click-checkboxes", "seed": 11})
SHEET = SetupStep("calc_open", {"cells": {"A1": "apple", "B2": "12"}, "active_cell": "A1"})
EDITOR = SetupStep("editor_open", {"path": "note.txt", "text": "hello"})
FILES = SetupStep("files_open", {"folder": "."})
APPS = {"chromium": PAGE, "calc": SHEET, "editor": EDITOR, "files": FILES}


@pytest.fixture(scope="module", params=DRIVERS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LiveDesktop, Path, str]]:
    if request.param == "apptainer":
        shared = request.getfixturevalue("shared_desktops").get("core")
        yield shared.driver, shared.folder, request.param
        return
    folder = tmp_path_factory.mktemp(request.param)
    store = ScreenshotStore(folder, incarnation="test")
    driver = make_driver(DesktopConfig(driver=request.param), index=0, folder=folder / "logs", screenshots=store)
    yield driver, folder, request.param
    driver.close()
    store.close()


@pytest.fixture
def desktop(made: tuple[LiveDesktop, Path, str]) -> LiveDesktop:
    return made[0]


def task(*steps: SetupStep, instruction: str | None = "do it") -> TaskInstance:
    return TaskInstance(instruction, steps, lambda get: Evaluation(0.0, False, ""), lambda *_: Action("done", {}))


def act(desktop: DesktopDriver, text: str) -> tuple[Observation, str]:
    result = desktop.step(parse_action(text))
    return result.observation, result.action_error


def number(observation: Observation, role: str, text: str | None = None) -> int:
    return next(e.number for e in observation.elements if e.role == role and text in (None, e.text))


@pytest.mark.parametrize("app", sorted(APPS))
def test_reset_shows_the_application_of_the_last_step(made: tuple[DesktopDriver, Path, str], app: str) -> None:
    desktop, folder, _ = made
    instruction, observation = desktop.reset(task(*(step for step in APPS.values() if step is not APPS[app]), APPS[app]))
    assert (instruction, observation.app) == ("do it", app)
    assert observation.window_title and observation.result == ""
    assert (observation.screen_width, observation.screen_height) == (800, 600)
    assert observation.screenshot is not None and read_screenshot(folder, observation.screenshot)
    assert [e.number for e in observation.elements] == list(range(1, len(observation.elements) + 1))
    assert all(0 <= e.x < 800 and 0 <= e.y < 600 and e.width > 0 and e.height > 0 for e in observation.elements)
    assert any(e.in_content for e in observation.elements) or app == "files"


@pytest.mark.parametrize("app", sorted(APPS))
def test_reset_of_the_same_task_twice_gives_the_same_first_screen(desktop: DesktopDriver, app: str) -> None:
    first, second = (desktop.reset(task(APPS[app]))[1] for _ in range(2))
    assert first.elements == second.elements and first.window_title == second.window_title
    assert first.screenshot is not None and second.screenshot is not None
    assert first.screenshot.content_hash == second.screenshot.content_hash


def test_reset_without_instruction_takes_the_page_s_own(desktop: DesktopDriver) -> None:
    instruction, _ = desktop.reset(task(PAGE, instruction=None))
    assert instruction.startswith("Select ")
    assert desktop.get("web_page")["fields"]["utterance"] == instruction


def test_reset_forgets_files_of_the_last_task(desktop: DesktopDriver) -> None:
    desktop.reset(task(SetupStep("write_file", {"path": "old.txt", "text": "x"}), FILES))
    assert desktop.get("folder_listing") == ["old.txt"]
    desktop.reset(task(SetupStep("make_folder", {"path": "new"}), FILES))
    assert desktop.get("folder_listing") == ["new/"]
    assert desktop.get("file_text", path="old.txt") is None


def test_clicks_on_a_page_change_states_and_score(desktop: DesktopDriver) -> None:
    instruction, observation = desktop.reset(task(PAGE, instruction=None))
    wanted = instruction.removeprefix("Select ").removesuffix(" and click Submit.").split(", ")
    before = desktop.get("web_page")
    assert not before["done"]
    for text in wanted:
        box = number(observation, "check-box", text)
        observation, error = act(desktop, f"click({box})")
        assert error == ""
        assert next(e for e in observation.elements if e.number == box).states.count("checked") == 1
    result = desktop.step(parse_action(f"click({number(observation, 'button', 'Submit')})"))
    assert result.finished and result.action_error == ""
    after = desktop.get("web_page")
    assert after["done"] and after["raw_reward"] == 1.0 and after["episode_id"] == before["episode_id"] + 1


def test_cells_are_read_and_set_by_api_and_by_mouse_and_keys(desktop: DesktopDriver) -> None:
    _, observation = desktop.reset(task(SHEET))
    observation, error = act(desktop, f"click({number(observation, 'table-cell', '12')})")
    assert error == ""
    act(desktop, 'type("34", enter=True)')
    act(desktop, 'calc.set_cell("C3", "word")')
    act(desktop, 'calc.set_cell("D1", 1.5)')
    assert desktop.get("calc_cells", range="A1:D3") == [["apple", "", "", "1.5"], ["", "34", "", ""], ["", "", "word", ""]]
    assert act(desktop, 'calc.get_cell("B2")')[0].result == "34"
    assert "34" in [e.text for e in desktop.observe().elements if e.role == "table-cell"]


def test_typed_text_is_saved_by_the_editor(desktop: DesktopDriver) -> None:
    desktop.reset(task(SetupStep("editor_open", {"path": "note.txt", "text": ""})))
    _, error = act(desktop, 'type("teh Word, (a+b) = 5%")')
    assert error == "" and desktop.get("file_text", path="note.txt") == ""
    assert desktop.get("editor_text").rstrip("\n") == "teh Word, (a+b) = 5%"
    act(desktop, 'key("ctrl+s")')
    assert desktop.get("file_text", path="note.txt").rstrip("\n") == "teh Word, (a+b) = 5%"


def test_file_actions_change_the_folder_and_show_their_results(desktop: DesktopDriver) -> None:
    desktop.reset(task(SetupStep("write_file", {"path": "a.txt", "text": "x"}), SetupStep("make_folder", {"path": "b"}), FILES))
    assert act(desktop, 'files.move("a.txt", "b")')[1] == ""
    assert act(desktop, 'files.list("b")')[0].result == "a.txt"
    assert desktop.get("folder_listing") == ["b/", "b/a.txt"]


@pytest.mark.parametrize(
    "text",
    [
        "click(9999)",
        'files.move("none", "nowhere")',
        'files.read("../../etc/passwd")',
        'calc.set_cell("not a cell", 1)',
        'apps.switch("nothing")',
        "editor.save()",
    ],
)
def test_mistakes_of_the_agent_come_back_as_action_errors(desktop: DesktopDriver, text: str) -> None:
    desktop.reset(task(FILES))
    observation, error = act(desktop, text)
    assert error and observation.app == "files"
    assert desktop.healthy()


def test_switching_brings_an_open_application_to_the_front(desktop: DesktopDriver) -> None:
    desktop.reset(task(EDITOR, SHEET))
    assert act(desktop, 'apps.switch("editor")')[0].app == "editor"
    assert act(desktop, 'apps.switch("calc")')[0].app == "calc"


@pytest.mark.parametrize(
    "step",
    [
        SetupStep("web_page", {"page": "no-such-page", "seed": 1}),
        SetupStep("files_open", {"folder": "missing"}),
        SetupStep("calc_open", {"cells": {"nonsense": "1"}, "active_cell": "A1"}),
        SetupStep("dance", {}),  # type: ignore[arg-type]
    ],
    ids=["page", "folder", "cells", "kind"],
)
def test_task_that_cannot_be_set_up_fails_and_the_desktop_lives_on(desktop: DesktopDriver, step: SetupStep) -> None:
    with pytest.raises(TaskFailed):
        desktop.reset(task(step))
    assert desktop.healthy()
    assert desktop.reset(task(FILES))[1].app == "files"


def test_facts_nobody_knows_fail_the_task(desktop: DesktopDriver) -> None:
    desktop.reset(task(FILES))
    with pytest.raises(TaskFailed):
        desktop.get("weather")  # type: ignore[arg-type]


def test_observe_changes_nothing(desktop: DesktopDriver) -> None:
    _, first = desktop.reset(task(EDITOR))
    second = desktop.observe()
    assert first.elements == second.elements and first.screenshot == second.screenshot


def test_frame_is_a_copy_of_the_screen_as_it_is(desktop: LiveDesktop) -> None:
    desktop.reset(task(SHEET))
    before = desktop.frame()
    assert before.shape == (600, 800, 3) and before.dtype == np.uint8 and before.flags.writeable
    kept = before.copy()
    act(desktop, 'calc.set_cell("A2", "changed")')
    assert not np.array_equal(desktop.frame(), before) and np.array_equal(before, kept)


def test_healthy_answers_soon_from_another_thread_during_a_call(desktop: DesktopDriver) -> None:
    worker = threading.Thread(target=lambda: desktop.reset(task(PAGE)))
    worker.start()
    started = time.monotonic()
    assert desktop.healthy()
    assert worker.is_alive() or time.monotonic() - started < 1.5  # a short call is over before
    worker.join()


@pytest.mark.parametrize("kind", DRIVERS)
def test_close_twice_and_use_after_it(kind: str, tmp_path: Path) -> None:
    store = ScreenshotStore(tmp_path, incarnation="test")
    config = DesktopConfig(driver=kind, apps=("files",))  # type: ignore[arg-type]
    driver = make_driver(config, index=0, folder=tmp_path / "logs", screenshots=store)
    assert driver.healthy()
    driver.close()
    driver.close()
    assert not driver.healthy()
    if kind != "scripted":
        with pytest.raises((DesktopBroken, EnvError)):
            driver.observe()
    store.close()
