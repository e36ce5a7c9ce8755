"""Judgements in processes of their own: each limit is a score of 0 with its name, and nobody else notices."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from computerrl.common.config import TasksConfig
from computerrl.common.errors import DesktopBroken, EnvError, HostBroken, TaskFailed
from computerrl.common.messages import TaskRef
from computerrl.env_server.driver import TaskInstance
from computerrl.env_server.drivers.memory import processes_below
from computerrl.env_server.judging.judge import ForkedJudge, Limits
from computerrl.env_server.tasks import FAMILIES, task_instance

SERVER = (sys.executable, str(Path(__file__).parents[2] / "support" / "misbehaving_judgements.py"))
LIMITS = Limits(wall_s=20.0, cpu_s=1, memory_mb=64, file_mb=4, open_files=40)
INSTANCE: TaskInstance = FAMILIES["calc-type-cell"].make(0)

PASSED = {
    "loop": "1 s of processor time",
    "fill-memory": "64 MiB of memory",
    "fill-memory-at-once": "64 MiB of memory",
    "crash": "parsers can read",
    "abort": "parsers can read",
    "trap": "parsers can read",
    "not-a-number": "may answer",
    "lie": "may answer",
}
STUMBLED = {
    "recurse": "RecursionError",
    "write-much": "File too large",
    "open-many": "Too many open files",
    "stumble": "no such part",
    "talk-much": "ValueError: xxx",
    "run-program": "PermissionError",
    "connect": "PermissionError",
    "kill": "PermissionError",
}


@pytest.fixture(scope="module")
def judge() -> Iterator[ForkedJudge]:
    judge = ForkedJudge(TasksConfig(), limits=LIMITS, command=SERVER)
    yield judge
    judge.close()


def right(kind: str, **args: Any) -> str:
    return "right"


def judged(judge: ForkedJudge, way: str, get: Any = right) -> Any:
    return judge.judge(TaskRef(way, 1, "training"), INSTANCE, get)


@pytest.mark.parametrize("way", [*PASSED, *STUMBLED])
def test_judgement_that_passes_a_limit_or_stumbles_scores_0_with_the_reason(judge: ForkedJudge, way: str) -> None:
    verdict = judged(judge, way)
    assert (verdict.reward, verdict.success) == (0.0, False)
    assert (PASSED | STUMBLED)[way] in verdict.detail
    assert judged(judge, "honest").success


def test_judgement_that_sleeps_is_ended_at_the_wall_clock_s_limit() -> None:
    judge = ForkedJudge(TasksConfig(), limits=Limits(wall_s=5.0), command=SERVER)
    try:
        assert "5 s" in judged(judge, "sleep").detail
        assert judged(judge, "honest").success
    finally:
        judge.close()


def test_time_of_the_desktop_s_answers_is_not_the_judgement_s() -> None:
    judge = ForkedJudge(TasksConfig(), limits=Limits(wall_s=5.0), command=SERVER)

    def slow(kind: str, **args: Any) -> str:
        time.sleep(6.0)
        return "right"

    try:
        assert judged(judge, "honest", slow).success
    finally:
        judge.close()


@pytest.mark.parametrize("error", [TaskFailed("no such window"), DesktopBroken("it does not answer")])
def test_error_of_the_desktop_or_the_task_arrives_as_it_was_raised(judge: ForkedJudge, error: EnvError) -> None:
    def refuse(kind: str, **args: Any) -> str:
        raise error

    with pytest.raises(type(error), match=str(error)):
        judged(judge, "honest", refuse)
    with pytest.raises(TaskFailed, match="own file is broken"):
        judged(judge, "fail")


@pytest.mark.parametrize("way", ["exit", "leave-child-and-exit", "close-all", "half-an-answer"])
def test_process_that_ends_without_an_outcome_is_no_verdict_on_the_agent(way: str) -> None:
    judge = ForkedJudge(TasksConfig(), limits=Limits(wall_s=10.0), command=SERVER)
    try:
        if way == "leave-child-and-exit":
            # Its child holds the connection: nothing tells that no answer will come.
            assert "limit of 10 s" in judged(judge, way).detail
        else:
            with pytest.raises(TaskFailed, match="ended from outside"):
                judged(judge, way)
        assert judged(judge, "honest").success
    finally:
        judge.close()


def test_first_outcome_counts(judge: ForkedJudge) -> None:
    assert judged(judge, "two-answers").detail == "first"
    assert judged(judge, "honest").success


def test_host_without_room_is_no_verdict_on_the_agent(judge: ForkedJudge) -> None:
    with pytest.raises(TaskFailed, match=r"cannot be judged on this host: .*No space left"):
        judged(judge, "no-room")


def test_reason_is_a_line_however_long_it_was(judge: ForkedJudge) -> None:
    assert len(judged(judge, "talk-much").detail) <= 400
    with pytest.raises(TaskFailed) as caught:
        judged(judge, "fail-with-much")
    assert len(str(caught.value)) <= 4000


def test_child_of_a_judgement_ends_with_it(judge: ForkedJudge) -> None:
    pid = int(judged(judge, "leave-child").detail)
    deadline = time.monotonic() + 60.0
    while _lives(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _lives(pid)


def _lives(pid: int) -> bool:
    try:
        return " Z" not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_place_for_files_that_a_host_has_cleared_away_is_made_again(judge: ForkedJudge) -> None:
    assert judged(judge, "honest").success
    deadline = time.monotonic() + 60.0
    while any(judge._folder.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.02)  # the judgement's own files are still being cleared away
    shutil.rmtree(judge._folder)
    assert judged(judge, "leave-files").success


def test_host_without_a_place_for_files_is_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    judge = ForkedJudge(TasksConfig(), limits=LIMITS, command=SERVER)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    for ask in (lambda: judge.prepare(TaskRef("honest", 1, "training")), lambda: judged(judge, "honest")):
        with pytest.raises(HostBroken, match="no place for files"):
            ask()
    monkeypatch.undo()
    assert judged(judge, "honest").success
    judge.close()


def test_fork_server_that_stands_still_keeps_nobody_who_prepares(judge: ForkedJudge) -> None:
    assert judged(judge, "honest").success
    server = judge._server
    assert server is not None
    os.kill(server.pid, signal.SIGSTOP)
    for seed in range(2000):
        judge.prepare(TaskRef("honest", seed, "training"))
    os.kill(server.pid, signal.SIGCONT)
    assert judged(judge, "honest").success


def test_output_goes_nowhere_and_files_are_cleared_away(judge: ForkedJudge, capfd: pytest.CaptureFixture[str]) -> None:
    assert judged(judge, "chatter").success
    folder = Path(judged(judge, "leave-files").detail)
    deadline = time.monotonic() + 60.0
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not folder.exists()
    assert len(capfd.readouterr().err) < 10_000


def test_judgement_holds_no_descriptor_of_others(judge: ForkedJudge) -> None:
    alone = judged(judge, "look-around").detail
    started, done = threading.Event(), threading.Event()

    def slow(kind: str, **args: Any) -> str:
        started.set()
        done.wait(60.0)
        return "right"

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(judged, judge, "honest", slow)
        assert started.wait(60.0)
        beside = judged(judge, "look-around").detail
        done.set()
        assert other.result().success
    assert beside == alone


def test_judgements_beside_attackers_lose_nothing(judge: ForkedJudge) -> None:
    ways = ["loop", "fill-memory", "crash", "exit", "chatter", "write-much", "recurse", "stumble"] + 16 * ["honest"]
    with ThreadPoolExecutor(len(ways)) as pool:
        futures = {index: pool.submit(judged, judge, way) for index, way in enumerate(ways)}
        honest = [futures[index].result() for index, way in enumerate(ways) if way == "honest"]
        for index, way in enumerate(ways):
            if way == "exit":
                assert isinstance(futures[index].exception(), TaskFailed)
            else:
                futures[index].result()
    assert all(verdict.success for verdict in honest)


def test_fork_server_that_was_killed_is_started_anew_and_the_judgement_begun_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # that of the machine has folders of other tests' judges
    judge = ForkedJudge(TasksConfig(), limits=LIMITS, command=SERVER)
    assert judged(judge, "honest").success
    asked = []

    def kill_first(kind: str, **args: Any) -> str:
        if not asked:
            asked.append(kind)
            for pid in servers():
                os.kill(pid, signal.SIGKILL)
        return "right"

    assert judged(judge, "honest", kill_first).success
    assert len(asked) == 1
    assert len(list(tmp_path.iterdir())) == 1
    judge.close()
    assert not list(tmp_path.iterdir())


def test_fork_server_runs_from_the_start_on() -> None:
    judge = ForkedJudge(TasksConfig(), limits=LIMITS, command=SERVER)
    judge.start()
    server = judge._server
    assert server is not None and server.poll() is None
    assert judged(judge, "honest").success
    assert judge._server is server and server.poll() is None
    judge.close()


@pytest.mark.parametrize("already_judged", [True, False])
def test_fork_server_that_is_told_to_end_leaves_no_folder(already_judged: bool) -> None:
    """Nor when it is told so before its first own instruction, as when a run ends at its start."""
    judge = ForkedJudge(TasksConfig(), limits=LIMITS, command=SERVER)
    before = set(servers())
    if already_judged:
        assert judged(judge, "honest").success
    else:
        judge.prepare(TaskRef("honest", 1, "training"))
    while not set(servers()) - before:
        time.sleep(0.002)  # its command is not to be read at once
    for pid in set(servers()) - before:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 60.0
    while set(servers()) - before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert judge._folder.name and not judge._folder.exists()
    judge.close()


def test_folder_that_killed_processes_left_goes_with_the_next_judge_and_one_in_use_stays(judge: ForkedJudge) -> None:
    assert judged(judge, "honest").success
    left = Path(tempfile.mkdtemp(prefix="computerrl-judgements-"))
    (left / "of an agent").mkdir()
    (left / "of an agent" / "file.xlsx").write_bytes(b"x")
    for folder in (left, judge._folder):
        os.utime(folder, (0, 0))
    another = ForkedJudge(TasksConfig(), limits=LIMITS, command=SERVER)
    assert judged(another, "honest").success
    assert not left.exists()
    assert judge._folder.exists() and another._folder.exists()
    another.close()


def test_place_without_locks_for_files_is_none_the_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    """As some file systems of clusters are."""

    def flock(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", flock)
    judge = ForkedJudge(TasksConfig(), limits=LIMITS, command=SERVER)
    assert judged(judge, "honest").success
    judge.close()


def servers() -> list[int]:
    found = []
    for pid in processes_below(os.getpid()):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except FileNotFoundError:
            continue  # it has just ended
        if b"misbehaving_judgements" in command:
            found.append(pid)
    return found


def test_end_of_the_env_server_ends_every_judgement() -> None:
    judge = ForkedJudge(TasksConfig(), limits=Limits(), command=SERVER)
    assert judged(judge, "honest").success
    before = set(servers())
    with ThreadPoolExecutor(1) as pool:
        sleeper = pool.submit(judged, judge, "sleep")
        while len(set(servers()) - before) < 1:
            time.sleep(0.02)
        mine = set(servers()) - before
        judge.close()
        assert isinstance(sleeper.exception(timeout=60.0), (TaskFailed, DesktopBroken))
    assert not mine & set(servers())


def test_every_family_is_judged_as_in_place() -> None:
    """The instance that a judgement builds anew is the one that was played."""
    tasks = TasksConfig()
    judge = ForkedJudge(tasks)
    try:
        judge.prepare(TaskRef("no-such-family", tasks.training_seeds[0], "training"))
        for family in ("calc-type-cell", "web-click-button", "editor-type-save", "files-move"):
            task = TaskRef(family, tasks.training_seeds[0] + 3, "training")
            instance = task_instance(task, tasks=tasks)
            facts = {
                "calc_cells": [["x"] * 6 for _ in range(9)],
                "file_text": "x",
                "folder_listing": ["x"],
                "editor_text": "x",
                "web_page": {"done": True, "raw_reward": 1.0, "reason": "", "episode_id": 0, "fields": {}},
            }
            get = lambda kind, facts=facts, **args: facts[kind]  # noqa: E731
            if family.startswith("calc"):
                judge.prepare(task)
            assert judge.judge(task, instance, get) == instance.evaluate(get)
        with pytest.raises(TaskFailed, match="no-such-family"):
            judged(judge, "no-such-family")
    finally:
        judge.close()
