"""A reset removes everything the last task left: half-typed text, open menus and dialogs, closed windows, dead applications."""

from __future__ import annotations

import io
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from PIL import Image, ImageChops

from computerrl.common.messages import Action, Evaluation, Observation
from computerrl.env_server.client import read_screenshot
from computerrl.env_server.driver import SetupStep, TaskInstance
from computerrl.env_server.drivers.guest_driver import GuestDriver
from computerrl.env_server.tasks.osworld.desktop import CalledDesktop
from tests.support.desktops import Player, key, open_desktop

PAGE = SetupStep("web_page", {"page": "click-checkboxes", "seed": 7})
SHEET = SetupStep("calc_open", {"cells": {"A1": "apple", "C2": "12"}, "active_cell": "A1"})
EDITOR = SetupStep("editor_open", {"path": "note.txt", "text": "first line\n"})
FILES = SetupStep("files_open", {"folder": "."})
APPS = {"chromium": PAGE, "calc": SHEET, "editor": EDITOR, "files": FILES}


STATUS_BAR_TOP = 577


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the desktop's screenshots lie."""
    return tmp_path_factory.mktemp("desktop")


@pytest.fixture(scope="module")
def desktop(folder: Path) -> Iterator[GuestDriver]:
    with open_desktop(folder) as driver:
        yield driver


def task(*steps: SetupStep) -> TaskInstance:
    return TaskInstance("none", steps, lambda get: Evaluation(0.0, False, ""), lambda *_: Action("done", {}))


def typed(text: str, *, enter: bool = False) -> Action:
    return Action("type", {"text": text, "enter": enter})


def view(item: str) -> list[Action]:
    """An item of the View menu."""
    return [key("alt+v"), Action("click", {"target": item})]


def summary(observation: Observation) -> tuple[object, ...]:
    rows = [(e.role, e.text, e.x, e.y, e.states) for e in observation.elements]
    return observation.app, observation.window_title, rows, observation.screenshot


def play(desktop: GuestDriver, actions: Sequence[Action]) -> Observation:
    observation = desktop.observe()
    for action in actions:
        observation = desktop.step(action).observation
    return observation


MESSES: dict[str, tuple[SetupStep, list[Action]]] = {
    "editor unsaved text": (EDITOR, [typed("never saved")]),
    "editor asks to save": (EDITOR, [typed("x"), key("ctrl+w")]),
    "editor open dialog": (EDITOR, [key("ctrl+o")]),
    "editor menu": (EDITOR, [key("alt+f")]),
    "editor closed": (EDITOR, [key("ctrl+q")]),
    "calc half-typed cell": (SHEET, [typed("half")]),
    "calc format dialog": (SHEET, [key("ctrl+1")]),
    "calc menu": (SHEET, [key("alt+f")]),
    "calc second sheet and formats": (SHEET, [key("ctrl+b"), typed("5", enter=True), key("ctrl+plus")]),
    "calc scrolled": (SHEET, [key("ctrl+end"), key("pagedown"), key("pagedown")]),
    "calc save as": (SHEET, [key("ctrl+shift+s")]),
    "calc sidebar": (SHEET, [key("ctrl+f5")]),
    "calc value highlighting": (SHEET, [key("ctrl+f8")]),
    "calc extending selection": (SHEET, [key("f8")]),
    "calc filter": (SHEET, [key("ctrl+shift+l")]),
    "calc page breaks": (SHEET, view("Page Break")),
    "calc no formula bar": (SHEET, view("Formula Bar")),
    "calc no status bar": (SHEET, view("Status Bar")),
    "calc no headers": (SHEET, view("View Headers")),
    "calc no grid": (SHEET, view("View Grid Lines")),
    "calc document closed": (SHEET, [key("ctrl+w")]),
    "editor without menus": (EDITOR, [key("ctrl+m")]),
    "editor search bar": (EDITOR, [key("ctrl+f")]),
    "editor line numbers": (EDITOR, view("Line Numbers")),
    "files rename box": (FILES, [key("ctrl+a"), key("f2")]),
    "files elsewhere": (FILES, [key("alt+up")]),
    "files context menu": (FILES, [Action("click", {"target": 400, "y": 500, "button": "right"})]),
    "files as icons": (FILES, [key("ctrl+1")]),
    "files side pane": (FILES, [key("ctrl+b")]),
    "files without menus": (FILES, [key("ctrl+m")]),
    "files two panes": (FILES, [key("f3")]),
    "files two tabs": (FILES, [key("ctrl+t")]),
    "files address line": (FILES, [key("ctrl+l")]),
    "files search": (FILES, [key("ctrl+f")]),
    "files closed": (FILES, [key("ctrl+w")]),
    "page half done": (PAGE, [key("tab"), key("space")]),
    "editor in full screen": (EDITOR, [key("f11")]),
    "calc in full screen": (SHEET, [key("ctrl+shift+j")]),
}
DIALOGS = ("calc format dialog", "calc save as", "editor asks to save", "editor open dialog")


@pytest.fixture(scope="module")
def fresh(desktop: GuestDriver) -> dict[str, tuple[object, ...]]:
    """What each application shows right after a reset on a clean desktop."""
    for step in APPS.values():
        desktop.reset(task(step))
    return {app: summary(desktop.reset(task(step))[1]) for app, step in APPS.items()}


@pytest.mark.parametrize("mess", sorted(MESSES))
def test_reset_after_a_mess_shows_the_fresh_screen(desktop: GuestDriver, fresh: dict[str, tuple[object, ...]], mess: str) -> None:
    step, actions = MESSES[mess]
    desktop.reset(task(step))
    play(desktop, actions)
    app = next(name for name, known in APPS.items() if known is step)
    assert summary(desktop.reset(task(step))[1]) == fresh[app]
    other = "calc" if app != "calc" else "editor"
    assert summary(desktop.reset(task(APPS[other]))[1]) == fresh[other]


@pytest.mark.parametrize("mess", DIALOGS)
def test_reset_closes_a_dialog_that_lies_behind_another_application(
    desktop: GuestDriver, fresh: dict[str, tuple[object, ...]], mess: str
) -> None:
    step, actions = MESSES[mess]
    desktop.reset(task(FILES, step))
    running = office_pid(desktop)
    play(desktop, [*actions, Action("apps.switch", {"app": "files"})])
    assert summary(desktop.reset(task(SHEET))[1]) == fresh["calc"]
    assert office_pid(desktop) == running, "a dialog cost its application a restart"


def office_pid(desktop: GuestDriver) -> str:
    return CalledDesktop(desktop.get).run("pgrep soffice.bin", timeout_s=30.0).stdout


def test_office_that_a_set_up_starts_leaves_no_file_and_takes_none(desktop: GuestDriver) -> None:
    """Calc's own sheet gets its name by being saved under it."""
    for set_up, listing in (
        ((SHEET,), []),
        ((SetupStep("write_file", {"path": "sheet.ods", "text": "mine"}), SHEET), ["sheet.ods"]),
    ):
        desktop.reset(task(EDITOR))
        CalledDesktop(desktop.get).run("pkill -KILL soffice.bin", timeout_s=30.0)
        desktop.reset(task(*set_up))
        assert desktop.get("folder_listing") == listing
    assert desktop.get("file_text", path="sheet.ods") == "mine"


def test_reset_makes_a_status_bar_that_has_grown_narrow_again(
    desktop: GuestDriver, folder: Path, fresh: dict[str, tuple[object, ...]]
) -> None:
    def status_bar(shown: Observation) -> Image.Image:
        assert shown.screenshot is not None
        image = Image.open(io.BytesIO(read_screenshot(folder, shown.screenshot))).convert("L")
        return image.crop((0, STATUS_BAR_TOP, *image.size))

    def differs(shown: Observation) -> bool:
        # Encoding with loss leaves differences of some units in a text that has not changed.
        return ImageChops.difference(status_bar(shown), before).getextrema()[1] > 64

    before = status_bar(desktop.reset(task(SHEET))[1])
    # The active cell is a number now: its sum needs more room.
    desktop.step(key("ctrl+end"))
    Player(desktop).wait_for(differs)
    assert summary(desktop.reset(task(SHEET))[1]) == fresh["calc"]


@pytest.mark.parametrize("app", sorted(APPS))
def test_reset_with_the_same_task_twice_shows_the_same_picture(desktop: GuestDriver, app: str) -> None:
    assert summary(desktop.reset(task(APPS[app]))[1]) == summary(desktop.reset(task(APPS[app]))[1])


def test_task_that_opens_nothing_begins_with_the_file_manager_whatever_was_shown_before(desktop: GuestDriver) -> None:
    """And with nothing of the browser's, which is locked while it shows a page of ours."""
    begun = []
    for steps in ((), (PAGE,), (SHEET,), (EDITOR,), (FILES,)):
        desktop.reset(task(*steps))
        begun.append(summary(desktop.reset(task())[1])[:3])
    assert begun[0][0] == "files" and all(one == begun[0] for one in begun)


@pytest.mark.parametrize(
    ("app", "program"),
    [("chromium", "chromium"), ("calc", "soffice.bin"), ("editor", "mousepad"), ("files", "thunar")],
)
def test_reset_after_an_application_was_killed_starts_it_again(
    desktop: GuestDriver, fresh: dict[str, tuple[object, ...]], app: str, program: str
) -> None:
    desktop.reset(task(APPS[app]))
    for pid in processes_of(desktop):
        if Path(f"/proc/{pid}/comm").read_text().strip() == program:
            os.kill(pid, signal.SIGKILL)
    shown = desktop.reset(task(APPS[app]))[1]
    assert (shown.app, len(shown.elements)) == (app, len(fresh[app][2]))  # type: ignore[arg-type]


def test_calls_on_a_closed_workbook_are_refused_and_its_cells_are_empty(desktop: GuestDriver) -> None:
    desktop.reset(task(SHEET))
    play(desktop, [key("ctrl+w")])
    result = desktop.step(Action("calc.get_workbook_info", {}))
    assert "no document is open in calc" in result.action_error
    assert desktop.get("calc_cells", range="A1:B2") == [["", ""], ["", ""]]
    assert summary(desktop.reset(task(SHEET))[1])[0] == "calc"
    assert desktop.get("calc_cells", range="A1:C2") == [["apple", "", ""], ["", "", "12"]]
    # The office was started anew: what is typed must land in it without a click.
    desktop.step(typed("pear", enter=True))
    assert desktop.get("calc_cells", range="A1") == [["pear"]]


def test_calls_in_a_print_preview_are_refused_and_its_cells_are_still_known(desktop: GuestDriver) -> None:
    desktop.reset(task(SHEET))
    play(desktop, [key("ctrl+shift+o")])
    deadline = time.monotonic() + 20.0
    # On a busy machine the preview comes later than the screen is quiet.
    while not (error := desktop.step(Action("calc.get_workbook_info", {})).action_error) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "print preview" in error
    assert desktop.get("calc_cells", range="A1:C2") == [["apple", "", ""], ["", "", "12"]]
    assert summary(desktop.reset(task(SHEET))[1])[0] == "calc"
    assert not desktop.step(Action("calc.get_workbook_info", {})).action_error


def processes_of(desktop: GuestDriver) -> list[int]:
    """All processes below the desktop's outermost one."""
    assert desktop.pid is not None
    found, pending = [], [desktop.pid]
    while pending:
        pid = pending.pop()
        found.append(pid)
        try:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                pending += [int(child) for child in (thread / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
