"""`computerrl tasks synthesize` on real contained desktops: the service proves what it keeps, and it goes on from disk."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from computerrl.common.actions import parse_action
from computerrl.common.config import DesktopConfig, TasksConfig
from computerrl.env_server.driver import DesktopDriver
from computerrl.env_server.serving.play_tasks import proofs
from computerrl.env_server.serving.synthesis import prepared, synthesize
from computerrl.env_server.tasks import families_of
from computerrl.env_server.tasks.synthesis.task_file import TaskFile
from computerrl.launch.commands.main import cli
from tests.support.desktops import SharedDesktops

DESKTOPS = DesktopConfig(image="core", num_desktops=1, observation="tree", reset_deadline_s=120.0, step_deadline_s=30.0)


def synthesized(app: str, out: Path, num: int) -> dict[str, int]:
    """The figures that the command prints."""
    config = out.with_suffix(".yaml")
    config.write_text(json.dumps({"desktop": DESKTOPS.model_dump(mode="json", exclude_unset=True)}))
    result = CliRunner().invoke(cli, ["tasks", "synthesize", app, str(out), "--num", str(num), "--config", str(config), "--json"])
    assert result.exit_code == 0, result.output + str(result.exception)
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def read(out: Path) -> list[TaskFile]:
    return [msgspec.json.decode(path.read_bytes(), type=TaskFile) for path in sorted((out / "tasks").iterdir())]


@pytest.mark.parametrize(
    ("app", "number"),
    [("files", 3), pytest.param("calc", 2, marks=pytest.mark.release), pytest.param("writer", 2, marks=pytest.mark.release)],
)
def test_synthesized_tasks_are_proven_by_the_service_and_need_each_action(
    app: str, number: int, tmp_path: Path, shared_desktops: SharedDesktops
) -> None:
    out = tmp_path / "out"
    found = synthesized(app, out, number)
    assert found["kept"] == number <= found["proposed"] <= found["walks"]
    tasks = TasksConfig(synthesized=str(out), families=tuple(f"synthesized-{task.id}" for task in read(out)))
    proven = list(proofs(tasks, DESKTOPS, num_seeds=1))
    assert len(proven) == number and all(one.is_proven for one in proven), [one.in_words() for one in proven]
    desktop = shared_desktops.get("core").driver
    for task, name in zip(read(out), tasks.families, strict=True):
        assert one_action_is_missed(desktop, name, task, tasks)


def one_action_is_missed(desktop: DesktopDriver, name: str, task: TaskFile, tasks: TasksConfig) -> bool:
    """Whether the demonstration fails without any one of its actions."""
    instance = families_of(tasks)[name].make(0)
    actions = [parse_action(text) for text in task.demonstration]
    for left_out in range(len(actions)):
        desktop.reset(instance)
        for action in (*actions[:left_out], *actions[left_out + 1 :]):
            desktop.step(action)
        if instance.evaluate(desktop.get).success:
            return False
    return True


def test_interrupted_synthesis_goes_on_to_the_same_tasks(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    synthesized("files", whole, 3)
    manifest = prepared(parts, "files", seed=0, desktops=DESKTOPS, version="1")
    rounds = synthesize(parts, manifest, num_tasks=3, desktops=DESKTOPS)
    next(rounds)
    rounds.close()  # As an interrupt would end it.
    assert synthesized("files", parts, 3)["kept"] == 3

    def shown(task: TaskFile) -> tuple[str, str, tuple[str, ...]]:
        return task.id, task.instruction, task.demonstration

    assert [shown(task) for task in read(parts)] == [shown(task) for task in read(whole)]
    assert synthesized("files", parts, 2)["kept"] == 3  # Nothing is to be done.
