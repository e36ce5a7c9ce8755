"""A run over ssh on hosts with network namespaces of their own: real sshd, real desktops, a tiny model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from computerrl.benchmarks.launch._slurm_cluster import SlurmCluster, slurm_cluster
from computerrl.common.metrics import read_json_lines
from computerrl.launch.supervision import processes

pytestmark = pytest.mark.release

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SlurmCluster]:
    """Two nodes with an sshd each; the login node has a key for them."""
    with slurm_cluster(tmp_path / "cluster", num_nodes=2) as running:
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
        (tmp_path / "sshd_config").write_text(
            f"Port 2022\nHostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/user.pub\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nPidFile none\nPermitRootLogin prohibit-password\n"
        )
        Path("/run/sshd").mkdir(exist_ok=True)
        for node in running.nodes:
            running.run("/usr/sbin/sshd", "-f", f"{tmp_path}/sshd_config", node=node)
        yield running


def hosts_file(folder: Path, **changes: object) -> str:
    ssh = ["-p", "2022", "-i", f"{folder}/user", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
    tree = {"learner": ["n1"], "workers": ["n2"], "network": "10.211.0.0/24", "ssh": [*ssh, "-o", "LogLevel=ERROR"], **changes}
    (folder / "hosts.yaml").write_text(json.dumps(tree))
    return "hosts.yaml"


def up(cluster: SlurmCluster, folder: Path, hosts: str, *settings: str) -> subprocess.Popen[str]:
    chosen = [part for setting in settings for part in ("--set", setting)]
    argv = [sys.executable, "-m", "computerrl", "up", str(ROOT / "configs" / "smoke.yaml"), "--hosts", hosts, *chosen]
    return subprocess.Popen(
        cluster.command(argv, folder=folder),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def roles_left(cluster: SlurmCluster) -> list[str]:
    """Command lines of roles and desktops anywhere in the cluster."""
    found = []
    for pid in processes.descendants([cluster.pid]):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if "-m computerrl" in command or "Xvfb" in command:
            found.append(command)
    return found


def test_run_over_ssh_trains_on_two_learner_hosts_and_leaves_nothing(cluster: SlurmCluster, tmp_path: Path) -> None:
    hosts = hosts_file(tmp_path, learner=["n1", "n2"], workers=[])
    process = up(cluster, tmp_path, hosts, "learner.num_ranks=2", "learner.recipe.max_updates=2")
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    ledger = [line["trajectory_id"] for line in read_json_lines(tmp_path / "runs" / "smoke" / "ledger.jsonl")]
    assert len(ledger) == len(set(ledger)) > 0
    assert "rank.ended" in (tmp_path / "runs" / "smoke" / "logs" / "1" / "learner-0.log").read_text()
    assert not roles_left(cluster)


def test_hosts_are_clean_after_sigkill_of_the_supervisor(cluster: SlurmCluster, tmp_path: Path) -> None:
    process = up(cluster, tmp_path, hosts_file(tmp_path), "learner.recipe.max_updates=500")
    metrics = tmp_path / "runs" / "smoke" / "metrics.jsonl"
    deadline = time.monotonic() + 200
    while not (metrics.exists() and any(line.get("event") == "evaluation" for line in read_json_lines(metrics))):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.2)
    (supervisor,) = processes.children_of(process.pid)
    os.kill(supervisor, signal.SIGKILL)
    process.communicate(timeout=120)
    deadline = time.monotonic() + 120
    while left := roles_left(cluster):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def test_hosts_that_cannot_be_used_are_named_before_anything_starts(cluster: SlurmCluster, tmp_path: Path) -> None:
    hosts = hosts_file(tmp_path, workers=["n2", "n7"], network="10.99.0.0/24")
    process = up(cluster, tmp_path, hosts, "desktop.num_desktops=60")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 3, output
    assert "host n7: ssh:" in output
    assert "host n2: n2 has no address in '10.99.0.0/24'" in output.replace("network: ", "")
    assert "MiB are planned" in output
    assert not list((tmp_path / "runs").iterdir())
