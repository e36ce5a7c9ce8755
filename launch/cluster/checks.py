"""What `computerrl doctor` looks at for runs on many nodes: file systems, network, GPUs, Slurm, room for the planned desktops.

Every probe is real and leaves nothing: a file that is written is removed. Each row that is not ok ends with what to do or what to
ask the administrator for. Run it where processes will run, too: `srun computerrl doctor --site SITE`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from computerrl.common.config import NodeKind, RunConfig, SiteProfile
from computerrl.common.errors import SetupError
from computerrl.common.models.folder import cache_folder
from computerrl.common.wire.addresses import interface_of, own_address
from computerrl.common.wire.ports import PortLease
from computerrl.launch.cluster import slurm_commands
from computerrl.launch.plan.machine import Machine
from computerrl.launch.plan.resources import role_resources

Verdict = Literal["ok", "missing", "note"]

NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "fuse.sshfs", "ceph", "glusterfs", "panfs"}
)
MAX_SKEW_S = 2.0
"""Reports and time limits compare clocks of several nodes; nothing that must be right depends on them."""
_PROBE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    what: str
    verdict: Verdict
    found: str
    next_step: str = ""


def cluster_rows(site: SiteProfile | None, config: RunConfig | None, machine: Machine) -> list[Row]:
    """All rows that ``site`` and ``config`` (either may be None) give rise to."""
    profile = site or SiteProfile()
    run_dir = Path(config.run_dir if config is not None else "runs")
    checks: list[Callable[[], list[Row]]] = [
        lambda: folder_rows("run folder", _existing(run_dir), is_shared=True),
        lambda: folder_rows("cache", _existing(cache_folder()), is_shared=True),
        lambda: folder_rows("local folder", Path(profile.local_folder or tempfile.gettempdir()), is_shared=False),
        lambda: gpu_rows(machine, wanted=profile.learner.has_gpus or profile.worker.has_gpus),
        lambda: desktop_rows(config, machine),
    ]
    if site is not None:
        checks += [lambda: network_rows(site.network), lambda: slurm_rows(site)]
    return [row for check in checks for row in check()]


def _existing(path: Path) -> Path:
    path = path.resolve()
    return next(folder for folder in (path, *path.parents) if folder.exists())


# --- file systems ----------------------------------------------------------------------------------------------------


def folder_rows(what: str, folder: Path, *, is_shared: bool) -> list[Row]:
    """Can be written to; kind of file system; locks and clock (shared ones), sockets and containers' files (local ones)."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".computerrl-probe-") as probe:
            written = time.time()
            probe.write(b"x")
            probe.flush()
            skew_s = os.stat(probe.name).st_mtime - written
            locks = _locks(probe.fileno())
    except OSError as error:
        step = "ask for a folder that you may write to, on a file system all nodes share" if is_shared else "set local_folder"
        return [Row(what, "missing", f"{folder} cannot be written to: {error.strerror}", step)]
    kind = file_system(folder)
    rows = [Row(what, "ok", f"{folder}, {kind}")]
    if not is_shared:
        if kind in NETWORK_FILE_SYSTEMS:
            step = "set the site's local_folder to a disk of the node's own, such as /tmp or /scratch/local; ask which there is"
            rows[0] = Row(what, "missing", f"{folder} is {kind}: containers' files and sockets do not work well there", step)
        rows.append(_socket_row(folder))
        return rows
    if not locks:
        step = "ask for the file system to be mounted with locks (Lustre: -o flock), or set run_dir to another one"
        rows.append(Row(f"{what}, locks", "missing", "flock does not work: two jobs could play one run", step))
    if abs(skew_s) > MAX_SKEW_S:
        step = "ask for time synchronisation (chrony or ntpd) of nodes and file servers"
        rows.append(Row(f"{what}, clock", "note", f"differs by {skew_s:+.1f} s from this node's", step))
    else:
        rows.append(Row(f"{what}, clock", "ok", f"within {abs(skew_s):.2f} s of this node's"))
    return rows


def file_system(folder: Path, mounts: str | None = None) -> str:
    """Kind of file system that ``folder`` lies on; ``mounts``: the text of /proc/self/mountinfo."""
    text = Path("/proc/self/mountinfo").read_text() if mounts is None else mounts
    best, found = "", "unknown"
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        place = before.split()[4].replace("\\040", " ")
        if (folder == Path(place) or Path(place) in folder.parents) and len(place) >= len(best):
            best, found = place, after.split()[0]
    return found


def _locks(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _socket_row(folder: Path) -> Row:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".computerrl-probe-") as name:
        path = f"{name}/s"
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.bind(path)
        except OSError as error:
            step = "set the site's local_folder to a disk of the node's own with a short path"
            return Row("unix sockets", "missing", f"{path}: {error.strerror or error}", step)
    return Row("unix sockets", "ok", f"work in {folder}")


# --- network and GPUs ------------------------------------------------------------------------------------------------


def network_rows(network: str) -> list[Row]:
    """The address that processes here would listen on, and a port for it."""
    try:
        address = own_address(network)
        with PortLease(address) as lease:
            where = f"{address} on {interface_of(address) or 'no interface'}"
            return [Row("network", "ok", f"{network}: {where}"), Row("ports", "ok", f"{lease.port} could be bound, and others")]
    except SetupError as error:
        return [Row("network", "missing", error.problem.reason, error.problem.next_step)]


def gpu_rows(machine: Machine, *, wanted: bool) -> list[Row]:
    """Driver, what torch sees, NCCL, the fast network; asked in a process of its own, since this one loads no torch."""
    if not machine.gpus:
        step = "run doctor on a GPU node too: srun --gres=gpu:1 computerrl doctor --site SITE" if wanted else ""
        return [Row("GPUs of the site", "note", "none on this node", step)] if wanted else []
    script = (
        "import torch; print(torch.cuda.device_count(), torch.version.cuda, '.'.join(map(str, torch.cuda.nccl.version())) "
        "if torch.cuda.is_available() else '-')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=_PROBE_TIMEOUT_S)
    words = done.stdout.split()
    if done.returncode != 0 or len(words) != 3 or words[0] == "0":
        step = "ask for a driver that fits this CUDA, or install torch for the driver's (nvidia-smi shows it)"
        return [Row("CUDA", "missing", f"torch sees no GPU: {done.stderr.strip()[-200:] or done.stdout.strip()}", step)]
    rows = [Row("CUDA", "ok", f"torch sees {words[0]} GPUs, CUDA {words[1]}, NCCL {words[2]}")]
    devices = sorted(path.name for path in Path("/sys/class/infiniband").glob("*"))
    rows.append(
        Row("RDMA", "ok", ", ".join(devices))
        if devices
        else Row("RDMA", "note", "no InfiniBand device: NCCL goes over TCP", "set the site's network to the fastest there is")
    )
    return rows


# --- desktops --------------------------------------------------------------------------------------------------------


def desktop_rows(config: RunConfig | None, machine: Machine) -> list[Row]:
    """Room for the desktops that CONFIG plans on a worker node."""
    if config is None:
        return []
    need_mb, count = role_resources(config)["env_server"].memory_mb, config.desktop.num_desktops
    if need_mb <= machine.available_memory_mb:
        return [Row("planned desktops", "ok", f"{count} take {need_mb} of {machine.available_memory_mb} MiB here")]
    step = "set desktop.num_desktops lower, take more worker nodes, or ask for nodes with more memory"
    found = f"{count} would take {need_mb} MiB, and {machine.available_memory_mb} MiB are available on this node"
    return [Row("planned desktops", "note", found, step)]


# --- Slurm -----------------------------------------------------------------------------------------------------------


def slurm_rows(site: SiteProfile) -> list[Row]:
    """Commands, controller, partitions, and settings that decide how a run ends and begins again."""
    missing = [name for name in slurm_commands.COMMANDS if shutil.which(name) is None]
    if missing:
        step = "log in where jobs are submitted, or load its module; without Slurm there is computerrl up --hosts"
        return [Row("Slurm", "note", f"not found: {', '.join(missing)}", step)]
    ping = _output(["scontrol", "ping"])
    if " is UP" not in ping:
        step = "ask whether the controller is down; nothing can be submitted now"
        return [Row("Slurm", "missing", ping.strip()[:200] or "the controller does not answer", step)]
    rows = [Row("Slurm", "ok", f"{_output(['sinfo', '--version']).strip()}; {ping.strip().splitlines()[0]}")]
    for name, kind in _kinds(site):
        rows.append(partition_row(name, kind))
    return [*rows, *setting_rows(parse_settings(_output(["scontrol", "show", "config"])), site)]


def _kinds(site: SiteProfile) -> Iterator[tuple[str, NodeKind]]:
    yield "learner", site.learner
    yield "worker", site.worker
    if site.scavenger is not None:
        yield "scavenger", site.scavenger


def partition_row(name: str, kind: NodeKind) -> Row:
    """A partition of the site, against what the profile says of its nodes."""
    nodes = slurm_commands.nodes_of(kind.partition)
    what, shown = f"partition, {name}", kind.partition or "the default one"
    if nodes is None:
        return Row(what, "missing", f"there is no {shown}", "see `sinfo -s`; ask which partition your project may use")
    has = f"{nodes.num_cores} cores, {nodes.memory_mb} MiB, {nodes.num_gpus} GPUs"
    found = f"{shown}: {nodes.num_nodes} nodes with up to {has}; at most {nodes.time_limit} a job"
    wrong = [
        f"{field} {said}"
        for field, said, there in (
            ("cores_per_node", kind.cores_per_node, nodes.num_cores),
            ("memory_mb_per_node", kind.memory_mb_per_node, nodes.memory_mb),
            ("gpus_per_node", kind.gpus_per_node, nodes.num_gpus),
        )
        if said is not None and said > there
    ]
    if kind.has_gpus and not nodes.num_gpus:
        wrong.append("has_gpus, and no node has one")
    if wrong:
        return Row(what, "missing", f"{found}; the profile says {'; '.join(wrong)}", "correct the site profile")
    return Row(what, "ok", found)


def parse_settings(text: str) -> dict[str, str]:
    """`scontrol show config` as name -> value."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def setting_rows(settings: dict[str, str], site: SiteProfile) -> list[Row]:
    """What the cluster's settings mean for a run that outlives its jobs."""
    rows = []
    if settings.get("JobRequeue", "1") == "0" and site.requeue:
        step = "ask whether jobs may be requeued (JobRequeue); else set requeue: false and submit with --resume yourself"
        rows.append(Row("requeue", "note", "jobs are not requeued by default here; ours ask for it (--requeue)", step))
    expire = dict(part.split("=", 1) for part in settings.get("AuthInfo", "").split(",") if "=" in part).get("cred_expire", "120")
    rows.append(Row("requeue delay", "ok", f"a requeued job may start after {expire.rstrip('s')} s (AuthInfo cred_expire)"))
    tracking = settings.get("ProctrackType", "")
    if not tracking.endswith("cgroup"):
        step = "nothing to do: each process has one of ours above it that ends what it started"
        rows.append(Row("process tracking", "note", tracking or "unknown", step))
    if "backfill" not in settings.get("SchedulerType", "sched/backfill"):
        step = "ask for sched/backfill, without which heterogeneous jobs never start; or set cluster.num_worker_nodes to 0"
        rows.append(Row("scheduler", "missing", settings["SchedulerType"], step))
    return rows


def _output(argv: Sequence[str]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_PROBE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"{argv[0]} has not answered within {_PROBE_TIMEOUT_S:g} s"
    return done.stdout or done.stderr
