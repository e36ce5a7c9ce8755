"""Demonstrations as points: inside a visible part of the element, never the same twice, and the element's when read back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computerrl.actor.prompts.formats import make_format
from computerrl.actor.prompts.formats.base import Unsayable
from computerrl.actor.prompts.formats.coordinates import Grid
from computerrl.actor.prompts.formats.points import Box, make_aim
from computerrl.common.actions.targets import element_at
from computerrl.common.config import DesktopConfig, PromptConfig
from computerrl.common.messages import Element
from computerrl.env_server.drivers.scripted import ScriptedDriver
from computerrl.env_server.tasks import FAMILIES
from tests.support.data.actor_data import make_observation

GRID = Grid(800, 600, (1000, 1000))


def element(number: int, box: tuple[int, int, int, int], *, role: str = "push-button", text: str = "") -> Element:
    """``box``: left, top, width, height."""
    left, top, width, height = box
    return Element(number, role, text or f"element {number}", left + width // 2, top + height // 2, width, height, ())


def points(elements: Sequence[Element], *, count: int = 50, grid: Grid = GRID) -> set[tuple[int, int]]:
    """Points in the first of ``elements``, by many seeds."""
    return {make_aim(elements, grid, seed=str(seed))(elements[0]) for seed in range(count)}


def test_points_lie_in_the_middle_half_and_differ_by_seed() -> None:
    found = points([element(1, (100, 200, 80, 40))])
    assert len(found) > 40
    assert all(120 <= x < 160 and 210 <= y < 230 for x, y in found)


def test_equal_seeds_give_equal_points() -> None:
    elements = [element(1, (100, 200, 80, 40))]
    assert make_aim(elements, GRID, seed="web-click-button:7:2")(elements[0]) == make_aim(
        elements, GRID, seed="web-click-button:7:2"
    )(elements[0])


def test_points_of_an_element_partly_outside_lie_on_the_screen() -> None:
    found = points([element(1, (700, 500, 180, 180))])
    assert all(725 <= x < 775 and 525 <= y < 575 for x, y in found)


@pytest.mark.parametrize(
    ("others", "part"),
    [
        pytest.param([element(2, (100, 200, 40, 40))], (140, 200, 200, 240), id="smaller in front of its left part"),
        pytest.param([element(2, (160, 150, 300, 200))], (100, 200, 160, 240), id="larger over its right part"),
        pytest.param([element(2, (0, 0, 800, 600), role="panel")], (100, 200, 200, 240), id="larger behind it"),
        pytest.param(
            [element(2, (100, 150, 70, 300)), element(3, (180, 150, 70, 300))], (170, 200, 180, 240), id="one over each end"
        ),
    ],
)
def test_points_avoid_what_covers_the_element(others: list[Element], part: tuple[int, int, int, int]) -> None:
    left, top, right, bottom = part
    found = points([element(1, (100, 200, 100, 40)), *others])
    assert all(left <= x < right and top <= y < bottom for x, y in found)


def test_element_behind_counts_as_covering_only_where_something_else_is_left() -> None:
    # Earlier in the tree, and larger: it is drawn below. The centre of element 1 is all inside it.
    behind, front = element(2, (120, 0, 60, 600)), element(1, (110, 200, 80, 40))
    found = {make_aim([behind, front], GRID, seed=str(seed))(front) for seed in range(20)}
    assert all(110 <= x < 120 or 180 <= x < 190 for x, y in found)
    behind = element(2, (105, 0, 90, 239))
    found = {make_aim([behind, front], GRID, seed=str(seed))(front) for seed in range(20)}
    assert all(110 <= x < 190 and 200 <= y < 240 for x, y in found)


def test_element_without_a_visible_point_is_unsayable() -> None:
    elements = [element(1, (100, 200, 80, 40)), element(2, (100, 200, 40, 40)), element(3, (140, 200, 41, 41))]
    with pytest.raises(Unsayable, match="no point of the push-button 1 is visible") as caught:
        make_aim(elements, GRID, seed="")(elements[0])
    assert caught.value.reason == "no_visible_point"


def test_element_with_its_centre_off_the_screen_and_its_visible_part_covered_is_unsayable() -> None:
    elements = [element(1, (0, 542, 1, 116)), element(2, (0, 541, 1, 58))]
    with pytest.raises(Unsayable, match="no point of the push-button 1 is visible"):
        make_aim(elements, GRID, seed="")(elements[0])


def test_element_at_the_very_same_place_is_as_good() -> None:
    twins = [element(1, (100, 200, 80, 40), role="link"), element(2, (100, 200, 80, 40), role="image")]
    assert all(Box.of(twins[1]).holds(Box(x, y, x + 1, y + 1)) for x, y in points(twins[::-1]))


@given(
    boxes=st.lists(
        st.tuples(st.integers(0, 780), st.integers(0, 580), st.integers(1, 300), st.integers(1, 200)), min_size=1, max_size=12
    ),
    extent=st.sampled_from([(1000, 1000), (812, 616), (308, 224), (1596, 1204)]),
    seed=st.integers(0, 99),
)
def test_any_point_is_the_elements_own_or_there_is_none(
    boxes: list[tuple[int, int, int, int]], extent: tuple[int, int], seed: int
) -> None:
    elements = [element(number, box) for number, box in enumerate(boxes, start=1)]
    grid = Grid(800, 600, extent)
    for one in elements:
        try:
            place = grid.place(*make_aim(elements, grid, seed=str(seed))(one))
            met = element_at(elements, *grid.pixel(place))
        except Unsayable:
            continue
        assert met is not None and Box.of(met) == Box.of(one)


@pytest.mark.parametrize("name", ["compact_vision", "computerrl_vision", "ui_tars", "qwen_computer_use"])
def test_points_on_scripted_screens_map_back_to_their_elements(name: str) -> None:
    """Every row of every family that the scripted driver plays, as a target."""
    form = make_format(PromptConfig.model_validate({"format": name}))
    driver = ScriptedDriver(DesktopConfig(driver="scripted", observation="tree"))
    lost: list[Any] = []
    num_elements = 0
    for family in FAMILIES.values():
        if "scripted" not in family.drivers:
            continue
        for seed in range(4):
            _, seen = driver.reset(family.make(seed))
            for one in seen.elements:
                num_elements += 1
                action = form.parse(form.render(f"click({one.number})", seen, seed=str(seed)), seen)
                if element_at(seen.elements, action.args["target"], action.args["y"]) != one:
                    lost.append((family.name, seed, one))
    assert num_elements > 300 and lost == []


def test_drag_takes_a_point_in_each_of_its_ends() -> None:
    elements = (element(1, (100, 200, 80, 40), text="a"), element(2, (400, 300, 80, 40), text="b"))
    screen = make_observation(*elements)
    for seed in range(20):
        form = make_format(PromptConfig.model_validate({"format": "compact_vision"}))
        x, y, to_x, to_y = form.parse(form.render('drag("a", "b")', screen, seed=str(seed)), screen).args["path"]
        assert element_at(elements, x, y) == elements[0] and element_at(elements, to_x, to_y) == elements[1]


def test_seeds_are_spread_like_any_random_numbers() -> None:
    """The middle of a wide element is met about as often left as right of its centre."""
    found = [make_aim([element(1, (0, 0, 800, 40))], GRID, seed=f"task:{n}")(element(1, (0, 0, 800, 40)))[0] for n in range(400)]
    assert 150 < sum(x < 400 for x in found) < 250
