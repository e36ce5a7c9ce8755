"""What a person did on one task instance, kept as a demonstration. Reads the date, writes no file, asks no desktop."""

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
class Deed:
    """One action that was done, and what was on screen before."""

    action: Action
    observation: Observation
    picture: bytes
    """WebP; empty: none."""


def to_recording(
    task: TaskRef, instruction: str, deeds: Sequence[Deed], *, last: Observation, finished_itself: bool, desktop: str
) -> Recording:
    """The demonstration that ``deeds`` make; ``last`` is what the screen shows now. Raises `ValueError` for one that gives up."""
    steps = tuple(_step(deed) for deed in joined(deeds))
    if steps and is_final(steps[-1]):
        if steps[-1].action_text.startswith("fail"):
            raise ValueError("the task was given up with fail(): that teaches nothing")
    elif not finished_itself:
        steps = (*steps, _step(Deed(_DONE, last, b"")))
    return Recording(
        version=FORMAT_VERSION, task=task, instruction=instruction, steps=steps, recorded_at=time.time(), desktop=desktop
    )


def joined(deeds: Sequence[Deed]) -> list[Deed]:
    """``deeds`` with what was typed in several goes as one action: where a person paused says nothing."""
    found: list[Deed] = []
    for deed in deeds:
        before = found[-1].action if found else None
        if before is not None and before.name == deed.action.name == "type" and not before.args.get("enter"):
            text = before.args["text"] + deed.action.args["text"]
            found[-1] = replace(found[-1], action=Action(name="type", args={**deed.action.args, "text": text}))
        else:
            found.append(deed)
    return found


def _step(deed: Deed) -> RecordedStep:
    return RecordedStep(
        action_text=render_action(deed.action),
        targets=_targets(deed.action, deed.observation.elements),
        observation=structs.replace(deed.observation, screenshot=None),
        picture=base64.b64encode(deed.picture).decode("ascii"),
    )


def _targets(action: Action, elements: Sequence[Element]) -> dict[str, RecordedTarget]:
    found: dict[str, RecordedTarget] = {}
    for param in ("target", "source"):
        # API actions have targets that are no elements (files.copy).
        if action.args.get(param) is not None and action.args.get("y") is None and "." not in action.name:
            element = find_target(elements, action.args[param])
            found[param] = RecordedTarget(element.role, element.text, element.x, element.y)
    return found
