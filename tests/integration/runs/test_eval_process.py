"""`computerrl eval` with real processes and real, contained desktops: killed, continued, and every rollout counted once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from computerrl.common.metrics import read_json_lines
from computerrl.launch.supervision import processes
from computerrl.learner.model_store import ensure_model

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 120.0


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    asked = ["--episodes", "2", "--rollouts", "3", "--config", str(ROOT / "configs" / "smoke.yaml")]
    return subprocess.Popen(
        [sys.executable, "-m", "computerrl", "eval", str(ensure_model("tiny-random")), *asked, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finished(folder: Path, *words: str) -> str:
    process = start(folder, *words)
    out, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, out + said
    return out


@pytest.mark.release
def test_evaluation_killed_and_resumed_counts_every_rollout_once(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "eval-tiny-random"
    episodes = run / "trajectories" / "episodes.jsonl"
    process = start(tmp_path)
    deadline = time.monotonic() + LIMIT_S
    while not (episodes.exists() and len(read_json_lines(episodes)) >= 3):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
    below = processes.descendants([process.pid])
    process.kill()
    process.communicate()
    for pid in below:
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < deadline, "a process was left behind"
            time.sleep(0.05)
    assert not (run / "evaluation.json").exists()
    finished(tmp_path, "--resume")
    figures = json.loads((run / "evaluation.json").read_text())
    assert figures["all"]["num_tasks"] == 4 and figures["all"]["num_rollouts"] == 12
    assert set(figures["families"]) == {"web-click-button", "calc-set-cell"}
    assert set(figures["all"]) >= {"pass@1", "pass@2", "pass@3"}
    recorded = [line["trajectory_id"] for line in read_json_lines(run / "ledger.jsonl")]
    assert len(recorded) == len(set(recorded)) == 12
    assert "evaluation.html" in {path.name for path in run.iterdir()}
    assert not (run.parent / "latest").exists(), "runs/latest leads to what was trained"
