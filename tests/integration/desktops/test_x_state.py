"""A reset puts back what the X server itself remembers: locks, selections, settings of keyboard, pointer and screen saver."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from computerrl.common.config import DesktopConfig
from computerrl.common.errors import DesktopBroken
from computerrl.env_server.driver import SetupStep
from computerrl.env_server.tasks.osworld.desktop import CalledDesktop
from tests.support.desktops import Player, open_desktop

EDITOR = SetupStep("editor_open", {"path": "note.txt", "text": ""})
CONFIG = DesktopConfig(apps=("editor",), observation="tree")
READ = """
import json
from Xlib import X, Xatom
from Xlib.display import Display
d = Display()
root = d.screen().root
k, p, s = d.get_keyboard_control(), d.get_pointer_control(), d.get_screen_saver()
owners = {name: bool(d.get_selection_owner(d.get_atom(name))) for name in ("PRIMARY", "SECONDARY", "CLIPBOARD")}
kept = (Xatom.RESOURCE_MANAGER, *range(Xatom.CUT_BUFFER0, Xatom.CUT_BUFFER7 + 1))
left = [atom for atom in root.list_properties() if atom in kept]
speed, buttons = [p.accel_num, p.accel_denom, p.threshold], list(d.get_pointer_mapping())
locks = root.query_pointer().mask & 0xFF
print(json.dumps([locks, k.global_auto_repeat, k.bell_percent, speed, buttons, [s.timeout, s.interval], owners, left]))
"""
CHANGES = {
    "repeat": "d.change_keyboard_control(auto_repeat_mode=X.AutoRepeatModeOff)",
    "bell": "d.change_keyboard_control(bell_percent=3)",
    "pointer speed": "d.change_pointer_control(accel=(7, 2), threshold=1)",
    "buttons": "d.set_pointer_mapping([3, 2, 1] + list(d.get_pointer_mapping())[3:])",
    "screen saver": "d.set_screen_saver(60, 30, X.DefaultBlanking, X.DefaultExposures)",
    "resources": "root.change_property(Xatom.RESOURCE_MANAGER, Xatom.STRING, 8, b'*font: fixed')",
    "cut buffer": "root.change_property(Xatom.CUT_BUFFER0, Xatom.STRING, 8, b'secret')",
    "caps lock": "xtest.fake_input(d, X.KeyPress, 66); xtest.fake_input(d, X.KeyRelease, 66)",
    "num lock": "xtest.fake_input(d, X.KeyPress, 77); xtest.fake_input(d, X.KeyRelease, 77)",
}
CHANGE = """
from Xlib import X, Xatom
from Xlib.display import Display
from Xlib.ext import xtest
d = Display()
root = d.screen().root
{lines}
d.sync()
"""


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    with open_desktop(tmp_path_factory.mktemp("desktop"), CONFIG) as desktop:
        yield Player(desktop)


def run(player: Player, script: str) -> str:
    done = CalledDesktop(player.desktop.get).run(["python3", "-c", script], timeout_s=20.0)
    assert done.returncode == 0, done
    return done.stdout


def state(player: Player) -> list[Any]:
    return list(json.loads(run(player, READ)))


@pytest.fixture(scope="module")
def fresh(player: Player) -> list[Any]:
    player.start(EDITOR)
    return state(player)


@pytest.mark.parametrize("change", [*CHANGES, "all of it"])
def test_reset_puts_back_what_was_changed(player: Player, fresh: list[Any], change: str) -> None:
    run(player, CHANGE.format(lines="\n".join(CHANGES.values()) if change == "all of it" else CHANGES[change]))
    assert state(player) != fresh
    player.start(EDITOR)
    assert state(player) == fresh


def test_locks_of_one_episode_do_not_change_what_the_next_one_types(player: Player) -> None:
    player.start(EDITOR)
    player.do('key("capslock")')
    player.start(EDITOR)
    player.do('type("Hello aB")')
    assert player.desktop.get("editor_text").rstrip("\n") == "Hello aB"


@pytest.mark.parametrize("cut", ["ctrl+c", "ctrl+x"])
def test_what_was_copied_cannot_be_pasted_in_the_next_episode(player: Player, fresh: list[Any], cut: str) -> None:
    player.start(SetupStep("editor_open", {"path": "a.txt", "text": "secret"}))
    player.do('key("ctrl+a")')
    player.do(f'key("{cut}")')
    player.start(SetupStep("editor_open", {"path": "b.txt", "text": ""}))
    assert state(player) == fresh
    player.do('key("ctrl+v")')
    assert player.desktop.get("editor_text").strip() == ""


def test_office_s_first_picture_owns_no_selection_whatever_came_before(player: Player) -> None:
    calc = SetupStep("calc_open", {"cells": {"A1": "secret"}})
    player.start(calc)
    fresh_owners = owners(player)
    assert fresh_owners["PRIMARY"] is False
    player.start(SetupStep("files_open", {"folder": "."}))
    player.do('type("a.txt")')
    player.do('key("enter")')
    player.start(calc)
    assert owners(player) == fresh_owners
    # An agent's own selection is the office's as ever.
    player.do('key("shift+down")')
    assert owners(player)["PRIMARY"] is True
    player.start(calc)
    assert owners(player) == fresh_owners


def owners(player: Player) -> dict[str, bool]:
    """Selection -> does a program own it?"""
    return dict(state(player)[6])


FRAME = """
import time
from Xlib import X, Xatom
from Xlib.display import Display
d = Display()
w = d.screen().root.create_window(100, 100, 200, 100, 0, X.CopyFromParent)
w.change_property(d.get_atom("_NET_WM_WINDOW_TYPE"), Xatom.ATOM, 32, [d.get_atom("_NET_WM_WINDOW_TYPE_DIALOG")])
w.map()
found = None
while found is None:
    found = w.get_full_property(d.get_atom("_NET_FRAME_EXTENTS"), X.AnyPropertyType)
    time.sleep(0.05)
print(list(found.value))
"""
THEME = """
theme=$HOME/.themes/Clearlooks/openbox-3 fonts=$HOME/.config/fontconfig
mkdir -p $theme $fonts
sed 's/^padding.height:.*/padding.height: 20/' /usr/share/themes/Clearlooks/openbox-3/themerc > $theme/themerc
echo '<fontconfig><match target="pattern"><edit name="size" mode="assign"><double>30</double></edit></match></fontconfig>' \
    > $fonts/fonts.conf
pkill -USR2 openbox; sleep 0.5
"""


def test_window_manager_takes_no_theme_and_no_font_of_the_home(player: Player) -> None:
    player.start(EDITOR)
    before = run(player, FRAME)
    CalledDesktop(player.desktop.get).run(THEME, timeout_s=20.0)
    assert run(player, FRAME) == before


def test_keyboard_layout_that_was_changed_costs_a_new_desktop(player: Player) -> None:
    run(player, CHANGE.format(lines="d.change_keyboard_mapping(38, [(ord('z'), ord('Z'))])"))
    with pytest.raises(DesktopBroken, match="does not take back: keys"):
        player.start(EDITOR)
