"""After an action the desktop waits until it is quiet, and no longer."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from computerrl.common.config import DesktopConfig
from computerrl.common.errors import DesktopBroken
from computerrl.env_server.driver import SetupStep
from computerrl.env_server.drivers.memory import processes_below
from tests.support.desktops import Player, open_desktop

# Long enough that a busy machine does not reach it: only an answer that nobody looks at does.
CONFIG = DesktopConfig(screen_width=1280, screen_height=720, settle_deadline_s=3.0, apps=("calc", "editor"))


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    with open_desktop(tmp_path_factory.mktemp("desktop"), CONFIG) as desktop:
        yield Player(desktop)


def test_every_change_of_a_cell_ends_in_quiet(player: Player) -> None:
    player.start(SetupStep("calc_open", {"cells": {}, "active_cell": "A1"}))
    seen = [player.do(f'calc.set_cell("B{row}", {row})') for row in range(2, 22)]
    assert [observation.settled_by for observation in seen] == ["quiet"] * len(seen)


@pytest.mark.parametrize(
    ("click", "text"), [("click(200, 300)", "wordword restx"), ("double_click(20, 35)", "x rest"), ("triple_click(20, 35)", "x")]
)
@pytest.mark.parametrize("is_waited_for", [True, False], ids=["", "longer than it is waited for"])
def test_keys_do_not_overtake_clicks_that_a_slow_window_manager_has_not_passed_on(
    player: Player, is_waited_for: bool, click: str, text: str
) -> None:
    player.start(SetupStep("editor_open", {"path": "note.txt", "text": "wordword rest"}))
    goes_on = _stop_manager(player)
    if is_waited_for:
        goes_on.start()
        player.do(click)
        goes_on.join()
    else:
        assert player.do(click).settled_by == "deadline"
        goes_on.start()
    player.do('type("x")')
    assert player.desktop.get("editor_text").rstrip("\n") == text
    goes_on.join()


def test_calls_do_not_overtake_clicks_either(player: Player) -> None:
    shown = player.start(SetupStep("calc_open", {"cells": {"B3": "word"}, "active_cell": "A1"}))
    (cell,) = (element for element in shown.elements if element.text == "word")
    goes_on = _stop_manager(player)
    player.do(f"click({cell.number})")
    goes_on.start()
    player.do('calc.set_cell("A1", 5)')
    assert not goes_on.is_alive()  # it was waited for
    player.do('type("x", enter=True)')
    assert player.desktop.get("calc_cells", range="A1:B3") == [["5", ""], ["", ""], ["", "x"]]


def test_judges_do_not_overtake_clicks_either(tmp_path: Path) -> None:
    with open_desktop(tmp_path, CONFIG.model_copy(update={"apps": ("chromium",), "settle_deadline_s": 0.6})) as desktop:
        player = Player(desktop)
        shown = player.start(SetupStep("web_page", {"page": "click-test", "seed": 1}))
        (button,) = (element for element in shown.elements if element.role == "button")
        goes_on = _stop_manager(player)
        player.do(f"click({button.number})")
        goes_on.start()
        state = desktop.get("web_page")
        assert state["done"] and state["raw_reward"] > 0, state
        goes_on.join()


def test_a_window_manager_that_passes_on_no_click_breaks_the_desktop(tmp_path: Path) -> None:
    with open_desktop(tmp_path, CONFIG) as desktop:
        player = Player(desktop)
        player.start(SetupStep("editor_open", {"path": "note.txt", "text": "word"}))
        _stop_manager(player)
        player.do("click(200, 300)")
        with pytest.raises(DesktopBroken, match="the window manager does not pass on clicks"):
            player.do('type("x")')


def _stop_manager(player: Player) -> threading.Timer:
    """Stop the window manager; it goes on soon after the timer is started."""
    (manager,) = (pid for pid in processes_below(player.desktop.pid or 0) if _name(pid) == "openbox")
    os.kill(manager, signal.SIGSTOP)
    return threading.Timer(0.5, os.kill, (manager, signal.SIGCONT))


SLOW_PROGRAM = """
import os, sys, threading, time
from Xlib import X, display
screen = display.Display()
root = screen.screen().root
window = root.create_window(50, 50, 300, 200, 1, screen.screen().root_depth, event_mask=X.KeyPressMask)
ping, protocols = screen.intern_atom('_NET_WM_PING'), screen.intern_atom('WM_PROTOCOLS')
window.set_wm_protocols([ping])
window.change_property(screen.intern_atom('_NET_WM_PID'), 6, 32, [os.getpid()])
keys, of_keys = os.pipe()
def work():
    own = display.Display()
    title = own.create_resource_object('window', window.id)
    num_done = 0
    while os.read(keys, 1):
        begun = time.process_time()
        while time.process_time() < begun + 0.2:
            pass
        num_done += 1
        name = own.intern_atom('_NET_WM_NAME')
        title.change_property(name, own.intern_atom('UTF8_STRING'), 8, f'Done {num_done}'.encode())
        own.sync()
window.change_property(screen.intern_atom('_NET_WM_NAME'), screen.intern_atom('UTF8_STRING'), 8, b'Slow')
window.map()
screen.sync()
worker = sys.argv[1]
if worker == 'helper' and os.fork() == 0:
    work()
elif worker == 'thread':
    threading.Thread(target=work, daemon=True).start()
while True:
    event = screen.next_event()
    if event.type == X.KeyPress:
        os.write(of_keys, b'x')
    elif event.type == X.ClientMessage and event.client_type == protocols and event.data[1][0] == ping:
        event.window = root
        root.send_event(event, event_mask=X.SubstructureRedirectMask | X.SubstructureNotifyMask)
        screen.flush()
"""
"""Takes a key, and what comes after it, before it has done what the key is for: so do the office's menus, and browsers, whose
pages are laid out and drawn by processes and threads of their own."""


@pytest.mark.parametrize("worker", ["thread", "helper"])
@pytest.mark.parametrize("server_is_slow", [False, True], ids=["", "slow X server"])
def test_what_a_key_is_for_is_seen_though_the_application_computes_first(
    player: Player, server_is_slow: bool, worker: str
) -> None:
    player.start(SetupStep("editor_open", {"path": "note.txt", "text": ""}))
    player.desktop.get("osworld", call="launch", command=["python3", "-c", SLOW_PROGRAM, worker])
    player.wait_for(lambda shown: shown.window_title == "Slow")
    (server,) = (pid for pid in processes_below(player.desktop.pid or 0) if _name(pid) == "Xvfb")
    for number in range(1, 6):
        pauses = [
            threading.Timer(0.1, os.kill, (server, signal.SIGSTOP)),  # while the application computes
            threading.Timer(0.5, os.kill, (server, signal.SIGCONT)),
        ]
        for pause in pauses if server_is_slow else []:
            pause.start()
        shown = player.do('key("a")')
        for pause in pauses if server_is_slow else []:
            pause.join()
        assert (shown.window_title, shown.settled_by) == (f"Done {number}", "quiet")


def test_judge_waits_for_an_editor_that_has_not_taken_its_keys(player: Player) -> None:
    player.start(SetupStep("editor_open", {"path": "note.txt", "text": ""}))
    (editor,) = (pid for pid in processes_below(player.desktop.pid or 0) if _name(pid) == "mousepad")
    os.kill(editor, signal.SIGSTOP)
    goes_on = threading.Timer(CONFIG.settle_deadline_s + 1.0, os.kill, (editor, signal.SIGCONT))
    goes_on.start()
    player.do('type("word")')
    assert player.desktop.get("editor_text").rstrip("\n") == "word"
    goes_on.join()


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""  # it ended meanwhile
