"""`computerrl record`: the successful episodes of an evaluation as recorded demonstrations, which another run clones with
`tasks.recordings`. Reads a run folder and writes recordings; starts no process and asks no server."""

from __future__ import annotations

import base64
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from computerrl.common.actions import ActionSyntaxError, parse_action, render_action
from computerrl.common.config import RunConfig, load_config
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.messages import Action, EndReason, Observation, OrderKind, ScreenshotRef, TaskRef
from computerrl.common.metrics import read_json_lines
from computerrl.common.models.folder import check_model_folder, model_folder
from computerrl.common.run_files.recordings import (
    FORMAT_VERSION,
    RecordedFrom,
    RecordedStep,
    RecordedTarget,
    Recording,
    read_recording,
    recording_path,
    write_recording,
)
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.launch.plan.run_names import CONFIG_FILE, read_resolved
from computerrl.launch.progress import Tell, tell_nobody, tracked
from computerrl.launch.report.write import latest_of_each
from computerrl.launch.run.evaluate import player_of

REASONS = {
    "failed": "failed",
    "not_demonstration_seed": "of other seeds than tasks.demonstration_seeds, which nothing may be trained on: evaluate with "
    "--set learner.recipe.eval_split=demonstration",
    "given_up": "succeeded by fail(), which shows no way to do a task",
    "no_steps": "without an action that could be done",
    "unreadable_action": "with an answer that holds no action by the run's prompt format",
    "unknown_element": "with an element's number whose place was not stored",
    "same_actions": "with the actions of another success of the same task",
    "not_shortest": "not shorter than another success of the same task",
    "already_recorded": "of tasks of which the folder holds a recording that is not longer, or a person's",
}
"""Reason for which an episode becomes no recording -> words for it, after their number."""

_ENDS = (("source", slice(0, 2)), ("target", slice(-2, None)))
"""Parameter that may name an element -> its pixel in the stored places: a drag has those of both."""


@dataclass(frozen=True, slots=True)
class _Step:
    """Fields of a step in episodes.jsonl that are read here."""

    action_text: str
    action_error: str
    format_ok: bool
    screenshot: ScreenshotRef | None
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Episode:
    """Fields of a line of episodes.jsonl that are read here."""

    trajectory_id: str
    kind: OrderKind
    family: str
    seed: int
    instruction: str
    success: bool
    end_reason: EndReason
    started_at: float
    steps: tuple[_Step, ...]


class Refused(Exception):
    """An episode that becomes no recording."""

    def __init__(self, reason: str) -> None:
        assert reason in REASONS
        super().__init__(reason)
        self.reason = reason


@dataclass(slots=True)
class Recorded:
    """Result of `record`."""

    paths: list[Path] = field(default_factory=list)
    """Files that were written."""
    refused: Counter[str] = field(default_factory=Counter)
    """Reason of `REASONS` -> number of evaluated episodes that became no recording for it."""
    num_actions_left_out: int = 0
    """Actions of recorded episodes that could not be done when the agent chose them."""
    num_screens_missing: int = 0
    """Steps whose stored screenshot cannot be read here; their recordings have no picture of it."""


def record(run: Path, out: Path, *, tell: Tell = tell_nobody) -> Recorded:
    """Write the successes of the evaluation in ``run`` to the folder ``out``, the shortest one of each task instance. ``tell``
    receives the number of episodes that were read and of all.

    Raises `ConfigError` when ``run`` has no evaluated episode or another version wrote it, and when ``out`` is no folder or holds
    a recording that cannot be read; `ResumeError` when the configuration of ``run`` cannot be read.
    """
    tree, folder = read_resolved(run), RunFolder(run)
    if out.exists() and not out.is_dir():
        raise ConfigError([Problem("OUT_FOLDER", f"{str(out)!r:.200} is a file", "give a folder, which may be a new one")])
    episodes = [one for one in _read_episodes(folder.episodes_path) if one.kind == "evaluation"]
    if not episodes:
        step = "give an evaluation that has played, such as runs/eval-NAME"
        raise ConfigError([Problem("RUN", f"{str(run)!r:.200} holds no evaluated episode", step)])
    maker = _Maker(load_config(run / CONFIG_FILE), folder, player_of(run, tree))
    found = Recorded()
    of_task: dict[tuple[str, int], list[_Success]] = defaultdict(list)
    for episode in tracked(episodes, tell, total=len(episodes)):
        try:
            success = maker.success_of(episode)
        except Refused as refusal:
            found.refused[refusal.reason] += 1
        else:
            of_task[episode.family, episode.seed].append(success)
    for successes in of_task.values():
        shortest, *others = sorted(successes, key=lambda one: len(one.done))  # of equal ones the first that was played
        found.refused.update("same_actions" if one.actions == shortest.actions else "not_shortest" for one in others)
        _write(out, maker, shortest, found)
    return found


def _write(out: Path, maker: _Maker, success: _Success, found: Recorded) -> None:
    """Write the recording of ``success``, unless ``out`` holds one of that task that stays."""
    path = recording_path(out, family=success.episode.family, seed=success.episode.seed)
    if path.exists():
        try:
            there = read_recording(path)
        except (ValueError, OSError) as error:
            step = "take the file out of the folder, or give another folder"
            raise ConfigError([Problem("OUT_FOLDER", f"{str(path)!r:.200} {error}", step)]) from None
        if there.source is None or len(there.steps) <= len(success.done):
            found.refused["already_recorded"] += 1
            return
    pictures = [maker.picture(one.step) for one in success.done]
    found.paths.append(write_recording(out, maker.recording_of(success, pictures)))
    found.num_actions_left_out += len(success.episode.steps) - len(success.done)
    found.num_screens_missing += sum(not picture for picture in pictures)


def _read_episodes(path: Path) -> list[_Episode]:
    """Episodes in file ``path``, one a trajectory. Raises `ConfigError` for a file of another version."""
    try:
        return [msgspec.convert(line, _Episode) for line in latest_of_each(read_json_lines(path))]
    except msgspec.ValidationError as error:
        reason = f"{str(path)!r:.200} was written by another version: {error}"
        raise ConfigError([Problem("RUN", reason, "evaluate again")]) from None


@dataclass(frozen=True, slots=True)
class _Done:
    """An action that was done."""

    step: _Step
    action: Action
    targets: dict[str, RecordedTarget]


@dataclass(frozen=True, slots=True)
class _Success:
    """A successful episode and those of its actions that were done."""

    episode: _Episode
    done: tuple[_Done, ...]

    @property
    def actions(self) -> list[tuple[str, dict[str, RecordedTarget]]]:
        """Actions with the elements that they name, to compare episodes by."""
        return [(render_action(one.action), one.targets) for one in self.done]


class _Maker:
    """Makes recordings of the episodes of one run."""

    def __init__(self, config: RunConfig, folder: RunFolder, player: Mapping[str, str | None]) -> None:
        """``player``: see `launch.run.evaluate.player_of`."""
        self._config = config
        self._folder = folder
        self._player = {name: value or "" for name, value in player.items()}
        self._parse = _parser_of(config)
        width, height = config.desktop.screen_width, config.desktop.screen_height
        self._observation = Observation("", "", (), None, width, height, "none", 0.0, "")
        """What is known of every screen: its size."""

    def success_of(self, episode: _Episode) -> _Success:
        """``episode`` as a recording takes it. Raises `Refused`."""
        if not episode.success:
            raise Refused("failed")
        if self._config.tasks.split_of(episode.seed) != "demonstration":
            raise Refused("not_demonstration_seed")
        if episode.end_reason == "fail_action":
            raise Refused("given_up")
        done = tuple(self._done(step) for step in episode.steps if step.format_ok and not step.action_error)
        if not done:
            raise Refused("no_steps")
        return _Success(episode, done)

    def _done(self, step: _Step) -> _Done:
        try:
            action = self._parse(step.action_text, self._observation)
        except ActionSyntaxError:
            raise Refused("unreadable_action") from None
        return _Done(step, action, _targets(action, step.places))

    def recording_of(self, success: _Success, pictures: Sequence[str]) -> Recording:
        """The recording of ``success`` with ``pictures`` of its screens, base64."""
        episode, desktop = success.episode, self._config.desktop
        steps = tuple(
            RecordedStep(render_action(one.action), one.targets, self._observation, picture, one.step.places)
            for one, picture in zip(success.done, pictures, strict=True)
        )
        return Recording(
            version=FORMAT_VERSION,
            task=TaskRef(episode.family, episode.seed, "demonstration"),
            instruction=episode.instruction,
            steps=steps,
            recorded_at=episode.started_at,
            desktop=f"{desktop.driver}:{desktop.image}",
            source=RecordedFrom(run=self._folder.folder.resolve().name, trajectory_id=episode.trajectory_id, **self._player),
        )

    def picture(self, step: _Step) -> str:
        """The screen of ``step`` as the run stored it, base64; empty where it stored none that can be read here."""
        from computerrl.env_server.client import read_screenshot

        if step.screenshot is None:
            return ""
        try:
            return base64.b64encode(read_screenshot(self._folder.trajectories, step.screenshot)).decode("ascii")
        except (OSError, ValueError):
            return ""


def _parser_of(config: RunConfig) -> Callable[[str, Observation], Action]:
    """The reader of a run's answers, which raises `ActionSyntaxError`. Raises `ConfigError` when the policy's model folder is
    gone."""
    from computerrl.actor.prompts.builder import FolderTokenizer, builder_of_run, unreadable
    from computerrl.actor.prompts.formats import make_format

    agent = config.actor.agent
    if agent is None:
        folder = model_folder(config.model.name)
        check_model_folder(folder, weights=False)
        return builder_of_run(config, folder, FolderTokenizer(folder), read=unreadable).parse
    if agent.is_service and agent.answers == "text":
        return make_format(config.actor.prompt, actions=config.tasks.actions).parse
    return _parse_call


def _parse_call(text: str, observation: Observation) -> Action:
    """The action that an agent's text is, or that is its last line, after words of the model."""
    del observation
    try:
        return parse_action(text)
    except ActionSyntaxError:
        return parse_action(text.strip().rpartition("\n")[2])


def _targets(action: Action, places: Sequence[int]) -> dict[str, RecordedTarget]:
    """Elements that ``action`` names by number or text, at ``places``, their centres. Raises `Refused` for a number without a
    place. A text without one is looked up as the agent wrote it."""
    found: dict[str, RecordedTarget] = {}
    for param, part in _ENDS:
        named = action.args.get(param)
        # Calls of applications have targets that are no elements (files.copy).
        if named is None or action.args.get("y") is not None or "." in action.name:
            continue
        pixel = places[part]
        if len(pixel) == 2:
            found[param] = RecordedTarget("", named if isinstance(named, str) else "", *pixel)
        elif isinstance(named, int):
            raise Refused("unknown_element")
    return found


def summary_of(found: Recorded, out: Path) -> list[str]:
    """Lines for a terminal: what was recorded, what was not and why, and the next step."""
    families = {path.name.rpartition("-")[0] for path in found.paths}
    lines = [
        f"recorded {_counted(len(found.paths), 'demonstration')} of {_counted(len(families), 'family', 'families')} in {out}"
    ]
    lines += [
        f"not recorded: {_counted(number, 'episode')} {REASONS[reason]}" for reason, number in sorted(found.refused.items())
    ]
    if found.num_actions_left_out:
        lines.append(f"left out: {_counted(found.num_actions_left_out, 'action')} that could not be done when chosen")
    if found.num_screens_missing:
        lines.append(f"without picture: {_counted(found.num_screens_missing, 'step')}, whose screenshots cannot be read here")
    if found.paths or found.refused["already_recorded"]:
        lines.append(f"to clone them: computerrl train CONFIG tasks.recordings={shlex.quote(str(out))}")
    return lines


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or f'{one}s'}"
