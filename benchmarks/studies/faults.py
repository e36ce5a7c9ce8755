"""Faults: the same run undisturbed, with a process killed every 30 seconds, and with the whole job restarted each time instead.

Every 30 seconds (ours) SIGKILL hits the broker, the learner, an env_server with its desktops, or an actor, at random. `roles
restarted`: as `computerrl train` does it, the supervisor starts that process again and the others go on. `job restarted`: the
baseline, what a job without a supervisor does; the death of one process is the end of all, and the job is started again and
resumes. Both get the same kills at the same moments, checkpoint after every update, and have the same desktop steps to do.

RobustRL reports 80 % effective time for restarts of roles and 60 % for restarts of the job. Effective time
here: what the undisturbed run of that seed took, by what this one took, from its start to the end of the evaluation after RL.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from computerrl.benchmarks.studies import _runs
from computerrl.benchmarks.studies._arms import Comparison
from computerrl.benchmarks.studies._plots import bars, curves, figure
from computerrl.benchmarks.studies._runs import KILLS_FILE, Arm, Record, RunFailed
from computerrl.benchmarks.studies._study import by_arm, means
from computerrl.common.run_files.run_folder import PROCESSES_FILE
from computerrl.launch.plan.run_names import is_finished

UNDISTURBED, JOB = "undisturbed", "job restarted"
ARMS = (Arm(UNDISTURBED), Arm("roles restarted"), Arm(JOB))
ROLES = ("broker-0", "learner-0", "env_server-0", "actor-0")
NUM_SEEDS = 3
EVERY_S = 30.0
QUICK_EVERY_S, QUICK_KILLS = 6.0, 2
"""Of the quick form, whose runs are shorter than a start."""
PEACE_AFTER_S = 2700.0
"""A run that is not done after so long meets no more kills: it would never end, and it counts with the time it took."""
SETTINGS = {"learner.recipe.max_rl_env_steps": 2500, "learner.checkpoint_every_updates": 1, "supervisor.max_restarts": 1000}
LIMITS = (
    "Hosts that die with all that is on them, and networks that part: here processes die on one machine.",
    "What start-up costs with models of many GPUs, which makes restarts of jobs far more expensive than here.",
    "Failures as rare as real ones; one every 30 seconds is a torture, so that a run of minutes meets enough of them. One that "
    f"is not done after {PEACE_AFTER_S / 60:.0f} minutes of it is left in peace.",
)
_POLL_S = 0.2


def disturbed(folder: Path, name: str, settings: Mapping[str, Any]) -> Path:
    """Train from the beginning, with kills as the arm in ``name`` has them; gives the run's folder. Raises `RunFailed`."""
    run = folder / "runs" / name
    shutil.rmtree(run, ignore_errors=True)
    is_job = name.startswith(_runs.run_name(JOB, 0)[:-2])
    is_quick = settings["model.name"] == _runs.QUICK["model.name"]
    every_s, most = (QUICK_EVERY_S, QUICK_KILLS) if is_quick else (EVERY_S, math.inf)
    if name.startswith(UNDISTURBED):
        most = 0
    rng = random.Random(f"kills:{settings['seed']}")
    role = rng.choice(ROLES)
    began, due_s, kills = time.monotonic(), every_s, list[str]()
    while not is_finished(run):
        with _runs.started(folder, name, settings) as process:
            while process.poll() is None:
                passed_s = time.monotonic() - began
                if passed_s > PEACE_AFTER_S:
                    most = len(kills)
                # One that is just being started again is killed as soon as it is there.
                if passed_s >= due_s and len(kills) < most and (kill_all(process) if is_job else kill_role(run, role)):
                    kills.append(role)
                    due_s, role = due_s + every_s, rng.choice(ROLES)
                time.sleep(_POLL_S)
        if not is_finished(run) and not (is_job and process.returncode == -signal.SIGKILL):
            raise RunFailed(f"run {name} ended with exit code {process.returncode}; see {folder / 'runs' / name}.log")
    (run / KILLS_FILE).write_text(json.dumps({"kills": kills, "run_took_s": round(time.monotonic() - began, 1)}))
    return run


def kill_all(job: subprocess.Popen[bytes]) -> bool:
    """SIGKILL the supervisor ``job``, with which its processes die; whoever starts it again before they are gone would find its
    desktops and its lock taken. False when it has ended by itself."""
    try:
        others = psutil.Process(job.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return False
    job.kill()
    job.wait()
    while any(_lives(process) for process in others):
        time.sleep(_POLL_S)
    return job.returncode == -signal.SIGKILL


def kill_role(run: Path, role: str) -> bool:
    """SIGKILL the process ``role`` of a run; False when there is none at this moment."""
    with suppress(OSError, ValueError, ProcessLookupError):
        pid = json.loads((run / "logs" / "latest" / PROCESSES_FILE).read_text()).get(role, {}).get("pid")
        if pid:
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def table(cells: Sequence[Record]) -> str:
    """A line per arm."""
    undisturbed = {cell["seed"]: cell["run_took_s"] for cell in cells if cell["arm"] == UNDISTURBED}
    columns = {
        "kills": means(lambda cell: cell["num_kills"], ".0f"),
        "seconds": means(lambda cell: cell["run_took_s"], ".0f"),
        "effective time": means(lambda cell: undisturbed[cell["seed"]] / cell["run_took_s"], ".0%"),
        "held-out success": means(lambda cell: cell["success"]),
        "updates": means(lambda cell: cell["num_updates"], ".0f"),
        "trajectories lost": lambda mine: str(sum(cell["num_trajectories_lost"] for cell in mine)),
        "trained twice": lambda mine: str(sum(cell["num_recorded_twice"] for cell in mine)),
        "greatest age trained": lambda mine: str(max(cell["max_policy_age_trained"] for cell in mine)),
    }
    text = by_arm([arm.name for arm in ARMS], cells, columns)
    return text + "\nMean and standard error over seeds; lost and twice: sums.\n"


def draw(path: Path, cells: Sequence[Record]) -> None:
    """Success over the run's time, and the time that each arm took."""
    drawing, (left, right) = figure(2)
    names = [arm.name for arm in ARMS]
    curves(left, cells, names, x="rl_env_steps", y="success", labels=("desktop steps of RL", "training success"))
    bars(right, cells, names, ("run_took_s",), label="seconds")
    drawing.savefig(path, dpi=110)


STUDY = Comparison(
    name="faults",
    title="Faults: roles restarted, job restarted",
    question=__doc__ or "",
    arms=ARMS,
    num_seeds=NUM_SEEDS,
    settings=SETTINGS,
    table=table,
    draw=draw,
    limits=LIMITS,
    how=disturbed,
)
run = STUDY.run
