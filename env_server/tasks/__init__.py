"""All task families by name, and turning a `TaskRef` into the instance it names.

Adding a task: write a build function in a file here, put its `Family` into that file's FAMILIES, and run the tests; they play
every family (untouched state scores 0, demonstrator scores 1) without further changes.
"""

from __future__ import annotations

from common.config import TasksConfig
from common.errors import TaskFailed
from common.messages import TaskRef
from env_server.driver import TaskInstance
from env_server.tasks import calc, editor, files, web
from env_server.tasks.family import Family

FAMILIES: dict[str, Family] = {
    family.name: family for family in (*web.FAMILIES, *calc.FAMILIES, *editor.FAMILIES, *files.FAMILIES)
}


def task_instance(task: TaskRef, *, tasks: TasksConfig) -> TaskInstance:
    """The instance ``task`` names. Raises `TaskFailed` for an unknown family or a seed outside its split's range."""
    family = FAMILIES.get(task.family)
    if family is None:
        raise TaskFailed(f"unknown task family {task.family!r}; known: {', '.join(sorted(FAMILIES))}")
    first, past_last = tasks.seeds_of(task.split)
    if not first <= task.seed < past_last:
        raise TaskFailed(f"seed {task.seed} of {task.family} is outside the {task.split} seeds {first}..{past_last - 1}")
    return family.make(task.seed)
