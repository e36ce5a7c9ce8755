"""A short run on the real thing improves: SmolLM2 on contained desktops, cloned, trained by RL, judged on held-out seeds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

SHORT = (
    "name=short",
    "tasks.families=[web-enter-text, calc-set-cell]",
    "desktop.num_desktops=2",
    "actor.num_episodes=2",
    "learner.groups_per_batch=2",
    "learner.group_size=4",
    "learner.recipe.demos_per_family=8",
    "learner.recipe.demos_of_family={}",
    "learner.recipe.bc_epochs=3",
    "learner.recipe.eval_episodes_per_family=5",
    "learner.recipe.eval_before_episodes_per_family=5",
    "learner.recipe.eval_cloned_episodes_per_family=5",
    "learner.recipe.max_updates=2",
    "learner.recipe.max_run_s=null",
)


@pytest.mark.timeout(1200)
@pytest.mark.release
def test_train_quickstart_cut_short_improves_on_held_out_seeds(tmp_path: Path) -> None:
    words = [word for setting in SHORT for word in ("--set", setting)]
    command = [sys.executable, "-m", "computerrl", "train", str(ROOT / "configs" / "quickstart.yaml"), *words]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=1100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "runs" / "short" / "report.json").read_text())
    before, cloned, after = (report[f"success_{when}"] for when in ("before", "after_bc", "after_rl"))
    assert before["episodes"] == cloned["episodes"] == after["episodes"] == 10
    assert before["mean"] < cloned["mean"] and before["mean"] < after["mean"], report
    assert report["num_updates"] == 2
    assert report["num_trajectories_lost"] == 0
    assert report["driver"] == "apptainer"
    assert (tmp_path / "runs" / "short" / "report.html").stat().st_size > 0
