"""Submitting, cancelling and reading logs, with Slurm's answers given by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from computerrl.common.errors import ConfigError, SetupError
from computerrl.launch.cluster import slurm_commands, submit
from computerrl.launch.cluster.slurm_commands import JobState, NodesOf
from computerrl.launch.cluster.submit import SubmittedJob, cancel, describe_job, job_of, remember
from computerrl.launch.run.preflight import PreflightFailed

CONFIG = """
name: trial
model: {name: tiny-random, dtype: float32}
desktop: {driver: local, num_desktops: 1}
tasks: {families: [web-click-button]}
learner: {recipe: {demos_per_family: 1}}
cluster: {num_worker_nodes: 1}
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to submit from, on a cluster that takes everything."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trial.yaml").write_text(CONFIG)
    (tmp_path / "site.yaml").write_text("learner: {partition: main}\nworker: {partition: main}\n")
    monkeypatch.setattr(slurm_commands, "require_slurm", lambda: None)
    monkeypatch.setattr(slurm_commands, "nodes_of", lambda _: NodesOf(8, 64, 256000, 0, "1-00:00:00"))
    monkeypatch.setattr(slurm_commands, "submit", lambda _: "77")
    monkeypatch.setattr(slurm_commands, "job_state", lambda _: JobState("COMPLETED", "", "n1"))
    monkeypatch.setattr("computerrl.launch.cluster.submit.shutil.which", lambda _: "/usr/bin/scontrol")
    return tmp_path


def send(*overrides: str, resume: bool = False) -> tuple[Path, str]:
    config, job_id = submit.submit(Path("trial.yaml"), overrides=overrides, site="site.yaml", resume=resume)
    return config.folder, job_id


def test_submitted_run_has_all_that_its_job_reads(site: Path) -> None:
    folder, job_id = send()
    assert (str(folder), job_id) == ("runs/trial", "77")
    assert {path.name for path in (folder / "launch").iterdir()} == {"site.yaml", "job.sbatch", "job.json"}
    assert "bind_address: host" in (folder / "config.yaml").read_text()
    assert (folder / ".keys").stat().st_mode & 0o777 == 0o700
    assert (folder / ".keys" / "server.key").stat().st_mode & 0o777 == 0o600
    assert job_of(folder) == SubmittedJob("77", str(site))


def test_refused_job_leaves_no_run_folder(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> str:
        raise SetupError(submit.Problem("sbatch", "the moon is full", "wait"))

    monkeypatch.setattr(slurm_commands, "submit", refuse)
    with pytest.raises(SetupError, match="moon"):
        send()
    assert list((site / "runs").iterdir()) == []


def test_second_run_of_a_name_is_refused_while_the_first_one_lives(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    send()
    monkeypatch.setattr(slurm_commands, "job_state", lambda _: JobState("PENDING", "Priority", ""))
    for resume in (False, True):
        with pytest.raises(ConfigError, match=r"runs/trial is job 77, which is PENDING"):
            send(resume=resume)
    monkeypatch.setattr(slurm_commands, "job_state", lambda _: None)
    assert str(send()[0]) == "runs/trial-2"


def test_resumed_run_keeps_its_folder_and_its_keys(site: Path) -> None:
    folder, _ = send()
    key = (folder / ".keys" / "server.key").read_bytes()
    assert send(resume=True)[0] == folder
    assert (folder / ".keys" / "server.key").read_bytes() == key


def test_nodes_that_do_not_exist_or_do_not_do_are_all_named(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (site / "site.yaml").write_text("learner: {partition: gpu, has_gpus: true}\nworker: {partition: night}\n")
    small = {"gpu": NodesOf(1, 1, 256000, 0, "1:00")}
    monkeypatch.setattr(slurm_commands, "nodes_of", small.get)
    with pytest.raises(PreflightFailed) as caught:
        send("cluster.num_learner_nodes=2", "learner.num_ranks=2")
    said = str(caught.value)
    for reason in ("there is no partition 'night'", "cores and has 1", "no node of gpu has one", "2 nodes are requested"):
        assert reason in said
    assert not (site / "runs").exists()


def test_run_folder_that_cannot_be_written_to_is_named(site: Path) -> None:
    with pytest.raises(PreflightFailed, match="run_dir: no run folder can be made: '/proc/x'"):
        send("run_dir=/proc/x")


def test_state_is_one_line(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = send()
    assert describe_job(folder) == "job 77: COMPLETED on n1"
    monkeypatch.setattr(slurm_commands, "job_state", lambda _: JobState("PENDING", "BeginTime", "(null)", 2))
    assert describe_job(folder) == "job 77: PENDING (BeginTime), started again 2 times"
    monkeypatch.setattr("computerrl.launch.cluster.submit.shutil.which", lambda _: None)
    assert "no Slurm commands" in describe_job(folder)
    assert describe_job(site) == ""


def test_cancel_ends_the_job_and_its_workers_that_live(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = send()
    remember(folder, SubmittedJob("77", str(site), ("78", "79")))
    states = {"77": "RUNNING", "78": "COMPLETED", "79": "PENDING"}
    ended: list[str] = []
    monkeypatch.setattr(slurm_commands, "job_state", lambda job_id: JobState(states[job_id], "", ""))
    monkeypatch.setattr(slurm_commands, "cancel", ended.append)
    assert "cancelled job 77, 79" in cancel(folder)
    assert ended == ["77", "79"]
    with pytest.raises(SetupError, match="was not submitted"):
        cancel(site)


def test_job_file_that_is_damaged_is_named(site: Path) -> None:
    folder, _ = send()
    (folder / "launch" / "job.json").write_text(json.dumps({"job": 1}))
    with pytest.raises(SetupError, match=r"job\.json"):
        describe_job(folder)


def test_torch_is_asked_for_here_only_without_a_container(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"torch": None}
    monkeypatch.setattr("computerrl.launch.run.preflight.importlib.util.find_spec", lambda name: found.get(name, object()))
    with pytest.raises(PreflightFailed, match="not installed: torch"):
        send()
    with (site / "site.yaml").open("a") as file:
        file.write("container: side.sif\n")
    assert send()[1] == "77"
