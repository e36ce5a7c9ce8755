"""Grounding rewards against the papers' formulas, written here once more with corners instead of centres and sizes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from msgspec.structs import replace

from computerrl.common.errors import ConfigError
from computerrl.common.messages import ElementTarget
from computerrl.learner.algorithms.grounding import reward_named
from computerrl.learner.objective.grounding import REWARDS, Point, step_reward
from tests.support.data.trainer_data import make_step

Box = tuple[float, float, float, float]
"""x1, y1, x2, y2."""


def slow_hit(point: Point, box: Box, screen: tuple[int, int]) -> float:
    return 1.0 if box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3] else 0.0


def slow_gaussian(point: Point, box: Box, screen: tuple[int, int]) -> float:
    """The density of a normal distribution for x and for y, each relative to its peak."""
    found = 1.0
    for axis in (0, 1):
        mean, sigma = (box[axis] + box[axis + 2]) / 2, 0.5 * (box[axis + 2] - box[axis])
        found *= math.exp(-0.5 * ((point[axis] - mean) / sigma) ** 2)
    return found


def slow_distance(point: Point, box: Box, screen: tuple[int, int]) -> float:
    def away(x: float, y: float) -> float:
        centre = ((box[0] + box[2]) / 2 / screen[0], (box[1] + box[3]) / 2 / screen[1])
        return math.dist((x / screen[0], y / screen[1]), centre)

    corners = [(0, 0), (screen[0], 0), (0, screen[1]), screen]
    return 1 - (away(*point) / max(away(*corner) for corner in corners)) ** 2


def slow_continuous(point: Point, box: Box, screen: tuple[int, int]) -> float:
    return slow_hit(point, box, screen) + slow_distance(point, box, screen)


def slow_overlap(point: Point, box: Box, screen: tuple[int, int]) -> float:
    """GUI-G1's release, for a predicted box of the target's size around the point; the overlap is counted in half pixels."""
    width, height = box[2] - box[0], box[3] - box[1]
    guess = (point[0] - width / 2, point[1] - height / 2, point[0] + width / 2, point[1] + height / 2)
    across = sum(1 for half in np.arange(box[0], box[2], 0.5) if guess[0] <= half < guess[2]) / 2
    down = sum(1 for half in np.arange(box[1], box[3], 0.5) if guess[1] <= half < guess[3]) / 2
    iou = across * down / (2 * width * height - across * down)
    near = [1 - abs(guess[edge] - box[edge]) / screen[edge % 2] for edge in range(4)]
    return slow_hit(point, box, screen) + 0.25 * iou + 0.125 * 4 / sum(1 / one for one in near)


SLOW = {
    "point_in_box": slow_hit,
    "gaussian": slow_gaussian,
    "distance": slow_distance,
    "continuous": slow_continuous,
    "box_overlap": slow_overlap,
}


def make_target(x: int = 400, y: int = 150, width: int = 60, height: int = 20, *, is_same_kind: bool = True) -> ElementTarget:
    return ElementTarget(x, y, width, height, 800, 600, is_same_kind)


@pytest.mark.parametrize("name", sorted(REWARDS))
def test_reward_random_points_equals_the_formula_with_corners(name: str) -> None:
    rng, found = np.random.default_rng(0), []
    for _ in range(60):
        width, height = (2 * int(half) for half in rng.integers(2, 60, 2))
        x, y = int(rng.integers(width // 2, 800 - width // 2)), int(rng.integers(height // 2, 600 - height // 2))
        # Half of the points lie near the box.
        near = bool(rng.integers(2))
        px = int(np.clip(x + rng.integers(-width, width), 0, 799)) if near else int(rng.integers(800))
        py = int(np.clip(y + rng.integers(-height, height), 0, 599)) if near else int(rng.integers(600))
        box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        found.append(REWARDS[name]((px, py), make_target(x, y, width, height)))
        assert found[-1] == pytest.approx(SLOW[name]((px, py), box, (800, 600)), abs=1e-12)
    assert min(found) < 0.9 < max(found), "points inside and outside"


@pytest.mark.parametrize(
    ("name", "at_centre", "at_corner", "far"),
    [
        ("point_in_box", 1.0, 1.0, 0.0),
        ("gaussian", 1.0, math.exp(-1), 0.0),
        ("continuous", 2.0, 2 - (30**2 / 800**2 + 10**2 / 600**2) / (0.5**2 + 0.75**2), 0.0),
    ],
)
def test_reward_at_marked_places_has_its_published_value(name: str, at_centre: float, at_corner: float, far: float) -> None:
    reward = REWARDS[name]
    assert reward((400, 150), make_target()) == at_centre
    assert reward((430, 160), make_target()) == pytest.approx(at_corner, rel=1e-12)
    assert reward((0, 600), make_target()) == pytest.approx(far, abs=1e-12)
    assert reward((431, 160), make_target()) < at_corner


def test_reward_of_an_element_without_extent_is_a_number() -> None:
    flat = make_target(width=0, height=0)
    assert all(math.isfinite(reward((401, 150), flat)) for reward in REWARDS.values())
    assert REWARDS["gaussian"]((400, 150), flat) == 1.0 and REWARDS["point_in_box"]((401, 150), flat) == 0.0


def test_step_earns_for_one_place_of_an_action_of_the_right_kind_only() -> None:
    reward = REWARDS["point_in_box"]
    step = replace(make_step([1], [2]), places=(400, 150), target=make_target())
    assert step_reward(step, reward) == 1.0
    assert step_reward(replace(step, target=None), reward) is None
    for other in (
        replace(step, format_ok=False),
        replace(step, places=()),
        replace(step, places=(400, 150, 400, 150)),
        replace(step, target=make_target(is_same_kind=False)),
    ):
        assert step_reward(other, reward) == 0.0


def test_reward_of_another_package_is_found_and_a_wrong_name_is_refused() -> None:
    assert reward_named(f"{__name__}:from_elsewhere", field="f")((1, 1), make_target()) == 7.0
    for name, reason in (("gausian", "no grounding reward"), ("nowhere:no", "cannot be imported")):
        with pytest.raises(ConfigError, match=reason):
            reward_named(name, field="learner.algorithm.options.reward")
    with pytest.raises(ConfigError, match="no function"):
        reward_named(f"{__name__}:SLOW", field="f")


def from_elsewhere(point: Point, target: ElementTarget) -> float:
    return 7.0
