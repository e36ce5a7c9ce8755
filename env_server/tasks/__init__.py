"""All task families by name, and turning a `TaskRef` into the instance it names.

Adding a task: write a build function in a file here, put its `Family` into that file's FAMILIES, and run the tests; they play
every family (untouched state scores 0, demonstrator scores 1) without further changes.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from computerrl.common.config import TasksConfig
from computerrl.common.errors import ConfigError, Problem, TaskFailed
from computerrl.common.messages import Action, Observation, TaskRef
from computerrl.common.plugins import load_named
from computerrl.env_server.driver import Getter, TaskInstance
from computerrl.env_server.tasks import calc, editor, files, forge, miniwob, pointing, web
from computerrl.env_server.tasks.family import BUNDLE_PREFIX, OSWORLD_PREFIX, SYNTHESIZED_PREFIX, Family

_HAND_MADE = {
    family.name: family
    for family in (
        *web.FAMILIES,
        *calc.FAMILIES,
        *editor.FAMILIES,
        *files.FAMILIES,
        *forge.FAMILIES,
        *pointing.FAMILIES,
    )
}

FAMILIES: dict[str, Family] = _HAND_MADE | {family.name: family for family in miniwob.FAMILIES if family.name not in _HAND_MADE}

REFUSED = miniwob.REFUSED
"""Names that one could expect to be families, and why they are not."""


def families_of(tasks: TasksConfig) -> Mapping[str, Family]:
    """All that a run with this configuration may play: ours, those of its task files, imported bundles and synthesized tasks, and
    those that it names as `module:NAME`. Raises `ConfigError`."""
    others = {**foreign_families(tasks), **{name: _loaded(name) for name in tasks.families if ":" in name}}
    return {**FAMILIES, **others} if others else FAMILIES


def _loaded(name: str) -> Family:
    """The family ``name`` (`module:NAME`) of an installed package or of the current folder."""
    step = "define NAME = Family(name, app, description, build), see docs/tutorials/task.md"
    try:
        found = load_named(name, field="tasks.families", what="NAME")
    except ConfigError:
        raise
    except Exception as error:  # whatever that module does while it is imported
        raise ConfigError([Problem("tasks.families", f"{name!r} raises {type(error).__name__}: {error}", step)]) from error
    if not isinstance(found, Family):
        raise ConfigError([Problem("tasks.families", f"{name!r} is of type {type(found).__name__}, not a Family", step)])
    return found


def foreign_families(tasks: TasksConfig) -> Mapping[str, Family]:
    """Those of the task files in ``tasks.osworld``, of the bundles in ``tasks.imported`` and of the tasks in
    ``tasks.synthesized``. Raises `ConfigError` where a folder has none that can be run."""
    found: dict[str, Family] = {}
    # Imports only here: they need the libraries of all metrics, which half a second goes into.
    if tasks.osworld is not None:
        from computerrl.env_server.tasks.osworld import families

        found |= families.families(Path(tasks.osworld), _folder(tasks.osworld_assets), _folder(tasks.osworld_mirror))
    if tasks.imported is not None:
        from computerrl.env_server.tasks.bundles import imported

        found |= imported.families(Path(tasks.imported))
    if tasks.synthesized is not None:
        from computerrl.env_server.tasks.synthesis import task_file

        found |= task_file.families(Path(tasks.synthesized))
    return found


def task_instance(task: TaskRef, *, tasks: TasksConfig) -> TaskInstance:
    """The instance ``task`` names. Raises `TaskFailed` for an unknown family or a seed outside its split's range."""
    family = families_of(tasks).get(task.family)
    if family is None:
        raise TaskFailed(f"unknown task family {task.family!r}; {advice(task.family, tasks)}")
    first, past_last = tasks.seeds_of(task.split)
    if not first <= task.seed < past_last:
        raise TaskFailed(f"seed {task.seed} of {task.family} is outside the {task.split} seeds {first}..{past_last - 1}")
    instance = family.make(task.seed)
    return instance if tasks.actions == "api_gui" else _by_hand(instance, task.family)


def is_shown_by_hand(family: Family) -> bool:
    """Can it be demonstrated with mouse and keyboard alone? Makes an instance."""
    instance = family.make(0)
    return instance.demonstrate_by_hand is not None or not instance.calls_applications


def _by_hand(instance: TaskInstance, family: str) -> TaskInstance:
    """The same instance, demonstrated with mouse and keyboard alone."""
    if not instance.calls_applications:
        return instance

    def refuse(said: str, observation: Observation, actions: Sequence[Action], get: Getter) -> Action:
        raise TaskFailed(f"the task family {family} is not demonstrated with mouse and keyboard alone; tasks.actions is gui")

    return replace(instance, demonstrate=instance.demonstrate_by_hand or refuse)


_MAX_NAMED = 12
"""Families that an error names at most."""


def advice(name: str, tasks: TasksConfig) -> str:
    """What to say of a name that is no family."""
    if name in REFUSED:
        return REFUSED[name]
    if name.startswith(OSWORLD_PREFIX):
        return _advice_on_osworld(name, tasks)
    if name.startswith(BUNDLE_PREFIX):
        return _advice_on_bundle(name, tasks)
    if name.startswith(SYNTHESIZED_PREFIX):
        place = tasks.synthesized
        return f"{place} has no task with this id" if place else "tasks.synthesized names no folder of synthesized tasks"
    if name in FAMILIES:
        return f"it runs on {', '.join(sorted(FAMILIES[name].drivers))}"
    begins = sorted(family for family in FAMILIES if family.startswith(name))
    if begins:
        more = f" and {len(begins) - _MAX_NAMED} more" if len(begins) > _MAX_NAMED else ""
        return f"families that begin with it: {', '.join(begins[:_MAX_NAMED])}{more}"
    near = difflib.get_close_matches(name, FAMILIES, n=3)
    return f"nearest: {', '.join(near)}" if near else f"there are {len(FAMILIES)}"


def _advice_on_osworld(name: str, tasks: TasksConfig) -> str:
    if tasks.osworld is None:
        return "tasks.osworld names no folder of task files"
    from computerrl.env_server.tasks.osworld import families

    reason = families.refusal(Path(tasks.osworld), _folder(tasks.osworld_assets), _folder(tasks.osworld_mirror), name)
    return f"it cannot be run here: {reason}" if reason else f"{tasks.osworld} has no task file with this id"


def _advice_on_bundle(name: str, tasks: TasksConfig) -> str:
    if tasks.imported is None:
        return "tasks.imported names no folder of imported bundles"
    from computerrl.env_server.tasks.bundles import imported

    reason = imported.refusal(Path(tasks.imported), name)
    return f"it is broken: {reason}" if reason else f"{tasks.imported} has no bundle with this id"


def _folder(place: str | None) -> Path | None:
    return None if place is None else Path(place)
