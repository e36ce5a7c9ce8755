"""What an observation holds, and on which screen: the settings of a desktop, tried on real ones."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from computerrl.common.config import DesktopConfig
from computerrl.env_server.client import read_screenshot
from computerrl.env_server.driver import SetupStep
from tests.support.desktops import Player, open_desktop

FILE = SetupStep("write_file", {"path": "notes.txt", "text": "hello"})
FOLDER = SetupStep("files_open", {"folder": "."})


@pytest.mark.parametrize(("width", "height"), [(1920, 1080), (1280, 720), (400, 300)])
def test_screen_has_the_size_asked_for_and_elements_lie_on_it(tmp_path: Path, width: int, height: int) -> None:
    config = DesktopConfig(screen_width=width, screen_height=height, screenshot_format="png", apps=("files",))
    with open_desktop(tmp_path, config) as desktop:
        seen = Player(desktop).start(FILE, FOLDER)
        assert (seen.screen_width, seen.screen_height) == (width, height) and desktop.frame().shape == (height, width, 3)
        assert seen.screenshot is not None
        assert Image.open(io.BytesIO(read_screenshot(tmp_path, seen.screenshot))).size == (width, height)
        assert any(element.text == "notes.txt" for element in seen.elements)
        assert all(0 <= element.x < width and 0 <= element.y < height for element in seen.elements)
        clicked = Player(desktop).do(f"click({width - 1}, {height - 1})")
        assert clicked.app == "files"
        assert "not on the screen" in Player(desktop).refusal(f"click({width}, 0)")


@pytest.mark.parametrize("observation", ["tree", "screenshot", "both"])
def test_observation_holds_what_is_asked_for(tmp_path: Path, observation: str) -> None:
    config = DesktopConfig(observation=observation, apps=("files",))  # type: ignore[arg-type]
    with open_desktop(tmp_path, config) as desktop:
        for seen in (Player(desktop).start(FILE, FOLDER), Player(desktop).do("wait()")):
            assert (seen.screenshot is not None) == (observation != "tree")
            assert bool(seen.elements) == (observation != "screenshot")
            assert seen.app == "files" and seen.window_title
