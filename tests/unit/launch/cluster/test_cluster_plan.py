"""Configuration and site -> nodes, job script, srun and ssh commands."""

from __future__ import annotations

import csv
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from computerrl.common.config import HostList, RunConfig, SiteProfile, load_site
from computerrl.common.errors import ConfigError
from computerrl.env_server.image.apptainer_install import Apptainer
from computerrl.launch.cluster import plan as cluster_plan
from computerrl.launch.cluster import slurm
from computerrl.launch.cluster.job import in_container, under_torchrun
from computerrl.launch.cluster.ssh import over_ssh
from computerrl.launch.cluster.up import with_shape
from computerrl.launch.plan.processes import Layout, idle_desktops, make_plan
from computerrl.launch.supervision.processes import STOP_SIGNAL
from tests.conftest import CheckGolden

SITE = SiteProfile.model_validate(
    {
        "account": "abc123",
        "time_limit": "1-12:00:00",
        "warning_s": 120,
        "modules": ["apptainer/1.4", "python 3.11"],
        "setup": ["ulimit -n 65536"],
        "environment": {"NOTE": "it's fine"},
        "network": "interface:ib0",
        "srun": ["--mpi=none"],
        "learner": {"partition": "gpu", "constraint": "a100&ib", "has_gpus": True, "gpu_type": "a100", "exclusive": True},
        "worker": {"partition": "cpu", "sbatch": ["--qos=long"]},
    }
)


def config(**sections: Any) -> RunConfig:
    tree = {
        "name": "trial",
        "model": {"name": "tiny-random", "dtype": "float32"},
        "desktop": {"num_desktops": 8},
        "actor": {"num_actors": 4, "num_threads": None},
        "learner": {"num_ranks": 8},
        "cluster": {"num_learner_nodes": 2, "num_worker_nodes": 2},
    }
    return RunConfig.model_validate({**tree, **sections})


def plan(chosen: RunConfig | None = None, site: SiteProfile = SITE) -> cluster_plan.ClusterPlan:
    return cluster_plan.cluster_plan(
        chosen or config(), site, python="python3", source_root=Path("/src"), folder=Path("/data/my runs"), cache=Path("/cache")
    )


def test_job_script_golden(check_golden: CheckGolden) -> None:
    check_golden("job.sbatch", plan().script.encode())


def read_by_sbatch(line: str) -> list[str]:
    """Words of a `#SBATCH` line, by the rules of Slurm's sbatch/opt.c: blanks divide, quotes hold them, # ends."""
    words, word, quote, text = [], "", "", iter(line.removeprefix("#SBATCH "))
    for letter in text:
        if letter == "\\":
            word += next(text)
        elif letter in "\"'" and quote in ("", letter):
            quote = "" if quote else letter
        elif letter == "#":
            break
        elif letter.isspace() and not quote:
            words.append(word)
            word = ""
        else:
            word += letter
    return [*words, word]


ODD = (
    "my runs",
    "a;b",
    "$(id)",
    "`id`",
    "-rf",
    "a#b",
    " # b",
    "it's",
    '"',
    "a|b&c",
    "(x)[y]*",
    "Übung 日本",
    "a%jb",
    "100%",
    "a,b:c",
)


@pytest.mark.parametrize("name", ODD)
def test_job_script_means_folders_with_odd_names(name: str) -> None:
    script = replace(plan(config(run_dir=name)), folder=Path("/data") / name).script
    (output,) = read_by_sbatch(next(line for line in script.splitlines() if "--output" in line))
    assert output.replace("%%", "%") == f"--output={name}/trial/launch/job-%j.log"
    assert output.replace("%%", "").count("%") == 1
    assert shlex.split(script.splitlines()[-1])[-1] == f"{name}/trial"
    assert ["cd", f"/data/{name}"] in map(shlex.split, (line for line in script.splitlines() if line.startswith("cd ")))


@pytest.mark.parametrize("option", ["account", "partition", "constraint"])
def test_job_script_means_options_with_odd_values(option: str) -> None:
    for value in ODD:
        site = {option: value} if option == "account" else {"learner": {option: value}}
        lines = plan(site=SiteProfile.model_validate(site)).script.splitlines()
        assert [f"--{option}={value}"] in [read_by_sbatch(line) for line in lines if line.startswith("#SBATCH")]


def test_name_that_no_batch_script_can_hold_is_refused() -> None:
    for folder in ("a\\b", "a\nb"):
        with pytest.raises(ConfigError, match=r"batch script|backslash"):
            _ = plan(config().model_copy(update={"run_dir": folder})).script
    with pytest.raises(ConfigError, match="#SBATCH --account"):
        _ = plan(site=SiteProfile(account="x\n#SBATCH --uid=0")).script


@pytest.mark.parametrize("name", ["A B", "A;id", "1A", "", "A-B", "$(id)", "A\n"])
def test_environment_with_a_name_that_no_shell_sets_is_refused(name: str) -> None:
    for kind in (SiteProfile, HostList):
        with pytest.raises(ValueError, match="environment"):
            kind.model_validate({"environment": {name: "x"}, **({"learner": ["a"]} if kind is HostList else {})})


@pytest.mark.parametrize("host", ["-oProxyCommand=id", "", "a b", "-", "a\nb"])
def test_host_that_ssh_would_take_for_something_else_is_refused(host: str) -> None:
    for place in ("learner", "workers"):
        with pytest.raises(ValueError, match=place):
            HostList.model_validate({"learner": ["node-1"], place: [host]})


def test_container_sees_folders_with_odd_names(monkeypatch: pytest.MonkeyPatch) -> None:
    apptainer = Apptainer(Path("/a/bin/apptainer"), "1", (), True)
    monkeypatch.setattr("computerrl.env_server.image.apptainer_install.find_apptainer", lambda: apptainer)
    spec = in_container(plan().specs[0], SiteProfile(container="gpu.sif", binds=("/a:/b",)), config(run_dir='/x,y: "z"'))
    mounts = [spec.argv[place + 1] for place, word in enumerate(spec.argv) if word == "--mount"]
    fields = [next(csv.reader([mount])) for mount in mounts]
    assert ["type=bind", 'source=/x,y: "z"', 'destination=/x,y: "z"'] in fields
    assert spec.argv[spec.argv.index("--bind") + 1] == "/a:/b"


def test_roles_are_dealt_out_to_their_nodes() -> None:
    nodes = {spec.name: (spec.node, spec.num_nodes) for spec in plan().specs}
    assert nodes == {
        "broker-0": (0, 1),
        "env_server-0": (2, 1),
        "env_server-1": (3, 1),
        "actor-0": (2, 1),
        "actor-1": (3, 1),
        "actor-2": (2, 1),
        "actor-3": (3, 1),
        "learner-0": (0, 2),
    }


def test_parts_ask_for_their_fullest_node() -> None:
    learner, worker = plan().parts
    ranks = next(spec.resources for spec in plan().specs if spec.role == "learner")
    assert ranks.num_cores == 16 and ranks.num_gpus == 4
    assert (learner.num_nodes, learner.per_node.num_cores, learner.per_node.num_gpus) == (2, 17, 4)
    assert (worker.num_nodes, worker.per_node.num_cores, worker.per_node.num_gpus) == (2, 4 + 2 * 4, 0)
    assert worker.per_node.memory_mb > 8 * 700 * 1.25


def test_other_nodes_reach_every_socket_only_where_there_are_other_nodes() -> None:
    assert plan().config.broker.bind_address == "interface:ib0"
    alone = {"cluster": {"num_worker_nodes": 0}, "learner": {"num_ranks": 1}}
    assert plan(config(**alone)).config.broker.bind_address == "127.0.0.1"
    alone["cluster"]["elastic"] = True
    assert plan(config(**alone)).config.learner.bind_address == "interface:ib0"
    mine = config(broker={"bind_address": "10.0.0.7"})
    assert plan(mine).config.broker.bind_address == "10.0.0.7"


def test_one_part_is_no_heterogeneous_job() -> None:
    script = plan(config(cluster={"num_worker_nodes": 0}, learner={"num_ranks": 1})).script
    assert "hetjob" not in script
    assert "#SBATCH --nodes=1" in script


@pytest.mark.parametrize(
    ("sections", "site", "message"),
    [
        ({"learner": {"num_ranks": 3}}, {}, "3 ranks do not divide evenly over 2 learner nodes"),
        ({"mode": "serial", "learner": {}, "cluster": {}}, {}, "serial is one process"),
        ({}, {"worker": {"cores_per_node": 4}}, "a worker node needs 12 cores and has 4"),
        ({}, {"worker": {"memory_mb_per_node": 4096}}, "MiB and has 4096"),
        ({}, {"learner": {"has_gpus": True, "gpus_per_node": 2}}, "a learner node needs 4 GPUs and has 2"),
    ],
)
def test_what_cannot_be_is_named(sections: dict[str, Any], site: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(config(**sections), SiteProfile.model_validate(site))


# --- srun ------------------------------------------------------------------------------------------------------------

ALLOCATION = slurm.Allocation("17", (("g1", "g2"), ("c1", "c2")))


def srun(name: str, allocation: slurm.Allocation = ALLOCATION) -> tuple[str, ...]:
    spec = next(spec for spec in plan().specs if spec.name == name)
    made = slurm.srun(spec, allocation, site=SITE, stop_s=3.0, notice=Path("/runs/trial/leave"), python="python3")
    assert made.stop_signal == STOP_SIGNAL
    return made.argv


def test_srun_binds_a_process_to_its_node_and_its_share() -> None:
    argv = srun("actor-3")
    assert argv[0] == "srun"
    for option in ("--het-group=1", "--nodelist=c2", "--exact", "--cpus-per-task=4", "--gres=none", "--mpi=none", "--input=none"):
        assert option in argv
    assert argv[argv.index("--") + 1 :] == ("python3", "-m", "computerrl", "actor", "runs/trial/config.yaml", "--index", "3")


def test_srun_of_a_learner_takes_all_its_nodes_and_gpus() -> None:
    argv = srun("learner-0")
    for option in ("--het-group=0", "--nodes=2", "--ntasks=2", "--nodelist=g1,g2", "--gres=gpu:a100:4", "--kill-on-bad-exit=1"):
        assert option in argv


def test_srun_names_no_group_in_a_plain_job() -> None:
    argv = srun("broker-0", slurm.Allocation("17", (("a", "b", "c", "d"),)))
    assert not any(option.startswith("--het-group") for option in argv)


def test_torchrun_starts_each_nodes_ranks_and_leaves_sigterm_alone() -> None:
    spec = next(spec for spec in plan().specs if spec.role == "learner")
    argv = under_torchrun(spec, config(), endpoint="10.0.0.1:23456", job_id="17").argv
    assert argv[:3] == ("python3", "-m", "torch.distributed.run")
    for option in ("--nnodes=2", "--nproc-per-node=4", "--rdzv-endpoint=10.0.0.1:23456", "--signals-to-handle=SIGINT"):
        assert option in argv
    assert argv[-6:] == ("-m", "computerrl", "learner", "runs/trial/config.yaml", "--index", "0")


# --- ssh -------------------------------------------------------------------------------------------------------------


def ssh(name: str, **hosts: Any) -> tuple[str, ...]:
    listed = HostList.model_validate({"learner": ["g1", "g2"], "workers": ["c1", "c2"], **hosts})
    specs = plan(with_shape(config(), listed), listed.as_site()).specs
    spec = next(spec for spec in specs if spec.name == name)
    made = over_ssh(
        spec,
        listed,
        folder=Path("/data/my runs"),
        logs=Path("/runs/logs/1"),
        stop_s=3.0,
        python="python3",
        here="python3",
        num_rank_gpus=4,
    )
    assert made.stop_signal is None and made.env == {}
    return made.argv


def test_ssh_command_quotes_its_folder_and_says_where_errors_go() -> None:
    *_, host, line = ssh("env_server-1", environment={"NOTE": "two words"})
    assert host == "c2"
    assert line.startswith("cd '/data/my runs' && exec env ")
    assert "'NOTE=two words'" in line
    assert "COMPUTERRL_ERROR_FILE=/runs/logs/1/env_server-1.error.json" in line
    assert "--until-eof --" in line


def test_ssh_gives_engines_their_gpus_in_turn() -> None:
    found = [ssh(f"actor-{index}", gpus_per_worker=2)[-1] for index in range(4)]
    assert [line.partition("CUDA_VISIBLE_DEVICES=")[2][0] for line in found] == ["0", "0", "1", "1"]
    assert "CUDA_VISIBLE_DEVICES" not in ssh("actor-0")[-1]


@pytest.mark.parametrize(("gpus_per_learner", "given"), [(6, "4545"), (4, "0123")])
def test_ssh_gives_engines_beside_the_learner_what_its_ranks_leave(gpus_per_learner: int, given: str) -> None:
    found = [ssh(f"actor-{index}", workers=[], gpus_per_learner=gpus_per_learner)[-1] for index in range(4)]
    assert [line.partition("CUDA_VISIBLE_DEVICES=")[2][0] for line in found] == list(given)


def test_ssh_starts_a_learner_on_several_hosts_together() -> None:
    argv = ssh("learner-0", gpus_per_learner=4)
    assert argv[:3] == ("python3", "-m", "computerrl.launch.cluster.together")
    assert {"g1", "g2"} <= set(argv)
    assert argv[-1].count("CUDA_VISIBLE_DEVICES=0,1,2,3") == 1


# --- sites -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(Path("configs/sites").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_site_loads_by_its_name_and_renders(path: Path) -> None:
    chosen = config(learner={"num_ranks": 2}, cluster={"num_worker_nodes": 2}, desktop={"num_desktops": 4})
    assert plan(chosen, load_site(path.stem)).script.startswith("#!/bin/bash\n")


def test_unknown_site_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match="one-partition"):
        load_site("nowhere")


def test_memory_of_a_layout_counts_each_node_once() -> None:
    specs = make_plan(config(), config_path=Path("c"), python="p", source_root=None, layout=Layout(2, 2))
    whole = sum(slurm.node_resources(specs, node).memory_mb for node in range(4))
    assert whole == sum(spec.resources.memory_mb * spec.num_nodes for spec in specs)
    assert all("PYTHONPATH" not in spec.env for spec in specs)
    assert replace(specs[0], index=7).name == "broker-7"


@pytest.mark.parametrize("num_nodes", [0, 1, 3])
@pytest.mark.parametrize("num_desktops", [1, 4, 9, 40])
@pytest.mark.parametrize("num_actors", [1, 4])
def test_idle_desktops_are_noted_and_the_advice_is_enough(num_nodes: int, num_desktops: int, num_actors: int) -> None:
    layout = Layout(num_worker_nodes=num_nodes)

    def noted(**actor: int) -> str:
        tree = {"desktop": {"num_desktops": num_desktops}, "actor": {"num_actors": num_actors, "num_episodes": 4, **actor}}
        return str(idle_desktops(RunConfig.model_validate(tree), layout) or "")

    all_desktops, episodes = num_desktops * max(1, num_nodes), 4 * num_actors
    assert bool(noted()) == (all_desktops > 2 * episodes), "a spare for each episode prepares the next one"
    if noted():
        assert f"{all_desktops} desktops, {episodes} episodes at a time: {all_desktops - episodes} will idle" in noted()
        for name, value in re.findall(r"actor\.(\w+)=(\d+)", noted()):
            assert not noted(**{name: int(value)})
