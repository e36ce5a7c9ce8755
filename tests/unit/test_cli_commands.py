"""The command line: helpful, and clear about mistakes.

Help, exit codes and signals are tried in processes, as people run commands; other refusals in this process.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.cli import cli, main

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120.0
"""Far above what anything here takes: tests never assert a time, but none may hang."""


def computerrl(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "launch.cli", *words],
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(cwd)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def refused(done: subprocess.CompletedProcess[str], exit_code: int, *wanted: str) -> None:
    assert done.returncode == exit_code, done.stderr
    assert "Traceback" not in done.stderr
    assert "->" in done.stderr, "the next step"
    for text in wanted:
        assert text in done.stderr, done.stderr


Here = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Here:
    """`here("train", ...)`: the command in this process, as if in one of its own whose folder is ``tmp_path``."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        # The command ends processes that have loaded torch with os._exit.
        monkeypatch.setattr("launch.cli._exit", sys.exit)
        monkeypatch.setattr(sys, "argv", ["computerrl", *words])
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SystemExit) as ended:
            main()
        return subprocess.CompletedProcess(words, int(ended.value.code or 0), *capfd.readouterr())

    return run


@pytest.fixture
def serial(tmp_path: Path) -> Path:
    path = tmp_path / "serial.yaml"
    path.write_text((ROOT / "configs" / "serial.yaml").read_text())
    return path


def test_help_teaches_by_examples_and_lists_every_command(tmp_path: Path) -> None:
    done = computerrl("--help", cwd=tmp_path)
    assert done.returncode == 0
    assert "computerrl train configs/quickstart.yaml --resume" in done.stdout
    listed = re.findall(r"^  ([a-z][a-z-]*)  +[A-Z]", done.stdout, re.MULTILINE)
    assert sorted(listed) == sorted(name for name, command in cli.commands.items() if not command.hidden)


@pytest.mark.parametrize("command", sorted(cli.commands))
def test_help_of_each_command_answers(here: Here, command: str) -> None:
    done = here(command, "--help")
    assert done.returncode == 0 and re.match(rf"Usage: .*computerrl {command} ", done.stdout)


def test_dry_run_prints_resolved_config_and_processes_and_starts_nothing(here: Here, tmp_path: Path) -> None:
    done = here("train", str(ROOT / "configs" / "quickstart.yaml"), "--dry-run", "--set", "learner.max_age=2")
    assert done.returncode == 0, done.stderr
    for text in ("max_age: 2", "broker-0", "env_server-0", "actor-0", "learner-0"):
        assert text in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_train_missing_file_names_it(tmp_path: Path) -> None:
    refused(computerrl("train", "nope.yaml", cwd=tmp_path), 2, "nope.yaml")


def test_train_yaml_syntax_names_the_line(here: Here, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("name: x\nlearner: [1, 2\n")
    refused(here("train", "bad.yaml"), 2, "line 3")


def test_train_several_mistakes_reports_all(here: Here, serial: Path) -> None:
    done = here("train", str(serial), "--set", "lerner.max_age=1", "--set", "desktop.num_desktops=none")
    refused(done, 2, "2 problems", "lerner", "did you mean 'learner'?", "desktop.num_desktops")


def test_train_machine_and_config_problems_leave_no_run_folder(here: Here, tmp_path: Path, serial: Path) -> None:
    done = here("train", str(serial), "--set", "model.name=/tmp", "--set", "tasks.families=[nothing]")
    refused(done, 2, "model.name", "tasks.families")
    assert not (tmp_path / "runs").exists()


def test_resume_without_a_run_says_so(tmp_path: Path, serial: Path) -> None:
    refused(computerrl("train", str(serial), "--resume", cwd=tmp_path), 4, "no run 'serial'")


def test_report_unknown_run_says_what_is_there(here: Here) -> None:
    refused(here("report", "nothing"), 2, "no run folder")


def test_bench_unknown_name_says_what_is_there(here: Here) -> None:
    refused(here("bench", "nothing"), 2, "no benchmark 'nothing'")


def test_role_without_supervisor_and_broker_stops_on_a_signal(tmp_path: Path, serial: Path) -> None:
    done = computerrl("broker", "nope.yaml", cwd=tmp_path)
    refused(done, 2, "nope.yaml")


def test_role_whose_supervisor_is_gone_ends_at_once(tmp_path: Path, serial: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "launch.cli", "broker", str(serial)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={"PYTHONPATH": str(ROOT), "COMPUTERRL_SUPERVISOR_PID": "4194303"},
        check=False,
    )
    assert done.returncode != 0
    assert "supervisor 4194303 has ended" in done.stderr


def test_desktop_unknown_family_says_what_there_is(here: Here) -> None:
    refused(here("desktop", "--no-open", "--task", "nothing"), 2, "'nothing'", "calc-set-cell")


def test_desktop_port_of_somebody_else_names_the_option(here: Here) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = here("desktop", "--no-open", "--driver", "scripted", "--port", port)
    refused(done, 3, f"port {port}", "--port 0")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_desktop_signal_ends_it_well(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "launch.cli", "desktop", "--no-open", "--driver", "scripted"],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline().startswith("desktop: http://127.0.0.1:")
    process.send_signal(number)
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0 and "Traceback" not in said, said
