"""Recorded demonstrations: files ``<family>-<seed>.json`` in one folder (`tasks.recordings`), one per task instance.

Written by the desktop page (`env_server.live`) for a person, and by `computerrl record` for the successes of an evaluation;
replayed on desktops by `env_server.serving.replay`, counted by the learner's recipe. What a policy is trained on is never read
from these files: a replay makes it anew, with the prompt of that run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from computerrl.common.actions import FINAL_ACTIONS, ActionSyntaxError, parse_action
from computerrl.common.config import TasksConfig
from computerrl.common.errors import Problem
from computerrl.common.messages import Observation, TaskRef
from computerrl.common.run_files.run_folder import PRIVATE, write_atomically

FORMAT_VERSION = 1

_FILE_NAME = re.compile(r"(?P<family>.+)-(?P<seed>\d+)\.json")
_FIELD = "tasks.recordings"


class RecordedTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The element that an action named, so that it is found again where it has another number."""

    role: str
    """Role of the element. Empty: an agent's episode, which keeps no elements; then it is any element with the text."""
    text: str
    """Text of the element. Without a role, empty: the agent gave a number, and the element is found by its place alone."""
    x: int
    y: int
    """Centre, screen pixels."""


class RecordedStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One action and what was on screen when it was chosen."""

    action_text: str
    targets: dict[str, RecordedTarget]
    """Parameter of the action (`target`, `source`) -> element; without those given as pixels."""
    observation: Observation
    """State of the desktop. Of an agent's episode only the size of the screen is known."""
    picture: str
    """The screen as WebP, or as the agent's run stored it, base64; empty: none was taken. For people (`computerrl replay FILE`);
    replays on desktops do not read it."""
    pointed: tuple[int, ...] = ()
    """Pixels at which the action pointed: x, y, or x, y of both ends of a drag. Empty: the action was typed, or pointed at
    nothing."""


class RecordedFrom(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Episode of an evaluation that became a demonstration."""

    agent: str
    """Kind of the agent that played (`actor.agent.kind`); empty: a policy in prompts and engine of a run."""
    model: str
    """Name of the model, or run and checkpoint of its weights."""
    endpoint: str
    """Address of the server that held the model; empty: there was none."""
    run: str
    """Name of the run folder."""
    trajectory_id: str


class Recording(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One solved task."""

    version: int
    task: TaskRef
    instruction: str
    steps: tuple[RecordedStep, ...]
    """Those that could be done. A person's end with `done()` unless the task finished itself; a replay says it after the last
    step in any case."""
    recorded_at: float
    """Unix seconds; start of the episode of an agent."""
    desktop: str
    """Driver and image it was recorded on."""
    source: RecordedFrom | None = None
    """Episode that it was made from. None: a person recorded it."""


_DECODER = msgspec.json.Decoder(Recording)


def recording_path(folder: Path, *, family: str, seed: int) -> Path:
    """Where the demonstration of that instance lies."""
    return folder / f"{family}-{seed}.json"


def write_recording(folder: Path, recording: Recording) -> Path:
    """Keep ``recording`` in ``folder`` (made when missing), in place of an older one of the same instance."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = recording_path(folder, family=recording.task.family, seed=recording.task.seed)
    write_atomically(path, msgspec.json.format(msgspec.json.encode(recording), indent=1), mode=PRIVATE)
    return path


def read_recording(path: Path) -> Recording:
    """What `write_recording` wrote. Raises `ValueError` that says what is wrong with the file, or `OSError`."""
    try:
        recording = _DECODER.decode(path.read_bytes())
    except msgspec.MsgspecError as error:
        raise ValueError(f"is no recorded demonstration: {error}") from None
    if recording.version != FORMAT_VERSION:
        raise ValueError(f"has format version {recording.version}, this program reads {FORMAT_VERSION}")
    if path.name != recording_path(path.parent, family=recording.task.family, seed=recording.task.seed).name:
        raise ValueError(f"holds {recording.task.task_id}, which does not fit its name")
    for number, step in enumerate(recording.steps):
        try:
            parse_action(step.action_text)
        except ActionSyntaxError as error:
            raise ValueError(f"step {number}: {step.action_text!r:.80}: {error}") from None
    return recording


def find_recording(tasks: TasksConfig, task: TaskRef) -> Recording | None:
    """The recorded demonstration of ``task``, None when there is none. Raises as `read_recording`."""
    if tasks.recordings is None or task.split != "demonstration":
        return None
    path = recording_path(Path(tasks.recordings), family=task.family, seed=task.seed)
    return read_recording(path) if path.is_file() else None


def recorded_seeds(tasks: TasksConfig, families: Sequence[str]) -> dict[str, list[int]]:
    """Family -> seeds of recordings, for those of ``families`` that have any; told from the files' names."""
    found: dict[str, list[int]] = {}
    if tasks.recordings is None:
        return found
    for path in sorted(Path(tasks.recordings).glob("*.json")):
        match = _FILE_NAME.fullmatch(path.name)
        if match and match["family"] in families and tasks.split_of(int(match["seed"])) == "demonstration":
            found.setdefault(match["family"], []).append(int(match["seed"]))
    return {family: sorted(seeds) for family, seeds in sorted(found.items())}


def recording_problems(tasks: TasksConfig, families: Sequence[str]) -> list[Problem]:
    """What would keep recordings from being replayed in a run of ``families``; empty when nothing would."""
    if tasks.recordings is None:
        return []
    folder = Path(tasks.recordings)
    if not os.path.isdir(folder):
        reason = f"there is no folder {tasks.recordings!r:.200}"
        return [Problem(_FIELD, reason, "record with `computerrl desktop` or `computerrl record`, or leave it out")]
    problems = []
    for path in sorted(folder.glob("*.json")):
        match = _FILE_NAME.fullmatch(path.name)
        if match is None or match["family"] not in families:
            continue
        try:
            reason = _unplayable(read_recording(path), tasks)
        except (ValueError, OSError) as error:
            reason = str(error)
        if reason:
            problems.append(Problem(f"{_FIELD}/{path.name}", reason, "record it again, or take it out of the folder"))
    return problems


def _unplayable(recording: Recording, tasks: TasksConfig) -> str:
    if tasks.split_of(recording.task.seed) != "demonstration":
        first, past_last = tasks.demonstration_seeds
        return f"seed {recording.task.seed} is outside the demonstration seeds {first}..{past_last - 1}"
    if len(recording.steps) > tasks.max_steps:
        return f"{len(recording.steps)} actions, but tasks.max_steps is {tasks.max_steps}"
    return ""


def is_final(step: RecordedStep) -> bool:
    """Does it end the episode?"""
    return parse_action(step.action_text).name in FINAL_ACTIONS
