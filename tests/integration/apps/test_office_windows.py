"""Windows of Writer and Impress open as the first one did, whatever the task before left on or off in them."""

from __future__ import annotations

import functools
import io
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageChops

from computerrl.common.config import DesktopConfig
from computerrl.common.messages import Action, Observation
from computerrl.env_server.client import read_screenshot
from computerrl.env_server.driver import SetupStep
from tests.support.desktops import Player, key, open_desktop

DOCUMENTS = {app: SetupStep("open_app", {"app": app}) for app in ("writer", "impress")}
MAX_PIXELS = 1000
"""That may differ: the caret, and digits in the status bar. Every mess here moves much more."""


def has_element(text: str, shown: Observation) -> bool:
    return any(element.text == text for element in shown.elements)


def menu(*names: str) -> list[Action]:
    return [Action("click", {"target": name}) for name in names]


MESSES: dict[str, tuple[str, Sequence[Action]]] = {
    "writer find bar": ("writer", [key("ctrl+f")]),
    "writer no status bar": ("writer", menu("View", "Status Bar")),
    "writer no formatting bar": ("writer", menu("View", "Toolbars", "Formatting")),
    "impress find bar": ("impress", [key("ctrl+f")]),
    "impress no status bar": ("impress", menu("View", "Status Bar")),
    "impress no slides": ("impress", menu("View", "Slide Pane")),
    "impress rulers": ("impress", [key("ctrl+shift+r")]),
    "impress no drawing bar": ("impress", menu("View", "Toolbars", "Drawing")),
}


class Screens:
    """A desktop, and what its windows show."""

    def __init__(self, player: Player, folder: Path) -> None:
        self.player, self._folder = player, folder
        self.first = {app: self._settled(step) for app, step in DOCUMENTS.items()}

    def _settled(self, step: SetupStep) -> Observation:
        # The very first window of a program that is still being loaded may be seen before it is whole.
        self.player.start(step)
        self.player.start(step)
        return self.player.do("wait()")

    def are_alike(self, one: Observation, other: Observation) -> bool:
        here, there = ([(element.role, element.text) for element in shown.elements] for shown in (one, other))
        return here == there and self.num_changed(one, other) < MAX_PIXELS

    def num_changed(self, before: Observation, after: Observation) -> int:
        """Pixels that differ by more than what encoding with loss leaves."""
        difference = ImageChops.difference(self._picture(before), self._picture(after))
        return sum(difference.histogram()[64:])

    def _picture(self, shown: Observation) -> Image.Image:
        assert shown.screenshot is not None
        return Image.open(io.BytesIO(read_screenshot(self._folder, shown.screenshot))).convert("L")


@pytest.fixture(scope="module")
def screens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Screens]:
    folder = tmp_path_factory.mktemp("desktop")
    with open_desktop(folder, DesktopConfig(image="full", max_elements=300)) as driver:
        yield Screens(Player(driver), folder)


@pytest.mark.parametrize("mess", sorted(MESSES))
def test_window_opens_as_the_first_did_after_a_mess(screens: Screens, mess: str) -> None:
    app, actions = MESSES[mess]
    player, first = screens.player, screens.first[app]
    player.start(DOCUMENTS[app])
    for action in actions:
        if "target" in action.args:  # a menu may take longer than an agent's step waits
            player.wait_for(functools.partial(has_element, action.args["target"]))
        assert player.desktop.step(action).action_error == ""
    player.wait_for(lambda shown: screens.num_changed(first, shown) > MAX_PIXELS)
    player.start(DOCUMENTS[app])
    player.wait_for(lambda shown: screens.are_alike(first, shown), num_steps=20)


@pytest.mark.parametrize("app", sorted(DOCUMENTS))
def test_first_picture_of_a_document_is_whole(screens: Screens, app: str) -> None:
    for _ in range(3):
        screens.player.start(DOCUMENTS[app])
        first = screens.player.desktop.frame()
        time.sleep(1.5)  # bars that were not painted would be by then
        assert np.array_equal(first, screens.player.desktop.frame())
