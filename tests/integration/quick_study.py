"""Runs the quick form of a study as people do."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def quick_study(folder: Path, name: str) -> list[dict[str, Any]]:
    """The results of a quick form, which wrote everything that a study writes."""
    command = [sys.executable, "-m", "launch.cli", "study", name, "--quick", "--out", str(folder / "out")]
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads((folder / "out" / "data.json").read_text())
    assert data["study"] == name and data["quick"]
    with (folder / "out" / "data.csv").open(newline="") as file:
        assert [line["cell"] for line in csv.DictReader(file)] == [cell["cell"] for cell in data["cells"]]
    assert (folder / "out" / "plot.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "out" / "README.md").read_text()
    assert (folder / "out" / "table.md").read_text().strip() in page and "quick form" in page
    assert not any((folder / "out" / "runs").glob("*/checkpoints"))
    return list(data["cells"])
