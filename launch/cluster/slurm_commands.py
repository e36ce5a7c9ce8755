"""Calls to Slurm's own commands, and what their answers mean. Knows nothing of runs; `launch.cluster.slurm` renders what is
submitted."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from computerrl.common.errors import ConfigError, Problem, SetupError
from computerrl.launch.cluster.slurm import Allocation

COMMANDS = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
TIMEOUT_S = 30.0
"""A controller under load answers late; one that is down never does."""
ACTIVE = frozenset({"PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED", "SPECIAL_EXIT"})

_REFUSALS = (
    (r"invalid partition", "partition", "see `sinfo -s` for the partitions there are"),
    (r"invalid account|account/partition", "account", "see `sacctmgr show associations user=$USER`, or ask who pays for it"),
    (r"invalid feature|constraint", "constraint", "see `sinfo -o '%P %f'` for the features of nodes"),
    (r"invalid qos", "sbatch", "see `sacctmgr show qos`"),
    (r"time limit", "time_limit", "see `sinfo -o '%P %l'` for each partition's longest time"),
    (r"memory specification|more memory", "worker.memory_mb_per_node", "ask for fewer desktops per node, or for larger nodes"),
    (r"node configuration|not available", "partition", "ask for less per node (`computerrl plan`), or for other nodes"),
    (r"generic resource|gres", "has_gpus", "see `sinfo -o '%P %G'` for the GPUs of nodes"),
)
"""What sbatch says, the field of the site profile that it is about, and where to look."""


@dataclass(frozen=True, slots=True)
class JobState:
    """How a job stands."""

    state: str
    """Slurm's word: PENDING, RUNNING, ..."""
    reason: str
    """Why it is not running, or empty."""
    nodes: str
    num_restarts: int = 0

    @property
    def is_active(self) -> bool:
        return self.state in ACTIVE


@dataclass(frozen=True, slots=True)
class NodesOf:
    """What the nodes of a partition have: the most of each that one node has."""

    num_nodes: int
    num_cores: int
    memory_mb: int
    num_gpus: int
    time_limit: str


def require_slurm() -> None:
    """Raises `SetupError` when the commands are not here."""
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if missing:
        step = "log in to a node that submits jobs, or load its module; without Slurm: computerrl train, or computerrl up --hosts"
        raise SetupError(Problem("Slurm", f"not found on PATH: {', '.join(missing)}", step))


def submit(script: Path) -> str:
    """Queue ``script``; gives the job's id. Raises `ConfigError` naming the site's field, or `SetupError`."""
    done = _call(["sbatch", "--parsable", str(script)])
    if done.returncode == 0:
        return done.stdout.strip().partition(";")[0]
    text = " ".join(line.removeprefix("sbatch: error: ") for line in done.stderr.strip().splitlines()[-3:])
    for pattern, field, step in _REFUSALS:
        if re.search(pattern, text, re.IGNORECASE):
            raise ConfigError([Problem(f"site: {field}", f"Slurm refused the job: {text}", step)])
    raise SetupError(Problem("sbatch", f"refused {script}: {text}", "read the script; its options are in the site profile"))


def job_state(job_id: str) -> JobState | None:
    """How the job stands (a heterogeneous one: its first component); None when Slurm does not know it any more."""
    done = _call(["scontrol", "show", "job", job_id, "--oneliner"])
    if done.returncode != 0 or not done.stdout.strip():
        return None
    return parse_job(done.stdout.splitlines()[0])


def parse_job(line: str) -> JobState:
    """A line of `scontrol show job --oneliner`."""
    found = dict(re.findall(r"(\w+)=(\S*)", line))
    reason = found.get("Reason", "None")
    return JobState(
        found.get("JobState", "UNKNOWN"),
        "" if reason == "None" else reason,
        found.get("NodeList", ""),
        int(found.get("Restarts", 0)),
    )


def cancel(job_id: str) -> None:
    """End the job, or take it from the queue. Raises `SetupError`."""
    done = _call(["scancel", job_id])
    if done.returncode != 0:
        raise SetupError(Problem(f"job {job_id}", f"scancel: {done.stderr.strip()}", "see `squeue --me`"))


def requeue(job_id: str) -> None:
    """Put the running job back into the queue; Slurm ends its processes. Raises `SetupError`."""
    done = _call(["scontrol", "requeue", job_id])
    if done.returncode != 0:
        step = "sbatch the script in the run folder's launch/ again"
        raise SetupError(Problem(f"job {job_id}", f"scontrol requeue: {done.stderr.strip()}", step))


def nodes_of(partition: str | None) -> NodesOf | None:
    """What ``partition`` (None: the default one) has; None when there is no such partition."""
    chosen = [] if partition is None else [f"--partition={partition}"]
    done = _call(["sinfo", "--noheader", "--exact", "--format=%P|%D|%c|%m|%G|%l", *chosen])
    return parse_nodes(done.stdout, partition) if done.returncode == 0 else None


def parse_nodes(text: str, partition: str | None) -> NodesOf | None:
    """Lines of sinfo as `nodes_of` asks for them; the default partition is the one with a star."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 5]
    rows = [row for row in rows if (row[0].endswith("*") if partition is None else row[0].rstrip("*") == partition)]
    if not rows:
        return None
    return NodesOf(
        num_nodes=sum(int(row[1]) for row in rows),
        num_cores=max(_number(row[2]) for row in rows),
        memory_mb=max(_number(row[3]) for row in rows),
        num_gpus=max(_gpus(row[4]) for row in rows),
        time_limit=rows[0][5],
    )


def _number(text: str) -> int:
    return int(re.match(r"\d*", text)[0] or 0)  # type: ignore[index]


def _gpus(text: str) -> int:
    """`gpu:a100:8(S:0-1),nvme:1` -> 8."""
    return sum(int(found) for found in re.findall(r"gpu(?::[^:,()]+)?:(\d+)", text))


def allocation(environ: Mapping[str, str]) -> Allocation:
    """The job this process runs in. Raises `SetupError` outside of one."""
    job_id = environ.get("SLURM_JOB_ID")
    if job_id is None:
        step = "it is what a job's script starts: use computerrl submit"
        raise SetupError(Problem("computerrl job", "this is not a Slurm job (SLURM_JOB_ID is not set)", step))
    num_groups = int(environ.get("SLURM_HET_SIZE", "0"))
    names = [f"SLURM_JOB_NODELIST_HET_GROUP_{number}" for number in range(num_groups)] or ["SLURM_JOB_NODELIST"]
    return Allocation(job_id, tuple(hostnames(environ[name]) for name in names))


def hostnames(nodelist: str) -> tuple[str, ...]:
    """`n[1-3]` -> n1, n2, n3."""
    done = _call(["scontrol", "show", "hostnames", nodelist])
    if done.returncode != 0:
        raise SetupError(Problem("Slurm", f"scontrol show hostnames {nodelist}: {done.stderr.strip()}", "ask the administrator"))
    return tuple(done.stdout.split())


def _call(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, env={**os.environ, "LC_ALL": "C"}
        )
    except FileNotFoundError:
        require_slurm()
        raise
    except subprocess.TimeoutExpired:
        step = "see `scontrol ping`; ask the administrator whether the controller is down"
        raise SetupError(Problem("Slurm", f"{argv[0]} did not reply within {TIMEOUT_S:g} s", step)) from None
