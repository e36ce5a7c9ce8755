"""Synthesizes tasks on desktops (`computerrl tasks synthesize`): plays random walks, and proves the tasks that become of them.

A walk ends in a state. Its difference from the start state becomes an instruction and a checker (`env_server.tasks.synthesis`).
The walk is then shortened: each action is left out in turn. A task is kept when its demonstration succeeds on a reset desktop
through `done`, and when the untouched desktop, each half-done walk and each walk that lacks one action fail.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import msgspec

from computerrl.common.actions import FINAL_ACTIONS, parse_action, render_action
from computerrl.common.config import DesktopConfig
from computerrl.common.errors import ConfigError, DesktopBroken, Problem, TaskFailed
from computerrl.common.messages import Action
from computerrl.env_server.client import image_problem, with_needed_apps
from computerrl.env_server.driver import DesktopDriver, TaskInstance
from computerrl.env_server.drivers import make_driver
from computerrl.env_server.image.find import image_id
from computerrl.env_server.tasks import FAMILIES
from computerrl.env_server.tasks.forge.facts import UnreadableFile
from computerrl.env_server.tasks.forge.plan import Forged
from computerrl.env_server.tasks.synthesis import task_file
from computerrl.env_server.tasks.synthesis.changes import UnsaidError
from computerrl.env_server.tasks.synthesis.task_file import Manifest, TaskFile
from computerrl.env_server.tasks.synthesis.walks import State, Walk, changes_of, draw_walk, shortened

MAX_BARREN_WALKS = 200
"""Number of walks in a row without a new task after which there are taken to be no more."""
_IS_THERE = "a task like it is there already"
_FIELD = "OUT"
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _Proposed:
    """A walk with the task that became of it."""

    walk: Walk
    task: TaskFile
    contents: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class _Refused:
    """Why no task became of a walk."""

    reason: str


def prepared(out: Path, app: str, *, seed: int, desktops: DesktopConfig, version: str) -> Manifest:
    """The manifest of ``out``, a new folder or one of the same settings. Raises `ConfigError`, `SetupError`."""
    family = next(one for one in FAMILIES.values() if one.apps == {app})
    if problem := image_problem(replace(family, name=f"synthesize {app}"), desktops):
        raise ConfigError([problem])
    if desktops.driver == "scripted":
        step = "set desktop.driver: apptainer"
        raise ConfigError([Problem("desktop.driver", "walks need a real desktop, and the driver is 'scripted'", step)])
    fresh = Manifest(format=task_file.VERSION, app=app, seed=seed, image=image_id(desktops), version=version)
    if out.exists() and not out.is_dir():
        raise ConfigError([Problem(_FIELD, f"{str(out)!r:.200} is no folder", "give a new folder")])
    if not out.exists() or not any(out.iterdir()):
        for folder in (task_file.TASKS, task_file.FILES):
            (out / folder).mkdir(parents=True, exist_ok=True)
        task_file.write_manifest(out, fresh)
        return fresh
    if not (out / task_file.MANIFEST).exists():
        raise ConfigError([Problem(_FIELD, f"{str(out)!r:.200} holds other files", "give a new folder, or an empty one")])
    found = task_file.read_manifest(out, field=_FIELD)
    for name in ("app", "seed", "image"):
        if getattr(found, name) != getattr(fresh, name):
            reason = f"{str(out)!r:.200} was begun with {name} {getattr(found, name)!r}, this is {getattr(fresh, name)!r}"
            raise ConfigError([Problem(_FIELD, reason, "give a new folder")])
    return msgspec.structs.replace(found, version=version)


def synthesize(out: Path, manifest: Manifest, *, num_tasks: int, desktops: DesktopConfig) -> Iterator[Manifest]:
    """Play walks until ``num_tasks`` tasks are in ``out``, or `MAX_BARREN_WALKS` in a row gave none. Yields the manifest after
    each round of walks, one for each desktop; it is written by then. Raises `HostBroken`, `SetupError`, `ConfigError`."""
    known = {key for task in task_file.read_tasks(out, manifest, field=_FIELD) for key in task_file.keys_of(task)}
    num_barren = 0
    with _Players(desktops, manifest.app) as players:
        while len(manifest.tasks) < num_tasks and num_barren < MAX_BARREN_WALKS:
            began, num_before = time.monotonic(), len(manifest.tasks)
            numbers = range(manifest.num_walks, manifest.num_walks + desktops.num_desktops)
            _round(out, manifest, [draw_walk(manifest.app, seed=manifest.seed, number=one) for one in numbers], known, players)
            num_barren = 0 if len(manifest.tasks) > num_before else num_barren + len(numbers)
            seconds = round(manifest.seconds + time.monotonic() - began, 1)
            manifest = msgspec.structs.replace(manifest, num_walks=numbers.stop, seconds=seconds)
            task_file.write_manifest(out, manifest)
            yield manifest


def _round(out: Path, manifest: Manifest, walks: Sequence[Walk], known: set[str], players: _Players) -> None:
    """Play ``walks``, and write the tasks that are new and proven. Results count in the order of the walks."""
    proposed = []
    for explored in players.each(walks, lambda player, walk: player.explored(walk, manifest)):
        if isinstance(explored, _Refused):
            _count(manifest.unsaid, explored.reason)
        elif known & task_file.keys_of(explored.task):
            _count(manifest.unproven, _IS_THERE)
        else:
            proposed.append(explored)
    for one, proven in zip(proposed, players.each(proposed, lambda player, one: player.proven(one)), strict=True):
        keys = task_file.keys_of(one.task)
        if isinstance(proven, _Refused):
            _count(manifest.unproven, proven.reason)
        elif known & keys:
            _count(manifest.unproven, _IS_THERE)
        else:
            known |= keys
            manifest.tasks[proven.id] = task_file.write_task(out, proven, one.contents)


def _count(reasons: dict[str, int], reason: str) -> None:
    reasons[reason] = reasons.get(reason, 0) + 1


class _Players(AbstractContextManager["_Players"]):
    """As many players as there are desktops."""

    def __init__(self, desktops: DesktopConfig, app: str) -> None:
        self._desktops = with_needed_apps(desktops, [one for one in FAMILIES.values() if one.apps == {app}])

    def __enter__(self) -> _Players:
        with ExitStack() as stack:
            logs = Path(stack.enter_context(TemporaryDirectory(prefix="computerrl-walks-")))
            self._pool = stack.enter_context(ThreadPoolExecutor(self._desktops.num_desktops))
            self._free: SimpleQueue[_Player] = SimpleQueue()
            for index in range(self._desktops.num_desktops):
                player = _Player(self._desktops, index=index, folder=logs / str(index))
                stack.callback(player.close)
                self._free.put(player)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def each(self, items: Iterable[T], play: Callable[[_Player, T], R]) -> list[R | _Refused]:
        """What ``play`` makes of each item, in their order. An item that breaks its desktop, or cannot be played, is refused."""

        def on_free_desktop(item: T) -> R | _Refused:
            player = self._free.get()
            try:
                return play(player, item)
            except DesktopBroken:
                player.close()
                return _Refused("the desktop broke")
            except TaskFailed:
                return _Refused("the desktop could not play the walk")
            finally:
                self._free.put(player)

        return list(self._pool.map(on_free_desktop, items))


class _Player:
    """Plays walks on one desktop, which is started when it is first needed, and again after it broke."""

    def __init__(self, config: DesktopConfig, *, index: int, folder: Path) -> None:
        self._make = lambda: make_driver(config, index=index, folder=folder, screenshots=None)
        self._driver: DesktopDriver | None = None

    def close(self) -> None:
        """End the desktop, if there is one."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def explored(self, walk: Walk, manifest: Manifest) -> _Proposed | _Refused:
        """The task of what a walk changes. Actions that the desktop refuses are left out of it."""
        desktop = self._reset(Forged("", walk.start.files, dict, dict, (), (), **_opened(walk)).task())
        actions = [action for action in walk.actions if not desktop.step(action).action_error]
        self._save(walk)
        walk = replace(walk, actions=tuple(actions))
        try:
            after = _state(desktop)
            changes = changes_of(walk.app, walk.before, after)
        except UnsaidError as error:
            return _Refused(str(error))
        except UnreadableFile:
            return _Refused("a file that cannot be read")
        return _Proposed(walk, *task_file.make_task(walk, after, changes, image=manifest.image, version=manifest.version))

    def proven(self, found: _Proposed) -> TaskFile | _Refused:
        """The task with the shortest demonstration, where that succeeds and everything less than it fails."""
        walk, judged = found.walk, task_file.instance_of(found.task, found.contents)
        played: dict[tuple[str, ...], bool] = {}

        def leads_there(actions: Sequence[Action]) -> bool:
            key = tuple(map(render_action, actions))
            if key not in played:
                desktop = self._reset(judged)
                for action in actions:
                    desktop.step(action)
                self._save(walk)
                played[key] = judged.evaluate(desktop.get).success
            return played[key]

        if not leads_there(walk.actions):
            return _Refused("the walk ends otherwise when it is played again")
        actions = shortened(walk.actions, leads_there)
        if not actions or self._is_half_enough(judged, walk, actions):
            return _Refused("a part of the demonstration is enough")
        num_failed = sum(not success for success in played.values()) + len(actions)
        task = task_file.with_demonstration(found.task, walk, actions, num_failed=num_failed)
        return self._demonstrated(task, found.contents)

    def _is_half_enough(self, judged: TaskInstance, walk: Walk, actions: Sequence[Action]) -> bool:
        """Whether the desktop is as wanted when it is saved before the first of ``actions``, or before a later one."""
        desktop = self._reset(judged)
        for action in actions:
            self._save(walk)
            if judged.evaluate(desktop.get).success:
                return True
            desktop.step(action)
        return False

    def _demonstrated(self, task: TaskFile, contents: Mapping[str, bytes]) -> TaskFile | _Refused:
        """``task`` when its demonstration succeeds through `done`, and the desktop is not as wanted at any moment before."""
        instance = task_file.instance_of(task, contents)
        desktop = self._reset(instance)
        observation = desktop.observe()
        actions: list[Action] = []
        while True:
            action = parse_action(render_action(instance.demonstrate(task.instruction, observation, actions, desktop.get)))
            if action.name in FINAL_ACTIONS:
                break
            if instance.evaluate(desktop.get).reward > 0:
                return _Refused("the desktop is as wanted before the demonstration ends")
            observation = desktop.step(action).observation
            actions.append(action)
        verdict = instance.evaluate(desktop.get)
        return task if verdict.success else _Refused("the demonstration fails when it is played again")

    def _reset(self, task: TaskInstance) -> DesktopDriver:
        if self._driver is None:
            self._driver = self._make()
        self._driver.reset(task)
        return self._driver

    def _save(self, walk: Walk) -> None:
        assert self._driver is not None
        if walk.start.save is not None:
            self._driver.step(walk.start.save)


def _opened(walk: Walk) -> dict[str, Any]:
    return {"opened": walk.start.opened, "folders": tuple(sorted(walk.before.folders))}


def _state(desktop: DesktopDriver) -> State:
    listing = desktop.get("folder_listing")
    folders = frozenset(path.rstrip("/") for path in listing if path.endswith("/"))
    files = {path: desktop.get("file_bytes", path=path) for path in listing if not path.endswith("/")}
    return State({path: data for path, data in files.items() if data is not None}, folders)
