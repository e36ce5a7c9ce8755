"""Time of a Slurm job to begin, to make room, and to continue: tiny model, three virtual nodes, real desktops."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from computerrl import PACKAGE, SOURCE_ROOT
from computerrl.benchmarks.launch._slurm_cluster import SlurmCluster, slurm_cluster
from computerrl.common.metrics import read_json_lines

_SITE = {"time_limit": "00:20:00", "network": "10.211.0.0/24"}
_SETTINGS = (
    "cluster.num_worker_nodes=2",
    "actor.num_actors=2",
    "learner.recipe.max_updates=500",
    "learner.checkpoint_every_updates=500",
)
_LOOK_S = 0.02
_LIMIT_S = 240.0
_REPEATS = 3


def run(quick: bool) -> list[dict[str, Any]]:
    """Rows of design section 6."""
    found: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="computerrl-bench-") as name, slurm_cluster(Path(name) / "cluster") as cluster:
        for number in range(1 if quick else _REPEATS):
            folder = Path(name) / str(number)
            folder.mkdir()
            found.append(_measure(cluster, folder))
    return [
        _row("job start -> first environment step", found, "first_step_s", target=20.0),
        _row("SIGUSR1 -> checkpoint whole, processes gone", found, "drain_s", target=10.0),
        _row("requeue -> training again", found, "training_again_s", target=30.0),
        _row("... of which Slurm's own wait", found, "queue_s"),
    ]


def _row(name: str, found: list[dict[str, float]], key: str, *, target: float | None = None) -> dict[str, Any]:
    values = [one[key] for one in found]
    row = {"name": name, "value": statistics.median(values), "unit": "s", "spread": max(values) - min(values), "better": "lower"}
    return row if target is None else {**row, "target": target}


def _measure(cluster: SlurmCluster, folder: Path) -> dict[str, float]:
    """One job from its start to training in its second one; cancelled at the end."""
    (folder / "site.yaml").write_text(json.dumps(_SITE))
    settings = [part for setting in _SETTINGS for part in ("--set", setting)]
    _computerrl(cluster, folder, "submit", str(PACKAGE / "configs" / "smoke.yaml"), "--site", "site.yaml", *settings)
    run_folder = folder / "runs" / "smoke"
    job_id = str(json.loads((run_folder / "launch" / "job.json").read_text())["job_id"])
    metrics, log = run_folder / "metrics.jsonl", run_folder / "launch" / f"job-{job_id}.log"

    def text() -> str:
        return log.read_text(errors="replace") if log.exists() else ""

    began = _until(log.exists, "the job's start")
    _until(lambda: _num_updates(metrics) >= 2, "two updates")
    asked = time.time()
    cluster.run("scancel", "--batch", "--signal=USR1", job_id)
    queued = _until(lambda: "is queued again" in text(), "the requeue")
    before = _num_updates(metrics)
    again = _until(lambda: "start 2, on" in text(), "the second start")
    training = _until(lambda: _num_updates(metrics) > before, "an update of the second start")
    first_step = min(
        one["started_at"] + one["reset_s"] + one["steps"][0]["timing"]["desktop_s"]
        for one in read_json_lines(run_folder / "trajectories" / "episodes.jsonl")
    )
    _computerrl(cluster, folder, "cancel", str(run_folder))
    _until(lambda: not cluster.run("squeue", "--noheader").stdout, "the end of the job")
    return {
        "first_step_s": first_step - began,
        "drain_s": queued - asked,
        "training_again_s": training - queued,
        "queue_s": again - queued,
    }


def _num_updates(metrics: Path) -> int:
    return sum(line.get("event") == "update" for line in read_json_lines(metrics)) if metrics.exists() else 0


def _until(condition: Callable[[], bool], what: str) -> float:
    """When it became true."""
    deadline = time.monotonic() + _LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {_LIMIT_S:g} s for {what}")
        time.sleep(_LOOK_S)
    return time.time()


def _computerrl(cluster: SlurmCluster, folder: Path, *arguments: str) -> None:
    argv = cluster.command([sys.executable, "-m", "computerrl", *arguments], folder=folder)
    subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(SOURCE_ROOT)}, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    for line in run(quick=True):
        print(line)
