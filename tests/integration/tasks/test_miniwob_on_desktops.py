"""Every MiniWoB++ page on a real contained desktop: it opens and scores nothing untouched; its demonstrator solves it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from computerrl.common.actions import parse_action, render_action
from computerrl.common.config import DesktopConfig
from computerrl.common.messages import Action
from computerrl.env_server.driver import DesktopDriver
from computerrl.env_server.tasks import FAMILIES
from tests.support.desktops import open_desktop
from tests.support.tiers import one_in

PAGES = sorted(name for name, family in FAMILIES.items() if name.startswith("web-") and not family.is_default)
DEMONSTRATED = [name for name in PAGES if FAMILIES[name].has_demonstrator]
SEEDS = (0, 1, 2)
MAX_ACTIONS = 40


@pytest.fixture(scope="module")
def desktop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DesktopDriver]:
    # Hundreds of episodes: encoding pictures would take a third of the time, and nothing here looks at them.
    with open_desktop(tmp_path_factory.mktemp("desktop"), DesktopConfig(observation="tree")) as driver:
        yield driver


def demonstrate(desktop: DesktopDriver, family: str, seed: int) -> str:
    """Play by the demonstrator; gives the actions, after checking that it began untouched and ended in success."""
    task = FAMILIES[family].make(seed)
    instruction, observation = desktop.reset(task)
    assert instruction.strip() and observation.app == "chromium"
    untouched = desktop.get("web_page")
    assert (untouched["done"], untouched["episode_id"], task.evaluate(desktop.get).reward) == (False, 0, 0.0)
    actions: list[Action] = []
    while len(actions) < MAX_ACTIONS:
        action = parse_action(render_action(task.demonstrate(instruction, observation, actions, desktop.get)))
        result = desktop.step(action)
        assert result.action_error == "", (render_action(action), result.action_error)
        actions.append(action)
        if result.finished:
            break
        observation = result.observation
    played = "; ".join(map(render_action, actions))
    outcome = task.evaluate(desktop.get)
    assert outcome.success, (family, seed, instruction, played, outcome.detail, [str(e) for e in observation.elements])
    assert desktop.get("web_page")["episode_id"] == 1
    return played


@pytest.mark.parametrize("family", one_in(8, [name for name in PAGES if name not in DEMONSTRATED]))
def test_page_without_demonstrator_opens_untouched(desktop: DesktopDriver, family: str) -> None:
    task = FAMILIES[family].make(0)
    instruction, observation = desktop.reset(task)
    assert instruction.strip() and observation.app == "chromium"
    assert not desktop.get("web_page")["done"] and task.evaluate(desktop.get).reward == 0.0


@pytest.mark.parametrize("family", one_in(8, DEMONSTRATED))
def test_demonstrator_on_desktop_solves_untouched_instances(
    desktop: DesktopDriver, family: str, request: pytest.FixtureRequest
) -> None:
    one = DEMONSTRATED.index(family) % len(SEEDS)
    for seed in SEEDS if request.config.getoption("--whole") else SEEDS[one : one + 1]:
        demonstrate(desktop, family, seed)
