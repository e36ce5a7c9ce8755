"""Settings of a run on more than one machine."""

from pydantic import Field

from computerrl.common.config.base import MAX_PROCESSES, Section


class ClusterConfig(Section):
    """Number of nodes of a run on more than one machine. Read by launch, for `plan`, `submit` and `up`.

    `train` puts everything on the machine that it is started on. The learner's nodes hold its ranks, and the first of them the
    broker. Each worker node has an env_server with `desktop.num_desktops` desktops. Actors and engines are dealt out to the
    worker nodes in turn.
    """

    num_learner_nodes: int = Field(1, ge=1, le=MAX_PROCESSES)
    """Number of nodes that share `learner.num_ranks` evenly. With more than one node, torchrun starts the ranks."""
    num_worker_nodes: int = Field(0, ge=0, le=MAX_PROCESSES)
    """Number of nodes with desktops, actors and engines. 0: these processes run on the learner's first node."""
    elastic: bool = False
    """Whether workers may join and leave while the run is at work (`computerrl submit --workers-for RUN`). Processes then
    listen on the site's network even when all planned processes are on one node."""
    cores_per_rank: int = Field(4, ge=1)
    """Number of processor cores of a learner rank where `learner.num_threads` is null."""
    cores_per_engine: int = Field(4, ge=1)
    """Number of processor cores of a process that samples where `actor.num_threads` is null. That is an actor, or an engine
    process with central inference."""
    cores_per_desktop: float = Field(0.5, gt=0)
    """Number of processor cores of a desktop. Desktops mostly wait: applications compute for a moment after each action."""
    memory_margin: float = Field(1.25, ge=1)
    """Factor from the estimated memory to the memory that a job requests. Slurm kills a job that takes more than it
    requested."""
