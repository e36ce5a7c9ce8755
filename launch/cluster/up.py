"""`computerrl up`: a run on machines without a scheduler. The supervisor stays here; every process is an ssh command to its host.

Hosts are asked first what they have (`launch.cluster.host_check`), all at once, so that a wrong name, a missing folder or too
little memory is known before anything starts.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from computerrl.common.config import HostList, RunConfig, load_config, load_hosts
from computerrl.common.errors import Problem, SetupError
from computerrl.launch.cluster import plan as cluster_plan
from computerrl.launch.cluster.host_check import HostFacts
from computerrl.launch.cluster.job import CONTAINED, in_container, under_torchrun
from computerrl.launch.cluster.plan import ClusterPlan
from computerrl.launch.cluster.ssh import over_ssh, ssh
from computerrl.launch.cluster.submit import machine_independent
from computerrl.launch.plan.processes import ProcessSpec, node_resources
from computerrl.launch.plan.run_names import claim, find_resumable, locked
from computerrl.launch.run import local
from computerrl.launch.run.preflight import Finding, PreflightFailed

ASK_TIMEOUT_S = 60.0
SSH_STOP_S = 4.0
"""What a stop takes longer than on one machine."""


def up(path: Path, *, hosts_path: Path, overrides: Sequence[str], resume: bool) -> int:
    """Play the run on the hosts to its end; gives the exit code. Raises typed errors with nothing started and nothing made."""
    if shutil.which("ssh") is None:
        raise SetupError(Problem("ssh", "not found on PATH", "install OpenSSH's client"))
    hosts = load_hosts(hosts_path)
    config = with_shape(load_config(path, overrides=overrides), hosts)
    plan = cluster_plan.here(find_resumable(config) if resume else config, hosts.as_site())
    findings = machine_independent(plan.config, has_container=hosts.container is not None)
    if findings:
        raise PreflightFailed(findings)
    if hosts.container is None:
        local.make_model(plan.config)
    Path(plan.config.run_dir).mkdir(parents=True, exist_ok=True)
    facts = ask_hosts(plan, hosts)
    if not resume:
        plan = cluster_plan.here(claim(config), hosts.as_site())
    with locked(plan.config.folder):
        local.begin(plan.config)
        outcome = local.run_attempt(
            plan.config,
            resumed=resume,
            supervise=lambda attempt: local.supervise(attempt, _specs(plan, hosts, facts, attempt), extra_stop_s=SSH_STOP_S),
        )
    return outcome.exit_code


def plan_of(path: Path, *, hosts_path: Path, overrides: Sequence[str]) -> ClusterPlan:
    """The plan of `up` on the hosts. No host is contacted."""
    hosts = load_hosts(hosts_path)
    return cluster_plan.here(with_shape(load_config(path, overrides=overrides), hosts), hosts.as_site())


def with_shape(config: RunConfig, hosts: HostList) -> RunConfig:
    """``config`` with as many nodes as there are hosts; several learner hosts need a rank for each."""
    cluster = config.cluster.model_copy(
        update={"num_learner_nodes": len(hosts.learner), "num_worker_nodes": len(hosts.workers), "elastic": True}
    )
    return config.model_copy(update={"cluster": cluster})


def _specs(plan: ClusterPlan, hosts: HostList, facts: Sequence[HostFacts], attempt: local.RunAttempt) -> list[ProcessSpec]:
    specs = []
    num_rank_gpus = max(spec.resources.num_gpus for spec in plan.specs if spec.role == "learner")
    for spec in plan.specs:
        placed = spec
        if spec.num_nodes > 1:
            endpoint = f"{facts[0].address}:{facts[0].port}"
            placed = under_torchrun(spec, plan.config, endpoint=endpoint, job_id=plan.config.name)
        if hosts.container is not None and spec.role in CONTAINED:
            placed = in_container(placed, plan.site, plan.config)
        over = over_ssh(
            placed,
            hosts,
            folder=plan.folder,
            logs=attempt.logs,
            stop_s=plan.config.supervisor.stop_s,
            python=plan.python,
            here=sys.executable,
            num_rank_gpus=num_rank_gpus,
        )
        specs.append(over)
    return specs


def ask_hosts(plan: ClusterPlan, hosts: HostList) -> list[HostFacts]:
    """What each host has, in the plan's order. Raises `PreflightFailed` with what is wrong on any of them."""
    with ThreadPoolExecutor(max_workers=16) as pool:
        answers = list(pool.map(lambda host: _ask(host, plan, hosts), hosts.hosts))
    findings = []
    for node, (host, answer) in enumerate(zip(hosts.hosts, answers, strict=True)):
        problems = [answer] if isinstance(answer, Problem) else _judge(host, answer, node, plan, hosts)
        findings += [Finding(SetupError, problem) for problem in problems]
    if findings:
        raise PreflightFailed(findings)
    return [answer for answer in answers if isinstance(answer, HostFacts)]


def _ask(host: str, plan: ClusterPlan, hosts: HostList) -> HostFacts | Problem:
    command = (plan.python, "-m", "computerrl.launch.cluster.host_check", hosts.network, plan.config.run_dir)
    argv = ssh(host, command, hosts=hosts, folder=plan.folder, env=plan.environment)
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=ASK_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return Problem(f"host {host}", f"did not reply within {ASK_TIMEOUT_S:g} s", f"try `ssh {host} true`")
    if done.returncode == 0:
        return HostFacts(**json.loads(done.stdout.splitlines()[-1]))
    last = done.stderr.strip().splitlines()[-1:] or ["no output"]
    if done.returncode == 255:
        return Problem(f"host {host}", f"ssh: {last[0]}", f"`ssh {host} true` must work without a password; see hosts.ssh")
    step = f"{plan.folder} and {plan.python} must exist under the same path (a shared file system)"
    return Problem(f"host {host}", last[0], step)


def _judge(host: str, facts: HostFacts, node: int, plan: ClusterPlan, hosts: HostList) -> list[Problem]:
    """What this host lacks."""
    needs = node_resources(plan.specs, node)
    gpus = hosts.gpus_per_learner if node < len(hosts.learner) else hosts.gpus_per_worker
    where, problems = f"host {host}", []
    if facts.problem:
        problems.append(Problem(where, facts.problem, "set `network` in the host list"))
    if not facts.sees_folder:
        step = "put run_dir on a file system that all hosts share"
        problems.append(Problem(where, f"{plan.config.run_dir} does not exist, or cannot be written", step))
    if not facts.has_packages and hosts.container is None:
        problems.append(Problem(where, "torch, transformers or zmq is missing", "run `make setup` on that host, or set `python`"))
    if facts.available_memory_mb < needs.memory_mb:
        reason = f"{needs.memory_mb} MiB are planned, {facts.available_memory_mb} MiB are available"
        problems.append(Problem(where, reason, "lower desktop.num_desktops, or use more hosts"))
    if facts.num_gpus < gpus:
        problems.append(Problem(where, f"the host list has {gpus} GPUs, the host {facts.num_gpus}", "correct the host list"))
    return problems
