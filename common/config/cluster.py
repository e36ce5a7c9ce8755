"""How many nodes a run takes when it has more than one machine."""

from pydantic import Field

from computerrl.common.config.base import MAX_PROCESSES, Section


class ClusterConfig(Section):
    """Read by launch, for `plan`, `submit` and `up`. `train` puts everything on the machine it is started on.

    The learner's nodes hold the learner's ranks, and the first of them the broker. Each worker node has an env_server with
    `desktop.num_desktops` desktops, and actors and engines are dealt out to them in turn.
    """

    num_learner_nodes: int = Field(1, ge=1, le=MAX_PROCESSES)
    """Nodes that share `learner.num_ranks` evenly; more than one: torchrun starts the ranks."""
    num_worker_nodes: int = Field(0, ge=0, le=MAX_PROCESSES)
    """Nodes with desktops, actors and engines. 0: they are on the learner's first node."""
    elastic: bool = False
    """Workers may join and leave while it runs (`computerrl submit --workers-for RUN`): processes listen on the site's network
    even when all that are planned are on one node."""
    cores_per_rank: int = Field(4, ge=1)
    """Processor cores of a learner rank, where `learner.num_threads` does not say."""
    cores_per_engine: int = Field(4, ge=1)
    """Of a process that samples (an actor, or an engine with central inference), where `actor.num_threads` is null."""
    cores_per_desktop: float = Field(0.5, gt=0)
    """Desktops mostly wait: applications compute for a moment after each action."""
    memory_margin: float = Field(1.25, ge=1)
    """What is asked for, relative to the estimate: a job that takes more than it asked for is killed."""
