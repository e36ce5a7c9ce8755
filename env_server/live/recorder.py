"""A person's actions on one task instance as a demonstration. Reads the date; writes no file and makes no request."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from computerrl.common.actions import render_action
from computerrl.common.actions.targets import find_target
from computerrl.common.messages import Action, Element, Observation, TaskRef
from computerrl.common.run_files.recordings import FORMAT_VERSION, RecordedStep, RecordedTarget, Recording, is_final

_DONE = Action(name="done", args={})


@dataclass(frozen=True, slots=True)
class PerformedAction:
    """One action that was carried out, and the screen before it."""

    action: Action
    observation: Observation
    picture: bytes
    """Screen as WebP; empty: none."""
    pointed: tuple[int, ...] = ()
    """Pixels at which the person pointed, as in `RecordedStep`."""


def to_recording(
    task: TaskRef,
    instruction: str,
    performed: Sequence[PerformedAction],
    *,
    last: Observation,
    finished_itself: bool,
    desktop: str,
) -> Recording:
    """The demonstration made of ``performed``; ``last``: present observation. Raises `ValueError` for one that gives up."""
    steps = tuple(_step(one) for one in joined(performed))
    if steps and is_final(steps[-1]):
        if steps[-1].action_text.startswith("fail"):
            raise ValueError("the task was given up with fail(): that teaches nothing")
    elif not finished_itself:
        steps = (*steps, _step(PerformedAction(_DONE, last, b"")))
    return Recording(
        version=FORMAT_VERSION, task=task, instruction=instruction, steps=steps, recorded_at=time.time(), desktop=desktop
    )


def joined(performed: Sequence[PerformedAction]) -> list[PerformedAction]:
    """``performed`` with consecutive typing as one action: a person's pauses mean nothing."""
    found: list[PerformedAction] = []
    for one in performed:
        before = found[-1].action if found else None
        if before is not None and before.name == one.action.name == "type" and not before.args.get("enter"):
            text = before.args["text"] + one.action.args["text"]
            found[-1] = replace(found[-1], action=Action(name="type", args={**one.action.args, "text": text}))
        else:
            found.append(one)
    return found


def _step(one: PerformedAction) -> RecordedStep:
    return RecordedStep(
        action_text=render_action(one.action),
        targets=_targets(one.action, one.observation.elements),
        observation=structs.replace(one.observation, screenshot=None),
        picture=base64.b64encode(one.picture).decode("ascii"),
        pointed=one.pointed,
    )


def _targets(action: Action, elements: Sequence[Element]) -> dict[str, RecordedTarget]:
    found: dict[str, RecordedTarget] = {}
    for param in ("target", "source"):
        # API actions have targets that are no elements (files.copy).
        if action.args.get(param) is not None and action.args.get("y") is None and "." not in action.name:
            element = find_target(elements, action.args[param])
            found[param] = RecordedTarget(element.role, element.text, element.x, element.y)
    return found
