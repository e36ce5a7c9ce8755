"""From a configuration to the processes of a run.

Pure: looks at nothing but its arguments and starts nothing; `launch.supervision.supervisor` runs what comes out, `--dry-run`
prints it.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from computerrl.common.config import RunConfig
from computerrl.common.errors import Problem
from computerrl.common.messages import Role
from computerrl.common.models.engine_choice import planned_for
from computerrl.launch.plan.resources import Resources, role_resources

COMMANDS: dict[Role, str] = {
    "broker": "broker",
    "env_server": "env-server",
    "engine": "engine",
    "actor": "actor",
    "learner": "learner",
}
"""Role -> command of `computerrl` that runs it."""

QUIET_LIBRARIES = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONUNBUFFERED": "1",
}
"""Everything works offline: libraries neither look for a network nor report usage."""


ONE_CORE = Resources()


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process the supervisor starts and keeps alive."""

    role: Role
    index: int
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the supervisor's own environment."""
    nice: int = 0
    """Added to the supervisor's own niceness, once the process is at work: `Supervisor`'s ``gives_way``."""
    ends_run: bool = False
    """Exit code 0 of this process means that the run is finished; for the others every unasked exit is a death."""
    node: int = 0
    """Which node it runs on: learner nodes come first, then worker nodes."""
    num_nodes: int = 1
    """From ``node`` on, with the same command on each: ranks of a learner that is larger than a node."""
    resources: Resources = ONE_CORE
    """What it takes on a node."""
    keeps_descriptors: bool = False
    """Whether the supervisor keeps open files for it (`common.descriptor_store`); it must then be a child of the supervisor."""
    stop_signal: signal.Signals | None = signal.SIGTERM
    """Asks it to end. None: its standard input, which is a pipe then, is closed."""

    @property
    def name(self) -> str:
        """`role-index`, as in logs and in the broker's status."""
        return f"{self.role}-{self.index}"


@dataclass(frozen=True, slots=True)
class Layout:
    """The nodes of a run."""

    num_learner_nodes: int = 1
    num_worker_nodes: int = 0
    """0: desktops, actors and engines are on the first node."""
    learner_has_gpus: bool = False
    worker_has_gpus: bool = False

    @property
    def num_nodes(self) -> int:
        return self.num_learner_nodes + self.num_worker_nodes

    def worker(self, number: int) -> int:
        """The node of the ``number``-th of those that are dealt out to worker nodes."""
        return self.num_learner_nodes + number % self.num_worker_nodes if self.num_worker_nodes else 0

    def has_gpus(self, node: int) -> bool:
        """Whether processes on ``node`` are given GPUs."""
        return self.learner_has_gpus if node < self.num_learner_nodes else self.worker_has_gpus


ONE_MACHINE = Layout()


def make_plan(
    config: RunConfig,
    *,
    config_path: Path,
    python: str,
    source_root: Path | None,
    num_cores: int | None = None,
    gpus: Sequence[str] = (),
    layout: Layout = ONE_MACHINE,
) -> tuple[ProcessSpec, ...]:
    """The processes of ``config`` in starting order: broker, env_servers, engines, actors, learner.

    ``config_path`` is the run folder's resolved configuration, so that a restarted process reads what the first one read.
    ``source_root``: where the packages lie; None: they are installed. ``num_cores``: what a process without a limit of its own
    may use; None: what is asked for it. ``gpus``: what may be used on the one machine, as CUDA_VISIBLE_DEVICES names them; on a
    cluster the launcher of a process assigns its GPUs.
    """
    if layout is not ONE_MACHINE:
        config = planned_for(config, has_gpu=layout.has_gpus(layout.worker(0)))
    needs = role_resources(config, learner_has_gpus=layout.learner_has_gpus)
    counts = _counts(config, layout)
    specs = []
    for role, count in counts.items():
        for index in range(count):
            node = 0 if role in ("broker", "learner") else layout.worker(index)
            threads = _threads(config, role, num_cores=num_cores, num_own=needs[role].num_cores)
            specs.append(
                ProcessSpec(
                    role=role,
                    index=index,
                    argv=(python, "-m", "computerrl", COMMANDS[role], str(config_path), "--index", str(index)),
                    env={
                        **({} if source_root is None else {"PYTHONPATH": str(source_root)}),
                        "OMP_NUM_THREADS": str(threads),
                        **QUIET_LIBRARIES,
                        **(_gpu_of_engine(index, config, gpus) if needs[role].num_gpus and role != "learner" else {}),
                    },
                    nice=config.supervisor.learner_nice if role == "learner" and layout.num_nodes == 1 else 0,
                    ends_run=role == "learner",
                    node=node,
                    num_nodes=layout.num_learner_nodes if role == "learner" else 1,
                    resources=needs[role] if layout.has_gpus(node) else replace(needs[role], num_gpus=0),
                )
            )
    return tuple(specs)


def _counts(config: RunConfig, layout: Layout) -> dict[Role, int]:
    return {
        "broker": 1,
        "env_server": max(1, layout.num_worker_nodes),
        "engine": config.actor.num_engines if config.actor.inference == "central" else 0,
        "actor": config.actor.num_actors,
        "learner": 1,
    }


def idle_desktops(config: RunConfig, layout: Layout = ONE_MACHINE) -> Problem | None:
    """Desktops that have neither an episode nor one to prepare: more than one spare for each episode played at a time.

    A spare desktop prepares the next episode (`DesktopConfig.num_desktops`); further ones only take memory.
    """
    num_desktops = config.desktop.num_desktops * max(1, layout.num_worker_nodes)
    num_episodes = config.actor.num_actors * config.actor.num_episodes
    if config.mode == "serial" or num_desktops <= 2 * num_episodes:
        return None
    reason = f"{num_desktops} desktops, {num_episodes} episodes at a time: {num_desktops - num_episodes} will idle"
    num_actors = -(-num_desktops // config.actor.num_episodes)
    num_each = -(-num_desktops // config.actor.num_actors)
    step = f"set actor.num_actors={num_actors} or actor.num_episodes={num_each}, or lower desktop.num_desktops"
    return Problem("desktop.num_desktops", reason, step)


def missing_gpus(config: RunConfig, layout: Layout) -> Problem | None:
    """GPUs that learner or engines of a run on a cluster would lack. A site profile without `has_gpus` causes it."""
    if config.learner.device == "cuda" and not layout.learner_has_gpus:
        step = "set learner.has_gpus in the site profile, or gpus_per_learner in the host list; plan without either: --gpu-gb"
        return Problem("site: learner.has_gpus", "learner.device is cuda, but the job requests no GPU", step)
    if layout.worker_has_gpus or not (layout.learner_has_gpus and layout.num_worker_nodes) or config.actor.served_at is not None:
        return None
    reason = "worker nodes have no GPUs by the site profile or host list, so engines sample on their CPUs"
    step = "set worker.has_gpus (host list: gpus_per_worker), or use no worker nodes; CPUs are enough for a small model"
    return Problem("site: worker.has_gpus", reason, step)


def _threads(config: RunConfig, role: Role, *, num_cores: int | None, num_own: int) -> int:
    is_central = config.actor.inference == "central"
    if role in ("broker", "env_server") or (role == "actor" and is_central):
        return 1
    given = config.learner.num_threads if role == "learner" else config.actor.num_threads
    return given or num_cores or num_own


def node_resources(specs: Sequence[ProcessSpec], node: int) -> Resources:
    """What the processes on ``node`` take together."""
    return sum((spec.resources for spec in specs if spec.node <= node < spec.node + spec.num_nodes), Resources(0))


def _gpu_of_engine(index: int, config: RunConfig, gpus: Sequence[str]) -> dict[str, str]:
    """The learner's ranks take the first GPUs; engines take turns with the others, or with all when none is left."""
    if not gpus or config.learner.device == "cpu":
        return {}
    return gpus_in_turn(gpus[config.learner.num_ranks :] or gpus, index, num_own=config.actor.tensor_parallel_size)


def gpus_in_turn(free: Sequence[str], turn: int, *, num_own: int) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES of the engine that is the ``turn``-th to take ``num_own`` of the GPUs ``free``."""
    own = dict.fromkeys(free[(turn * num_own + number) % len(free)] for number in range(num_own))
    return {"CUDA_VISIBLE_DEVICES": ",".join(own)}
