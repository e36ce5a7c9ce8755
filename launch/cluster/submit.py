"""`computerrl submit`, `plan`, `cancel`, `logs`: a run as a Slurm job, from the login node.

Everything that can be known to go wrong is found before anything is queued; what is queued finds all it needs in the run folder's
`launch/`. The job itself is `launch.cluster.job`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from computerrl.common.config import NodeKind, RunConfig, SiteProfile, load_config, load_site
from computerrl.common.errors import ConfigError, Problem, SetupError
from computerrl.common.run_files.run_folder import LAUNCH_FOLDER, RunFolder, write_atomically
from computerrl.launch.cluster import plan as cluster_plan
from computerrl.launch.cluster import slurm_commands
from computerrl.launch.cluster.plan import SCRIPT_FILE, SITE_FILE, ClusterPlan
from computerrl.launch.plan.run_names import claim, find_resumable, point_latest, runs_named
from computerrl.launch.run import preflight
from computerrl.launch.run.local import make_model
from computerrl.launch.run.preflight import Finding, PreflightFailed

JOB_FILE = "job.json"


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """What is remembered of a job."""

    job_id: str
    folder: str
    """Where it was submitted, and runs."""
    arrays: tuple[str, ...] = ()
    """Jobs of workers that joined it."""


def make_plan_of(path: Path, *, overrides: Sequence[str], site: str | None, has_gpus: bool = False) -> ClusterPlan:
    """The plan of the configuration at ``path``. Without a site: of nodes about which nothing is known but ``has_gpus``."""
    config = load_config(path, overrides=overrides)
    if site is not None:
        return cluster_plan.here(config, load_site(site))
    kind = NodeKind(has_gpus=has_gpus)
    return cluster_plan.here(config, SiteProfile(learner=kind, worker=kind))


def submit(path: Path, *, overrides: Sequence[str], site: str, resume: bool) -> tuple[RunConfig, str]:
    """Queue the run; gives its configuration and the job's id. Raises typed errors with nothing queued and nothing made."""
    slurm_commands.require_slurm()
    profile = load_site(site)
    config = load_config(path, overrides=overrides)
    _refuse_live(config)
    plan = cluster_plan.here(find_resumable(config) if resume else config, profile)
    has_container = profile.container is not None
    found_here = machine_independent(plan.config, has_container=has_container)
    if findings := [*found_here, *_queue_findings(plan), *_folder_findings(plan.config)]:
        raise PreflightFailed(findings)
    if not has_container:
        make_model(plan.config)
    if not resume:
        plan = cluster_plan.here(claim(config), profile)
    try:
        job_id = slurm_commands.submit(write_launch_folder(plan))
    except (ConfigError, SetupError):
        if not resume:
            shutil.rmtree(plan.config.folder)
        raise
    remember(plan.config.folder, SubmittedJob(job_id, str(plan.folder)))
    point_latest(plan.config.folder)  # The job does so too when it starts, which may be hours later.
    return plan.config, job_id


def write_launch_folder(plan: ClusterPlan) -> Path:
    """Configuration, keys, site and script in the run folder; gives the script."""
    RunFolder(plan.config.folder).create(plan.config)
    folder = plan.config.folder / LAUNCH_FOLDER
    folder.mkdir(exist_ok=True)
    write_atomically(folder / SITE_FILE, yaml.safe_dump(plan.site.model_dump(mode="json"), sort_keys=False).encode())
    script = folder / SCRIPT_FILE
    write_atomically(script, plan.script.encode())
    return script


# --- what is known of a run's job ------------------------------------------------------------------------------------


def remember(run: Path, job: SubmittedJob) -> None:
    """Write it into the run folder."""
    write_atomically(run / LAUNCH_FOLDER / JOB_FILE, json.dumps(asdict(job), indent=2).encode())


def job_of(run: Path) -> SubmittedJob | None:
    """None: this run was not submitted."""
    try:
        tree = json.loads((run / LAUNCH_FOLDER / JOB_FILE).read_text())
        return SubmittedJob(str(tree["job_id"]), str(tree["folder"]), tuple(map(str, tree["arrays"])))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        path = run / LAUNCH_FOLDER / JOB_FILE
        raise SetupError(Problem(str(path), f"cannot be read: {error}", "delete it; `squeue --me` lists your jobs")) from None


def describe_job(run: Path) -> str:
    """One line for people, empty when the run was not submitted."""
    job = job_of(run)
    if job is None:
        return ""
    if shutil.which("scontrol") is None:
        return f"job {job.job_id}: this machine has no Slurm commands to ask for its state"
    state = slurm_commands.job_state(job.job_id)
    if state is None:
        return f"job {job.job_id}: Slurm does not know it any more"
    where = f" on {state.nodes}" if state.nodes not in ("", "(null)") else ""
    why = f" ({state.reason})" if state.reason else ""
    again = f", started again {state.num_restarts} times" if state.num_restarts else ""
    return f"job {job.job_id}: {state.state}{why}{where}{again}"


def cancel(run: Path) -> str:
    """End the run's job and those of its workers. Raises `SetupError` when there is none."""
    job = job_of(run)
    if job is None:
        step = "end a run that was started by hand with Ctrl-C, or kill the pid in its .lock"
        raise SetupError(Problem(str(run), "was not submitted, so there is no job", step))
    ended = []
    for job_id in (job.job_id, *job.arrays):
        state = slurm_commands.job_state(job_id)
        if state is not None and state.is_active:
            slurm_commands.cancel(job_id)
            ended.append(job_id)
    if not ended:
        return f"{run.name}: job {job.job_id} has ended already"
    return f"{run.name}: cancelled job {', '.join(ended)}; computerrl submit CONFIG --site SITE --resume continues the run"


# --- before anything is queued ---------------------------------------------------------------------------------------


def _refuse_live(config: RunConfig) -> None:
    """Two jobs of one name: the second would wait for the first, or train beside it by mistake."""
    for folder in runs_named(Path(config.run_dir), config.name):
        job = job_of(folder)
        state = slurm_commands.job_state(job.job_id) if job is not None else None
        if job is not None and state is not None and state.is_active:
            reason = f"{folder} is job {job.job_id}, which is {state.state}"
            step = f"computerrl cancel {folder} first, or choose another name with --set name=..."
            raise ConfigError([Problem("name", reason, step)])


_HERE_AND_THERE = (
    preflight.check_families,
    preflight.check_algorithm,
    preflight.check_specialists,
    preflight.check_imported,
    preflight.check_recordings,
    preflight.check_model,
    preflight.check_endpoint,
    preflight.check_teacher,
    preflight.check_desktops,
    preflight.check_disk,
)
"""What can be judged on a login node, which has the nodes' files and neither their memory nor their GPUs."""


def machine_independent(config: RunConfig, *, has_container: bool) -> list[Finding]:
    """What is wrong wherever the processes run. ``has_container``: torch and the others are in there, not here."""
    machine = preflight.inspect_machine()
    checks = _HERE_AND_THERE if has_container else (preflight.check_packages, *_HERE_AND_THERE)
    return [finding for check in checks for finding in check(config, machine)]


def _queue_findings(plan: ClusterPlan) -> list[Finding]:
    """Partitions that do not exist, or whose nodes are too small or too few."""
    findings = []
    for name, part in zip(("learner", "worker"), plan.parts, strict=False):
        nodes = slurm_commands.nodes_of(part.kind.partition)
        if nodes is None:
            what = f"there is no partition {part.kind.partition!r}" if part.kind.partition else "there is no default partition"
            problem = Problem(f"site: {name}.partition", what, "`sinfo -s` lists the partitions")
            findings.append(Finding(ConfigError, problem))
            continue
        has = NodeKind(cores_per_node=nodes.num_cores, memory_mb_per_node=nodes.memory_mb, gpus_per_node=nodes.num_gpus or None)
        described = cluster_plan.Part(has, part.num_nodes, part.per_node)
        findings += [Finding(ConfigError, problem) for problem in cluster_plan.too_small(name, described)]
        if part.per_node.num_gpus and not nodes.num_gpus:
            reason = f"{part.per_node.num_gpus} GPUs a node are asked for, and no node of {part.kind.partition} has one"
            step = "choose another partition, or set has_gpus: false"
            findings.append(Finding(ConfigError, Problem(f"site: {name}.has_gpus", reason, step)))
        if part.num_nodes > nodes.num_nodes:
            reason = f"{part.num_nodes} nodes are requested, the partition has {nodes.num_nodes}"
            findings.append(Finding(ConfigError, Problem(f"site: {name}.partition", reason, "lower cluster.num_..._nodes")))
    return findings


def _folder_findings(config: RunConfig) -> list[Finding]:
    """A run folder that cannot be written to."""
    reason = preflight.cannot_write(Path(config.run_dir))
    step = "set run_dir to a folder on the shared file system that you may write to"
    return [Finding(SetupError, Problem("run_dir", f"no run folder can be made: {reason}", step))] if reason else []
