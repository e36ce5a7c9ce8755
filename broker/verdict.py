"""Is this trajectory what its order asked for? Pure checks on values; whether its slot is still free is the order's business."""

from __future__ import annotations

import math
import re

from computerrl.broker.orders.curriculum import group_size_limits
from computerrl.broker.orders.orders import OrderState, Slot
from computerrl.common.messages import SIZE_LIMITS, Step, Trajectory, TrajectoryGroup

_GROUP_LIMIT = SIZE_LIMITS[TrajectoryGroup.__name__]
_MAX_GROUP_BYTES = _GROUP_LIMIT.total_bytes - _GROUP_LIMIT.header_bytes
_STEP_BYTES, _TRAJECTORY_BYTES = 2048, 8192
"""In a message's header at most, without those texts that may be of any length."""
_GROUP_NUMBER = re.compile(r"0|[1-9][0-9]{0,11}")


def slot_of(trajectory: Trajectory) -> Slot | None:
    """The slot a trajectory names, None when its ids contradict each other."""
    order_id, _, number = trajectory.group_id.rpartition("/")
    if order_id != trajectory.order_id or not _GROUP_NUMBER.fullmatch(number):
        return None
    if trajectory.trajectory_id != f"{trajectory.group_id}/{trajectory.index}":
        return None
    return int(number), trajectory.index


def malformation(trajectory: Trajectory, order: OrderState, slot: Slot) -> str:
    """What is wrong with the trajectory's content, empty when nothing is."""
    if trajectory.kind != order.order.kind:
        return f"kind {trajectory.kind}, the order's is {order.order.kind}"
    task = order.task(slot[0])
    if trajectory.task != task:
        return f"task {trajectory.task.task_id}, the group's is {task.task_id}"
    if not (math.isfinite(trajectory.reward) and 0.0 <= trajectory.reward <= 1.0):
        return f"reward {trajectory.reward} is outside 0..1"
    if len(trajectory.steps) > order.order.max_steps:
        return f"{len(trajectory.steps)} steps, the order allows {order.order.max_steps}"
    group_size = group_size_limits(order.order)[1]
    if group_size * trajectory.num_bytes > _MAX_GROUP_BYTES:
        return f"its arrays are too large: a group of {group_size} such would be larger than any message"
    if group_size * _max_header_bytes(trajectory) > _GROUP_LIMIT.header_bytes:
        return f"its texts are too large: a group of {group_size} such would be larger than any message"
    sampled = trajectory.kind != "demonstration"
    for number, step in enumerate(trajectory.steps):
        problem = _step_problem(step, sampled=sampled)
        if problem:
            return f"step {number}: {problem}"
    return ""


def _max_header_bytes(trajectory: Trajectory) -> int:
    of_steps = sum(_STEP_BYTES + _num_bytes(step.action_text) + _num_bytes(step.action_error) for step in trajectory.steps)
    return _TRAJECTORY_BYTES + _num_bytes(trajectory.instruction) + of_steps


def _num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _step_problem(step: Step, *, sampled: bool) -> str:
    sizes = (step.action_tokens.size, step.behavior_logprobs.size, step.policy_versions.size)
    if not step.prompt_tokens.size or not sizes[0]:
        return f"{step.prompt_tokens.size} prompt and {sizes[0]} action tokens"
    if sampled and len(set(sizes)) != 1:
        return f"{sizes[0]} action tokens, {sizes[1]} log-probs, {sizes[2]} policy versions"
    # One that is not finite makes the sum so; this is half the work of looking at each.
    if not math.isfinite(step.behavior_logprobs.sum()):
        return "log-probs are not finite"
    return ""
