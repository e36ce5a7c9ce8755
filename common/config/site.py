"""The site profile: the properties of a cluster, in a file per site in `configs/sites/`.

A run's configuration sets the number of nodes and processes (`cluster`). The site profile sets their partitions and options.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from computerrl.common.config.base import Section, VariableName
from computerrl.common.config.reading import read_section
from computerrl.common.errors import ConfigError, Problem

SITES_FOLDER = Path("configs/sites")
_TIME_LIMIT = r"^(\d+-\d{1,2}(:\d{2}){0,2}|\d+(:\d{2}){0,2})$"


class NodeKind(Section):
    """The nodes of one part of a job. Read by launch."""

    partition: str | None = None
    """Slurm partition of the nodes. None: the cluster's default partition."""
    constraint: str | None = None
    """Features that the nodes must have, in Slurm's syntax (`a100&ib`). None: any node."""
    has_gpus: bool = False
    """Whether the job requests GPUs: one for each learner rank on learner nodes, one for each engine on worker nodes."""
    gpu_type: str | None = None
    """Type of GPU in `--gres=gpu:TYPE:N`. None: any type."""
    cores_per_node: int | None = Field(None, ge=1)
    """Number of processor cores of one node. A plan that needs more is refused before anything is queued. None: only Slurm
    checks it."""
    memory_mb_per_node: int | None = Field(None, ge=1)
    """Memory of one node in MiB. A plan that needs more is refused before anything is queued. None: only Slurm checks it."""
    gpus_per_node: int | None = Field(None, ge=1)
    """Number of GPUs of one node. A plan that needs more is refused before anything is queued. None: only Slurm checks it."""
    exclusive: bool = False
    """Whether the job takes whole nodes, however little the plan needs of them."""
    sbatch: tuple[str, ...] = ()
    """Further options for `#SBATCH`, one each (`--qos=long`)."""


class SiteProfile(Section):
    """One cluster, or one way to use it: a file in `configs/sites/`, for `--site`. Read by launch."""

    account: str | None = None
    """Slurm account that the job is charged to. None: the user's default account."""
    time_limit: str = Field("04:00:00", pattern=_TIME_LIMIT)
    """Time limit of one job, in Slurm's syntax. A run may take many jobs: each ends with a checkpoint and queues the next
    one."""
    warning_s: int = Field(300, ge=10, le=65535)
    """Time in seconds between the warning signal (SIGUSR1) and the time limit of a job. The job writes a checkpoint in this
    time."""
    requeue: bool = True
    """Whether a job that ran out of time, was preempted or lost a node queues itself again and resumes."""
    learner: NodeKind = NodeKind()
    """Nodes of the learner and the broker."""
    worker: NodeKind = NodeKind()
    """Nodes of desktops, actors and engines."""
    scavenger: NodeKind | None = None
    """Nodes of workers that join and leave a run, for the array of `computerrl submit --workers-for RUN`. None: the same as
    `worker`."""
    modules: tuple[str, ...] = ()
    """Names of environment modules that the job loads (`module load`), in this order."""
    setup: tuple[str, ...] = ()
    """Shell lines that run before the first process starts, on the node where the job's script runs."""
    environment: dict[VariableName, str] = Field(default_factory=dict)
    """Environment variables for all processes."""
    python: str | None = None
    """Path, the same on all nodes, of the Python interpreter that has ComputerRL installed. None: the interpreter that runs
    `computerrl submit`."""
    container: str | None = None
    """Path of an image (made from `launch/cluster/containers/gpu.def`) in which learner, actors and engines run, with `--nv`.
    None: they run as installed."""
    binds: tuple[str, ...] = ()
    """Folders that the container sees, as `apptainer --bind` takes them. The current folder, the run folder and the cache are
    always among them."""
    network: str = "host"
    """Address of a node that its processes use: `host` (the address of its name), `interface:NAME`, or a network such as
    `10.20.0.0/16`. Choose the fast private network: weight broadcasts are not encrypted."""
    local_folder: str | None = None
    """Folder on each node's own disk for the files that containers write; not on NFS or Lustre. None: the system's temporary
    folder."""
    srun: tuple[str, ...] = ()
    """Further options for every `srun` command."""
    gpu_request: Literal["gres", "gpus"] = "gres"
    """Option with which GPUs are requested. `gres`: `--gres=gpu:N`. `gpus`: `--gpus-per-node=N`, for sites that require it."""

    def kind(self, part: Literal["learner", "worker", "scavenger"]) -> NodeKind:
        """The nodes of ``part``."""
        return self.worker if part == "scavenger" and self.scavenger is None else getattr(self, part)


def load_site(name: str | Path) -> SiteProfile:
    """The profile in the file ``name``, or in `configs/sites/NAME.yaml`. Raises `ConfigError`."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return read_section(path, SiteProfile)
    path = SITES_FOLDER / f"{name}.yaml"
    if not path.is_file():
        there = sorted(file.stem for file in SITES_FOLDER.glob("*.yaml"))
        step = f"use one of {', '.join(there)}, or the path of your own file" if there else "write the path of a YAML file"
        raise ConfigError([Problem("--site", f"there is no site profile {str(name)!r} in {SITES_FOLDER}", step)])
    return read_section(path, SiteProfile)
