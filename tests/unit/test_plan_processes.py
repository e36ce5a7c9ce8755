"""Configuration -> processes."""

from __future__ import annotations

from pathlib import Path

from common.config import ActorConfig, LearnerConfig, RunConfig
from launch.plan import make_plan


def plan(config: RunConfig) -> dict[str, object]:
    specs = make_plan(config, config_path=Path("runs/x/config.yaml"), python="python3", source_root=Path("/src"), num_cores=8)
    return {spec.name: spec for spec in specs}


def test_plan_default_config_has_one_of_each_in_starting_order() -> None:
    assert list(plan(RunConfig())) == ["broker-0", "env_server-0", "actor-0", "learner-0"]


def test_plan_central_inference_has_engines_with_the_threads_and_actors_without() -> None:
    specs = plan(RunConfig(actor=ActorConfig(num_actors=4, inference="central", num_engines=2, num_threads=3, num_episodes=5)))
    assert list(specs) == ["broker-0", "env_server-0", "engine-0", "engine-1", *(f"actor-{i}" for i in range(4)), "learner-0"]
    threads = {name: spec.env["OMP_NUM_THREADS"] for name, spec in specs.items()}  # type: ignore[attr-defined]
    assert (threads["engine-1"], threads["actor-1"]) == ("3", "1")


def test_engine_has_room_for_the_episodes_of_all_who_ask_it() -> None:
    assert ActorConfig(num_actors=5, num_episodes=4).num_live == 4
    assert ActorConfig(num_actors=5, num_episodes=4, inference="central", num_engines=2).num_live == 12


def test_plan_several_actors_numbers_them() -> None:
    specs = plan(RunConfig(actor=ActorConfig(num_actors=3)))
    assert [name for name in specs if name.startswith("actor")] == ["actor-0", "actor-1", "actor-2"]
    assert specs["actor-2"].argv[-1] == "2"  # type: ignore[attr-defined]


def test_plan_threads_follow_config_else_cores() -> None:
    specs = plan(RunConfig(actor=ActorConfig(num_threads=2), learner=LearnerConfig()))
    threads = {name: spec.env["OMP_NUM_THREADS"] for name, spec in specs.items()}  # type: ignore[attr-defined]
    assert threads == {"broker-0": "1", "env_server-0": "1", "actor-0": "2", "learner-0": "8"}


def test_plan_only_the_learner_ends_the_run_and_is_nice() -> None:
    specs = plan(RunConfig())
    assert [name for name, spec in specs.items() if spec.ends_run] == ["learner-0"]  # type: ignore[attr-defined]
    assert [name for name, spec in specs.items() if spec.nice] == ["learner-0"]  # type: ignore[attr-defined]


def test_plan_every_process_is_a_command_of_ours_with_the_resolved_config() -> None:
    for spec in plan(RunConfig()).values():
        assert spec.argv[:3] == ("python3", "-m", "launch.cli")  # type: ignore[attr-defined]
        assert spec.argv[4] == "runs/x/config.yaml"  # type: ignore[attr-defined]
