"""A recorded demonstration as a task's demonstrator: the same actions, on a real desktop, in the run's action format.

Elements are found again by role, text and position (those of an agent's episode by text, or by position alone), and named as any
demonstrator names them (`env_server.tasks.targets.name_of`): their numbers may differ. Where an element is missing, the replay
waits a step or two, then returns the recorded action. That action fails, the episode is judged like any other, and the learner
leaves failed demonstrations out. For a policy that sees images, an action goes to the pixel at which it pointed; where its
element has moved, to the same place in the element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from computerrl.common import log
from computerrl.common.actions import parse_action
from computerrl.common.actions.targets import element_at, plain
from computerrl.common.config import TasksConfig
from computerrl.common.messages import Action, Element, Observation, TaskRef
from computerrl.common.run_files.recordings import RecordedStep, RecordedTarget, Recording, find_recording
from computerrl.env_server.driver import Getter, TaskInstance
from computerrl.env_server.tasks.family import DONE, WAIT
from computerrl.env_server.tasks.targets import name_of
from computerrl.env_server.tasks.wordings import all_wordings

MAX_WAITS = 2
"""Maximum number of waits for one missing element; each wait is one of the episode's few steps."""

MAX_SHIFT = 80
"""Maximum distance in pixels between an element without text (an empty field) and the recorded one."""

_FAIL = Action(name="fail", args={})


def with_recording(instance: TaskInstance, task: TaskRef, *, tasks: TasksConfig, by_pixels: bool = False) -> TaskInstance:
    """``instance`` with the recorded demonstrator of ``task`` where there is one, else unchanged. ``by_pixels``: it names pixels
    instead of elements, where the person pointed."""
    try:
        recording = find_recording(tasks, task)
    except (ValueError, OSError) as error:
        log.get_logger().warning("recording.unreadable", task=task.task_id, reason=str(error))
        return instance
    if recording is None:
        return instance

    def demonstrate(instruction: str, observation: Observation, actions: Sequence[Action], get: Getter) -> Action:
        return next_action(recording, instruction, observation, actions, by_pixels=by_pixels)

    source = recording.source
    recorded = "a person" if source is None else source.model or source.agent
    return replace(instance, demonstrate=demonstrate, shown_by=f"recording of {recorded}")


def next_action(
    recording: Recording, instruction: str, observation: Observation, actions: Sequence[Action], *, by_pixels: bool = False
) -> Action:
    """The person's action at this point. An instance whose instruction has changed since the recording is given up."""
    if recording.instruction not in all_wordings(instruction, seed=recording.task.seed):
        log.get_logger().warning("recording.outdated", task=recording.task.task_id, asked=instruction, then=recording.instruction)
        return _FAIL
    number, num_waits = _progress(recording.steps, actions)
    if number >= len(recording.steps):
        return DONE
    step = recording.steps[number]
    action = parse_action(step.action_text)
    found = _elements(step.targets, observation.elements)
    if found is None:
        return WAIT if num_waits < MAX_WAITS else action
    if by_pixels and step.pointed and found:
        return _at_pixels(action, step, found, observation)
    names = {param: name_of(observation.elements, element) for param, element in found.items()}
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


def _elements(targets: Mapping[str, RecordedTarget], elements: Sequence[Element]) -> dict[str, Element] | None:
    """Parameter -> element on the screen of now; None where one is missing."""
    found: dict[str, Element] = {}
    for param, target in targets.items():
        element = _find(elements, target)
        if element is None:
            return None
        found[param] = element
    return found


def _at_pixels(action: Action, step: RecordedStep, found: Mapping[str, Element], observation: Observation) -> Action:
    """``action`` at the places in the elements ``found`` at which the person pointed."""
    ends = (("source", step.pointed[:2]), ("target", step.pointed[-2:]))
    path = [
        number
        for param, pixel in ends
        if param in found
        for number in _moved(pixel, step.targets[param], found[param], observation)
    ]
    if action.name == "drag":
        return Action(name="drag_pixels", args={"path": path})
    return Action(name=action.name, args={**action.args, "target": path[0], "y": path[1]})


def _moved(pixel: Sequence[int], then: RecordedTarget, now: Element, observation: Observation) -> tuple[int, int]:
    """``pixel`` as far from the element's centre as it was, inside the element and on the screen."""
    x = _within(pixel[0] - then.x, now.width) + now.x
    y = _within(pixel[1] - then.y, now.height) + now.y
    return min(max(x, 0), observation.screen_width - 1), min(max(y, 0), observation.screen_height - 1)


def _within(shift: int, size: int) -> int:
    """``shift`` from the middle of ``size`` pixels, inside them."""
    return min(max(shift, -(size // 2)), max(0, size - size // 2 - 1))


def _find(elements: Sequence[Element], target: RecordedTarget) -> Element | None:
    if not target.role:
        return _find_without_role(elements, target)
    same = [element for element in elements if (element.role, element.text.strip()) == (target.role, target.text.strip())]
    nearest = min(same, key=lambda element: _distance(element, target), default=None)
    if nearest is None or (not target.text.strip() and _distance(nearest, target) > MAX_SHIFT):
        return None
    return nearest


def _find_without_role(elements: Sequence[Element], target: RecordedTarget) -> Element | None:
    """The element with the target's text, as `find_target` would take it, the nearest of several; without a text the one whose
    centre is at the target's place, else the smallest that holds it."""
    if not target.text:
        centred = next((element for element in elements if _distance(element, target) == 0), None)
        return centred or element_at(elements, target.x, target.y)
    named = [element for element in elements if plain(element.text) == plain(target.text)]
    operable = [element for element in named if not element.is_plain_text] or named
    return min(operable, key=lambda element: _distance(element, target), default=None)


def _distance(element: Element, target: RecordedTarget) -> int:
    return abs(element.x - target.x) + abs(element.y - target.y)
