"""A real Slurm cluster on one machine: munge, slurmctld and a slurmd per node, a node is a network namespace.

    cluster ──bridge 10.211.0.1── slurmctld, sbatch      one PID, mount and network namespace around all of it:
       ├── n1: 10.211.0.11, own host name, slurmd        when its first process ends, the kernel ends everything else
       └── n2: 10.211.0.12, own host name, slurmd

Nodes share the machine's processors, memory and files (as a shared file system would), and nothing of the network: what listens
on one node's loopback is not reached from another. Used by tests and by `computerrl bench launch`. Needs root (or user namespaces
that map it) and Debian's slurm-wlm and munge. Run as a program it is the cluster's first process.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from computerrl import SOURCE_ROOT

CONTROLLER_ADDRESS = "10.211.0.1"
PACKAGES = ("slurm-wlm", "munge")
START_LIMIT_S = 30.0
NODE_MEMORY_MB = 12000
NODE_CORES = 4
NODE_GPUS = 2
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"

SLURM_CONF = """
ClusterName=virtual
SlurmctldHost=controller({controller})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=2,bf_continue
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
KillWait=5
MinJobAge=300
SlurmdTimeout=20
MessageTimeout=20
UnkillableStepTimeout=30
GresTypes=gpu
MailProg=/bin/true
SlurmdParameters=config_overrides
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=60:00 State=UP PriorityTier=10
PartitionName=scavenger Nodes=ALL MaxTime=60:00 State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace_s}
"""


@dataclass(frozen=True, slots=True)
class SlurmCluster:
    """A cluster that runs; commands are given to it as from its login node."""

    folder: Path
    nodes: tuple[str, ...]
    pid: int
    """Of its first process."""

    def command(self, argv: Sequence[str], *, node: str | None = None, folder: Path | None = None) -> list[str]:
        """``argv`` as given inside, in ``folder``: on the login node, or on ``node``."""
        target = self.pid if node is None else int((self.folder / f"{node}.pid").read_text())
        # A node's holder is known by its number inside; its namespaces are entered from within the cluster's.
        enter = ["nsenter", f"--target={self.pid}", "--pid", "--net", "--mount", "--uts"]
        if node is not None:
            enter += ["nsenter", f"--target={target}", "--net", "--uts", "--mount"]
        return [*enter, "env", f"--chdir={folder or '/'}", f"SLURM_CONF={self.folder}/slurm.conf", *argv]

    def run(self, *argv: str, node: str | None = None, check: bool = True, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        """Run a command inside, its output captured."""
        done = subprocess.run(self.command(argv, node=node), capture_output=True, text=True, check=False, **kwargs)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def job(self, job_id: str) -> dict[str, str]:
        """Output of `scontrol show job`; empty when Slurm has forgotten the job."""
        text = self.run("scontrol", "show", "job", job_id, "--oneliner", check=False).stdout
        return dict(pair.split("=", 1) for pair in text.split("\n")[0].split() if "=" in pair)


def missing() -> list[str]:
    """Commands that a cluster needs and that are not here."""
    return [name for name in ("slurmctld", "slurmd", "munged", "ip", "unshare", "nsenter") if _which(name) is None]


def _which(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{SBIN}")


@contextlib.contextmanager
def slurm_cluster(folder: Path, *, num_nodes: int = 3, grace_s: int = 30) -> Iterator[SlurmCluster]:
    """A cluster below ``folder`` (an empty one) for as long as the block lasts; everything in it ends with the block, or with
    this process. Raises `AssertionError` with the logs when it does not come up."""
    folder.mkdir(parents=True, exist_ok=True)
    inside = [sys.executable, "-m", "computerrl.benchmarks.launch._slurm_cluster", str(folder), str(num_nodes), str(grace_s)]
    namespaces = ["unshare", "--pid", "--net", "--mount", "--uts", "--fork", "--kill-child", "--mount-proc"]
    env = {**os.environ, "PATH": f"{os.environ.get('PATH', os.defpath)}:{SBIN}", "PYTHONPATH": str(SOURCE_ROOT)}
    with (folder / "cluster.log").open("wb") as log:
        process = subprocess.Popen(
            [*namespaces, *inside], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            process.wait()
            logs = "\n".join(f"{path.name}:\n{path.read_text(errors='replace')[-2000:]}" for path in folder.glob("*.log"))
            raise AssertionError(f"the Slurm cluster did not come up:\n{logs}")
        (pid,) = _children(process.pid)
        yield SlurmCluster(folder, tuple(json.loads(line)["nodes"]), pid)
    finally:
        process.kill()
        process.communicate()


def _children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# --- inside ----------------------------------------------------------------------------------------------------------


def main(folder: Path, num_nodes: int, grace_s: int) -> None:
    """Bring the cluster up, say so on standard output, end when standard input does."""
    nodes = tuple(f"n{number}" for number in range(1, num_nodes + 1))
    addresses = {name: f"10.211.0.{10 + number}" for number, name in enumerate(nodes, start=1)}
    _network(folder, addresses)
    _write_files(folder, addresses, grace_s=grace_s)
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    _start_munge(folder)
    _daemon(folder, "slurmctld", ["slurmctld", "-D", "-i"])
    for name in nodes:
        enter = ["nsenter", f"--target={(folder / f'{name}.pid').read_text()}", "--net", "--uts", "--mount"]
        _daemon(folder, f"slurmd-{name}", [*enter, "slurmd", "-D", "-N", name])
    _wait_idle(nodes)
    print(json.dumps({"nodes": nodes}), flush=True)
    signal.signal(signal.SIGCHLD, _reap)
    while sys.stdin.read(1):
        pass


def _reap(_number: int, _frame: object) -> None:
    """The first process of a PID namespace is everybody's foster parent."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _network(folder: Path, addresses: dict[str, str]) -> None:
    """A bridge with the controller's address, and for each node a process with namespaces and a cable to it."""
    hosts = [f"{CONTROLLER_ADDRESS} controller", *(f"{address} {name}" for name, address in addresses.items())]
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + "\n".join(hosts) + "\n")
    _call("mount", "--bind", str(folder / "hosts"), "/etc/hosts")
    _call("hostname", "controller")
    _call("ip", "link", "set", "lo", "up")
    _call("ip", "link", "add", "br0", "type", "bridge")
    _call("ip", "address", "add", f"{CONTROLLER_ADDRESS}/24", "dev", "br0")
    _call("ip", "link", "set", "br0", "up")
    for number, (name, address) in enumerate(addresses.items()):
        holder = subprocess.Popen(["unshare", "--net", "--uts", "--mount", "sleep", "infinity"])
        (folder / f"{name}.pid").write_text(str(holder.pid))
        inside = ["nsenter", f"--target={holder.pid}", "--net", "--uts"]
        _until(lambda holder=holder: _differs(holder.pid), "a node's namespace")
        _call("ip", "link", "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        _call("ip", "link", "set", f"v{number}", "master", "br0", "up")
        _call(*inside, "hostname", name)
        _call(*inside, "ip", "link", "set", "lo", "up")
        _call(*inside, "ip", "address", "add", f"{address}/24", "dev", "eth0")
        _call(*inside, "ip", "link", "set", "eth0", "up")


def _differs(pid: int) -> bool:
    return all(os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "uts", "mnt"))


def _write_files(folder: Path, addresses: dict[str, str], *, grace_s: int) -> None:
    (folder / "state").mkdir(exist_ok=True)
    lines = []
    for name, address in addresses.items():
        (folder / f"spool-{name}").mkdir(exist_ok=True)
        size = f"CPUs={NODE_CORES} RealMemory={NODE_MEMORY_MB} Gres=gpu:{NODE_GPUS}"
        lines.append(f"NodeName={name} NodeAddr={address} NodeHostname={name} {size} State=UNKNOWN")
    text = SLURM_CONF.format(controller=CONTROLLER_ADDRESS, folder=folder, nodes="\n".join(lines), grace_s=grace_s)
    (folder / "slurm.conf").write_text(text)
    # Files that every machine has stand for devices: Slurm counts and hands out GPUs that are not there.
    (folder / "gres.conf").write_text(f"Name=gpu File=/dev/tty[0-{NODE_GPUS - 1}]\n")
    (folder / "cgroup.conf").write_text("CgroupPlugin=autodetect\n")


def _start_munge(folder: Path) -> None:
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    files = [f"--{what}={folder}/munge.{what.split('-')[0]}" for what in ("socket", "pid-file", "log-file", "seed-file")]
    _daemon(folder, "munged", ["munged", "--foreground", "--force", f"--key-file={key}", *files])
    _until((folder / "munge.socket").exists, "munge's socket")


def _daemon(folder: Path, name: str, argv: Sequence[str]) -> None:
    with (folder / f"{name}.out.log").open("wb") as log:
        subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


def _wait_idle(nodes: Sequence[str]) -> None:
    def are_idle() -> bool:
        found = subprocess.run(["sinfo", "-h", "-N", "-o", "%N %T", "-p", "main"], capture_output=True, text=True, check=False)
        return sorted(found.stdout.split("\n")[:-1]) == sorted(f"{name} idle" for name in nodes)

    _until(are_idle, "all nodes to be idle")


def _until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"waited {START_LIMIT_S:g} s for {what}")
        time.sleep(0.05)


def _call(*argv: str) -> None:
    subprocess.run(argv, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
