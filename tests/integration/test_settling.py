"""After an action the desktop waits until it is quiet, and no longer."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.config import DesktopConfig
from env_server.driver import SetupStep
from env_server.memory import processes_below
from tests.desktops import Player, open_desktop

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
def test_keys_do_not_overtake_clicks_that_a_slow_window_manager_has_not_passed_on(player: Player, click: str, text: str) -> None:
    player.start(SetupStep("editor_open", {"path": "note.txt", "text": "wordword rest"}))
    (manager,) = (pid for pid in processes_below(player.desktop.pid or 0) if _name(pid) == "openbox")
    os.kill(manager, signal.SIGSTOP)
    goes_on = threading.Timer(0.5, os.kill, (manager, signal.SIGCONT))
    goes_on.start()
    player.do(click)
    goes_on.join()
    player.do('type("x")')
    assert player.desktop.get("editor_text").rstrip("\n") == text


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""  # it ended meanwhile
