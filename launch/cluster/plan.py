"""A configuration and a site, put together: who runs where, with what, and what Slurm is told.

Pure: `computerrl plan` prints it, `launch.cluster.submit` queues it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from computerrl import SOURCE_ROOT
from computerrl.common.config import RunConfig, SiteProfile
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.models.folder import cache_folder
from computerrl.common.run_files.run_folder import LAUNCH_FOLDER
from computerrl.launch.cluster.slurm import Part, parts_of, render_job
from computerrl.launch.plan.processes import Layout, ProcessSpec, make_plan, node_resources

CONFIG_FILE = "config.yaml"
SITE_FILE = "site.yaml"
SCRIPT_FILE = "job.sbatch"


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """A run on a cluster."""

    config: RunConfig
    """With addresses that other nodes reach."""
    site: SiteProfile
    layout: Layout
    specs: tuple[ProcessSpec, ...]
    """As they run on their nodes, without what brings them there."""
    parts: tuple[Part, ...]
    python: str
    folder: Path
    """From which all is started; the run folder may be relative to it."""
    environment: dict[str, str]

    @property
    def script(self) -> str:
        """The batch script."""
        launch = self.config.folder / LAUNCH_FOLDER
        command = (self.python, "-m", "computerrl", "job", str(self.config.folder))
        return render_job(
            self.parts,
            site=self.site,
            name=self.config.name,
            output=launch / "job-%j.log",
            folder=self.folder,
            command=command,
            environment=self.environment,
        )

    def node_names(self) -> list[str]:
        """`learner 1`, `worker 1`, `worker 2`: as people count them."""
        learners = [f"learner {number + 1}" for number in range(self.layout.num_learner_nodes)]
        return learners + [f"worker {number + 1}" for number in range(self.layout.num_worker_nodes)]


def cluster_plan(
    config: RunConfig, site: SiteProfile, *, python: str, source_root: Path, folder: Path, cache: Path
) -> ClusterPlan:
    """Raises `ConfigError` with everything that cannot be, nodes too small among it."""
    problems = _shape_problems(config)
    if problems:
        raise ConfigError(problems)
    python = site.python or python
    layout = layout_of(config, site)
    specs = make_plan(config, config_path=config.folder / CONFIG_FILE, python=python, source_root=source_root, layout=layout)
    parts = parts_of(specs, site=site, layout=layout)
    problems = [problem for name, part in zip(("learner", "worker"), parts, strict=False) for problem in too_small(name, part)]
    if problems:
        raise ConfigError(problems)
    return ClusterPlan(
        config=on_network(config, site, layout),
        site=site,
        layout=layout,
        specs=specs,
        parts=parts,
        python=python,
        folder=folder,
        environment={
            "PYTHONPATH": str(source_root),
            "COMPUTERRL_CACHE": str(cache),
            "PYTHONUNBUFFERED": "1",
            **({} if site.local_folder is None else {"TMPDIR": site.local_folder}),
        },
    )


def here(config: RunConfig, site: SiteProfile) -> ClusterPlan:
    """The plan as it is made from this process: this interpreter, these packages, the current folder."""
    return cluster_plan(
        config, site, python=sys.executable, source_root=SOURCE_ROOT, folder=Path.cwd(), cache=cache_folder().resolve()
    )


def layout_of(config: RunConfig, site: SiteProfile) -> Layout:
    """The nodes that ``config`` asks for, and whether ``site`` gives them GPUs."""
    cluster = config.cluster
    uses_gpus = config.learner.device != "cpu"
    return Layout(
        num_learner_nodes=cluster.num_learner_nodes,
        num_worker_nodes=cluster.num_worker_nodes,
        learner_has_gpus=site.learner.has_gpus and uses_gpus,
        worker_has_gpus=site.worker.has_gpus and uses_gpus,
    )


def on_network(config: RunConfig, site: SiteProfile, layout: Layout) -> RunConfig:
    """``config`` with the site's network wherever it says loopback and other nodes have to reach it."""
    if layout.num_nodes == 1 and not config.cluster.elastic:
        return config
    changed = {}
    for name in ("broker", "desktop", "actor", "learner"):
        section = getattr(config, name)
        if section.bind_address == type(section).model_fields["bind_address"].default:
            changed[name] = section.model_copy(update={"bind_address": site.network})
    return config.model_copy(update=changed)


def _shape_problems(config: RunConfig) -> list[Problem]:
    cluster, num_ranks = config.cluster, config.learner.num_ranks
    problems = []
    if config.mode == "serial":
        problems.append(Problem("mode", "serial is one process", "use mode: processes, or computerrl train"))
    if num_ranks % cluster.num_learner_nodes:
        reason = f"{num_ranks} ranks do not divide evenly over {cluster.num_learner_nodes} learner nodes"
        step = f"set it to a multiple of {cluster.num_learner_nodes}, or set cluster.num_learner_nodes to 1"
        problems.append(Problem("learner.num_ranks", reason, step))
    return problems


def too_small(name: str, part: Part) -> list[Problem]:
    """Nodes that, as the site describes them, do not hold what is planned on one."""
    needs, kind = part.per_node, part.kind
    checks = (
        ("cores_per_node", needs.num_cores, kind.cores_per_node, "cores", "cluster.cores_per_desktop or desktop.num_desktops"),
        ("memory_mb_per_node", needs.memory_mb, kind.memory_mb_per_node, "MiB", "desktop.num_desktops"),
        ("gpus_per_node", needs.num_gpus, kind.gpus_per_node, "GPUs", "actor.num_actors or learner.num_ranks"),
    )
    return [
        Problem(
            f"site: {name}.{field}",
            f"a {name} node needs {need} {unit} and has {has}",
            f"lower {what}, or use more nodes (cluster.num_worker_nodes)",
        )
        for field, need, has, unit, what in checks
        if has is not None and need > has
    ]


def describe(plan: ClusterPlan) -> list[tuple[str, str, ProcessSpec | None]]:
    """(node, what it takes, process) rows: for each node one without a process, then its processes."""
    rows: list[tuple[str, str, ProcessSpec | None]] = []
    for node, name in enumerate(plan.node_names()):
        total = node_resources(plan.specs, node)
        rows.append((name, _text(total.num_cores, total.memory_mb, total.num_gpus), None))
        for spec in _on(plan.specs, node):
            needs = spec.resources
            rows.append((name, _text(needs.num_cores, needs.memory_mb, needs.num_gpus), spec))
    return rows


def _on(specs: Sequence[ProcessSpec], node: int) -> list[ProcessSpec]:
    return [spec for spec in specs if spec.node <= node < spec.node + spec.num_nodes]


def _text(num_cores: int, memory_mb: int, num_gpus: int) -> str:
    gpus = f", {num_gpus} GPU{'s' * (num_gpus > 1)}" if num_gpus else ""
    return f"{num_cores} core{'s' * (num_cores > 1)}, {memory_mb} MiB{gpus}"
