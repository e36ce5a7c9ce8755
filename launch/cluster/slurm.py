"""A run as a Slurm job: the batch script's text, and the `srun` line of each process.

Renders and parses, calls nothing (`launch.cluster.slurm_commands` does). One job holds everything: the first component has
the learner's nodes, with broker and the supervisor in the batch step; the second, when there is one, the worker nodes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from computerrl.common.config import NodeKind, SiteProfile
from computerrl.common.errors import ConfigError, Problem
from computerrl.launch.plan.processes import Layout, ProcessSpec, node_resources
from computerrl.launch.plan.resources import Resources
from computerrl.launch.supervision.processes import STOP_SIGNAL

SUPERVISOR = Resources(num_cores=0, memory_mb=300)
"""The batch step: supervisor and its srun commands. It waits, so it shares the broker's core."""


@dataclass(frozen=True, slots=True)
class Part:
    """One component of a job: nodes that are alike."""

    kind: NodeKind
    num_nodes: int
    per_node: Resources


def parts_of(specs: Sequence[ProcessSpec], *, site: SiteProfile, layout: Layout) -> tuple[Part, ...]:
    """The components a plan takes: each as large as its fullest node."""
    learners = [node_resources(specs, node) for node in range(layout.num_learner_nodes)]
    learners[0] += SUPERVISOR
    found = [Part(site.learner, layout.num_learner_nodes, _largest(learners))]
    if layout.num_worker_nodes:
        workers = [node_resources(specs, node) for node in range(layout.num_learner_nodes, layout.num_nodes)]
        found.append(Part(site.worker, layout.num_worker_nodes, _largest(workers)))
    return tuple(found)


def _largest(nodes: Sequence[Resources]) -> Resources:
    return Resources(
        max(node.num_cores for node in nodes), max(node.memory_mb for node in nodes), max(node.num_gpus for node in nodes)
    )


def render_job(
    parts: Sequence[Part],
    *,
    site: SiteProfile,
    name: str,
    output: Path,
    folder: Path,
    command: Sequence[str],
    environment: Mapping[str, str],
    array: str | None = None,
) -> str:
    """The batch script. ``folder``: where it runs; ``command``: what it becomes; ``array``: task numbers of a job array."""
    import jinja2

    template = Path(__file__).with_name("job.sbatch.j2").read_text()
    jinja = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, autoescape=False)
    text = jinja.from_string(template).render(
        output=_in_directive("--output", f"{_in_file_pattern(output.parent)}/{output.name}"),
        requeue=site.requeue,
        warning_s=site.warning_s,
        parts=[_directives(part, site=site, name=name, array=array) for part in parts],
        folder=shlex.quote(str(folder)),
        modules=[shlex.quote(module) for module in site.modules],
        setup=site.setup,
        environment=[(key, shlex.quote(value)) for key, value in {**environment, **site.environment}.items()],
        command=shlex.join(command),
    )
    return text.rstrip() + "\n"


def _directives(part: Part, *, site: SiteProfile, name: str, array: str | None) -> list[str]:
    kind, needs = part.kind, part.per_node
    options = [f"--job-name={name}", f"--time={site.time_limit}"]
    given = {"--account": site.account, "--partition": kind.partition, "--constraint": kind.constraint, "--array": array}
    options += [f"{option}={_in_directive(option, value)}" for option, value in given.items() if value is not None]
    options += [f"--nodes={part.num_nodes}", "--ntasks-per-node=1", f"--cpus-per-task={max(1, needs.num_cores)}"]
    options.append(f"--mem={needs.memory_mb}M")
    if needs.num_gpus:
        options.append(_gpus(needs.num_gpus, kind, option=site.gpu_request))
    if kind.exclusive:
        options.append("--exclusive")
    return [*options, *kind.sbatch]


def _gpus(count: int, kind: NodeKind, *, option: str = "gres") -> str:
    """A step takes its share with `--gres`, however the job asked for the whole."""
    what = str(count) if kind.gpu_type is None else f"{kind.gpu_type}:{count}"
    return f"--gres=gpu:{what}" if option == "gres" else f"--gpus-per-node={what}"


def _in_directive(option: str, value: str) -> str:
    """``value`` as sbatch reads it behind `#SBATCH`: quotes hold blanks, a backslash holds what would end them or the line."""
    if not value.isprintable():
        reason = f"{value!r:.200} has letters that no line of a batch script can hold"
        raise ConfigError([Problem(f"#SBATCH {option}", reason, "choose a name of printable characters")])
    escaped = re.sub(r'(["\\#])', r"\\\1", value)
    return f'"{escaped}"' if re.search(r"""[\s&|;()*\[\]"'\\#]""", value) else value


def _in_file_pattern(folder: Path) -> str:
    """``folder`` in the name of an output file, where sbatch replaces `%j` and the like, but nothing beside a backslash."""
    if "\\" in str(folder):
        reason = f"{str(folder)!r:.200} has a backslash, which Slurm takes for something else"
        step = "choose a run_dir, and a folder to submit from, without backslashes"
        raise ConfigError([Problem("run_dir", reason, step)])
    return str(folder).replace("%", "%%")


@dataclass(frozen=True, slots=True)
class Allocation:
    """The nodes of a job that runs."""

    job_id: str
    groups: tuple[tuple[str, ...], ...]
    """Host names of each component."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """All of them, learner nodes first."""
        return tuple(node for group in self.groups for node in group)


def srun(
    spec: ProcessSpec, allocation: Allocation, *, site: SiteProfile, stop_s: float, notice: Path, python: str
) -> ProcessSpec:
    """``spec`` as the `srun` command that runs it on its node, bound to what it was planned with."""
    hosts = allocation.nodes[spec.node : spec.node + spec.num_nodes]
    group = next(number for number, found in enumerate(allocation.groups) if hosts[0] in found)
    kind = (site.learner, site.worker)[group]
    needs = spec.resources
    options = [
        f"--nodes={spec.num_nodes}",
        f"--ntasks={spec.num_nodes}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(hosts)}",
        "--exact",
        f"--cpus-per-task={needs.num_cores}",
        "--cpu-bind=cores",
        f"--mem={needs.memory_mb}M",
        _gpus(needs.num_gpus, kind) if needs.num_gpus else "--gres=none",
        "--kill-on-bad-exit=1",
        "--input=none",
        f"--job-name={spec.name}",
    ]
    if len(allocation.groups) > 1:
        options.insert(0, f"--het-group={group}")
    on_node = (
        python,
        "-m",
        "computerrl.launch.supervision.node_process",
        "--role",
        spec.role,
        "--index",
        str(spec.index),
        "--stop-s",
        f"{stop_s:g}",
        "--nice",
        str(spec.nice),
        "--notice",
        f"{notice}-{spec.name}",
        "--",
    )
    argv = ("srun", *options, *site.srun, *on_node, *spec.argv)
    return replace(spec, argv=argv, nice=0, stop_signal=STOP_SIGNAL)
