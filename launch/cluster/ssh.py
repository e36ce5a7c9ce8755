"""The processes of a run as `ssh` commands. Pure; `launch.cluster.up` runs them.

A command's standard input is its lifeline. ssh forwards no signals, but the end of either side closes the lifeline, and then
`launch.supervision.node_process` ends everything that it started.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from computerrl.common.config import HostList
from computerrl.launch.plan.processes import ProcessSpec, gpus_in_turn
from computerrl.launch.supervision.role_errors import ERROR_FILE_VARIABLE

OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")
"""No terminal, no questions; a host that is gone is noticed within a minute."""


def ssh(host: str, command: Sequence[str], *, hosts: HostList, folder: Path, env: Mapping[str, str]) -> tuple[str, ...]:
    """``command`` on ``host``, in ``folder``."""
    settings = [f"{name}={value}" for name, value in {**env, **hosts.environment}.items()]
    line = f"cd {shlex.quote(str(folder))} && exec env {shlex.join([*settings, *command])}"
    return ("ssh", *OPTIONS, *hosts.ssh, host, line)


def over_ssh(
    spec: ProcessSpec, hosts: HostList, *, folder: Path, logs: Path, stop_s: float, python: str, here: str, num_rank_gpus: int
) -> ProcessSpec:
    """``spec`` as the command that runs it on its host or, for a learner on several, on all. ``here``: this interpreter;
    ``num_rank_gpus``: what the learner takes of a learner host's GPUs."""
    wrapper = (
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
        "--until-eof",
        "--",
    )
    gpus, errors = gpus_of(spec, hosts, num_rank_gpus=num_rank_gpus), logs.resolve() / f"{spec.name}.error.json"
    env = {**spec.env, **gpus, ERROR_FILE_VARIABLE: str(errors)}
    chosen = hosts.hosts[spec.node : spec.node + spec.num_nodes]
    commands = [ssh(host, (*wrapper, *spec.argv), hosts=hosts, folder=folder, env=env) for host in chosen]
    if len(commands) == 1:
        return replace(spec, argv=commands[0], env={}, nice=0, stop_signal=None)
    together = [part for command in commands for part in (str(len(command)), *command)]
    return replace(spec, argv=(here, "-m", "computerrl.launch.cluster.together", *together), env={}, nice=0, stop_signal=None)


def gpus_of(spec: ProcessSpec, hosts: HostList, *, num_rank_gpus: int) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES of ``spec``; nothing where it has no GPUs. Ranks take a host's first ones, engines take turns with the
    others, or with all when none is left."""
    if spec.resources.num_gpus == 0:
        return {}
    if spec.role == "learner":
        return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(num_rank_gpus)))}
    if hosts.workers:
        free = range(hosts.gpus_per_worker)
        turn = spec.index // len(hosts.workers)
    else:
        free = range(num_rank_gpus, hosts.gpus_per_learner) or range(hosts.gpus_per_learner)
        turn = spec.index
    return gpus_in_turn(tuple(map(str, free)), turn, num_own=spec.resources.num_gpus)
