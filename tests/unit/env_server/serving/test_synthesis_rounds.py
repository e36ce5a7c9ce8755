"""Which walks become tasks, on desktops that are a dictionary of files and misbehave on purpose."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from computerrl.common.actions import parse_action
from computerrl.common.config import DesktopConfig
from computerrl.common.errors import DesktopBroken, TaskFailed
from computerrl.common.messages import Action
from computerrl.env_server.driver import TaskInstance
from computerrl.env_server.serving import synthesis
from computerrl.env_server.tasks.synthesis.start import Start
from computerrl.env_server.tasks.synthesis.task_file import Manifest, TaskFile
from computerrl.env_server.tasks.synthesis.walks import Walk

LOOK = parse_action("files.list()")
MOVE = parse_action('files.move("a.txt", "out")')
DELETE = parse_action('files.delete("b.txt")')
TOGGLE = parse_action('key("t")')
"""Makes the folder `t`, or takes it away."""
REFUSED = parse_action('key("x")')
Fault = Callable[[int, Action | None], None]
"""Takes the number of resets so far and the action, None for a reset; raises, or `Skip` for an action without effect."""


class Skip(Exception):
    """The action does nothing."""


class FileDesktop:
    """A desktop that knows three actions on files."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self.num_resets, self.is_closed, self.is_broken = 0, False, False

    def reset(self, task: TaskInstance) -> tuple[str, None]:
        assert not self.is_closed and not self.is_broken
        self.num_resets += 1
        self._fault(self.num_resets, None)
        self.files = {step.args["path"]: step.args["data"] for step in task.setup if step.kind == "put_file"}
        self.folders = {step.args["path"] for step in task.setup if step.kind == "make_folder"}
        return "", None

    def observe(self) -> None:
        return None

    def step(self, action: Action) -> SimpleNamespace:
        try:
            self._fault(self.num_resets, action)
            self._do(action)
        except DesktopBroken:
            self.is_broken = True
            raise
        except (Skip, KeyError):
            return SimpleNamespace(observation=None, action_error="")
        return SimpleNamespace(observation=None, action_error="no such key" if action == REFUSED else "")

    def _do(self, action: Action) -> None:
        if action == MOVE:
            self.files["out/a.txt"] = self.files.pop("a.txt")
        elif action == DELETE:
            del self.files["b.txt"]
        elif action == TOGGLE:
            self.folders ^= {"t"}

    def get(self, kind: str, path: str = "") -> Any:
        return sorted([*self.files, *(f"{name}/" for name in self.folders)]) if kind == "folder_listing" else self.files.get(path)

    def close(self) -> None:
        self.is_closed = True


def honest(num_resets: int, action: Action | None) -> None:
    """No fault."""


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Manifest, list[TaskFile]]]:
    """Plays ``walks``, the last one again and again, until ``num_tasks`` are kept, 5 walks in a row gave none, or
    ``num_rounds`` are over."""

    def played(
        *walks: Sequence[Action], fault: Fault = honest, num_tasks: int = 1, num_desktops: int = 1, num_rounds: int = 99
    ) -> tuple[Manifest, list[TaskFile]]:
        start = Start("", {"a.txt": b"one\n", "b.txt": b"two\n"}, draw=lambda rng: [], folders=("out",))

        def draw(app: str, *, seed: int, number: int) -> Walk:
            return Walk(app, seed, number, start, tuple(walks[min(number, len(walks) - 1)]))

        monkeypatch.setattr(synthesis, "draw_walk", draw)
        made: list[FileDesktop] = []
        monkeypatch.setattr(synthesis, "make_driver", lambda config, **others: made.append(FileDesktop(fault)) or made[-1])
        monkeypatch.setattr(synthesis, "MAX_BARREN_WALKS", 5)
        desktops = DesktopConfig(driver="local", num_desktops=num_desktops)
        out = tmp_path / f"out-{num_desktops}"
        manifest = synthesis.prepared(out, "files", seed=0, desktops=desktops, version="1")
        rounds = synthesis.synthesize(out, manifest, num_tasks=num_tasks, desktops=desktops)
        for _, found in zip(range(num_rounds), rounds, strict=False):
            manifest = found
        rounds.close()
        assert all(desktop.is_closed for desktop in made)
        paths = [out / "tasks" / f"{name}.json" for name in manifest.tasks]
        return manifest, [msgspec.json.decode(path.read_bytes(), type=TaskFile) for path in paths]

    return played


def test_kept_task_is_demonstrated_by_the_actions_that_it_needs(play: Callable[..., tuple[Manifest, list[TaskFile]]]) -> None:
    manifest, tasks = play([LOOK, REFUSED, MOVE, LOOK, TOGGLE, LOOK])
    (task,) = tasks
    assert (manifest.num_walks, manifest.num_proposed, manifest.unsaid, manifest.unproven) == (1, 1, {}, {})
    assert task.demonstration == ('files.move("a.txt", "out")', 'key("t")')
    assert "a.txt" in task.instruction and task.added_folders == ("t",)
    assert 'key("x")' not in task.provenance.walk and len(task.provenance.walk) == 5
    assert task.provenance.num_failed >= 2 * len(task.demonstration)


def nth(number: int, error: Exception, *, on: Action | None) -> Fault:
    """Raises ``error`` at the reset or action ``on`` from the reset with that number on."""

    def fault(num_resets: int, action: Action | None) -> None:
        if num_resets >= number and action == on:
            raise error

    return fault


PROPOSED = (MOVE, DELETE)


@pytest.mark.parametrize(
    ("walk", "fault", "stage", "reason"),
    [
        ((LOOK,), honest, "unsaid", "nothing changed"),
        ((TOGGLE, TOGGLE), honest, "unsaid", "nothing changed"),
        (PROPOSED, nth(1, TaskFailed("no"), on=None), "unsaid", "the desktop could not play the walk"),
        (PROPOSED, nth(1, DesktopBroken("dead"), on=MOVE), "unsaid", "the desktop broke"),
        (PROPOSED, nth(2, DesktopBroken("dead"), on=MOVE), "unproven", "the desktop broke"),
        (PROPOSED, nth(2, Skip(), on=MOVE), "unproven", "the walk ends otherwise when it is played again"),
        ((DELETE, TOGGLE, TOGGLE), honest, "unproven", "a part of the demonstration is enough"),
        # Reset 1 explores, 2 replays, 3 and 4 leave an action out, 5 is half done: 6 demonstrates.
        (PROPOSED, nth(6, Skip(), on=DELETE), "unproven", "the demonstration fails when it is played again"),
    ],
)
def test_walk_is_refused_with_its_reason(
    play: Callable[..., tuple[Manifest, list[TaskFile]]], walk: Sequence[Action], fault: Fault, stage: str, reason: str
) -> None:
    manifest, tasks = play(walk, fault=fault, num_rounds=1)
    assert not tasks and manifest.num_walks == 1
    assert {"unsaid": manifest.unsaid, "unproven": manifest.unproven} == {"unsaid": {}, "unproven": {}, stage: {reason: 1}}


def test_walks_end_when_many_in_a_row_gave_no_task(play: Callable[..., tuple[Manifest, list[TaskFile]]]) -> None:
    manifest, tasks = play([MOVE], [LOOK], num_tasks=2)
    assert len(tasks) == 1 and manifest.num_walks == 6 and manifest.unsaid == {"nothing changed": 5}


def test_desktop_that_broke_is_replaced_and_closed(play: Callable[..., tuple[Manifest, list[TaskFile]]]) -> None:
    broken = threading.Event()

    def once(num_resets: int, action: Action | None) -> None:
        if action == MOVE and not broken.is_set():
            broken.set()
            raise DesktopBroken("dead")

    manifest, (task,) = play(PROPOSED, fault=once)
    assert manifest.unsaid == {"the desktop broke": 1} and task.id == "files-00001"


def test_task_that_asks_for_the_same_is_kept_once(play: Callable[..., tuple[Manifest, list[TaskFile]]]) -> None:
    manifest, tasks = play(PROPOSED, (DELETE, MOVE), (LOOK, MOVE), (DELETE,), num_tasks=4)
    assert [task.id for task in tasks] == ["files-00000", "files-00002", "files-00003"]
    assert manifest.unproven == {"a task like it is there already": manifest.num_walks - 3} and manifest.num_walks == 9


@pytest.mark.parametrize("num_desktops", [2, 3])
def test_number_of_desktops_changes_no_task(play: Callable[..., tuple[Manifest, list[TaskFile]]], num_desktops: int) -> None:
    walks = (PROPOSED, (DELETE, MOVE), (LOOK,), (LOOK, MOVE), (DELETE, TOGGLE))
    _, one = play(*walks, num_tasks=3)
    _, several = play(*walks, num_tasks=3, num_desktops=num_desktops)
    assert [(task.id, task.demonstration) for task in several] == [(task.id, task.demonstration) for task in one]
