"""After an action the desktop waits until it is quiet, and no longer."""

from __future__ import annotations

from pathlib import Path

from common.config import DesktopConfig
from env_server.driver import SetupStep
from tests.desktops import Player, open_desktop


def test_every_change_of_a_cell_ends_in_quiet(tmp_path: Path) -> None:
    # Long enough that a busy machine does not reach it: only an answer that nobody looks at does.
    config = DesktopConfig(screen_width=1280, screen_height=720, settle_deadline_s=3.0, apps=("calc",))
    with open_desktop(tmp_path, config) as desktop:
        player = Player(desktop)
        player.start(SetupStep("calc_open", {"cells": {}, "active_cell": "A1"}))
        seen = [player.do(f'calc.set_cell("B{row}", {row})') for row in range(2, 22)]
        assert [observation.settled_by for observation in seen] == ["quiet"] * len(seen)
