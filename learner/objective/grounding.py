"""Grounding rewards: what an action earns for where it points, beside the element at which it should point. Pure.

A reward is a function (point, target) -> number. It pays more, the better the point hits the target's box; the range is that of
its source, since advantages are relative to the group. The formulas are those of the papers' releases, which have them for one
predicted point or box on one screenshot. Coordinates are pixels of the screen, and a box is given by its centre and its size.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from computerrl.common.messages import ElementTarget, Step

Point = tuple[int, int]
"""x, y."""
GroundingReward = Callable[[Point, ElementTarget], float]

GAUSSIAN_SPREAD = 0.5
"""alpha of GUI-G²: standard deviation of a click as a share of the box's side."""
IOU_WEIGHT, BOX_WEIGHT = 0.25, 0.125
"""Weights of GUI-G1's release beside the hit."""


def point_in_box(point: Point, target: ElementTarget) -> float:
    """1 inside the target's box, edges included, else 0.

    GUI-R1 (arXiv 2504.10458), the point reward of its accuracy reward; UI-R1 (arXiv 2503.21620), the coordinate reward R_C of its
    action reward; GUI-G1 (arXiv 2505.15810), R_Hit.
    """
    dx, dy = _offsets(point, target)
    return float(2 * dx <= target.width and 2 * dy <= target.height)


def gaussian(point: Point, target: ElementTarget) -> float:
    """exp(-((dx / sigma_x)^2 + (dy / sigma_y)^2) / 2) with sigma = 0.5 of the box's sides: in (0, 1], 1 at the centre, e^-1 at a
    corner.

    GUI-G² (Tang et al., arXiv 2507.15846), the Gaussian point reward with adaptive variance. Its coverage reward compares
    predicted boxes; a click has no size, and this one does without it.
    """
    dx, dy = _offsets(point, target)
    width, height = _sides(target)
    return math.exp(-((dx / (GAUSSIAN_SPREAD * width)) ** 2 + (dy / (GAUSSIAN_SPREAD * height)) ** 2) / 2)


def distance(point: Point, target: ElementTarget) -> float:
    """1 - (d / d_max)^2, in [0, 1]: d is the distance to the box's centre and d_max that of the farthest corner of the screen,
    both with x in widths and y in heights of the screen.

    SE-GUI (arXiv 2505.12370), the decay term of the dense point reward alone.
    """
    across, down = target.x / target.screen_width, target.y / target.screen_height
    farthest = max(math.hypot(across - corner_x, down - corner_y) for corner_x in (0, 1) for corner_y in (0, 1))
    dx, dy = _offsets(point, target)
    return 1.0 - (math.hypot(dx / target.screen_width, dy / target.screen_height) / farthest) ** 2


def continuous(point: Point, target: ElementTarget) -> float:
    """`point_in_box` + `distance`, in [0, 2]: SE-GUI (arXiv 2505.12370), the whole dense point reward."""
    return point_in_box(point, target) + distance(point, target)


def box_overlap(point: Point, target: ElementTarget) -> float:
    """R_Hit + 0.25 R_IoU + 0.125 R_Box, in [0, 1.375]: GUI-G1 (arXiv 2505.15810), which keeps the size of a predicted box from
    being gamed. R_Box is the harmonic mean of 1 - (distance of an edge) / (side of the screen) over the four edges.

    The predicted box is ours, since a click has no size: the target's box, moved so that the point is its centre.
    """
    dx, dy = _offsets(point, target)
    width, height = _sides(target)
    shared = max(0.0, width - dx) * max(0.0, height - dy)
    iou = shared / (2 * width * height - shared)
    near_x, near_y = 1 - dx / target.screen_width, 1 - dy / target.screen_height
    edges = 2 / (1 / near_x + 1 / near_y) if near_x > 0 and near_y > 0 else 0.0
    return point_in_box(point, target) + IOU_WEIGHT * iou + BOX_WEIGHT * edges


REWARDS: dict[str, GroundingReward] = {
    "point_in_box": point_in_box,
    "gaussian": gaussian,
    "distance": distance,
    "continuous": continuous,
    "box_overlap": box_overlap,
}
"""Name in a configuration -> reward."""


def step_reward(step: Step, reward: GroundingReward) -> float | None:
    """Grounding reward of a step; None where no target is known.

    0 where the action is of another kind than the demonstrator's, is badly formed, or points at none or several places.
    """
    if step.target is None:
        return None
    if not step.format_ok or not step.target.is_same_kind or len(step.places) != 2:
        return 0.0
    return float(reward((step.places[0], step.places[1]), step.target))


def _offsets(point: Point, target: ElementTarget) -> tuple[int, int]:
    """Distances to the centre, across and down."""
    return abs(point[0] - target.x), abs(point[1] - target.y)


def _sides(target: ElementTarget) -> tuple[int, int]:
    """Width and height; those of an element without extent count as one pixel."""
    return max(1, target.width), max(1, target.height)
