"""Tasks of others that pay for doing nothing: judged untouched once, kept, and never given to an agent."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from computerrl.common.config import DesktopConfig, TasksConfig
from computerrl.common.errors import DesktopBroken, TaskFailed
from computerrl.common.messages import Evaluation, Observation, TaskRef
from computerrl.common.wire.transport import LocalChannel
from computerrl.env_server.client import DesktopClient
from computerrl.env_server.driver import Getter, SetupStep, TaskInstance
from computerrl.env_server.drivers.scripted import ScriptedDriver
from computerrl.env_server.judging import untouched
from computerrl.env_server.judging.untouched import Untouched
from computerrl.env_server.serving import calls
from computerrl.env_server.serving.service import DesktopService
from computerrl.env_server.tasks.family import DONE
from computerrl.env_server.tasks.osworld import load_task

CONFIG = DesktopConfig(driver="scripted", observation="tree", num_desktops=1, reset_deadline_s=10.0)
TASK = TaskRef("osworld-a", 5, "training")


class Desk(ScriptedDriver):
    """Counts resets."""

    num_resets = 0

    def __init__(self) -> None:
        super().__init__(CONFIG)

    def reset(self, task: TaskInstance) -> tuple[str, Observation]:
        self.num_resets += 1
        return super().reset(task)


class Foreign:
    """A foreign task: its text in the editor's file is what its evaluator reads. Counts verdicts."""

    def __init__(self, reward: float, *, digest: str = "d") -> None:
        self.num_verdicts = 0
        self._reward = reward
        step = SetupStep("editor_open", {"path": "a.txt", "text": "x"})
        self.instance = TaskInstance("Do it.", (step,), self._evaluate, lambda *_: DONE, digest=lambda: digest)

    def _evaluate(self, get: Getter) -> Evaluation:
        assert get("final_action") == "done" and get("file_text", path="a.txt") == "x"
        self.num_verdicts += 1
        return Evaluation(self._reward, self._reward == 1.0, "")


@contextmanager
def playing(
    monkeypatch: pytest.MonkeyPatch, task: Foreign, folder: Path, config: DesktopConfig = CONFIG
) -> Iterator[tuple[Desk, Callable[[], Any]]]:
    """A new env_server; gives its desktop, and a reset to the task as an actor asks for it."""
    monkeypatch.setattr(calls, "task_instance", lambda ref, *, tasks: task.instance)
    desk = Desk()
    service = DesktopService(config, tasks=TasksConfig(), make=lambda _: desk, untouched=Untouched(config, folder=folder))
    client = DesktopClient(LocalChannel(service.handle), config=config)

    def play() -> Any:
        lease = client.lease("a", TASK)
        try:
            return client.reset(lease, TASK)
        finally:
            client.release(lease)

    with closing(service):
        yield desk, play


def test_task_that_pays_nothing_is_judged_once_and_set_up_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    task = Foreign(0.0)
    for _ in range(2):  # the second env_server finds it in the cache
        with playing(monkeypatch, task, tmp_path) as (desk, play):
            before = task.num_verdicts
            assert play().instruction == "Do it."
            assert desk.num_resets == 1 + task.num_verdicts - before
            play()
    assert task.num_verdicts == 1


@pytest.mark.parametrize("reward", [1.0, 0.5, 0.001])
def test_task_that_pays_untouched_is_never_given_to_an_agent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reward: float
) -> None:
    task = Foreign(reward)
    for _ in range(2):
        with playing(monkeypatch, task, tmp_path) as (desk, play):
            for _ in range(2):
                with pytest.raises(TaskFailed, match=f"pays untouched: score {reward:g} for doing nothing"):
                    play()
    assert task.num_verdicts == 1 and desk.num_resets == 0


def test_own_families_are_not_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    task = Foreign(1.0)
    task.instance = replace(task.instance, digest=None)
    with playing(monkeypatch, task, tmp_path) as (_, play):
        play()
    assert task.num_verdicts == 0 and not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [TaskFailed("cannot be judged"), DesktopBroken("gone")])
def test_verdict_that_failed_is_not_kept(tmp_path: Path, error: Exception) -> None:
    def fail() -> Evaluation:
        raise error

    found, instance = Untouched(CONFIG, folder=tmp_path), Foreign(0.0).instance
    with pytest.raises(type(error)):
        found.refuse_or_try(TASK, instance, fail)
    found.refuse_or_try(TASK, instance, lambda: Evaluation(0.0, False, ""))
    assert len(list(tmp_path.iterdir())) == 1


def again(folder: Path, config: DesktopConfig = CONFIG, digest: str = "d") -> bool:
    """Does a new env_server judge the task again?"""
    tried = []

    def judge() -> Evaluation:
        tried.append(True)
        return Evaluation(0.0, False, "")

    Untouched(config, folder=folder).refuse_or_try(TASK, Foreign(0.0, digest=digest).instance, judge)
    return bool(tried)


def test_finding_holds_for_all_that_it_follows_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert again(tmp_path) and not again(tmp_path)
    assert again(tmp_path, digest="other file")
    assert again(tmp_path, CONFIG.model_copy(update={"screen_width": 1024}))
    images = [tmp_path / name for name in ("one.sif", "two.sif")]
    for image in images:
        image.write_bytes(b"hsqs" + bytes(60))
    monkeypatch.setattr("computerrl.env_server.image.find.check_fuse", lambda image: None)
    for image in images:
        config = CONFIG.model_copy(update={"driver": "apptainer", "image": str(image)})
        assert again(tmp_path, config) and not again(tmp_path, config)
    monkeypatch.setattr(untouched, "_sources", lambda: "another version")
    assert again(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b'{"task": 3}', b"[]", b"\xff\xfe"])
def test_damaged_finding_is_found_anew(tmp_path: Path, content: bytes) -> None:
    assert again(tmp_path)
    next(tmp_path.iterdir()).write_bytes(content)
    assert again(tmp_path) and not again(tmp_path)


def test_disk_that_takes_nothing_costs_a_verdict_for_each_env_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", full)
    task = Foreign(1.0)
    with playing(monkeypatch, task, tmp_path / "cache") as (_, play):
        for _ in range(2):
            with pytest.raises(TaskFailed, match="pays untouched"):
                play()
    assert task.num_verdicts == 1 and not list((tmp_path / "cache").iterdir())


def test_digest_of_a_task_file_is_that_of_its_content_and_its_files(tmp_path: Path) -> None:
    assets = tmp_path / "assets"
    assets.mkdir()

    def digest(other: str = "", **changes: Any) -> str | None:
        for name in ("in.txt", "up.txt", "post.txt", "gold.txt", "more.txt"):
            (assets / name).write_text("other" if name == other else "same")
        post = {"type": "upload_file", "parameters": {"files": [{"local_path": "post.txt", "path": "/home/user/p"}]}}
        evaluator = {
            "postconfig": [post],
            "func": ["compare_text_file", "check_list"],
            "conj": "and",
            "result": [{"type": "vm_file", "path": "/home/user/in.txt"}] * 2,
            "expected": [
                {"type": "cloud_file", "path": "https://h/gold.txt"},
                {"type": "cloud_file", "multi": True, "path": ["https://h/more.txt"], "dest": ["a"]},
            ],
        }
        config = [
            {"type": "download", "parameters": {"files": [{"url": "https://h/in.txt", "path": "/home/user/in.txt"}]}},
            {"type": "upload_file", "parameters": {"files": [{"local_path": "up.txt", "path": "/home/user/u"}]}},
        ]
        task = {"id": "a", "instruction": "Do it.", "config": config, "evaluator": evaluator, **changes}
        (tmp_path / "a.json").write_text(json.dumps(task))
        of = load_task(tmp_path / "a.json", assets).as_instance().digest
        return None if of is None else of()

    first = digest()
    assert first == digest() and first != digest(instruction="Do that.")
    for name in ("in.txt", "up.txt", "post.txt", "gold.txt", "more.txt"):
        assert digest(name) != first
    assert digest(evaluator={"func": "infeasible"}) is None
