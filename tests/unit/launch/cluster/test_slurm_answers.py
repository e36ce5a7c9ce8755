"""What Slurm's commands say, read; and a fake sbatch that refuses."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from computerrl.common.errors import ConfigError, SetupError
from computerrl.launch.cluster import slurm_commands
from computerrl.launch.cluster.slurm_commands import JobState, parse_job, parse_nodes

JOB = (
    "JobId=12 JobName=smoke UserId=me(1000) Requeue=1 Restarts=2 JobState=PENDING Reason=Resources Dependency=(null) "
    "NodeList=(null) Partition=main"
)
NODES = """\
main*|3|64|256000|gpu:a100:8(S:0-1)|2-00:00:00
main*|1|32|128000|(null)|2-00:00:00
night|9|16+|64000+|(null)|infinite
"""


def test_job_line_gives_state_reason_and_restarts() -> None:
    state = parse_job(JOB)
    assert state == JobState("PENDING", "Resources", "(null)", 2)
    assert state.is_active
    assert not JobState("FAILED", "", "").is_active


def test_nodes_of_a_partition_are_its_largest() -> None:
    found = parse_nodes(NODES, "main")
    assert found is not None
    assert (found.num_nodes, found.num_cores, found.memory_mb, found.num_gpus) == (4, 64, 256000, 8)
    default, night = parse_nodes(NODES, None), parse_nodes(NODES, "night")
    assert default == found
    assert night is not None and (night.num_cores, night.memory_mb, night.num_gpus) == (16, 64000, 0)
    assert parse_nodes(NODES, "day") is None


def fake(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in slurm_commands.COMMANDS:
        fake(tmp_path, name, "exit 0")
    return tmp_path


def test_id_is_read_without_the_clusters_name(commands: Path) -> None:
    fake(commands, "sbatch", "echo '4711;east'")
    assert slurm_commands.submit(commands / "x") == "4711"


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ("invalid partition specified: day", "partition"),
        ("Invalid account or account/partition combination specified", "account"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "time_limit"),
        ("Memory specification can not be satisfied", "memory_mb_per_node"),
        ("Requested node configuration is not available", "partition"),
        ("Invalid generic resource (gres) specification", "has_gpus"),
    ],
)
def test_refusal_names_the_field_of_the_site_profile(commands: Path, said: str, field: str) -> None:
    fake(commands, "sbatch", f"echo 'sbatch: error: {said}' >&2; exit 1")
    with pytest.raises(ConfigError, match=f"site: .*{field}"):
        slurm_commands.submit(commands / "x")


def test_refusal_nobody_foresaw_keeps_slurms_words(commands: Path) -> None:
    fake(commands, "sbatch", "echo 'sbatch: error: the moon is full' >&2; exit 1")
    with pytest.raises(SetupError, match="the moon is full"):
        slurm_commands.submit(commands / "x")


def test_missing_commands_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match=r"(?s)sbatch, srun.*computerrl up"):
        slurm_commands.require_slurm()


def test_allocation_outside_of_a_job_is_an_error() -> None:
    with pytest.raises(SetupError, match="computerrl submit"):
        slurm_commands.allocation({})


def test_allocation_of_a_heterogeneous_job_has_a_group_for_each_part(commands: Path) -> None:
    fake(commands, "scontrol", "case $3 in 'a[1-2]') printf 'a1\\na2\\n';; *) echo $3;; esac")
    environ = {
        "SLURM_JOB_ID": "5",
        "SLURM_HET_SIZE": "2",
        "SLURM_JOB_NODELIST_HET_GROUP_0": "g1",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "a[1-2]",
    }
    found = slurm_commands.allocation(environ)
    assert found.groups == (("g1",), ("a1", "a2"))
    assert slurm_commands.allocation({"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "g1"}).nodes == ("g1",)
