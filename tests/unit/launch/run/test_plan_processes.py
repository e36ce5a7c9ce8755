"""Configuration -> processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from computerrl.common.config import ActorConfig, LearnerConfig, RunConfig
from computerrl.launch.plan.machine import inspect_machine, visible_gpus
from computerrl.launch.plan.processes import ProcessSpec, make_plan


def plan(config: RunConfig, gpus: Sequence[str] = ()) -> dict[str, ProcessSpec]:
    paths = {"config_path": Path("runs/x/config.yaml"), "source_root": Path("/src")}
    specs = make_plan(config, python="python3", num_cores=8, gpus=gpus, **paths)
    return {spec.name: spec for spec in specs}


def test_plan_default_config_has_one_of_each_in_starting_order() -> None:
    assert list(plan(RunConfig())) == ["broker-0", "env_server-0", "actor-0", "learner-0"]


def test_plan_central_inference_has_engines_with_the_threads_and_actors_without() -> None:
    specs = plan(RunConfig(actor=ActorConfig(num_actors=4, inference="central", num_engines=2, num_threads=3, num_episodes=5)))
    assert list(specs) == ["broker-0", "env_server-0", "engine-0", "engine-1", *(f"actor-{i}" for i in range(4)), "learner-0"]
    threads = {name: spec.env["OMP_NUM_THREADS"] for name, spec in specs.items()}
    assert (threads["engine-1"], threads["actor-1"]) == ("3", "1")


def test_engine_has_room_for_the_episodes_of_all_who_ask_it() -> None:
    assert ActorConfig(num_actors=5, num_episodes=4).num_live == 4
    assert ActorConfig(num_actors=5, num_episodes=4, inference="central", num_engines=2).num_live == 12


def test_plan_several_actors_numbers_them() -> None:
    specs = plan(RunConfig(actor=ActorConfig(num_actors=3)))
    assert [name for name in specs if name.startswith("actor")] == ["actor-0", "actor-1", "actor-2"]
    assert specs["actor-2"].argv[-1] == "2"


def test_plan_threads_follow_config_else_cores() -> None:
    specs = plan(RunConfig(actor=ActorConfig(num_threads=2), learner=LearnerConfig()))
    threads = {name: spec.env["OMP_NUM_THREADS"] for name, spec in specs.items()}
    assert threads == {"broker-0": "1", "env_server-0": "1", "actor-0": "2", "learner-0": "8"}


def test_plan_only_the_learner_ends_the_run_and_is_nice() -> None:
    specs = plan(RunConfig())
    assert [name for name, spec in specs.items() if spec.ends_run] == ["learner-0"]
    assert [name for name, spec in specs.items() if spec.nice] == ["learner-0"]


def test_plan_every_process_is_a_command_of_ours_with_the_resolved_config() -> None:
    for spec in plan(RunConfig()).values():
        assert spec.argv[:3] == ("python3", "-m", "computerrl")
        assert spec.argv[4] == "runs/x/config.yaml"


@pytest.mark.parametrize(
    ("gpus", "learner", "expected"),
    [
        ((), {}, [None, None, None]),
        (("0",), {}, ["0", "0", "0"]),
        (("0", "1"), {}, ["1", "1", "1"]),
        (("4", "5", "7"), {}, ["5", "7", "5"]),
        (("0", "1", "2", "3"), {"num_ranks": 2}, ["2", "3", "2"]),
        (("0", "1"), {"num_ranks": 2}, ["0", "1", "0"]),
        (("0", "1"), {"device": "cpu"}, [None, None, None]),
    ],
)
@pytest.mark.parametrize("inference", ["local", "central"])
def test_plan_engines_take_the_gpus_that_the_learner_leaves(
    gpus: tuple[str, ...], learner: dict[str, object], expected: list[str | None], inference: str
) -> None:
    config = RunConfig.model_validate({"actor": {"num_actors": 3, "inference": inference, "num_engines": 3}, "learner": learner})
    specs = plan(config, gpus)
    role = "actor" if inference == "local" else "engine"
    assert [specs[f"{role}-{i}"].env.get("CUDA_VISIBLE_DEVICES") for i in range(3)] == expected
    others = [spec for name, spec in specs.items() if not name.startswith(role)]
    assert not any("CUDA_VISIBLE_DEVICES" in spec.env for spec in others)


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ("0 1 2 3 4", ["1,2", "3,4", "1,2"]),
        ("0 1 2", ["1,2", "1,2", "1,2"]),
        ("a b c d", ["b,c", "d,b", "c,d"]),
        ("0 1", ["1", "1", "1"]),
    ],
)
def test_plan_engines_in_parts_take_neighbouring_gpus(gpus: str, expected: list[str]) -> None:
    config = RunConfig.model_validate({"actor": {"num_actors": 3, "engine": "vllm", "tensor_parallel_size": 2}})
    specs = plan(config, tuple(gpus.split()))
    assert [specs[f"actor-{i}"].env["CUDA_VISIBLE_DEVICES"] for i in range(3)] == expected
    assert {specs[f"actor-{i}"].resources.num_gpus for i in range(3)} <= {0, 2}


@pytest.mark.parametrize(("given", "expected"), [(None, ("0", "1")), ("3", ("3",)), ("1, 0", ("1", "0")), ("", ()), ("-1", ())])
def test_gpus_that_may_be_used(monkeypatch: pytest.MonkeyPatch, given: str | None, expected: tuple[str, ...]) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert visible_gpus(replace(inspect_machine(), gpus=("NVIDIA GPU", "NVIDIA GPU"))) == expected
