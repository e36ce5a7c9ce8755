"""The runnable task files of a folder as families, one each: a file has no random instances, so every seed is the same task."""

from __future__ import annotations

import functools
import importlib.util
import random
from collections.abc import Iterable, Mapping
from pathlib import Path

from computerrl.common.errors import ConfigError, Problem
from computerrl.env_server.driver import TaskInstance
from computerrl.env_server.tasks.family import OSWORLD_PREFIX, Family
from computerrl.env_server.tasks.osworld.abilities import TOOLS_IMAGE, abilities_of, refusals
from computerrl.env_server.tasks.osworld.check import check_folder
from computerrl.env_server.tasks.osworld.task import load_task

_APPS = {
    "libreoffice_calc": "calc",
    "libreoffice_writer": "writer",
    "libreoffice_impress": "impress",
    "libreoffice": "writer",
    "chrome": "browser",
    "gimp": "gimp",
    "vlc": "vlc",
    "thunderbird": "thunderbird",
    "terminal": "terminal",
    "files": "files",
    "editor": "editor",
    "vs_code": "code",
    "vscode": "code",
}
"""Names in task files -> ours; ``os`` may be any of them."""
_ABILITIES = abilities_of(TOOLS_IMAGE)
"""The most that any image of ours can do; a family says when it needs this one."""
_FIELDS = ("tasks.osworld", "tasks.osworld_assets", "tasks.osworld_mirror")
READERS = {"av": "av", "cssselect": "cssselect", "mutagen": "mutagen", "pypdfium2": "pypdfium2", "rapidfuzz": "rapidfuzz"}
"""Package of setup.cfg's extra `osworld` -> the module that metrics import."""


def missing_readers() -> list[str]:
    """Packages of the extra `osworld` that are not installed."""
    return [package for package, module in READERS.items() if importlib.util.find_spec(module) is None]


def our_apps(names: Iterable[str]) -> list[str]:
    """Our names of applications that a task file names; those that could be any are left out."""
    plain = [name.strip().lower().replace(" ", "_") for name in names]
    return list(dict.fromkeys(_APPS[name] for name in plain if name in _APPS))


@functools.cache
def families(folder: Path, assets: Path | None, mirror: Path | None) -> Mapping[str, Family]:
    """By name, in the order of the files' paths. Raises `ConfigError` when none can be run, two have the same id, or the judges'
    packages are not installed."""
    report = check_folder(folder, assets=assets, mirror=mirror, abilities=_ABILITIES, fields=_FIELDS)
    if missing := missing_readers():
        reason = f"judging OSWorld tasks needs packages that are not installed here: {', '.join(missing)}"
        raise ConfigError([Problem("tasks.osworld", reason, "install them with `make setup WITH=osworld`")])
    found: dict[str, Family] = {}
    for checked in report.tasks:
        if not checked.runnable:
            continue
        name = OSWORLD_PREFIX + checked.task_id
        if name in found:
            reason = f"{checked.path} has the id {checked.task_id} of another file of the folder"
            raise ConfigError([Problem("tasks.osworld", reason, "give each task an id of its own")])
        found[name] = _family(name, folder / checked.path, assets, mirror)
    if not found:
        reason = f"none of the {len(report.tasks)} task files in {folder} can be run here"
        raise ConfigError(
            [Problem("tasks.osworld", reason, f"`computerrl tasks check {folder}` prints the reasons for each file")]
        )
    return found


def refusal(folder: Path, assets: Path | None, mirror: Path | None, name: str) -> str:
    """Why the task of that family's name cannot be run; empty when the folder has none."""
    for checked in check_folder(folder, assets=assets, mirror=mirror, abilities=_ABILITIES, fields=_FIELDS).tasks:
        if OSWORLD_PREFIX + checked.task_id == name and not checked.runnable:
            return "; ".join(str(one) for one in checked.refusals)
    return ""


def _family(name: str, path: Path, assets: Path | None, mirror: Path | None) -> Family:
    task = load_task(path, assets, mirror=mirror, abilities=_ABILITIES)

    def build(_: random.Random) -> TaskInstance:
        return task.as_instance()

    apps = our_apps(task.file.related_apps) or [""]
    return Family(
        name,
        apps[0],
        task.file.instruction,
        build,
        drivers=frozenset({"apptainer"}),
        has_demonstrator=False,
        can_be_done=not task.file.evaluator.infeasible,
        is_default=False,
        more_apps=frozenset(apps[1:]),
        needs_tools=bool(refusals(task.file, assets=task.assets, mirror=task.mirror)),
    )
