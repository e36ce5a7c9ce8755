"""Actions on real desktops beyond what every driver promises: any text, wheel, drag, keys, what the agent must not reach."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from computerrl.common.actions import parse_action
from computerrl.common.messages import Action, Evaluation, Observation
from computerrl.env_server.driver import SetupStep, TaskInstance
from computerrl.env_server.drivers.guest_driver import GuestDriver
from tests.support.desktops import Player, SharedDesktops

PAGE = SetupStep("web_page", {"page": "click-checkboxes", "seed": 3})
ENTRY = SetupStep("web_page", {"page": "enter-text", "seed": 3})
SHEET = SetupStep("calc_open", {"cells": {f"A{row}": f"r{row}" for row in range(1, 80)}, "active_cell": "A1"})
FILES = SetupStep("files_open", {"folder": "."})
EDITOR = SetupStep("editor_open", {"path": "note.txt", "text": ""})


@pytest.fixture(scope="module")
def desktop(shared_desktops: SharedDesktops) -> GuestDriver:
    return shared_desktops.get("core").driver


def open_on(desktop: GuestDriver, *steps: SetupStep) -> Observation:
    return desktop.reset(TaskInstance("x", steps, lambda get: Evaluation(0.0, False, ""), lambda *_: Action("done", {})))[1]


def act(desktop: GuestDriver, text: str) -> Observation:
    result = desktop.step(parse_action(text))
    assert result.action_error == "", (text, result.action_error)
    return result.observation


def texts(observation: Observation, role: str) -> list[str]:
    return [element.text for element in observation.elements if element.role == role]


@pytest.mark.parametrize(
    "text",
    ["aB ~|\\{}[]^`'\"", "\u00e4\u00f6\u00fc\u00df \u20ac \u00e9", "\u4f60\u597d \u043f\u0440\u0438\u0432\u0435\u0442 \u2713"],
)
def test_typed_text_of_any_script_arrives_in_editor_page_and_sheet(desktop: GuestDriver, text: str) -> None:
    open_on(desktop, EDITOR)
    act(desktop, f"type({text!r})")
    assert desktop.get("editor_text").rstrip("\n") == text
    page = open_on(desktop, ENTRY)
    field = next(e.number for e in page.elements if e.role == "entry")
    act(desktop, f"click({field})")
    assert texts(act(desktop, f"type({text!r})"), "entry") == [text]
    open_on(desktop, SHEET)
    act(desktop, f"type({text!r}, enter=True)")
    assert desktop.get("calc_cells", range="A1:A1") == [[text]]


def test_text_with_more_unusual_characters_than_spare_keys_arrives_whole(desktop: GuestDriver) -> None:
    open_on(desktop, EDITOR)
    many = "".join(chr(0x4E00 + offset) for offset in range(200)) + "\U0001f600 end"
    act(desktop, f"type({many!r})")
    assert desktop.get("editor_text").rstrip("\n") == many


def titled(title: str) -> Callable[[Observation], bool]:
    return lambda shown: shown.window_title == title


def test_title_of_a_window_follows_what_is_done_in_it(desktop: GuestDriver) -> None:
    player = Player(desktop)
    assert player.start(EDITOR).window_title == "note.txt - Mousepad"
    for text, title in (("type('a')", "*note.txt - Mousepad"), ("key('ctrl+s')", "note.txt - Mousepad")):
        player.do(text)
        player.wait_for(titled(title))


def test_file_opened_after_another_is_the_only_one_and_gets_the_keys(desktop: GuestDriver) -> None:
    player = Player(desktop)
    names = ("first.txt", "second.txt", "second.txt", "third.txt")
    for name in names:
        shown = player.start(SetupStep("editor_open", {"path": name, "text": name}))
        assert shown.window_title == f"{name} - Mousepad"
        others = set(names) - {name}
        assert not [element.text for element in shown.elements if any(other in element.text for other in others)]
        player.do("key('ctrl+end')")
        player.do("type(' unsaved')")
        assert desktop.get("editor_text").rstrip("\n") == f"{name} unsaved"


def test_wheel_scrolls_the_sheet_and_rows_follow(desktop: GuestDriver) -> None:
    before = texts(open_on(desktop, SHEET), "table-cell")
    after = texts(act(desktop, 'scroll(400, 300, direction="down")'), "table-cell")
    assert "r1" in before and "r1" not in after and "r30" in after
    assert "r1" in texts(act(desktop, 'scroll(400, 300, direction="up")'), "table-cell")


def test_click_on_a_scrolled_cell_hits_that_cell(desktop: GuestDriver) -> None:
    open_on(desktop, SHEET)
    shown = act(desktop, 'scroll(400, 300, direction="down")')
    act(desktop, f"click({next(e.number for e in shown.elements if e.text == 'r25')})")
    act(desktop, 'type("hit", enter=True)')
    assert desktop.get("calc_cells", range="A25:A25") == [["hit"]]


def test_drag_over_cells_selects_them(desktop: GuestDriver) -> None:
    shown = open_on(desktop, SHEET)
    numbers = {e.text: e.number for e in shown.elements if e.role == "table-cell"}
    act(desktop, f"drag({numbers['r2']}, {numbers['r4']})")
    act(desktop, 'key("delete")')
    assert desktop.get("calc_cells", range="A1:A5") == [["r1"], [""], [""], [""], ["r5"]]


def test_double_click_selects_a_word_and_hover_does_nothing(desktop: GuestDriver) -> None:
    open_on(desktop, SetupStep("editor_open", {"path": "note.txt", "text": "wordword rest"}))
    act(desktop, "hover(20, 35)")
    act(desktop, "double_click(20, 35)")
    act(desktop, 'type("x")')
    assert desktop.get("editor_text").rstrip("\n") == "x rest"


def test_file_that_an_agent_may_not_read_any_more_is_no_file_to_a_judge(desktop: GuestDriver) -> None:
    open_on(desktop, SetupStep("write_file", {"path": "sub/note.txt", "text": "x"}), SetupStep("files_open", {"folder": "."}))
    assert desktop.get("file_text", path="sub/note.txt") == "x"
    for path in ("sub/note.txt", "sub"):
        act(desktop, f'files.set_permissions("{path}", "000")')
        assert desktop.get("file_text", path="sub/note.txt") is None and desktop.get("file_bytes", path="sub/note.txt") is None
    open_on(desktop, SetupStep("files_open", {"folder": "."}))
    assert desktop.get("folder_listing") == []


def test_open_menu_is_shown_first_and_can_be_clicked(desktop: GuestDriver) -> None:
    shown = open_on(desktop, SetupStep("editor_open", {"path": "note.txt", "text": "abc"}))
    menu = next(e.number for e in shown.elements if e.text == "Edit")
    shown = act(desktop, f"click({menu})")
    assert shown.elements[0].role == "menu-item"
    act(desktop, f"click({next(e.number for e in shown.elements if e.text == 'Select All')})")
    act(desktop, 'type("z")')
    assert desktop.get("editor_text").rstrip("\n") == "z"


def test_dialog_is_shown_first(desktop: GuestDriver) -> None:
    open_on(desktop, EDITOR)
    act(desktop, 'type("x")')
    shown = act(desktop, 'key("ctrl+w")')
    assert any(word in shown.elements[0].text.lower() for word in ("save", "changes")), shown.elements[:3]
    assert shown.app == "editor"


@pytest.mark.parametrize(
    ("app", "step", "keys", "shown"),
    [
        ("editor", EDITOR, "ctrl+shift+s", "Create Folder"),
        ("calc", SHEET, "ctrl+1", "Alignment"),
        ("files", FILES, "alt+enter", "Capacity:"),
    ],
    ids=["editor", "calc", "files"],
)
def test_application_with_an_open_dialog_is_switched_to_and_its_dialog_is_shown(
    desktop: GuestDriver, app: str, step: SetupStep, keys: str, shown: str
) -> None:
    """A dialog holds its application's focus: that is no fault of the desktop."""
    other, other_step = ("editor", EDITOR) if app == "files" else ("files", FILES)
    open_on(desktop, other_step, step)
    act(desktop, f'key("{keys}")')
    Player(desktop).wait_for(lambda seen: any(element.text == shown for element in seen.elements))
    act(desktop, f'apps.switch("{other}")')
    assert shown in [element.text for element in act(desktop, f'apps.switch("{app}")').elements]


@pytest.mark.parametrize("keys", ["ctrl+t", "f12", "ctrl+shift+i", "ctrl+l", "ctrl+u", "alt+left", "ctrl+n", "ctrl+w", "f5"])
def test_browser_s_own_shortcuts_are_refused(desktop: GuestDriver, keys: str) -> None:
    before = open_on(desktop, PAGE)
    result = desktop.step(Action("key", {"keys": keys}))
    assert "locked" in result.action_error
    assert result.observation.elements == before.elements


def test_right_and_middle_buttons_open_nothing_in_the_browser(desktop: GuestDriver) -> None:
    before = open_on(desktop, PAGE)
    for button in ("right", "middle"):
        result = desktop.step(Action("click", {"target": 1, "y": None, "button": button}))
        assert result.action_error and result.observation.elements == before.elements


@pytest.mark.parametrize("keys", ["alt+f4", "ctrl+alt+t", "super+d", "alt+tab", "ctrl+escape"])
def test_window_manager_offers_no_keys(desktop: GuestDriver, keys: str) -> None:
    open_on(desktop, EDITOR)
    act(desktop, f'key("{keys}")')
    assert open_on(desktop, EDITOR).app == "editor"


@pytest.mark.parametrize("keys", ["", "nokey", "ctrl+nokey", "+"])
def test_unknown_keys_are_refused_or_plus(desktop: GuestDriver, keys: str) -> None:
    open_on(desktop, EDITOR)
    result = desktop.step(Action("key", {"keys": keys}))
    assert (result.action_error == "") == (keys == "+")


def test_calc_save_writes_the_file_and_formulas_show_their_value(desktop: GuestDriver) -> None:
    open_on(desktop, SetupStep("calc_open", {"cells": {"A1": "2", "A2": "=A1*3"}, "active_cell": "B1"}))
    assert desktop.get("calc_cells", range="A2:A2") == [["6"]]
    assert desktop.get("folder_listing") == []
    assert act(desktop, "calc.save()").result == "saved sheet.ods"
    assert desktop.get("folder_listing") == ["sheet.ods"]
    act(desktop, 'calc.set_cell("B1", "=SUM(A1:A2)")')
    act(desktop, 'key("ctrl+s")')
    assert act(desktop, 'calc.get_cell("B1")').result == "8"


def test_text_typed_into_cells_is_neither_corrected_nor_completed(desktop: GuestDriver) -> None:
    open_on(desktop, SetupStep("calc_open", {"cells": {"A1": "apple pie"}, "active_cell": "A2"}))
    act(desktop, 'type("ap", enter=True)')
    act(desktop, 'type("teh WOrd", enter=True)')
    assert desktop.get("calc_cells", range="A2:A3") == [["ap"], ["teh WOrd"]]


def test_desktop_has_no_network_and_sees_no_home(desktop: GuestDriver) -> None:
    guest = next(pid for pid in processes_below(desktop.pid or 0) if (Path(f"/proc/{pid}/comm").read_text().strip() == "python3"))
    assert os.readlink(f"/proc/{guest}/ns/net") != os.readlink("/proc/self/ns/net")
    assert os.readlink(f"/proc/{guest}/ns/pid") != os.readlink("/proc/self/ns/pid")
    interfaces = [line.split(":")[0].strip() for line in Path(f"/proc/{guest}/net/dev").read_text().splitlines()[2:]]
    assert interfaces == ["lo"]
    environment = Path(f"/proc/{guest}/environ").read_bytes()
    assert os.environ["HOME"].encode() not in environment.replace(b"/root/.cache", b"") or os.environ["HOME"] == "/root"


def processes_below(pid: int) -> list[int]:
    found, pending = [], [pid]
    while pending:
        current = pending.pop()
        found.append(current)
        for thread in Path(f"/proc/{current}/task").iterdir():
            pending += [int(child) for child in (thread / "children").read_text().split()]
    return found
