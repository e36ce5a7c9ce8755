"""Which tasks of a folder can be run, and why not the others."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from computerrl.common.errors import ConfigError, Problem
from computerrl.env_server.tasks.osworld.abilities import Abilities, Refusal, refusals
from computerrl.env_server.tasks.osworld.assets import Assets
from computerrl.env_server.tasks.osworld.format import TaskFile, read_task_file
from computerrl.env_server.tasks.osworld.gold import gold_faults
from computerrl.env_server.tasks.osworld.network.mirror import Mirror


@dataclass(frozen=True, slots=True)
class Checked:
    """One task file and what keeps it from being run."""

    path: str
    """Relative to the folder."""
    task_id: str
    refusals: tuple[Refusal, ...]
    instruction: str = ""
    """Empty where the file cannot be read."""
    has_solution: bool = False
    """Whether the task brings a program that solves it."""

    @property
    def runnable(self) -> bool:
        """Nothing keeps it."""
        return not self.refusals


@dataclass(frozen=True, slots=True)
class Report:
    """All task files of a folder."""

    tasks: tuple[Checked, ...]

    @property
    def num_runnable(self) -> int:
        """How many can be run."""
        return sum(task.runnable for task in self.tasks)

    @property
    def reasons(self) -> Counter[str]:
        """Kind of reason -> number of tasks that have it; a task may have several."""
        return Counter(kind for task in self.tasks for kind in {refusal.kind for refusal in task.refusals})

    def as_json(self) -> dict[str, Any]:
        """For a file."""
        return {
            "num_tasks": len(self.tasks),
            "num_runnable": self.num_runnable,
            "reasons": dict(sorted(self.reasons.items())),
            "tasks": [
                {
                    "path": task.path,
                    "id": task.task_id,
                    "runnable": task.runnable,
                    "reasons": [{"kind": one.kind, "where": one.where, "reason": one.reason} for one in task.refusals],
                }
                for task in self.tasks
            ],
        }


def check_folder(
    folder: Path,
    *,
    assets: Path | None,
    mirror: Path | None = None,
    abilities: Abilities | None = None,
    read_gold: bool = False,
    fields: tuple[str, str, str] = ("DIR", "--assets", "--mirror"),
    tell: Callable[[float, float | None], None] = lambda done, total: None,
) -> Report:
    """Check every ``*.json`` below ``folder``. Raises `ConfigError` when there is nothing to check; ``fields``: what names
    ``folder``, ``assets`` and ``mirror`` there.

    ``read_gold`` also opens the expected files that are in the asset folder, which takes a while for many of them. ``tell``
    receives the number of checked files and of all.
    """
    steps = ("give the folder that mirrors the files' host", "give the folder that holds a folder for each web site")
    for field, place, step in zip(fields[1:], (assets, mirror), steps, strict=True):
        if place is not None and not os.path.isdir(place):
            raise ConfigError([Problem(field, f"there is no folder {str(place)!r:.200}", step)])
    paths = sorted(folder.rglob("*.json")) if os.path.isdir(folder) else []
    if not paths:
        lacks = "holds no task files (*.json)" if os.path.isdir(folder) else "is no folder"
        raise ConfigError([Problem(fields[0], f"{str(folder)!r:.200} {lacks}", "give the folder with the tasks' JSON files")])

    def refused(task: TaskFile) -> list[Refusal]:
        found = refusals(task, assets=Assets(assets), abilities=abilities, mirror=Mirror(mirror))
        return [*found, *(gold_faults(task, Assets(assets)) if read_gold else ())]

    checked = []
    for path in paths:
        checked.append(_check(path, folder, refused))
        tell(len(checked), len(paths))
    return Report(tuple(checked))


def _check(path: Path, folder: Path, refused: Callable[[TaskFile], list[Refusal]]) -> Checked:
    name = path.relative_to(folder).as_posix()
    try:
        task = read_task_file(path)
    except ConfigError as error:
        broken = [Refusal("broken", problem.field.removeprefix(f"{path}: "), problem.reason) for problem in error.problems]
        return Checked(name, path.stem, tuple(broken))
    return Checked(name, task.id, tuple(refused(task)), task.instruction)
