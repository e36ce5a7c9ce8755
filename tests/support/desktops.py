"""Real desktops for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from computerrl.common.actions import parse_action
from computerrl.common.config import DesktopConfig
from computerrl.common.messages import Action, Evaluation, Observation
from computerrl.env_server.driver import SetupStep, TaskInstance
from computerrl.env_server.drivers import make_driver
from computerrl.env_server.drivers.guest_driver import GuestDriver
from computerrl.env_server.drivers.screenshots import ScreenshotStore

LIGHT_FAMILIES = "tasks.families=[editor-type-save,files-move]"
"""Setting of a run whose desktops do without office and browser, which are nine tenths of what a start computes."""
_RESET_LIMIT_S = 120.0
"""For a reset where a test sets none, as many desktops may start side by side on a slow machine."""
SHARED_SETTINGS: dict[str, Any] = {"max_elements": 300, "step_deadline_s": 30.0}
"""Of shared desktops: everything that is on the screen is seen, and deadlines suit a busy machine."""


@contextmanager
def open_desktop(folder: Path, config: DesktopConfig | None = None) -> Iterator[GuestDriver]:
    """One desktop, closed at the end; logs and screenshots lie in ``folder``."""
    config = config or DesktopConfig()
    if "reset_deadline_s" not in config.model_fields_set:
        config = config.model_copy(update={"reset_deadline_s": _RESET_LIMIT_S})
    store = ScreenshotStore(folder, incarnation="test")
    driver = make_driver(config, index=0, folder=folder / "logs", screenshots=store)
    assert isinstance(driver, GuestDriver)
    try:
        yield driver
    finally:
        driver.close()
        store.close()


class SharedDesktops:
    """One desktop for each image, started when a test file first asks for it; files play on it one after the other.

    A file that kills, starves or reconfigures its desktop opens one of its own.
    """

    def __init__(self, make_folder: Callable[[str], Path]) -> None:
        self._make_folder = make_folder
        self._open: dict[str, tuple[ExitStack, SharedDesktop]] = {}

    def get(self, image: str) -> SharedDesktop:
        """The desktop of ``image``; a new one when the last test that failed has broken it."""
        if image in self._open and not self._open[image][1].driver.healthy():
            self._open.pop(image)[0].close()
        if image not in self._open:
            folder, stack = self._make_folder(image), ExitStack()
            config = DesktopConfig(image=image, **SHARED_SETTINGS)
            self._open[image] = stack, SharedDesktop(stack.enter_context(open_desktop(folder, config)), folder)
        return self._open[image][1]

    def close(self) -> None:
        """Close all of them."""
        while self._open:
            self._open.popitem()[1][0].close()


@dataclass(frozen=True, slots=True)
class SharedDesktop:
    """A desktop that several test files play on, and the folder with its screenshots."""

    driver: GuestDriver
    folder: Path


def key(keys: str) -> Action:
    """A chord as an agent presses it."""
    return Action("key", {"keys": keys})


class Player:
    """Acts on a desktop as an agent's text would, and reads back."""

    def __init__(self, desktop: GuestDriver) -> None:
        self.desktop = desktop

    def start(self, *steps: SetupStep) -> Observation:
        """A task of these set-up steps; its first observation."""
        return self.desktop.reset(
            TaskInstance("x", steps, lambda get: Evaluation(0.0, False, ""), lambda *_: Action("done", {}))
        )[1]

    def do(self, text: str) -> Observation:
        """One action that must work; what the agent sees then. As told to, it tries again while an application is starting."""
        for _ in range(20):
            result = self.desktop.step(parse_action(text))
            if "is still starting: wait and try again" not in result.action_error:
                break
        assert result.action_error == "", (text, result.action_error)
        return result.observation

    def ask(self, text: str) -> str:
        """The same; its result text."""
        return self.do(text).result

    def refusal(self, text: str) -> str:
        """One action that must be refused; why."""
        result = self.desktop.step(parse_action(text))
        assert result.action_error, (text, result.observation.result)
        return result.action_error

    def wait_for(self, condition: Callable[[Observation], bool], *, num_steps: int = 100) -> Observation:
        """Let the agent wait until it sees what ``condition`` says."""
        for _ in range(num_steps):
            shown = self.do("wait()")
            if condition(shown):
                return shown
        raise AssertionError(f"not seen: {[element.text for element in shown.elements]}")
