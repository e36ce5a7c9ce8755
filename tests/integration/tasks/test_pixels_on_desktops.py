"""MiniWoB++ pages by pixels on a real desktop: demonstrations as points solve them, points map back, and no text tells a name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from msgspec.structs import replace

from computerrl.actor.prompts.formats import make_format
from computerrl.actor.prompts.formats.base import PastAction, Unsayable
from computerrl.actor.prompts.formats.points import Box
from computerrl.common.actions import parse_action, render_action
from computerrl.common.actions.targets import element_at
from computerrl.common.config import DesktopConfig, PromptConfig
from computerrl.common.messages import Action, Observation
from computerrl.env_server.driver import DesktopDriver
from computerrl.env_server.tasks import FAMILIES
from tests.support.data.format_data import PICTURE, told_names
from tests.support.desktops import open_desktop
from tests.support.tiers import one_in

PAGES = sorted(name for name, family in FAMILIES.items() if name.startswith("web-") and family.has_demonstrator)
FLAKY = {"web-book-flight", "web-book-flight-nodelay"}
"""Their offers come and go by themselves, and their demonstrator sometimes clicks the field in place of the offer."""
MAX_ACTIONS = 40
FORM = make_format(PromptConfig.model_validate({"format": "compact_vision", "window_title": False}))


@pytest.fixture(scope="module")
def desktop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DesktopDriver]:
    with open_desktop(tmp_path_factory.mktemp("desktop"), DesktopConfig(observation="tree", max_elements=300)) as driver:
        yield driver


class Played:
    """Counts of elements and screens."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.covered: list[str] = []
        """Elements without a visible point: pages that move lay their elements over one another for a while."""
        self.mistaken: list[str] = []
        """Elements whose point is another element's."""

    def look(self, seen: Observation, *, seed: str) -> None:
        """Point at each element of a screen."""
        self.counts["screens"] += 1
        for element in seen.elements:
            self.counts["elements"] += 1
            try:
                action = FORM.parse(FORM.render(f"click({element.number})", seen, seed=seed), seen)
            except Unsayable as error:
                self.covered.append(f"{seed}: {error}")
                continue
            met = element_at(seen.elements, action.args["target"], action.args["y"])
            if met is None or Box.of(met) != Box.of(element):
                self.mistaken.append(f"{seed}: {element} -> {action.args} -> {met}")


def play(desktop: DesktopDriver, family: str, seed: int, played: Played) -> bool:
    """Play by the demonstrator's points; gives whether it succeeded, after checking that the prompts told nothing."""
    task = FAMILIES[family].make(seed)
    instruction, seen = desktop.reset(task)
    past: list[PastAction] = []
    done: list[Action] = []
    while len(done) < MAX_ACTIONS:
        seen = replace(seen, screenshot=PICTURE)
        step_seed = f"{family}:{seed}:{len(done)}"
        played.look(seen, seed=step_seed)
        assert told_names(FORM, instruction, seen, past) == []
        action = parse_action(render_action(task.demonstrate(instruction, seen, done, desktop.get)))
        said = FORM.render(render_action(action), seen, seed=step_seed)
        result = desktop.step(FORM.parse(said, seen))
        assert result.action_error == "", (said, result.action_error)
        past.append(PastAction(said, screenshot=PICTURE))
        done.append(action)
        if result.finished:
            break
        seen = result.observation
    return task.evaluate(desktop.get).success


@pytest.mark.parametrize("family", one_in(40, [name for name in PAGES if name not in FLAKY]))
def test_points_of_a_demonstration_solve_the_page_and_no_text_tells_a_name(desktop: DesktopDriver, family: str) -> None:
    played = Played()
    assert play(desktop, family, 0, played), family
    assert len(played.mistaken) <= played.counts["elements"] // 100, played.mistaken
    assert len(played.covered) <= max(1, played.counts["elements"] // 4), played.covered


@pytest.mark.release
def test_points_of_a_thousand_screens_map_back_to_their_elements(desktop: DesktopDriver) -> None:
    played = Played()
    seeds: Sequence[int] = range(1, 100)
    for seed in seeds:
        for family in PAGES:
            play(desktop, family, seed, played)
        if played.counts["screens"] >= 1000:
            break
    num_elements = played.counts["elements"]
    lost = played.covered + played.mistaken
    print(f"{played.counts['screens']} screens, {num_elements} elements, {len(lost)} without a point of their own")
    assert len(lost) <= num_elements / 1000, lost


def test_drag_to_one_place_begins_where_the_pointer_is(desktop: DesktopDriver) -> None:
    """As `left_click_drag` of Qwen's computer use does after `mouse_move`."""
    task = FAMILIES["web-highlight-text"].make(0)
    instruction, seen = desktop.reset(task)
    drag = task.demonstrate(instruction, seen, [], desktop.get)
    assert drag.name == "drag_pixels" and len(drag.args["path"]) == 4, drag
    x, y, to_x, to_y = drag.args["path"]
    qwen = make_format(PromptConfig.model_validate({"format": "qwen_computer_use"}))
    done = [drag]
    for said in (f"hover({x}, {y})", f"drag_pixels([{to_x}, {to_y}])"):
        result = desktop.step(qwen.parse(qwen.render(said, seen), seen))
        assert result.action_error == ""
        seen = result.observation
    while not result.finished and len(done) < 5:
        action = task.demonstrate(instruction, seen, done, desktop.get)
        result = desktop.step(action)
        done.append(action)
        seen = result.observation
    assert task.evaluate(desktop.get).success
