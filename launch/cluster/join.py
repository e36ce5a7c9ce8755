"""Workers that come and go: an env_server and actors on a node that is no part of the run's own plan.

    computerrl submit --workers-for RUN ──► job array, each task: computerrl join RUN ──► env_server, actors

They find the run through its folder. When they are taken away, the broker gives what they held to others; when the run moves (its
job was queued again), they wait for its next broker; when it ends, so do they.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from computerrl import SOURCE_ROOT
from computerrl.common.config import RunConfig, SiteProfile, load_config, load_site
from computerrl.common.errors import ConfigError, Problem, SetupError
from computerrl.common.run_files.run_folder import LAUNCH_FOLDER, RunFolder
from computerrl.common.wire.addresses import is_loopback
from computerrl.launch.cluster import plan as cluster_plan
from computerrl.launch.cluster import slurm, slurm_commands
from computerrl.launch.cluster.job import CONTAINED, in_container
from computerrl.launch.cluster.submit import job_of, remember
from computerrl.launch.plan.processes import Layout, ProcessSpec, make_plan, node_resources
from computerrl.launch.plan.run_names import is_finished
from computerrl.launch.supervision.supervisor import Outcome, Supervisor

FIRST_INDEX, END_INDEX = 1000, 4096
"""Numbers of processes that joined; those of the run's own plan are lower."""
JOINED_FOLDER = "joined"
LOOK_S = 1.0
PATIENCE_S = 900.0
"""Seconds without a broker after which the run counts as dead, and the workers give their nodes back."""
_MOVED = "the run has moved"
_JOINING = ("env_server", "engine", "actor")


def submit_workers(run: Path, *, site: str, array: str, dry_run: bool) -> str:
    """Queue an array of workers; gives what to tell the person. Raises `ConfigError`, `SetupError`."""
    config, profile = load_config(run / cluster_plan.CONFIG_FILE), load_site(site)
    _require_reachable(config)
    specs = specs_here(config, (FIRST_INDEX,), has_gpus=profile.kind("scavenger").has_gpus)
    needs = node_resources(specs, 0) + slurm.SUPERVISOR
    part = slurm.Part(profile.kind("scavenger"), 1, needs)
    plan = cluster_plan.here(config, profile)
    script = slurm.render_job(
        [part],
        site=profile,
        name=f"{run.resolve().name}-workers",
        output=run / LAUNCH_FOLDER / "workers-%A_%a.log",
        folder=plan.folder,
        command=(plan.python, "-m", "computerrl", "join", str(run)),
        environment=plan.environment,
        array=array,
    )
    if dry_run:
        return script
    slurm_commands.require_slurm()
    path = run / LAUNCH_FOLDER / "workers.sbatch"
    path.write_text(script)
    job_id = slurm_commands.submit(path)
    job = job_of(run)
    if job is not None:
        remember(run, replace(job, arrays=(*job.arrays, job_id)))
    return f"workers for {run}: job array {job_id} is queued; they join when they start and may be cancelled at any time"


def join_run(run: Path, *, num_actors: int) -> int:
    """Play for ``run`` until it ends, or a signal; gives the exit code."""
    config = load_config(run / cluster_plan.CONFIG_FILE)
    _require_reachable(config)
    folder = RunFolder(config.folder)
    numbers = claim_numbers(folder.folder, _owner(), count=num_actors)
    logs = folder.folder / "logs" / f"{JOINED_FOLDER}-{numbers[0]}"
    logs.mkdir(parents=True, exist_ok=True)
    print(f"joining {folder.folder} as env_server-{numbers[0]}, logs in {logs}", flush=True)
    specs = _contained(specs_here(config, numbers, has_gpus=bool(os.environ.get("CUDA_VISIBLE_DEVICES"))), config)
    while True:
        if not _wait_for_broker(folder):
            print(f"{folder.folder} has ended", flush=True)
            return 0
        outcome = _play(folder, config, specs, logs=logs)
        if outcome.reason != _MOVED:
            print(outcome.message or outcome.reason, flush=True)
            return 0 if outcome.kind == "stopped" else outcome.exit_code
        print(f"{_MOVED}: waiting for its broker", flush=True)


def specs_here(config: RunConfig, numbers: Sequence[int], *, has_gpus: bool) -> tuple[ProcessSpec, ...]:
    """What one joining node runs: an env_server, an engine where the run has those, and an actor for each of ``numbers``."""
    actor = config.actor.model_copy(update={"num_actors": len(numbers), "num_engines": 1})
    plan = make_plan(
        config.model_copy(update={"actor": actor}),
        config_path=config.folder / cluster_plan.CONFIG_FILE,
        python=sys.executable,
        source_root=SOURCE_ROOT,
        layout=Layout(learner_has_gpus=has_gpus),
    )
    return tuple(
        replace(spec, index=numbers[spec.index], argv=(*spec.argv[:-1], str(numbers[spec.index])))
        for spec in plan
        if spec.role in _JOINING
    )


def _contained(specs: Sequence[ProcessSpec], config: RunConfig) -> list[ProcessSpec]:
    """What the run's own job has in a container is in one here, too."""
    path = config.folder / LAUNCH_FOLDER / cluster_plan.SITE_FILE
    site = load_site(path) if path.exists() else SiteProfile()
    if site.container is None:
        return list(specs)
    return [in_container(spec, site, config) if spec.role in CONTAINED else spec for spec in specs]


def claim_numbers(run: Path, owner: str, *, count: int) -> tuple[int, ...]:
    """Numbers of this joiner's own, the same when the same job starts again. Raises `SetupError` when too few are left."""
    folder = run / LAUNCH_FOLDER / JOINED_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for number in range(FIRST_INDEX, END_INDEX):
        path = folder / str(number)
        try:
            with path.open("x") as file:
                file.write(owner)
        except FileExistsError:
            if path.read_text() != owner:
                continue
        found.append(number)
        if len(found) == count:
            return tuple(found)
    raise SetupError(Problem(str(folder), "too few numbers for workers are left", "delete the files of jobs that have ended"))


def _owner() -> str:
    job = os.environ.get("SLURM_JOB_ID")
    return f"job {job}" if job is not None else f"process {os.getpid()} of {os.uname().nodename}"


def _require_reachable(config: RunConfig) -> None:
    """Raises `ConfigError` for a run that only its own machine reaches."""
    if is_loopback(config.broker.bind_address):
        reason = f"{config.folder} listens on {config.broker.bind_address}, which no other machine reaches"
        step = "submit it with --set cluster.elastic=true, or on more than one node"
        raise ConfigError([Problem("broker.bind_address", reason, step)])


def _wait_for_broker(folder: RunFolder) -> bool:
    """Until there is a broker to join; False when the run has ended instead."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if is_finished(folder.folder):
            return False
        if folder.read_broker() is not None:
            return True
        time.sleep(LOOK_S)
    return False


def _play(folder: RunFolder, config: RunConfig, specs: Sequence[ProcessSpec], *, logs: Path) -> Outcome:
    from computerrl.launch.watch.follow import RunWatch

    joined, watch = folder.read_broker(), RunWatch(folder)
    heard = time.monotonic()

    def look() -> Outcome | None:
        nonlocal heard
        state = watch.refresh()
        if state.summary is not None:
            return Outcome("stopped", "the run has finished", exit_code=0)
        if folder.read_broker() != joined:
            return Outcome("stopped", _MOVED, exit_code=0)
        heard = time.monotonic() if state.status is not None else heard
        if time.monotonic() - heard > PATIENCE_S:
            return Outcome("stopped", f"the run's broker has not answered for {PATIENCE_S:g} s", exit_code=0)
        return None

    try:
        supervisor = Supervisor(specs, config=config.supervisor, log_folder=logs, notify=lambda line: print(line, flush=True))
        return supervisor.run(tick=look, tick_s=LOOK_S)
    finally:
        watch.close()
