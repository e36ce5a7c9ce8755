"""Short versions of the benchmarks that kill processes, cut networks and crowd the broker: nothing lost, nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
LIMIT_S = 200.0
"""For a busy machine; each takes half a minute."""


def bench(name: str, folder: Path, *, limit_s: float = LIMIT_S) -> tuple[int, dict[str, dict[str, Any]]]:
    """(exit code, rows by name) of `bench NAME --quick`, run in ``folder``."""
    command = [sys.executable, "-m", "computerrl", "bench", name, "--quick", "--json", "rows.json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True)
    try:
        code = process.wait(timeout=limit_s)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    rows = json.loads((folder / "rows.json").read_text())["rows"]
    return code, {row["name"].partition(",")[0]: row for row in rows}


def wait_until_alone(folder: Path) -> list[str]:
    """Processes left in ``folder``; those that end with the benchmark's own get some seconds to notice."""
    deadline = time.monotonic() + 60.0
    while (left := processes_in(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def processes_in(folder: Path) -> list[str]:
    """Processes whose working directory is ``folder``: every process of a benchmark's."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").readlink() == folder:
                found.append((entry / "cmdline").read_text())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def check_guarantees(rows: dict[str, dict[str, Any]]) -> None:
    assert {name: row["value"] for name, row in rows.items() if row["target"] == 0 and row["value"] != 0} == {}


@pytest.mark.release
def test_processes_killed_at_thirty_random_points_lose_and_double_nothing(tmp_path: Path) -> None:
    code, rows = bench("faults", tmp_path)
    check_guarantees(rows)
    assert code == 0
    assert sum(rows[f"kills of {role}"]["value"] for role in ("actor", "broker", "learner")) >= 30
    assert rows["trajectories trained"]["value"] > 0
    assert rows["actors replaced while they slept"]["value"] > 0
    assert rows["processes frozen for 0.3 to 1.5 peer timeouts"]["value"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["rows.json"]
    assert wait_until_alone(tmp_path) == []


@pytest.mark.release
def test_network_cut_and_healed_loses_and_doubles_nothing(tmp_path: Path) -> None:
    code, rows = bench("network_cut", tmp_path)
    if "network cut and heal between namespaces" in rows:
        pytest.skip(rows["network cut and heal between namespaces"]["peer"])
    check_guarantees(rows)
    assert code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["rows.json"]
    assert wait_until_alone(tmp_path) == []


@pytest.mark.release
def test_broker_crowded_and_overloaded_stays_within_its_credit_and_loses_nothing(tmp_path: Path) -> None:
    code, rows = bench("broker_scale", tmp_path)
    check_guarantees(rows)
    assert code == 0
    for name in ("trajectories held at most", "journal at most"):
        assert 0 < rows[name]["value"] <= rows[name]["target"]
    assert [path.name for path in tmp_path.iterdir()] == ["rows.json"]
    assert wait_until_alone(tmp_path) == []
