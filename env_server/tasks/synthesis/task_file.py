"""The folder of synthesized tasks: a manifest, a file for each task, and the files that tasks begin and end with.

    manifest.json            settings, the number of walks played, and the tasks that count, with the hash of each file
    tasks/calc-00007.json    one task: instruction, files before and wanted, demonstration, provenance
    files/<sha256>           contents, once each, whatever number of tasks names them

Everything is data: actions are parsed as an agent's are, and nothing is evaluated.
"""

from __future__ import annotations

import functools
import hashlib
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from computerrl.common.actions import ActionSyntaxError, calls_application, parse_action, render_action
from computerrl.common.errors import ConfigError, Problem, TaskFailed
from computerrl.common.messages import Action
from computerrl.common.run_files.run_folder import write_atomically
from computerrl.env_server.driver import TaskInstance
from computerrl.env_server.tasks.family import REAL_DRIVERS, SYNTHESIZED_PREFIX, Family
from computerrl.env_server.tasks.forge.plan import SAVE_BY_KEYS, Forged
from computerrl.env_server.tasks.synthesis.changes import Change
from computerrl.env_server.tasks.synthesis.walks import State, Walk
from computerrl.env_server.tasks.synthesis.wording import instruction, template

MANIFEST = "manifest.json"
TASKS, FILES = "tasks", "files"
VERSION: Final = 1
_FIELD = "tasks.synthesized"
_STEP = "give the folder that `computerrl tasks synthesize` wrote"
_ID = re.compile(r"[a-z]{1,20}-[0-9]{5,9}")
_HASH = re.compile(r"[0-9a-f]{64}")
_MAX_BYTES = 64 << 20


class SaidChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change that the instruction asks for, see `Change`."""

    kind: str
    values: dict[str, str]


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a task comes from."""

    seed: int
    """Seed of the walks."""
    number: int
    """Number of the walk; with the application and the seed it is drawn anew."""
    walk: tuple[str, ...]
    """All actions of the walk, before it was shortened."""
    image: str
    """Image of the desktop, as `image.find.image_id` names it."""
    version: str
    """Version of ComputerRL."""
    num_failed: int = 0
    """Number of shorter walks that were played and judged, none of which succeeded: each lacks an action or its end."""


class TaskFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One task as it lies in a file. Contents are named by their SHA-256."""

    id: str
    app: str
    instruction: str
    files: dict[str, str]
    """Files before, by path in the agent's folder."""
    folders: tuple[str, ...]
    """Folders before."""
    opened: tuple[str, ...]
    """What is opened before the first action, the last one in front."""
    wanted: dict[str, str | None]
    """Files that differ when the task is done; None: gone."""
    added_folders: tuple[str, ...]
    """Folders that are there besides when the task is done."""
    demonstration: tuple[str, ...]
    """Actions that do the task."""
    changes: tuple[SaidChange, ...]
    """What the instruction asks for."""
    provenance: Provenance

    @property
    def template(self) -> str:
        """Kinds of the changes."""
        return template([Change(one.kind, ()) for one in self.changes])


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings and state of a folder of synthesized tasks."""

    format: int
    app: str
    seed: int
    image: str
    version: str
    num_walks: int = 0
    """Number of walks that were played; the next one has this number."""
    seconds: float = 0.0
    """Time of all commands that have written to the folder, without the start of desktops."""
    tasks: dict[str, str] = {}  # msgspec copies it
    """Id -> SHA-256 of the task's file, in the order of the walks."""
    unsaid: dict[str, int] = {}
    """Reason -> number of walks for which there is no instruction."""
    unproven: dict[str, int] = {}
    """Reason -> number of proposed tasks that were not kept."""

    @property
    def num_proposed(self) -> int:
        """Number of walks that have become an instruction."""
        return len(self.tasks) + sum(self.unproven.values())


_MANIFESTS = msgspec.json.Decoder(Manifest)
_TASK_FILES = msgspec.json.Decoder(TaskFile)


def sha256(data: bytes) -> str:
    """The hash by which contents and task files are named."""
    return hashlib.sha256(data).hexdigest()


def make_task(
    walk: Walk, after: State, changes: Sequence[Change], *, image: str, version: str
) -> tuple[TaskFile, dict[str, bytes]]:
    """The task of a walk that ended in ``after``, still demonstrated by the whole walk, and the contents that it names."""
    before, start = walk.before, walk.start
    wanted: dict[str, bytes | None] = {path: data for path, data in after.files.items() if before.files.get(path) != data}
    wanted.update({path: None for path in before.files if path not in after.files})
    contents = {sha256(data): data for data in (*before.files.values(), *wanted.values()) if data is not None}
    actions = tuple(map(render_action, walk.actions))
    task = TaskFile(
        id=f"{walk.app}-{walk.number:05d}",
        app=walk.app,
        instruction=instruction(changes, walk.rng(), thing=start.thing),
        files={path: sha256(data) for path, data in before.files.items()},
        folders=tuple(sorted(before.folders)),
        opened=tuple(start.opened),
        wanted={path: None if data is None else sha256(data) for path, data in wanted.items()},
        added_folders=tuple(sorted(after.folders - before.folders)),
        demonstration=actions,
        changes=tuple(SaidChange(one.kind, one.as_dict()) for one in changes),
        provenance=Provenance(walk.seed, walk.number, actions, image, version),
    )
    return task, contents


def with_demonstration(task: TaskFile, walk: Walk, actions: Sequence[Action], *, num_failed: int = 0) -> TaskFile:
    """``task`` demonstrated by ``actions``; they save at the end, by keys where all of them are mouse and keyboard."""
    by_hand = not any(calls_application(action.name) for action in actions)
    save = () if walk.start.save is None else (SAVE_BY_KEYS if by_hand else walk.start.save,)
    return msgspec.structs.replace(
        task,
        demonstration=tuple(map(render_action, (*actions, *save))),
        provenance=msgspec.structs.replace(task.provenance, num_failed=num_failed),
    )


def instance_of(task: TaskFile, contents: Mapping[str, bytes]) -> TaskInstance:
    """The playable task. Raises `ActionSyntaxError` for a demonstration that is none."""
    wanted = {path: None if name is None else contents[name] for path, name in task.wanted.items()}
    forged = Forged(
        task.instruction,
        {path: contents[name] for path, name in task.files.items()},
        wanted=lambda: wanted,
        nearly=dict,
        solution=tuple(map(parse_action, task.demonstration)),
        near_miss=(),
        opened=task.opened,
        folders=task.folders,
        added_folders=task.added_folders,
        is_listing_exact=True,
    )
    return forged.task()


def keys_of(task: TaskFile) -> frozenset[str]:
    """What no other task of a folder may share: the changes in their normal form, and the words."""
    normal = sorted((one.kind, sorted(one.values.items())) for one in task.changes)
    return frozenset({f"changes {normal}", f"words {' '.join(task.instruction.lower().split())}"})


def write_task(folder: Path, task: TaskFile, contents: Mapping[str, bytes]) -> str:
    """Write a task's file and contents. Returns the hash of its file."""
    for name, data in contents.items():
        if not (folder / FILES / name).exists():
            write_atomically(folder / FILES / name, data)
    encoded = msgspec.json.format(msgspec.json.encode(task), indent=1) + b"\n"
    write_atomically(folder / TASKS / f"{task.id}.json", encoded)
    return sha256(encoded)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest: the tasks that it names count from now on."""
    write_atomically(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")


def read_manifest(folder: Path, *, field: str = _FIELD) -> Manifest:
    """The manifest of a folder. Raises `ConfigError`."""
    path = folder / MANIFEST
    try:
        manifest = _MANIFESTS.decode(_read(path))
    except OSError as error:
        raise _wrong(f"{str(folder)!r:.200} holds no {MANIFEST} that can be read: {error.strerror}", field) from error
    except msgspec.MsgspecError as error:
        raise _wrong(f"{str(path)!r:.200} is no manifest: {error}", field) from error
    if manifest.format != VERSION:
        reason = f"{str(folder)!r:.200} was written by another version ({manifest.format}, this is {VERSION})"
        raise ConfigError([Problem(field, reason, "synthesize the tasks again, into another folder")])
    wrong = next((name for name in manifest.tasks if not _ID.fullmatch(name)), None)
    if wrong is not None:
        raise _wrong(f"{str(path)!r:.200} names a task {wrong!r:.120}", field)
    return manifest


def read_tasks(folder: Path, manifest: Manifest, *, field: str = _FIELD) -> list[TaskFile]:
    """The tasks that the manifest names. Raises `ConfigError` for a file that is missing, changed or no task."""
    return [_read_task(folder / TASKS / f"{name}.json", hash_, name, field) for name, hash_ in manifest.tasks.items()]


def figures(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """Figures of a folder for people and programs; reasons with the most frequent one first."""
    tasks = read_tasks(folder, manifest)
    templates = Counter(task.template for task in tasks)
    return {
        "app": manifest.app,
        "seed": manifest.seed,
        "image": manifest.image,
        "version": manifest.version,
        "walks": manifest.num_walks,
        "proposed": manifest.num_proposed,
        "kept": len(manifest.tasks),
        "templates": len(templates),
        "longest_demonstration": max((len(task.demonstration) for task in tasks), default=0),
        "seconds": manifest.seconds,
        "unsaid": dict(Counter(manifest.unsaid).most_common()),
        "unproven": dict(Counter(manifest.unproven).most_common()),
        "kept_by_template": dict(templates.most_common()),
    }


def _read_task(path: Path, expected: str, name: str, field: str) -> TaskFile:
    try:
        data = _read(path)
        task = _TASK_FILES.decode(data)
        for text in task.demonstration:
            parse_action(text)
    except OSError as error:
        raise _wrong(f"{str(path)!r:.200} cannot be read: {error.strerror}", field) from error
    except (msgspec.MsgspecError, ActionSyntaxError) as error:
        raise _wrong(f"{str(path)!r:.200} is no task: {error}", field) from error
    if sha256(data) != expected or task.id != name:
        raise _wrong(f"{str(path)!r:.200} is not the file that {MANIFEST} names", field)
    hashes = (*task.files.values(), *(one for one in task.wanted.values() if one is not None))
    wrong = next((one for one in hashes if not _HASH.fullmatch(one)), None)
    if wrong is not None:
        raise _wrong(f"{str(path)!r:.200} names a content {wrong!r:.120}", field)
    return task


def _read(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(_MAX_BYTES)


def _wrong(reason: str, field: str) -> ConfigError:
    return ConfigError([Problem(field, reason, _STEP)])


@functools.cache
def families(folder: Path) -> Mapping[str, Family]:
    """A family for each task of a folder, by name: every seed of it is the same task. Raises `ConfigError`."""
    manifest = read_manifest(folder)
    if not manifest.tasks:
        reason = f"{str(folder)!r:.200} holds no tasks"
        raise ConfigError([Problem(_FIELD, reason, "run `computerrl tasks synthesize` until it has kept some")])
    return {SYNTHESIZED_PREFIX + task.id: _family(folder, task) for task in read_tasks(folder, manifest)}


def _family(folder: Path, task: TaskFile) -> Family:
    def build(_: random.Random) -> TaskInstance:
        return instance_of(task, _contents(folder, task))

    return Family(
        SYNTHESIZED_PREFIX + task.id,
        task.app,
        task.instruction,
        build,
        drivers=REAL_DRIVERS,
        is_default=False,
        counts_facts=True,
    )


def _contents(folder: Path, task: TaskFile) -> dict[str, bytes]:
    """Contents that ``task`` names. Raises `TaskFailed` for one that is missing or changed."""
    found = {}
    for name in _names(task):
        try:
            data = _read(folder / FILES / name)
        except OSError as error:
            raise TaskFailed(f"the content {name} of the task {task.id} cannot be read: {error.strerror}") from error
        if sha256(data) != name:
            raise TaskFailed(f"the content {name} of the task {task.id} was changed")
        found[name] = data
    return found


def _names(task: TaskFile) -> Iterable[str]:
    return {*task.files.values(), *(name for name in task.wanted.values() if name is not None)}
