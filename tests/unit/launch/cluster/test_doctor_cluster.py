"""What the doctor says of file systems, networks and Slurm's settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from computerrl.common.config import NodeKind, RunConfig, SiteProfile
from computerrl.launch.cluster import checks as doctor_cluster
from computerrl.launch.cluster import slurm_commands
from computerrl.launch.cluster.checks import (
    Row,
    desktop_rows,
    file_system,
    folder_rows,
    network_rows,
    parse_settings,
    partition_row,
    setting_rows,
)
from computerrl.launch.cluster.slurm_commands import NodesOf
from computerrl.launch.commands import doctor
from computerrl.launch.commands.doctor import verdict_of
from computerrl.launch.plan.machine import inspect_machine

MOUNTS = """\
22 1 8:1 / / rw,relatime - ext4 /dev/root rw
30 22 0:40 / /home rw - nfs4 server:/home rw
31 30 0:41 / /home/me/my\\040scratch rw - lustre mds:/scratch rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [("/tmp/x", "ext4"), ("/home/you", "nfs4"), ("/home/me/my scratch/runs", "lustre"), ("/homeless", "ext4")],
)
def test_file_system_is_that_of_the_innermost_mount(folder: str, kind: str) -> None:
    assert file_system(Path(folder), MOUNTS) == kind


def test_folder_that_works_is_ok_and_left_as_it_was(tmp_path: Path) -> None:
    rows = folder_rows("run folder", tmp_path, is_shared=True)
    assert [row.verdict for row in rows] == ["ok", "ok"]
    local = folder_rows("local folder", tmp_path, is_shared=False)
    assert [row.what for row in local] == ["local folder", "unix sockets"]
    assert list(tmp_path.iterdir()) == []


def test_local_folder_on_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_cluster, "file_system", lambda _: "lustre")
    row, *_ = folder_rows("local folder", tmp_path, is_shared=False)
    assert row.verdict == "missing" and "local_folder" in row.next_step
    assert folder_rows("cache", tmp_path, is_shared=True)[0].verdict == "ok"


def test_folder_without_locks_or_with_another_clock_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_cluster, "_locks", lambda _: False)
    monkeypatch.setattr(doctor_cluster.time, "time", lambda: os.stat(tmp_path).st_mtime - 90.0)
    _, locks, clock = folder_rows("run folder", tmp_path, is_shared=True)
    assert locks.verdict == "missing" and "flock" in locks.found
    assert clock.verdict == "note" and "+9" in clock.found


def test_folder_that_is_not_there_cannot_be_written_to(tmp_path: Path) -> None:
    (row,) = folder_rows("run folder", tmp_path / "gone", is_shared=True)
    assert row.verdict == "missing" and row.next_step


def test_path_too_long_for_a_socket_is_told(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    assert folder_rows("local folder", deep, is_shared=False)[1].verdict == "missing"


def test_network_that_is_not_here_names_the_addresses_that_are() -> None:
    (row,) = network_rows("203.0.113.0/24")
    assert row.verdict == "missing" and "127.0.0.1" in row.next_step
    assert [row.verdict for row in network_rows("interface:lo")] == ["ok", "ok"]


def test_desktops_that_do_not_fit_are_told_with_the_numbers() -> None:
    many = RunConfig.model_validate({"model": {"name": "tiny-random"}, "desktop": {"num_desktops": 512}})
    (row,) = desktop_rows(many, inspect_machine())
    assert row.verdict == "note" and "512 would take" in row.found
    assert desktop_rows(None, inspect_machine()) == []


@pytest.mark.parametrize(
    ("kind", "verdict", "word"),
    [
        ({"partition": "cpu", "cores_per_node": 32}, "ok", "4 nodes"),
        ({"partition": "cpu", "cores_per_node": 65}, "missing", "cores_per_node 65"),
        ({"partition": "cpu", "has_gpus": True}, "missing", "no node has one"),
        ({"partition": "day"}, "missing", "there is no day"),
    ],
)
def test_partition_against_the_profile(kind: dict[str, object], verdict: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    there = NodesOf(num_nodes=4, num_cores=64, memory_mb=256000, num_gpus=0, time_limit="1-00:00:00")
    monkeypatch.setattr(slurm_commands, "nodes_of", lambda name: there if name == "cpu" else None)
    row = partition_row("worker", NodeKind.model_validate(kind))
    assert row.verdict == verdict and word in row.found


def test_settings_that_decide_how_a_run_goes_on() -> None:
    text = "AuthInfo = socket=/x,cred_expire=40\nJobRequeue = 0\nProctrackType = proctrack/pgid\nSchedulerType = sched/builtin\n"
    rows = {row.what: row for row in setting_rows(parse_settings(text), SiteProfile())}
    assert "40 s" in rows["requeue delay"].found
    assert rows["requeue"].verdict == "note"
    assert rows["scheduler"].verdict == "missing"
    quiet = setting_rows({"JobRequeue": "1", "ProctrackType": "proctrack/cgroup"}, SiteProfile())
    assert [row.verdict for row in quiet] == ["ok"] and "120 s" in quiet[0].found


def test_doctor_ends_with_a_verdict_that_counts_what_is_missing() -> None:
    fine, noted, missing = Row("a", "ok", "x"), Row("b", "note", "x", "do"), Row("c", "missing", "x", "do")
    assert verdict_of([fine, noted]).startswith("ready to train")
    assert verdict_of([fine, missing, noted, missing]).startswith("not ready: 2 of 4 checks failed (c, c)")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_doctor_says_which_numbers_this_processor_is_fast_with(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "fast_dtype", lambda: dtype)
    (row,) = [row for row in doctor._device_rows(replace(inspect_machine(), gpus=())) if row.what == "number type"]
    assert row.found.startswith(dtype) and row.verdict == ("ok" if dtype == "bfloat16" else "note")


@pytest.mark.parametrize("verdict", ["ok", "note", "missing"])
def test_doctor_without_a_terminal_prints_a_line_for_each_row(
    verdict: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [Row(name, verdict, f"found /{name}/" + "long/" * 60, "do " * 60 + "it") for name in ("image", "disk [cache]")]
    monkeypatch.setattr(doctor, "diagnose", lambda *_: iter(rows))
    doctor.run_doctor(as_json=False)
    lines = capsys.readouterr().out.splitlines()[: len(rows)]
    for row, line in zip(rows, lines, strict=True):
        assert line.startswith(row.what) and verdict in line and row.found in line and line.endswith(f"-> {row.next_step}")


def test_doctor_shows_a_row_before_the_next_check_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []

    def rows(*_: object) -> Iterator[Row]:
        for name in ("first", "second"):
            yield Row(name, "ok", "found")
            seen.append(capsys.readouterr().out.split()[0])

    monkeypatch.setattr(doctor, "diagnose", rows)
    assert doctor.run_doctor(as_json=False) == 0
    assert seen == ["first", "second"]
