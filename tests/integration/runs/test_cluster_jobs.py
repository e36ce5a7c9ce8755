"""Runs as jobs of a real Slurm cluster, nodes with network namespaces of their own: submit, repair, preempt, requeue, cancel.

Real desktops, real training of a tiny model. Nodes share this machine's two cores, so what is checked is what happens, never how
fast.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from computerrl.benchmarks.launch._slurm_cluster import SlurmCluster, missing, slurm_cluster
from computerrl.common.metrics import read_json_lines
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.launch.supervision import processes
from tests.support.desktops import LIGHT_FAMILIES

ROOT = Path(__file__).resolve().parents[3]
SITE = {
    "time_limit": "00:20:00",
    "warning_s": 60,
    "network": "10.211.0.0/24",
    "learner": {"partition": "scavenger"},
    "worker": {"partition": "scavenger"},
}
DAEMONS = {"munged", "slurmctld", ":", "slurmd", "sleep"}
"""What runs in a cluster without jobs: each node is held by a `sleep`; a helper of slurmctld calls itself `: slurmscriptd`."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    lacking = missing()
    assert not lacking, f"not found: {lacking}; make test installs slurm-wlm and munge on Debian, as root"
    with slurm_cluster(tmp_path_factory.mktemp("cluster"), num_nodes=4) as running:
        yield running


class Site:
    """A folder on the cluster's shared file system, and our command given in it on the login node."""

    def __init__(self, cluster: SlurmCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        (folder / "site.yaml").write_text(json.dumps(SITE))

    def computerrl(self, *arguments: str, code: int = 0) -> str:
        argv = [sys.executable, "-m", "computerrl", *arguments]
        done = subprocess.run(
            self.cluster.command(argv, folder=self.folder),
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == code, f"{arguments} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def typed(self, line: str) -> str:
        """What a line typed into a shell on the login node prints."""
        done = subprocess.run(**self._shell(line), capture_output=True, check=False, timeout=240)
        assert done.returncode == 0, f"{line} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return f"{done.stdout}{done.stderr}"

    @contextmanager
    def started(self, line: str) -> Iterator[Path]:
        """A line that prints until Ctrl-C, typed into a shell on the login node; the file of what it prints."""
        printed = self.folder / "printed.txt"
        with printed.open("w") as file:
            process = subprocess.Popen(**self._shell(line), stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                yield printed
            finally:
                os.killpg(process.pid, signal.SIGINT)
                process.wait(timeout=60)

    def _shell(self, line: str) -> dict[str, Any]:
        commands = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        argv = self.cluster.command(["bash", "-e", "-c", line], folder=self.folder)
        return {"args": argv, "env": {**os.environ, "PATH": commands}, "text": True}

    def submit(self, *settings: str) -> RunFolder:
        chosen = [part for setting in (LIGHT_FAMILIES, *settings) for part in ("--set", setting)]
        said = self.computerrl("submit", str(ROOT / "configs" / "smoke.yaml"), "--site", "site.yaml", *chosen)
        assert "is queued" in said
        return RunFolder(self.folder / said.partition(":")[0])

    def job_id(self, run: RunFolder) -> str:
        return str(json.loads((run.folder / "launch" / "job.json").read_text())["job_id"])

    def log(self, run: RunFolder) -> str:
        return "".join(path.read_text(errors="replace") for path in (run.folder / "launch").glob("*.log"))

    def wait(self, run: RunFolder, what: str, condition: Callable[[], bool], *, limit_s: float = 240.0) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline:
                states = self.cluster.run("squeue", "--noheader", check=False).stdout
                raise AssertionError(f"waited for {what}\n{states}\n{self.log(run)[-6000:]}")
            time.sleep(0.5)

    def wait_state(self, run: RunFolder, state: str) -> None:
        self.wait(run, f"job state {state}", lambda: self.cluster.job(self.job_id(run)).get("JobState") == state)

    def num_updates(self, run: RunFolder) -> int:
        lines = read_json_lines(run.metrics_path) if run.metrics_path.exists() else []
        return sum(line.get("event") == "update" for line in lines)

    def wait_nothing_left(self) -> None:
        deadline = time.monotonic() + 120.0
        while left := self.left():
            assert time.monotonic() < deadline, f"still there: {left}"
            time.sleep(0.5)

    def left(self) -> set[str]:
        """Names of what runs in the cluster beside its own daemons."""
        inside = processes.descendants([self.cluster.pid])
        commands = {pid: _command(pid) for pid in inside}
        return {command for command in commands.values() if command and command.split()[0].rpartition("/")[2] not in DAEMONS}


def _command(pid: int) -> str:
    """Its command line, empty for the dead."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


@pytest.fixture
def site(cluster: SlurmCluster, tmp_path: Path) -> Iterator[Site]:
    yield Site(cluster, tmp_path)
    cluster.run("scancel", "--full", "--user=root", check=False)


def assert_each_trained_once(run: RunFolder) -> None:
    """Every trajectory that was acknowledged is in the ledger, once, or was given up with its order."""
    ledger = [line["trajectory_id"] for line in read_json_lines(run.folder / "ledger.jsonl")]
    assert len(ledger) == len(set(ledger)) > 0
    (summary,) = (line for line in read_json_lines(run.metrics_path) if line.get("event") == "summary")
    assert summary["num_trajectories_lost"] == 0
    assert json.loads((run.folder / "report.json").read_text())["finished"]


def processes_of(site: Site, run: RunFolder, role: str) -> set[int]:
    """Pids, as this process sees them, of everything that plays ``role`` for ``run``."""
    found = set()
    for pid in processes.descendants([site.cluster.pid]):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"computerrl" in command and role.encode() in command and any(run.folder.name.encode() in part for part in command):
            found.add(pid)
    return found


def gpus_of(site: Site, run: RunFolder, role: str) -> set[str]:
    """CUDA_VISIBLE_DEVICES of what plays ``role`` on its node; empty: none."""
    found = set()
    for pid in processes_of(site, run, role):
        if not _command(pid).startswith("srun "):
            variables = dict(pair.partition("=")[::2] for pair in Path(f"/proc/{pid}/environ").read_text().split("\0"))
            found.add(variables.get("CUDA_VISIBLE_DEVICES", ""))
    return found


@pytest.mark.release
def test_job_over_three_nodes_survives_node_failure_and_preemption(site: Site) -> None:
    """A learner node, two worker nodes, and a worker that joins: everything on one node is killed, then the job is preempted; the
    run goes on to its end and every trajectory counts once. (A learner on two nodes: test_cluster_hosts.py.)"""
    run = site.submit("cluster.num_worker_nodes=2", "learner.recipe.max_updates=14", "learner.recipe.eval_episodes_per_family=1")
    site.wait(run, "a first update", lambda: site.num_updates(run) >= 1)
    assert "RUNNING" in site.computerrl("status", str(run.folder))
    site.computerrl("submit", "--workers-for", str(run.folder), "--array", "0", "--site", "site.yaml")

    struck = processes_of(site, run, "env-server")
    assert struck
    processes.kill_all(struck | processes.descendants(struck))
    site.wait(run, "the env_server's repair", lambda: "env_server-0 ended" in site.log(run))
    before = site.num_updates(run)
    site.wait(run, "an update after the repair", lambda: site.num_updates(run) > before or site.log(run).count("report:") > 0)

    urgent = site.cluster.run("sbatch", "--parsable", "-N4", "-c2", "--partition=main", "--wrap", "sleep 3").stdout.strip()
    site.wait(run, "the preemption", lambda: "is queued again" in site.log(run) or "report:" in site.log(run))
    assert "SIGTERM from Slurm: the learner writes a checkpoint" in site.log(run)
    site.wait(run, "the urgent job", lambda: site.cluster.job(urgent).get("JobState") == "COMPLETED")
    site.wait_state(run, "COMPLETED")
    assert "start 2, on" in site.log(run)
    assert_each_trained_once(run)
    site.computerrl("journal", "verify", str(run.folder))
    assert "env_server-1000" in site.log(run)
    site.wait(run, "the workers to leave", lambda: not site.cluster.run("squeue", "--noheader").stdout)
    site.wait_nothing_left()


def test_job_before_its_time_limit_checkpoints_requeues_and_is_cancelled_without_a_trace(site: Site) -> None:
    # GPUs that Slurm counts and hands out, and that are not there: torch sees none and computes on the processor.
    (site.folder / "site.yaml").write_text(json.dumps({**SITE, "learner": {"partition": "scavenger", "has_gpus": True}}))
    changes = (
        "cluster.elastic=true",
        "learner.recipe.max_updates=200",
        "learner.checkpoint_every_updates=100",
        "learner.device=auto",
        # The cores are for Slurm.
        "desktop.num_desktops=1",
        "actor.num_episodes=1",
    )
    run = site.submit(*changes)
    site.wait(run, "two updates", lambda: site.num_updates(run) >= 2)
    given = {role: gpus_of(site, run, role) for role in ("broker", "env-server", "actor", "learner")}
    assert given["learner"] | given["actor"] == {"0", "1"} and len(given["learner"]) == len(given["actor"]) == 1
    assert given["broker"] == given["env-server"] == {""}
    said = site.computerrl("submit", str(ROOT / "configs" / "smoke.yaml"), "--site", "site.yaml", code=2)
    assert "is job" in said and "computerrl cancel" in said

    site.cluster.run("scancel", "--batch", "--signal=USR1", site.job_id(run))
    site.wait(run, "the requeue", lambda: "is queued again" in site.log(run))
    resumed_from = site.num_updates(run)
    site.wait(run, "the second start", lambda: "start 2, on" in site.log(run))
    site.wait(run, "training to go on", lambda: site.num_updates(run) > resumed_from)
    numbers = [line["update"] for line in read_json_lines(run.metrics_path) if line.get("event") == "update"]
    assert numbers == list(range(1, len(numbers) + 1)), "the checkpoint of the drain is where it went on"

    said = site.computerrl("cancel", str(run.folder))
    assert "cancelled job" in said
    site.wait_state(run, "CANCELLED")
    site.wait_nothing_left()
    ledger = [line["trajectory_id"] for line in read_json_lines(run.folder / "ledger.jsonl")]
    assert len(ledger) == len(set(ledger)) > 0
    assert "start 3" not in site.log(run)
    assert "has ended already" in site.computerrl("cancel", str(run.folder))
    (run.keys / "server.key").chmod(0o644)
    again = ("submit", str(ROOT / "configs" / "smoke.yaml"), "--site", "site.yaml", "--resume")
    settings = [part for setting in (LIGHT_FAMILIES, *changes) for part in ("--set", setting)]
    assert "others can read it" in site.computerrl(*again, *settings, code=3)
    assert site.cluster.run("squeue", "--noheader").stdout == ""


def test_submit_names_what_cannot_be_before_anything_is_queued(site: Site) -> None:
    config = str(ROOT / "configs" / "smoke.yaml")

    def refused(changes: dict[str, object], *settings: str, code: int = 2) -> str:
        (site.folder / "bad.yaml").write_text(json.dumps({**SITE, **changes}))
        chosen = [part for setting in settings for part in ("--set", setting)]
        return site.computerrl("submit", config, "--site", "bad.yaml", *chosen, code=code)

    assert "there is no partition 'night'" in refused({"worker": {"partition": "night"}}, "cluster.num_worker_nodes=1")
    assert "desktop.num_desktops" in refused({}, "desktop.num_desktops=100", "cluster.num_worker_nodes=1")
    assert "9 nodes are requested" in refused({}, "cluster.num_worker_nodes=9")
    assert "unknown key" in refused({"partitions": "main"})
    assert not (site.folder / "runs").exists()
    assert site.cluster.run("squeue", "--noheader").stdout == ""


def test_doctor_finds_the_cluster_in_order_and_names_what_is_not(site: Site) -> None:
    rows = {row["what"]: row for row in json.loads(site.computerrl("doctor", "--site", "site.yaml", "--json"))}
    assert rows["Slurm"]["verdict"] == "ok" and "UP" in rows["Slurm"]["found"]
    assert "4 nodes" in rows["partition, learner"]["found"]
    assert "10.211.0.1" in rows["network"]["found"]
    assert "5 s" in rows["requeue delay"]["found"]
    (site.folder / "site.yaml").write_text(json.dumps({**SITE, "worker": {"partition": "night"}}))
    rows = {row["what"]: row for row in json.loads(site.computerrl("doctor", "--site", "site.yaml", "--json", code=3))}
    assert rows["partition, worker"]["verdict"] == "missing"


FIRST_JOB = re.compile(r"^## The first job\n\n```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.release
def test_first_job_of_the_tutorial_is_done_as_it_is_printed(site: Site) -> None:
    """A copy of the configurations stands for the clone, and this cluster's profile for the edited one."""
    page = (ROOT / "docs" / "tutorials" / "slurm.md").read_text(encoding="utf-8")
    doctor, on_node = re.findall(r"^(?:srun .*)?computerrl doctor .*$", page, re.MULTILINE)
    plan, submit, status, logs = FIRST_JOB.findall(page)[0].splitlines()
    shutil.copytree(ROOT / "configs", site.folder / "configs")
    (site.folder / "configs" / "sites" / "my-cluster.yaml").write_text(json.dumps(SITE))

    assert "#SBATCH --partition=scavenger" in site.typed(plan)
    for line in (doctor, on_node.replace("PARTITION", "scavenger")):
        assert "Slurm" in site.typed(line)
    assert "is queued" in site.typed(submit)
    run = RunFolder(site.folder / "runs" / "smoke")
    assert site.job_id(run) in site.typed(status)
    with site.started(logs) as following:
        site.wait_state(run, "COMPLETED")
        site.wait(run, "the followed logs", lambda: "report" in following.read_text())
    assert_each_trained_once(run)
    assert (run.folder / "report.html").is_file()
