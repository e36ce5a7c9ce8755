"""Steps, trajectories and groups that nobody played, for benchmarks and studies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from computerrl.common.messages import (
    Assignment,
    OrderKind,
    ScreenshotRef,
    Step,
    StepTiming,
    TaskRef,
    Trajectory,
    TrajectoryGroup,
)


def make_step(
    prompt_tokens: Sequence[int] | np.ndarray,
    action_tokens: Sequence[int] | np.ndarray,
    *,
    logprobs: Sequence[float] | np.ndarray | None = None,
    version: int = 0,
    text: str = "click(1)",
    format_ok: bool = True,
    screen: ScreenshotRef | None = None,
    num_sampled: int | None = None,
) -> Step:
    """``logprobs``: 0 when None. ``screen``: what the prompt shows, and what the desktop shows after it. ``num_sampled``: number
    of tokens with log-probs and versions, 0 in demonstrations; None: all of the action."""
    count = len(action_tokens) if num_sampled is None else num_sampled
    return Step(
        prompt_tokens=np.array(prompt_tokens, dtype=np.int32),
        action_tokens=np.array(action_tokens, dtype=np.int32),
        behavior_logprobs=np.zeros(count, np.float32) if logprobs is None else np.array(logprobs, dtype=np.float32)[:count],
        policy_versions=np.full(count, version, dtype=np.int32),
        action_text=text,
        format_ok=format_ok,
        action_error="",
        screenshot=screen,
        settled_by="quiet",
        timing=StepTiming(0.1, 0.1, 0.05),
        images=() if screen is None else (screen,),
    )


def make_trajectory(work: Assignment, steps: Sequence[Step], *, success: bool = True, actor: str = "actor-0:bench") -> Trajectory:
    """The episode that ``work`` asks for."""
    return _trajectory(
        work.assignment_id, work.group_id, work.index, work.order_id, work.kind, work.task, steps, success=success, actor=actor
    )


def make_group(
    number: int, order_id: str, task: TaskRef, episodes: Sequence[tuple[Sequence[Step], bool]], *, instruction: str = "do it"
) -> TrajectoryGroup:
    """A training group; ``episodes``: steps and success of each."""
    name = f"{order_id}/{number}"
    trajectories = [
        _trajectory(f"{name}/{index}", name, index, order_id, "training", task, steps, success=success, instruction=instruction)
        for index, (steps, success) in enumerate(episodes)
    ]
    return TrajectoryGroup(number, name, order_id, "training", task, tuple(trajectories))


def _trajectory(
    name: str,
    group_id: str,
    index: int,
    order_id: str,
    kind: OrderKind,
    task: TaskRef,
    steps: Sequence[Step],
    *,
    success: bool,
    actor: str = "actor-0:bench",
    instruction: str = "do it",
) -> Trajectory:
    return Trajectory(
        trajectory_id=name,
        group_id=group_id,
        index=index,
        order_id=order_id,
        kind=kind,
        task=task,
        instruction=instruction,
        steps=tuple(steps),
        reward=float(success),
        success=success,
        end_reason="task_finished",
        final_screenshot=None,
        actor=actor,
        shown_by="",
        started_at=0.0,
        duration_s=1.0,
        reset_s=0.1,
        wait_s=0.1,
    )
