"""Faults: the same run undisturbed, with a process killed every 30 seconds, and with the whole job restarted each time instead.

Every 30 seconds (ours) SIGKILL hits the broker, the learner, an env_server with its desktops, or an actor, at random. `roles
restarted`: as `computerrl train` does it, the supervisor starts that process again and the others go on. `job restarted`: the
baseline, what a job without a supervisor does; the death of one process is the end of all, and the job is started again and
resumes. Both get the same kills at the same moments, checkpoint after every update, and have the same desktop steps to do.

RobustRL reports 80 % effective time for restarts of roles and 60 % for restarts of the job. Effective time
here: what the undisturbed run of that seed took, by what this one took, from its start to the end of the evaluation after RL. A
role is back when it can work again: the broker listens, the learner has announced its weights, the engine of the actor is loaded,
all desktops of the env_server are there.
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
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from computerrl.benchmarks.studies import _arms, _runs
from computerrl.benchmarks.studies._designs import QUICK, Arm, Bars, Comparison, Curves
from computerrl.benchmarks.studies._runs import KILLS_FILE, RunFailed
from computerrl.benchmarks.studies._statistics import against, greatest, means, total
from computerrl.common.clock import unix_now
from computerrl.common.config import load_config
from computerrl.common.run_files.run_folder import PROCESSES_FILE
from computerrl.launch.plan.run_names import CONFIG_FILE, is_finished

UNDISTURBED, JOB = "undisturbed", "job restarted"
ROLES = ("broker-0", "learner-0", "env_server-0", "actor-0")
SIGNS = {
    "broker-0": ("broker-0", "broker.started"),
    "learner-0": ("broker-0", "version.announced"),
    "env_server-0": ("env_server-0", "desktop.started"),
    "actor-0": ("actor-0", "engine.ready"),
}
"""Process -> (whose log, event) that says that it is back; the env_server's comes once for each desktop."""
EVERY_S = 30.0
QUICK_EVERY_S, QUICK_KILLS = 6.0, 2
"""Interval and number of kills in the quick form, whose runs are shorter than a start."""
PEACE_AFTER_S = 2700.0
"""Time after which a run that is not done meets no more kills: it would never end. It counts with the time it took."""
_POLL_S = 0.2


def disturbed(folder: Path, name: str, settings: Mapping[str, Any]) -> Path:
    """Train from the beginning, with kills as the arm in ``name`` has them; gives the run's folder. Raises `RunFailed`."""
    run = folder / "runs" / name
    shutil.rmtree(run, ignore_errors=True)
    is_job = name.startswith(_runs.run_name(JOB, 0)[:-2])
    is_quick = settings["model.name"] == QUICK["model.name"]
    every_s, most = (QUICK_EVERY_S, QUICK_KILLS) if is_quick else (EVERY_S, math.inf)
    if name.startswith(UNDISTURBED):
        most = 0
    rng = random.Random(f"kills:{settings['seed']}")
    role = rng.choice(ROLES)
    began, due_s, kills, killed_at = time.monotonic(), every_s, list[str](), list[float]()
    while not is_finished(run):
        with _runs.started(folder, name, settings) as process:
            while process.poll() is None:
                passed_s = time.monotonic() - began
                if passed_s > PEACE_AFTER_S:
                    most = len(kills)
                # One that is just being started again is killed as soon as it is there.
                if passed_s >= due_s and len(kills) < most and (kill_all(process) if is_job else kill_role(run, role)):
                    kills.append(role)
                    killed_at.append(unix_now())
                    due_s, role = due_s + every_s, rng.choice(ROLES)
                time.sleep(_POLL_S)
        if not is_finished(run) and not (is_job and process.returncode == -signal.SIGKILL):
            raise RunFailed(f"run {name} ended with exit code {process.returncode}; see {folder / 'runs' / name}.log")
    found: dict[str, Any] = {"kills": kills, "run_took_s": round(time.monotonic() - began, 1)}
    if not is_job:
        found["back_s"] = back_s(run, list(zip(kills, killed_at, strict=True)))
    (run / KILLS_FILE).write_text(json.dumps(found))
    return run


def back_s(run: Path, kills: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Mean time in seconds from a kill of a role until it is back, for each role of ``kills`` (process, unix time) that was."""
    num_desktops = load_config(run / CONFIG_FILE).desktop.num_desktops
    found: dict[str, float] = {}
    for role, (log, event) in SIGNS.items():
        signs = _times(run / "logs" / "latest" / f"{log}.log", event)
        own = [at for process, at in kills if process == role]
        waits = []
        for at, until in pairwise([*own, math.inf]):
            later = [sign for sign in signs if at < sign < until]
            needed = num_desktops if role == "env_server-0" else 1
            if len(later) >= needed:
                waits.append(later[needed - 1] - at)
        if waits:
            found[role.partition("-")[0]] = round(sum(waits) / len(waits), 2)
    return found


def _times(log: Path, event: str) -> list[float]:
    """Unix times at which ``event`` was logged."""
    times = []
    for line in log.read_text(errors="replace").splitlines():
        if f'"event": "{event}"' in line and line.startswith("{"):
            times.append(datetime.fromisoformat(json.loads(line)["timestamp"]).timestamp())
    return times


def kill_all(job: subprocess.Popen[bytes]) -> bool:
    """SIGKILL the supervisor ``job``, with which its processes die, and wait until they are gone: a job that is started before
    would find desktops and lock taken. False when the supervisor has ended by itself."""
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
    """SIGKILL the process ``role`` of ``run``; False when there is none at this moment."""
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


STUDY = Comparison(
    name="faults",
    title="Faults: roles restarted, job restarted",
    question=__doc__ or "",
    arms=(Arm(UNDISTURBED), Arm("roles restarted"), Arm(JOB)),
    num_seeds=3,
    settings={"learner.recipe.max_rl_env_steps": 2500, "learner.checkpoint_every_updates": 1, "supervisor.max_restarts": 1000},
    columns={
        "kills": means("num_kills", ".0f"),
        "seconds": means("run_took_s", ".0f"),
        "effective time": against(UNDISTURBED, lambda cell, other: other["run_took_s"] / cell["run_took_s"], ".0%"),
        **{
            f"{process[:-2]} back": means(lambda cell, role=process[:-2]: cell.get("back_s", {}).get(role), ".1f")  # type: ignore[misc]
            for process in SIGNS
        },
        "held-out success": means("success"),
        "updates": means("num_updates", ".0f"),
        "trajectories lost": total("num_trajectories_lost"),
        "trained twice": total("num_recorded_twice"),
        "greatest age trained": greatest("max_policy_age_trained"),
    },
    note="Mean and standard error over seeds; lost and twice: sums; back: seconds after a kill.",
    panels=(Curves("rl_env_steps", "success"), Bars(("run_took_s",), "seconds")),
    limits=(
        "Hosts that die with all that is on them, and networks that part: here processes die on one machine.",
        "What start-up costs with models of many GPUs, which makes restarts of jobs far more expensive than here.",
        "Failures as rare as real ones; one every 30 seconds is a torture, so that a run of minutes meets enough of them. A run "
        f"that is not done after {PEACE_AFTER_S / 60:.0f} minutes is left in peace.",
    ),
    how=disturbed,
)
run = partial(_arms.run, STUDY)
