"""All task families by name, and turning a `TaskRef` into the instance it names.

Adding a task: write a build function in a file here, put its `Family` into that file's FAMILIES, and run the tests; they play
every family (untouched state scores 0, demonstrator scores 1) without further changes.
"""

from __future__ import annotations

import difflib

from common.config import TasksConfig
from common.errors import TaskFailed
from common.messages import TaskRef
from env_server.driver import TaskInstance
from env_server.tasks import calc, editor, files, forge, miniwob, web
from env_server.tasks.family import Family

_HAND_MADE = {
    family.name: family
    for family in (*web.FAMILIES, *calc.FAMILIES, *editor.FAMILIES, *files.FAMILIES, *forge.FAMILIES)
}

FAMILIES: dict[str, Family] = _HAND_MADE | {family.name: family for family in miniwob.FAMILIES if family.name not in _HAND_MADE}

REFUSED = miniwob.REFUSED
"""Names that one could expect to be families, and why they are not."""


def task_instance(task: TaskRef, *, tasks: TasksConfig) -> TaskInstance:
    """The instance ``task`` names. Raises `TaskFailed` for an unknown family or a seed outside its split's range."""
    family = FAMILIES.get(task.family)
    if family is None:
        raise TaskFailed(f"unknown task family {task.family!r}; {advice(task.family)}")
    first, past_last = tasks.seeds_of(task.split)
    if not first <= task.seed < past_last:
        raise TaskFailed(f"seed {task.seed} of {task.family} is outside the {task.split} seeds {first}..{past_last - 1}")
    return family.make(task.seed)


def advice(name: str) -> str:
    """What to say of a name that is no family."""
    if name in REFUSED:
        return REFUSED[name]
    if name in FAMILIES:
        return f"it runs on {', '.join(sorted(FAMILIES[name].drivers))}"
    near = difflib.get_close_matches(name, FAMILIES, n=3)
    return f"nearest: {', '.join(near)}" if near else f"known: {', '.join(sorted(FAMILIES))}"
