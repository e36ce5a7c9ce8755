"""The quick form of every study of training runs: real desktops, an untrained model, everything written."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(240)

ROOT = Path(__file__).resolve().parents[2]
STUDIES = ("asynchrony", "entropulse", "staleness_desktops", "api_gui", "algorithms", "faults")


@pytest.mark.parametrize("name", STUDIES)
def test_quick_study_runs_on_desktops_and_writes_everything(tmp_path: Path, name: str) -> None:
    command = [sys.executable, "-m", "launch.cli", "study", name, "--quick", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads((tmp_path / "out" / "data.json").read_text())
    assert data["study"] == name and data["quick"] and len(data["cells"]) >= 2
    for cell in data["cells"]:
        assert cell["num_updates"] == 3 and cell["rl_env_steps"] > 0 and len(cell["updates"]) == 3
        assert cell["num_trajectories_lost"] == cell["num_recorded_twice"] == 0
        assert all(0 <= cell[f"slots_{what}"] < 1.2 for what in ("generating", "on_desktop", "waiting"))
    with (tmp_path / "out" / "data.csv").open(newline="") as file:
        assert [line["cell"] for line in csv.DictReader(file)] == [cell["cell"] for cell in data["cells"]]
    assert (tmp_path / "out" / "plot.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "out" / "README.md").read_text()
    assert (tmp_path / "out" / "table.md").read_text().strip() in page and "quick form" in page
    assert not any((tmp_path / "out" / "runs").glob("*/checkpoints"))
    if name == "faults":
        assert [cell["num_kills"] > 0 for cell in data["cells"]] == [False, True, True]
