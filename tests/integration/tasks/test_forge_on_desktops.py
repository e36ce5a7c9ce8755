"""Every OfficeForge family on a real desktop: untouched 0, by its script 1; near misses of every third one 0 (--whole: of all).

The default tier has every third family, and near misses and work by hand of one in eight. Scripts and near misses of all
families, on documents without a desktop: `tests/unit/env_server/tasks/test_forge_families.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from computerrl.common.actions import calls_application, parse_action, render_action
from computerrl.common.config import DesktopConfig
from computerrl.common.messages import Action, Evaluation
from computerrl.env_server.driver import DesktopDriver
from computerrl.env_server.tasks.forge import FAMILIES
from computerrl.env_server.tasks.forge.plan import Forged, ForgeFamily, Move
from tests.support.desktops import open_desktop
from tests.support.tiers import one_in

MAX_ACTIONS = 25


@pytest.fixture(scope="module")
def desktop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DesktopDriver]:
    with open_desktop(tmp_path_factory.mktemp("desktop"), DesktopConfig(image="full", observation="tree")) as driver:
        yield driver


def play(desktop: DesktopDriver, forged: Forged, script: Sequence[Move]) -> tuple[Evaluation, Evaluation, str]:
    """(verdict before, verdict after, application in front at first) of a script played through action texts."""
    instruction, observation = desktop.reset(forged.task())
    before, app = forged.evaluate(desktop.get), observation.app
    demonstrate, actions = forged.play(script), list[Action]()
    while len(actions) < MAX_ACTIONS:
        action = parse_action(render_action(demonstrate(instruction, observation, actions, desktop.get)))
        if action.name == "done":
            break
        result = desktop.step(action)
        assert result.action_error == "", render_action(action)
        observation = result.observation
        actions.append(action)
    return before, forged.evaluate(desktop.get), app


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "family" in metafunc.fixturenames:
        misses = "near_miss" in metafunc.function.__name__
        chosen = FAMILIES[::3] if misses and not metafunc.config.getoption("--whole") else FAMILIES
        metafunc.parametrize("family", one_in(16 if misses else 6, chosen), ids=lambda family: family.name)


def test_family_on_desktop_untouched_zero_solution_one(desktop: DesktopDriver, family: ForgeFamily) -> None:
    forged = family.forged(0)
    before, solved, app = play(desktop, forged, forged.solution)
    assert app == family.app
    assert before.reward == 0.0
    assert solved.success and solved.reward == 1.0, (forged.instruction, solved.detail)


BY_HAND = [family for family in FAMILIES if family.forged(0).by_hand is not None]


@pytest.mark.parametrize("shown", one_in(12, BY_HAND), ids=lambda family: family.name)
def test_family_on_desktop_is_solved_by_hand_on_every_level(desktop: DesktopDriver, shown: ForgeFamily) -> None:
    seeds = {shown.level(seed): seed for seed in range(20)}
    assert set(seeds) == set(shown.levels)
    for seed in seeds.values():
        forged = shown.forged(seed)
        assert forged.by_hand is not None
        assert not any(isinstance(move, Action) and calls_application(move.name) for move in forged.by_hand)
        _, solved, _ = play(desktop, forged, forged.by_hand)
        assert solved.success, (seed, forged.instruction, solved.detail)


def test_near_miss_on_desktop_scores_zero(desktop: DesktopDriver, family: ForgeFamily) -> None:
    forged = family.forged(0)
    _, missed, _ = play(desktop, forged, forged.near_miss)
    assert missed.reward == 0.0 and missed.detail, forged.instruction
