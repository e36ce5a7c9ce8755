"""Inside an allocation: supervise the run's processes on its nodes, and queue the job again when it goes before the run ends.

    job script ─exec─► computerrl job RUN ── srun ──► node_process ──► role      one srun for each process

`launch.cluster.submit` has written everything this reads. A role that dies is started again here; when the run ends, however, so
does this process, and with it the job: no node is held for nothing.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

from computerrl import SOURCE_ROOT
from computerrl.common.config import RunConfig, SiteProfile, load_config, load_site
from computerrl.common.run_files import requests
from computerrl.common.run_files.run_folder import LAUNCH_FOLDER
from computerrl.common.wire import ports
from computerrl.common.wire.addresses import in_address, own_address
from computerrl.launch.cluster import plan as cluster_plan
from computerrl.launch.cluster import slurm, slurm_commands
from computerrl.launch.plan.processes import ProcessSpec
from computerrl.launch.plan.run_names import locked
from computerrl.launch.run import local
from computerrl.launch.supervision.supervisor import Outcome, Supervisor

NOTICE_FILE = "leave"
"""In the attempt's log folder, with a process's name: the scheduler has told it to end (SIGTERM). That of the broker counts: it
means preemption or cancellation. A learner on several nodes gets one as well when one of them has failed."""
SRUN_STOP_S = 4.0
"""What a stop takes longer than on one machine: srun tells the node, the node says that all has ended."""
REQUEUE_WAIT_S = 60.0
"""Slurm ends this process when it has queued the job again; longer than this it never takes."""
CONTAINED = ("actor", "engine", "learner")


def run_job(folder: Path) -> int:
    """Play the run in ``folder`` on the nodes of this job; gives the exit code. Does not return when the job is queued again."""
    config = load_config(folder / cluster_plan.CONFIG_FILE)
    site = load_site(folder / LAUNCH_FOLDER / cluster_plan.SITE_FILE)
    allocation = slurm_commands.allocation(os.environ)
    num_restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    print(f"job {allocation.job_id}, start {num_restarts + 1}, on {', '.join(allocation.nodes)}", flush=True)
    resumed = any((folder / "logs").glob("[0-9]*"))
    with locked(config.folder):
        local.begin(config)
        outcome = local.run_attempt(config, resumed=resumed, supervise=lambda attempt: _supervise(attempt, site, allocation))
    is_wanted = requests.asked(config.folder, "end") is None
    if outcome.kind == "stopped" and is_wanted and site.requeue and may_requeue(allocation.job_id):
        _requeue(allocation.job_id)
    return outcome.exit_code


def _supervise(attempt: local.RunAttempt, site: SiteProfile, allocation: slurm.Allocation) -> tuple[Outcome, dict[str, int]]:
    notice = attempt.logs / NOTICE_FILE

    def look(supervisor: Supervisor) -> Outcome | None:
        if notice.with_name(f"{NOTICE_FILE}-broker-0").exists():
            supervisor.drain("SIGTERM from Slurm")
        return None

    with ports.PortLease(own_address(attempt.config.learner.bind_address)) as lease:
        specs = specs_on(allocation, attempt.config, site, notice=notice, rendezvous_port=lease.port)
        return local.supervise(attempt, specs, look=look, extra_stop_s=SRUN_STOP_S)


def specs_on(
    allocation: slurm.Allocation, config: RunConfig, site: SiteProfile, *, notice: Path, rendezvous_port: int
) -> list[ProcessSpec]:
    """The plan's processes, each as the srun command that runs it on its node."""
    plan = cluster_plan.here(config, site)
    specs = []
    for spec in plan.specs:
        placed = spec
        if spec.num_nodes > 1:
            address = own_address(config.learner.bind_address)
            placed = under_torchrun(spec, config, endpoint=f"{in_address(address)}:{rendezvous_port}", job_id=allocation.job_id)
        if site.container is not None and spec.role in CONTAINED:
            placed = in_container(placed, site, config)
        stop_s = config.supervisor.stop_s
        specs.append(slurm.srun(placed, allocation, site=site, stop_s=stop_s, notice=notice.resolve(), python=plan.python))
    return specs


def under_torchrun(spec: ProcessSpec, config: RunConfig, *, endpoint: str, job_id: str) -> ProcessSpec:
    """``spec`` on each of its nodes as torchrun, which starts the node's ranks and finds the other nodes at ``endpoint``."""
    python, *command = spec.argv
    ranks_per_node = config.learner.num_ranks // spec.num_nodes
    torchrun = (
        python,
        "-m",
        "torch.distributed.run",
        f"--nnodes={spec.num_nodes}",
        f"--nproc-per-node={ranks_per_node}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={endpoint}",
        f"--rdzv-id={job_id}",
        "--max-restarts=0",
        "--signals-to-handle=SIGINT",
    )
    return replace(spec, argv=(*torchrun, *command))


def in_container(spec: ProcessSpec, site: SiteProfile, config: RunConfig) -> ProcessSpec:
    """``spec`` inside the site's container, which sees the GPUs, the current folder, the run folder and the caches."""
    from computerrl.common.models.folder import cache_folder
    from computerrl.common.models.hub import snapshot_at
    from computerrl.env_server.image.apptainer_install import find_apptainer

    assert site.container is not None
    apptainer = find_apptainer()
    folders = [str(Path.cwd()), str(SOURCE_ROOT), str(Path(config.run_dir).resolve()), str(cache_folder())]
    if (snapshot := snapshot_at(Path(config.model.name))) is not None:
        folders.append(str(snapshot.cache))
    binds = [part for folder in dict.fromkeys(folders) for part in ("--mount", _mount(folder))]
    binds += [part for bind in site.binds for part in ("--bind", bind)]
    gpu = ["--nv"] if spec.resources.num_gpus else []
    inside = ("python3", *spec.argv[1:])
    argv = (str(apptainer.path), "exec", *apptainer.extra_flags, *gpu, *binds, "--pwd", str(Path.cwd()), site.container, *inside)
    return replace(spec, argv=argv)


def _mount(folder: str) -> str:
    """``folder`` for `--mount`, which takes a line of CSV: in `--bind`, colons and commas of a folder's name would divide it."""
    quoted = folder.replace('"', '""')
    return f'type=bind,"source={quoted}","destination={quoted}"'


def may_requeue(job_id: str) -> bool:
    """Whether the job may queue itself again: not when it was cancelled, or is ending for good."""
    state = slurm_commands.job_state(job_id)
    return state is not None and state.state in ("RUNNING", "PREEMPTED", "SUSPENDED")


def _requeue(job_id: str) -> None:
    """Queue this job again: Slurm then ends it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(f"job {job_id} is queued again; it resumes from here", flush=True)
    slurm_commands.requeue(job_id)
    time.sleep(REQUEUE_WAIT_S)
