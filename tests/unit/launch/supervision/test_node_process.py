"""The process above a role on its node, several commands that end together, and workers that join under numbers of their own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from computerrl.common.config import RunConfig
from computerrl.common.errors import ConfigError, SetupError
from computerrl.launch.cluster import join, together
from computerrl.launch.cluster.join import claim_numbers, specs_here

ROOT = Path(__file__).resolve().parents[4]


def node(*arguments: str, code: str, **options: Any) -> subprocess.Popen[str]:
    argv = [
        sys.executable,
        "-m",
        "computerrl.launch.supervision.node_process",
        "--role",
        "actor",
        "--stop-s",
        "1",
        *arguments,
        "--",
    ]
    return subprocess.Popen([*argv, sys.executable, "-u", "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True, **options)


@pytest.mark.parametrize(
    ("code", "expected"), [("raise SystemExit(7)", 7), ("raise SystemExit(0)", 0), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_exit_code_of_the_role_is_passed_on(code: str, expected: int) -> None:
    assert node(code=code).wait(timeout=120) == expected


def test_end_of_standard_input_ends_the_role() -> None:
    process = node("--until-eof", code="import time; print('up'); time.sleep(60)", stdin=subprocess.PIPE)
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == "up\n"
    process.stdin.close()
    assert process.wait(timeout=120) == 0


def test_sigterm_leaves_a_notice_and_the_role_alone_until_it_is_told_to_stop(tmp_path: Path) -> None:
    notice = tmp_path / "leave"
    code = "import os, signal, time; print(os.getpid()); signal.signal(signal.SIGINT, lambda *_: exit(0)); time.sleep(60)"
    process = node("--notice", str(notice), code=code)
    assert process.stdout is not None
    role = int(process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    subprocess.run(["kill", "-TERM", str(role)], check=True)  # A scheduler signals everybody.
    deadline = time.monotonic() + 10
    while not notice.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert Path(f"/proc/{role}").exists() and process.poll() is None
    process.send_signal(signal.SIGUSR2)
    assert process.wait(timeout=120) == 0
    assert not Path(f"/proc/{role}").exists()


def test_commands_that_live_together_end_with_the_first_and_its_code() -> None:
    commands = ([sys.executable, "-c", "import sys; sys.stdin.read()"], [sys.executable, "-c", "raise SystemExit(5)"])
    words = [part for command in commands for part in (str(len(command)), *command)]
    process = subprocess.Popen(
        [sys.executable, "-m", "computerrl.launch.cluster.together", *words], cwd=ROOT, stdin=subprocess.PIPE
    )
    assert process.wait(timeout=120) == 5
    assert process.stdin is not None
    process.stdin.close()


def test_words_are_split_into_commands_by_their_numbers() -> None:
    assert list(together.split(["2", "ssh", "a", "3", "ssh", "b", "2"])) == [["ssh", "a"], ["ssh", "b", "2"]]


# --- workers that join -----------------------------------------------------------------------------------------------


def config(**sections: Any) -> RunConfig:
    return RunConfig.model_validate({"name": "x", "model": {"name": "tiny-random"}, **sections})


def test_joining_node_runs_no_broker_and_no_learner_and_counts_from_its_own_numbers() -> None:
    specs = specs_here(config(), (1004, 1005), has_gpus=False)
    assert [spec.name for spec in specs] == ["env_server-1004", "actor-1004", "actor-1005"]
    assert specs[2].argv[-2:] == ("--index", "1005")
    central = config(actor={"inference": "central", "num_actors": 3, "num_engines": 2})
    assert [spec.role for spec in specs_here(central, (1000,), has_gpus=True)] == ["env_server", "engine", "actor"]


def test_numbers_are_a_jobs_own_and_stay_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "END_INDEX", join.FIRST_INDEX + 3)
    assert claim_numbers(tmp_path, "job 1", count=2) == (1000, 1001)
    assert claim_numbers(tmp_path, "job 2", count=1) == (1002,)
    assert claim_numbers(tmp_path, "job 1", count=2) == (1000, 1001)
    with pytest.raises(SetupError, match="too few numbers"):
        claim_numbers(tmp_path, "job 3", count=1)


def test_run_on_loopback_cannot_be_joined(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("name: x\nmodel: {name: tiny-random}\n")
    with pytest.raises(ConfigError, match=r"(?s)no other machine reaches.*cluster.elastic=true"):
        join.join_run(tmp_path, num_actors=1)
