"""`computerrl status`, looked at from outside: what is shown of runs that are under way and of those that have ended."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from computerrl.common.messages import PeerEntry, Status
from computerrl.common.metrics import read_json_lines
from computerrl.launch.commands.main import cli
from computerrl.launch.commands.status import print_runs, print_status, show_status, status_tree, view_of
from computerrl.launch.report.report_data import Attempt
from computerrl.launch.report.write import report_of, write_attempt
from computerrl.launch.watch.display_frame import render
from computerrl.launch.watch.run_state import RunState
from tests.support.data.synthetic_run import START, write_run

MUCH_LATER = START + 90_000.0


def state_of(folder: Path) -> RunState:
    return RunState().take_all(read_json_lines(folder / "metrics.jsonl"))


def drawn(folder: Path, state: RunState, *, now: float) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(render(view_of(folder, state, now=now), width=80))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_status_of_a_finished_run_does_not_depend_on_when_it_is_looked_at(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    state = state_of(folder)
    text = drawn(folder, state, now=MUCH_LATER)
    assert text == drawn(folder, state, now=MUCH_LATER + 3600)
    assert "finished" in text and "took 11:45" in text and "after RL" in text and "91%" in text
    assert "left" not in text and "does not answer" not in text


def test_runs_are_listed_with_their_whole_names_in_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["a", "n" * 24, "eval-" + "n" * 60]
    print_runs([write_run(tmp_path / name) for name in names], as_json=False)
    head, *rows = capsys.readouterr().out.splitlines()
    assert sorted(row.split()[0] for row in rows) == sorted(names)
    assert {row.index("finished") for row in rows} == {head.index("state")}


def test_status_counts_the_time_of_all_attempts_without_the_pauses(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", until="rl")
    write_attempt(folder / "logs" / "1", Attempt(START, START + 100, "stopped", "stopped by SIGINT"))
    (folder / "logs" / "2").mkdir()
    write_attempt(folder / "logs" / "2", Attempt(START + 1000, None))
    view = view_of(folder, state_of(folder), now=START + 1050)
    assert view.elapsed_s == 150 and view.ending is None


@pytest.mark.parametrize("outcome", ["stopped", "failed"])
def test_status_of_a_run_that_ended_otherwise_says_how_to_go_on(tmp_path: Path, outcome: str) -> None:
    folder = write_run(tmp_path / "run", until="rl")
    write_attempt(folder / "logs" / "1", Attempt(START, START + 100, outcome, "stopped by SIGINT"))
    view = view_of(folder, state_of(folder), now=MUCH_LATER)
    assert view.ending is not None and not view.ending.is_good
    assert view.ending.text.startswith(outcome) and "--resume" in view.notes[0]


def test_status_of_a_running_run_shows_who_is_there(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", until="rl")
    state = state_of(folder)
    assert "does not answer" in view_of(folder, state, now=MUCH_LATER).notes[0]
    state.status = Status("r", 12, {}, {}, (PeerEntry("actor", 0, "i", "host", 1, {}, 0.1),), {}, {})
    view = view_of(folder, state, now=MUCH_LATER)
    assert [process.name for process in view.processes] == ["actor-0"] and not view.notes


def test_policy_version_is_the_newest_that_any_record_names(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    state = state_of(folder)
    assert state.policy_version == 24
    state.take({"event": "phase", "phase": "eval-after-rl", "policy_version": 25})
    assert state.policy_version == 25
    state.status = Status("r", 26, {}, {}, (), {}, {})
    assert state.policy_version == 26
    assert RunState().policy_version is None


def test_status_of_a_finished_run_is_printed_even_when_asked_to_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_status(write_run(tmp_path / "run"), stay=True)
    assert "finished" in capsys.readouterr().out


def test_status_as_json_has_what_the_display_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run")
    print_status(folder, job="job 7, RUNNING")
    tree = json.loads(capsys.readouterr().out)
    assert tree["run"] == "run" and tree["ended"].startswith("finished") and tree["job"] == "job 7, RUNNING"
    assert tree["policy_version"] == 24 and tree["evaluation"]["phase"] == "eval-after-rl" and tree["update"]["update"]
    empty = status_tree(view_of(tmp_path, RunState(), now=MUCH_LATER))
    assert [empty[name] for name in ("ended", "phase", "update", "evaluation", "broker")] == [None] * 5


def test_status_as_json_of_a_running_run_has_its_processes_and_counters(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", until="rl")
    state = state_of(folder)
    state.status = Status("r", 12, {"received": 3}, {"held": 1.0}, (PeerEntry("actor", 0, "i", "host", 1, {}, 0.1),), {}, {})
    tree = status_tree(view_of(folder, state, now=MUCH_LATER))
    assert tree["processes"] == [{"name": "actor-0", "state": "running", "pid": 1}] and tree["broker"] == {
        "received": 3,
        "held": 1.0,
    }


def test_runs_are_listed_newest_first_with_how_they_ended(tmp_path: Path) -> None:
    write_run(tmp_path / "finished")
    for name, attempt in {
        "stopped": Attempt(START + 10, START + 110, "stopped", "stopped by SIGINT"),
        "killed": Attempt(START + 20, None),
        "running": Attempt(START + 30, None),
    }.items():
        write_attempt(write_run(tmp_path / name, until="rl") / "logs" / "1", attempt)
    (tmp_path / "running" / ".lock").write_text(str(os.getpid()))
    (tmp_path / "latest").symlink_to("running")
    (tmp_path / "starting").mkdir()
    done = CliRunner().invoke(cli, ["runs", str(tmp_path)])
    assert done.exit_code == 0, done.output
    table = done.stdout.splitlines()
    assert max(map(len, table)) <= 80
    assert [row.split()[0] for row in table[1:]] == ["running", "killed", "stopped", "finished"]
    assert [row.split()[3] for row in table[1:]] == ["running", "killed", "stopped", "finished"]
    listed = json.loads(CliRunner().invoke(cli, ["runs", str(tmp_path), "--json"]).stdout)
    assert [(one["run"], one["state"]) for one in listed] == [
        (name, name) for name in ("running", "killed", "stopped", "finished")
    ]
    shown = report_of(tmp_path / "finished")
    assert listed[-1]["num_updates"] == shown["num_updates"]
    assert listed[-1]["took_s"] == shown["wall_s"]
    assert [one["success"] for one in listed[-1]["evaluations"]] == [
        shown[name]["mean"] for name in ("success_before", "success_after_bc", "success_after_rl")
    ]
