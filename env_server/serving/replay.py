"""A person's recorded demonstration as a task's demonstrator: the same actions, on a real desktop, in the run's action format.

Elements are found again by role, text and position, and named as any demonstrator names them
(`env_server.tasks.targets.name_of`): their numbers may differ. Where an element is missing, the replay waits a step or two, then
returns the recorded action. That action fails, the episode is judged like any other, and the learner leaves failed demonstrations
out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from computerrl.common import log
from computerrl.common.actions import parse_action
from computerrl.common.config import TasksConfig
from computerrl.common.messages import Action, Element, Observation, TaskRef
from computerrl.common.run_files.recordings import RecordedStep, RecordedTarget, Recording, find_recording
from computerrl.env_server.driver import Getter, TaskInstance
from computerrl.env_server.tasks.family import DONE, WAIT
from computerrl.env_server.tasks.targets import name_of

MAX_WAITS = 2
"""Maximum number of waits for one missing element; each wait is one of the episode's few steps."""

MAX_SHIFT = 80
"""Maximum distance in pixels between an element without text (an empty field) and the recorded one."""

_FAIL = Action(name="fail", args={})


def with_recording(instance: TaskInstance, task: TaskRef, *, tasks: TasksConfig) -> TaskInstance:
    """``instance`` with the recorded demonstrator of ``task`` where there is one, else unchanged."""
    try:
        recording = find_recording(tasks, task)
    except (ValueError, OSError) as error:
        log.get_logger().warning("recording.unreadable", task=task.task_id, reason=str(error))
        return instance
    if recording is None:
        return instance

    def demonstrate(instruction: str, observation: Observation, actions: Sequence[Action], get: Getter) -> Action:
        return next_action(recording, instruction, observation, actions)

    return replace(instance, demonstrate=demonstrate)


def next_action(recording: Recording, instruction: str, observation: Observation, actions: Sequence[Action]) -> Action:
    """The person's action at this point. An instance whose instruction has changed since the recording is given up."""
    if instruction != recording.instruction:
        log.get_logger().warning("recording.outdated", task=recording.task.task_id, asked=instruction, then=recording.instruction)
        return _FAIL
    number, num_waits = _progress(recording.steps, actions)
    if number >= len(recording.steps):
        return DONE
    step = recording.steps[number]
    action = parse_action(step.action_text)
    names = _names(step.targets, observation.elements)
    if names is None:
        return WAIT if num_waits < MAX_WAITS else action
    return Action(name=action.name, args={**action.args, **names})


def _progress(steps: Sequence[RecordedStep], actions: Sequence[Action]) -> tuple[int, int]:
    """(recorded steps done, waits since then that were not recorded)."""
    number, num_waits = 0, 0
    for action in actions:
        recorded = parse_action(steps[number].action_text).name if number < len(steps) else ""
        if action.name == "wait" and recorded != "wait":
            num_waits += 1
        else:
            number, num_waits = number + 1, 0
    return number, num_waits


def _names(targets: Mapping[str, RecordedTarget], elements: Sequence[Element]) -> dict[str, int | str] | None:
    names: dict[str, int | str] = {}
    for param, target in targets.items():
        element = _find(elements, target)
        if element is None:
            return None
        names[param] = name_of(elements, element)
    return names


def _find(elements: Sequence[Element], target: RecordedTarget) -> Element | None:
    same = [element for element in elements if (element.role, element.text.strip()) == (target.role, target.text.strip())]
    nearest = min(same, key=lambda element: _distance(element, target), default=None)
    if nearest is None or (not target.text.strip() and _distance(nearest, target) > MAX_SHIFT):
        return None
    return nearest


def _distance(element: Element, target: RecordedTarget) -> int:
    return abs(element.x - target.x) + abs(element.y - target.y)
