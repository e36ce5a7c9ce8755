"""Runs the quick form of a study: as a command on real desktops, or serially on imitated ones in this process."""

from __future__ import annotations

import csv
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from computerrl.benchmarks.studies._catalogue import DESIGNS, run
from computerrl.benchmarks.studies._designs import QUICK, Comparison, Generalist

ROOT = Path(__file__).resolve().parents[2]
SERIAL: Mapping[str, Any] = {
    **QUICK,
    "mode": "serial",
    "desktop.driver": "scripted",
    "desktop.memory_per_desktop_mb": 1,
    "desktop.observation": "tree",
    "broker.fsync": False,
    "actor.max_new_tokens": 4,
    "tasks.max_steps": 2,
    "learner.recipe.demos_per_family": 1,
}
"""The quick form in one process, in seconds."""


def quick_study(folder: Path, name: str) -> list[dict[str, Any]]:
    """The results of a quick form on real desktops, run by the command."""
    command = [sys.executable, "-m", "computerrl", "study", name, "--quick", "--out", str(folder / "out")]
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return written(folder / "out", name)


def serial_study(folder: Path, name: str, **changes: Any) -> list[dict[str, Any]]:
    """The results of a quick form in serial mode on imitated desktops; ``changes``: other fields of the study."""
    run(replace(design_of(name), **{"quick": SERIAL, **changes}), folder / "out", quick=True, num_seeds=None)
    return written(folder / "out", name)


def design_of(name: str) -> Comparison | Generalist:
    """The design of a study: of the catalogue, or of its file."""
    return DESIGNS[name] if name in DESIGNS else importlib.import_module(f"computerrl.benchmarks.studies.{name}").STUDY


def written(out: Path, name: str) -> list[dict[str, Any]]:
    """The results in ``out``, beside which everything lies that a study writes."""
    data = json.loads((out / "data.json").read_text())
    assert data["study"] == name and data["quick"]
    with (out / "data.csv").open(newline="") as file:
        assert [line["cell"] for line in csv.DictReader(file)] == [cell["cell"] for cell in data["cells"]]
    assert (out / "plot.png").read_bytes().startswith(b"\x89PNG")
    page = (out / "README.md").read_text()
    assert (out / "table.md").read_text().strip() in page and "quick form" in page
    assert not any((out / "runs").glob("*/checkpoints"))
    return list(data["cells"])
