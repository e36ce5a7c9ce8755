"""The command line: helpful, and clear about mistakes.

Help, exit codes and signals are tried in processes, as people run commands; other refusals in this process.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from computerrl.launch.commands.main import cli, main
from tests.support.tiers import one_in

ROOT = Path(__file__).resolve().parents[4]
LIMIT_S = 120.0
"""Far above what anything here takes: tests never assert a time, but none may hang."""


def computerrl(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "computerrl", *words],
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
        monkeypatch.setattr("computerrl.launch.commands.main._exit", sys.exit)
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
    assert "computerrl train quickstart --resume" in done.stdout
    listed = re.findall(r"^  ([a-z][a-z-]*)  +[A-Z]", done.stdout, re.MULTILINE)
    assert sorted(listed) == sorted(name for name, command in cli.commands.items() if not command.hidden)


@pytest.mark.parametrize("command", sorted(cli.commands))
def test_help_of_each_command_answers(here: Here, command: str) -> None:
    done = here(command, "--help")
    assert done.returncode == 0 and re.match(rf"Usage: .*computerrl {command} ", done.stdout)


def test_dry_run_prints_processes_and_what_train_would_refuse_last_and_starts_nothing(here: Here, tmp_path: Path) -> None:
    done = here("train", "quickstart", "--dry-run", "learner.algorithm.name=grop")
    refused(done, 2, "Apptainer", "desktop.image", "no algorithm 'grop'", "did you mean 'grpo'?")
    for text in ("broker-0", "env_server-0", "actor-0", "learner-0", "memory, estimated"):
        assert text in done.stdout
    assert list(tmp_path.iterdir()) == []


WRONG = ("learner.algorithm.name=grop", "model.name=/nope", "tasks.families=[calc-set-cel]", "desktop.num_desktops=400", "name=x")


@pytest.mark.parametrize("wrong", one_in(3, WRONG))
def test_dry_run_ends_as_train_begins(tmp_path: Path, serial: Path, wrong: str) -> None:
    trial = computerrl("train", str(serial), "--dry-run", wrong, cwd=tmp_path)
    fine = wrong == "name=x" or wrong.startswith("desktop")  # Scripted desktops take no memory.
    assert (trial.returncode == 0) == fine, trial.stderr
    assert list(tmp_path.iterdir()) == [serial]
    if fine:
        assert trial.stdout.rstrip().endswith("this command starts the run")
        return
    done = computerrl("train", str(serial), wrong, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (trial.returncode, trial.stderr)


def test_print_config_is_a_configuration_again(tmp_path: Path) -> None:
    done = computerrl("train", "quickstart", "--print-config", "learner.max_age=2", cwd=tmp_path)
    assert "max_age: 2" in done.stdout and "broker-0" not in done.stdout
    (tmp_path / "again.yaml").write_text(done.stdout)
    again = computerrl("train", "again.yaml", "--print-config", cwd=tmp_path)
    assert again.stdout.partition("\n")[2] == done.stdout.partition("\n")[2]


def test_stopped_run_leaves_the_command_that_continues_it(
    tmp_path: Path, serial: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from computerrl.launch.run import local

    monkeypatch.setattr(local, "play", lambda config, **_: (130, tmp_path))
    words = ["train", str(serial), "tasks.families=[a, b]"]
    for given in (words, [*words, "--resume"]):
        monkeypatch.setattr(sys, "argv", ["computerrl", *given])
        with pytest.raises(SystemExit) as ended:
            cli.main(args=given, standalone_mode=False)
        assert ended.value.code == 130
        assert f"computerrl train {serial} 'tasks.families=[a, b]' --resume\n" in capsys.readouterr().err


def test_train_more_desktops_than_episodes_use_is_noted(tmp_path: Path) -> None:
    done = computerrl("plan", "quickstart", "cluster.num_worker_nodes=4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "note: desktop.num_desktops: 24 desktops, 6 episodes at a time: 18 will idle" in done.stderr
    assert "actor.num_actors=4" in done.stderr
    done = computerrl("plan", "quickstart", "cluster.num_worker_nodes=4", "actor.num_actors=4", cwd=tmp_path)
    assert "note" not in done.stderr


def test_plan_as_json_has_the_processes_and_the_job(tmp_path: Path) -> None:
    words = ("plan", "quickstart", "cluster.num_worker_nodes=2", "actor.num_actors=2", "--json")
    tree = json.loads(computerrl(*words, cwd=tmp_path).stdout)
    names = [row["name"] for row in tree["processes"]]
    assert names.count("learner-0") == 1 and {"broker-0", "actor-1"} <= set(names) and tree["job"].startswith("#!")
    assert len({row["node"] for row in tree["processes"]}) == 3
    assert all(row["num_cores"] > 0 and row["memory_mb"] > 0 and row["argv"] for row in tree["processes"])
    assert computerrl(*words, "--gpu-gb", "80", cwd=tmp_path).returncode == 2


def test_tasks_list_names_every_family_that_begins_so(tmp_path: Path) -> None:
    from computerrl.env_server.tasks import FAMILIES

    done = computerrl("tasks", "list", "calc", cwd=tmp_path)
    named = [line.split()[0] for line in done.stdout.splitlines()]
    assert named == sorted(name for name in FAMILIES if name.startswith("calc")) and named
    assert computerrl("tasks", "list", "nothing", cwd=tmp_path).returncode == 1
    rows = json.loads(computerrl("tasks", "list", "calc", "--json", cwd=tmp_path).stdout)
    assert [row["name"] for row in rows] == named and rows[0]["apps"] == ["calc"] and rows[0]["has_demonstrator"] is True


def test_tasks_list_pixels_names_what_mouse_and_keyboard_demonstrate(tmp_path: Path) -> None:
    from computerrl.env_server.tasks import FAMILIES, is_shown_by_hand

    done = computerrl("tasks", "list", "--pixels", cwd=tmp_path)
    families = [FAMILIES[name] for name in sorted(FAMILIES)]
    by_hand = [family.name for family in families if family.has_demonstrator and is_shown_by_hand(family)]
    assert [line.split()[0] for line in done.stdout.splitlines()] == by_hand and 0 < len(by_hand) < len(families)
    assert f"{len(by_hand)} of {len(families)} families can be demonstrated from pixels" in done.stderr
    num_silent = sum(not family.has_demonstrator for family in families)
    num_called = len(families) - len(by_hand) - num_silent
    assert f"{num_called} are demonstrated by calls of applications alone, {num_silent} have no demonstrator" in done.stderr


def test_eval_beginning_of_families_is_answered_with_the_families(tmp_path: Path, serial: Path) -> None:
    done = computerrl("train", str(serial), "tasks.families=[calc]", cwd=tmp_path)
    refused(done, 2, "families that begin with it: calc-", "computerrl tasks list")
    assert len(done.stderr) < 1000, "not a list of all"


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
    refused(here("report", "nothing"), 2, "not a run folder")


def test_bench_unknown_name_says_what_is_there(here: Here) -> None:
    refused(here("bench", "nothing"), 2, "no benchmark 'nothing'")


def test_role_without_supervisor_and_broker_stops_on_a_signal(tmp_path: Path, serial: Path) -> None:
    done = computerrl("broker", "nope.yaml", cwd=tmp_path)
    refused(done, 2, "nope.yaml")


def test_role_whose_supervisor_is_gone_ends_at_once(tmp_path: Path, serial: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "computerrl", "broker", str(serial)],
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
    refused(here("desktop", "--no-open", "--task", "nothing"), 2, "'nothing'", "computerrl tasks list")


LONG = "a" * 300


@pytest.mark.parametrize("command", ["status", "report", "replay", "eval", "trace", "logs", "export", "compare", "journal"])
@pytest.mark.parametrize("name", [LONG, f"runs/{LONG}", "caf\udce9", "run #2", "a: b", "/dev/null/x", "x\ny"])
def test_run_whose_name_no_run_can_have_is_refused(here: Here, command: str, name: str) -> None:
    words = {"export": [name, "out"], "compare": [name, name], "journal": ["ls", name]}.get(command, [name])
    refused(here(command, *words), 2, "a" if name == LONG else "")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (f"run_dir={LONG}", "run_dir"),
        ("run_dir=/dev/null/x", "/dev/null is not a folder"),
        ("run_dir=/proc/x", "run_dir: "),
        ("run_dir=/proc/self/fd/0/x", "run_dir: "),
        ("tasks.osworld=/nowhere", "tasks.osworld: "),
        ("tasks.osworld=/etc/passwd", "tasks.osworld: "),
        (f"model.name={LONG}", "model.name: "),
        (f"tasks.recordings={LONG}", "tasks.recordings: "),
        (f"tasks.osworld={LONG}", "tasks.osworld: "),
        ("model.name=~nobody-here/x", "~nobody-here"),
        (f"tasks.families=[{', '.join(['calc-set-cell', 'files-rename', 'files-move'] * 10)}]", "more than once"),
    ],
)
def test_place_that_cannot_be_is_refused_before_anything_starts(here: Here, setting: str, said: str) -> None:
    done = here("train", "serial", setting, "--dry-run")
    assert done.returncode in (2, 3)
    refused(done, done.returncode, said)


def test_folders_that_cannot_be_written_to_are_refused_before_anything_starts(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    # The user of these tests may be root, whom no permission stops.
    monkeypatch.setattr("computerrl.launch.run.preflight.tempfile.mkdtemp", refuse)
    monkeypatch.setenv("COMPUTERRL_CACHE", str(tmp_path / "cache"))
    refused(here("train", "serial", "--dry-run"), 2, "run_dir: ", "COMPUTERRL_CACHE: 'tiny-random' cannot be made")


def test_configuration_that_is_no_file_is_refused_without_waiting_for_it(here: Here, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for words in (("train", "fifo"), ("eval", "x", "--config", "fifo"), ("doctor", "/dev/zero"), ("plan", "--config", "fifo")):
        refused(here(*words), 2, "CONFIG: ", "is a pipe or device")
    refused(here("up", "quickstart", "--hosts", "fifo"), 2, "fifo: is a pipe or device")


def test_folders_that_lead_in_a_circle_are_refused(here: Here, tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    refused(here("train", "serial", "run_dir=circle", "--dry-run"), 2, "run_dir: ")
    refused(here("train", "smoke", "desktop.image=circle", "--dry-run"), 3, "desktop.image: no recipe and no file or folder")
    refused(here("train", "smoke", "desktop.image=~nobody-here/x", "--dry-run"), 3, "desktop.image: no recipe")
    refused(here("eval", "circle"), 2, "neither a run, a checkpoint nor a model folder")


def test_evaluation_of_a_model_of_the_hub_that_is_not_here_names_the_command_that_fetches_it(here: Here) -> None:
    for config in ([], ["--config", "quickstart"]):
        refused(here("eval", "owner/name", *config), 2, "a model of the hub is fetched by `hf download owner/name`")


def test_current_folder_that_was_removed_is_named(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    line = 'rmdir ../gone && exec "$0" -m computerrl train serial --dry-run'
    done = subprocess.run(
        ["sh", "-c", line, sys.executable],
        cwd=tmp_path / "gone",
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    refused(done, 2, "current folder: cannot be used")


def test_output_to_a_full_disk_is_named(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str, *, from_pixels: bool, as_json: bool) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("computerrl.launch.commands.tasks.list_families", refuse)
    refused(here("tasks", "list"), 3, "disk: No space left on device")


@pytest.mark.parametrize("text", ["x: 1", "model: {name: m}\nlearner: []", "[" * 5000, "- 1", "model: 1"])
@pytest.mark.parametrize("command", ["report", "dashboard", "replay"])
def test_run_of_another_version_is_named(here: Here, tmp_path: Path, command: str, text: str) -> None:
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "config.yaml").write_text(text)
    refused(here(command, "one"), 4, "start a new run")


def test_user_without_a_home_is_told_what_to_set(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMPUTERRL_CACHE", raising=False)
    monkeypatch.setattr("computerrl.common.models.folder.os.path.expanduser", lambda path: path)
    refused(here("train", "serial", "--dry-run"), 3, "COMPUTERRL_CACHE", "no home folder")


@pytest.mark.parametrize("name", ["gspo", "tis", "cispo"])
def test_configuration_taken_for_an_algorithm_is_answered_with_how_to_use_it(here: Here, name: str) -> None:
    refused(here("train", "serial", f"learner.algorithm.name={name}", "--dry-run"), 2, f"computerrl train algorithms/{name}")


def test_tasks_check_of_no_folder_says_so(here: Here) -> None:
    refused(here("tasks", "check", "nowhere"), 2, "there is no folder 'nowhere'")


def test_desktop_lists_the_tasks(here: Here) -> None:
    done = here("desktop", "--list")
    assert done.returncode == 0 and "calc-set-cell" in done.stdout


def test_run_is_not_compared_with_itself(here: Here, tmp_path: Path) -> None:
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "config.yaml").write_text("")
    (tmp_path / "runs" / "latest").symlink_to("one")
    refused(here("compare", "one", "latest"), 2, "given twice")


def test_file_in_a_folder_that_is_not_there_is_refused_before_the_work(here: Here, tmp_path: Path) -> None:
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "config.yaml").write_text("")
    done = here("trace", "one", "--out", "nowhere/trace.json")
    assert done.returncode == 2 and "there is no folder 'nowhere'" in done.stderr


def test_desktop_port_of_somebody_else_names_the_option(here: Here) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = here("desktop", "--no-open", "--driver", "scripted", "--port", port)
    refused(done, 3, f"port {port}", "--port 0")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_desktop_signal_ends_it_well(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "computerrl", "desktop", "--no-open", "--driver", "scripted"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdout.readline().startswith("desktop: http://127.0.0.1:")
    process.send_signal(number)
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0 and "Traceback" not in said, said
