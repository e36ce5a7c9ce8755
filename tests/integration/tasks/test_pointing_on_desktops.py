"""Families that ask where something is, on a real desktop: the answer is judged by its pixel, and nothing is done with it."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from computerrl.common.actions import parse_action, render_action
from computerrl.env_server.drivers.guest_driver import ONE_CLICK, GuestDriver
from computerrl.env_server.tasks import FAMILIES
from computerrl.env_server.tasks.pointing import FAMILIES as POINTING
from tests.support.desktops import SharedDesktops
from tests.support.tiers import one_in

SEEDS = (0, 1, 2, 3, 4, 5)
IMAGES = {"calc": "core", "files": "core", "gimp": "full", "impress": "full", "writer": "full"}
CASES = [(family.name, family.app, seed) for family in POINTING for seed in SEEDS]


def desktop_of(shared_desktops: SharedDesktops, app: str) -> GuestDriver:
    return shared_desktops.get(IMAGES[app]).driver


@pytest.mark.parametrize(("family", "app", "seed"), one_in(len(CASES), CASES))
def test_answer_is_judged_by_its_pixel(shared_desktops: SharedDesktops, family: str, app: str, seed: int) -> None:
    desktop, task = desktop_of(shared_desktops, app), FAMILIES[family].make(seed)

    def succeeds() -> bool:
        return task.evaluate(lambda kind, **args: task.outputs if kind == "outputs" else desktop.get(kind, **args)).success

    instruction, seen = desktop.reset(task)
    assert seen.app == app and instruction.startswith("Click ")
    assert not succeeds(), "nothing was pointed at"
    refused = desktop.step(parse_action('key("ctrl+a")'))
    assert refused.action_error == ONE_CLICK and not refused.finished
    right = parse_action(render_action(task.demonstrate(instruction, seen, (), desktop.get)))
    before = desktop.frame().copy()
    answered = desktop.step(right)
    assert answered.finished and not answered.action_error
    assert succeeds(), (instruction, render_action(right))
    assert (desktop.frame() != before).any(axis=2).mean() < 0.01, "nothing but a caret blinks: the click was not done"
    x, y, width, height = json.loads(task.outputs["target"])
    for beside in ((x + width // 2 + 2, y), (x, y - height // 2 - 2)):
        if 0 <= beside[0] < seen.screen_width and 0 <= beside[1] < seen.screen_height:
            desktop.step(parse_action(f"click({beside[0]}, {beside[1]})"))
            assert not succeeds(), beside
    desktop.step(parse_action(f"click({x}, {y})"))
    assert succeeds()


@pytest.mark.release
@pytest.mark.parametrize("app", sorted(IMAGES))
def test_screen_gives_many_questions_and_the_same_ones_for_the_same_seed(shared_desktops: SharedDesktops, app: str) -> None:
    """The same screen, too: nothing of the task before, whose folder and document have the same name, is left on it."""
    desktop = desktop_of(shared_desktops, app)
    starts = [desktop.reset(FAMILIES[f"point-{app}"].make(seed)) for seed in (*range(12), 2, 0, 1, 3, 5, 4)]
    begun = [(asked, [replace(element, number=0) for element in seen.elements]) for asked, seen in starts]
    assert begun[12:] == [begun[seed] for seed in (2, 0, 1, 3, 5, 4)]
    assert len({asked for asked, _ in begun}) >= 6


@pytest.mark.release
def test_another_task_is_played_as_ever_after_one_that_asks(shared_desktops: SharedDesktops) -> None:
    desktop = desktop_of(shared_desktops, "files")
    desktop.reset(FAMILIES["point-files"].make(1))
    task = FAMILIES["files-move"].make(1)
    instruction, seen = desktop.reset(task)
    assert not desktop.step(task.demonstrate(instruction, replace(seen), (), desktop.get)).action_error
    assert task.evaluate(desktop.get).success
