"""What a cluster wants to be told: a file per site in `configs/sites/`, apart from what a run is about.

The run's configuration says how many nodes and processes (`cluster`); the site says where they may go and how to get there.
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
    """Slurm partition; None: the cluster's default."""
    constraint: str | None = None
    """Features that nodes must have, in Slurm's syntax (`a100&ib`)."""
    has_gpus: bool = False
    """Ask for a GPU for each learner rank (on learner nodes) or each engine (on worker nodes)."""
    gpu_type: str | None = None
    """Type in `--gres=gpu:TYPE:N`; None: any."""
    cores_per_node: int | None = Field(None, ge=1)
    """What one node has: a plan that needs more is refused before anything is queued. None: only Slurm knows."""
    memory_mb_per_node: int | None = Field(None, ge=1)
    """The same for memory, MiB."""
    gpus_per_node: int | None = Field(None, ge=1)
    """The same for GPUs."""
    exclusive: bool = False
    """Take whole nodes, whatever the plan needs of them."""
    sbatch: tuple[str, ...] = ()
    """More options for `#SBATCH`, one each (`--qos=long`)."""


class SiteProfile(Section):
    """One cluster, or one kind of use of it. Read by launch."""

    account: str | None = None
    """Who pays; None: the user's default."""
    time_limit: str = Field("04:00:00", pattern=_TIME_LIMIT)
    """Of a job, in Slurm's syntax. A run may take many: each ends with a checkpoint and queues the next."""
    warning_s: int = Field(300, ge=10, le=65535)
    """So long before the time limit the job is told (SIGUSR1): time for a checkpoint."""
    requeue: bool = True
    """A job that ran out of time, was preempted or lost a node queues itself again and resumes."""
    learner: NodeKind = NodeKind()
    """Learner and broker."""
    worker: NodeKind = NodeKind()
    """Desktops, actors and engines."""
    scavenger: NodeKind | None = None
    """Where `computerrl submit --workers-for RUN` sends its array of workers that come and go; None: as ``worker``."""
    modules: tuple[str, ...] = ()
    """`module load` these, in order."""
    setup: tuple[str, ...] = ()
    """Shell lines before anything of ours starts, on the node where the job's script runs."""
    environment: dict[VariableName, str] = Field(default_factory=dict)
    """Variables for all processes."""
    python: str | None = None
    """The interpreter that has ComputerRL installed, as all nodes see it; None: the one that submits."""
    container: str | None = None
    """An image (`launch/cluster/containers/gpu.def`) in which learner, actors and engines run, with `--nv`; None: as
    installed."""
    binds: tuple[str, ...] = ()
    """Folders that the container sees beside the current one, the run folder and the cache, as `apptainer --bind` takes them."""
    network: str = "host"
    """Which of a node's addresses processes use: `host` (what its name leads to), `interface:NAME`, or a network as
    `10.20.0.0/16`. Choose the fast private one: weight broadcasts are not encrypted."""
    local_folder: str | None = None
    """A folder on each node's own disk for what containers write (not NFS, not Lustre); None: the system's temporary folder."""
    srun: tuple[str, ...] = ()
    """More options for every `srun`."""
    gpu_request: Literal["gres", "gpus"] = "gres"
    """How GPUs are asked for: `--gres=gpu:N`, or `--gpus-per-node=N` where a site wants that."""

    def kind(self, part: Literal["learner", "worker", "scavenger"]) -> NodeKind:
        """The nodes of one part."""
        return self.worker if part == "scavenger" and self.scavenger is None else getattr(self, part)


def load_site(name: str | Path) -> SiteProfile:
    """The profile in the file ``name``, or in `configs/sites/NAME.yaml`. Raises `ConfigError`."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return read_section(path, SiteProfile)
    path = SITES_FOLDER / f"{name}.yaml"
    if not path.is_file():
        there = sorted(file.stem for file in SITES_FOLDER.glob("*.yaml"))
        step = f"use one of {', '.join(there)}, or the path of your own file" if there else "give the path of a YAML file"
        raise ConfigError([Problem("--site", f"there is no profile {str(name)!r} in {SITES_FOLDER}", step)])
    return read_section(path, SiteProfile)
