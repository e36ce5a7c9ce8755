"""What the learner computes again: the configured value, or what memory allows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from computerrl.common import host
from computerrl.common.config import RunConfig
from computerrl.common.memory_plan import (
    CUDA_HOST_MB,
    card_room_mb,
    choose_recomputation,
    host_room_mb,
    learner_mb,
    memory_parts,
)
from computerrl.launch.plan.machine import Machine
from computerrl.launch.plan.resources import describe_choice, plan_memory, role_resources
from computerrl.learner.model.policy import agreed_recomputation
from computerrl.learner.model.ranks import SOLO, Solo

MACHINE = Machine("Debian", "6.1", "cpu", 2, 64_000, 60_000, ())
CPU = torch.device("cpu")


def config(**sections: object) -> RunConfig:
    return RunConfig.model_validate({"model": {"dtype": "bfloat16"}, **sections})


def test_configured_value_is_taken_whatever_is_free() -> None:
    for value in ("none", "full"):
        chosen = choose_recomputation(config(learner={"activation_checkpointing": value}), room_mb=0)
        assert chosen.recomputation == value


def test_activations_are_kept_where_they_fit_with_room_to_spare() -> None:
    keeping_mb = learner_mb(config(), "none")
    assert learner_mb(config(), "full") < keeping_mb
    found = [choose_recomputation(config(), room_mb=share * keeping_mb).recomputation for share in (1.05, 1.2)]
    assert found == ["full", "none"]
    assert choose_recomputation(config(), room_mb=1.2 * keeping_mb, num_sharing=2).recomputation == "full"


def test_host_s_room_is_what_is_available_and_not_promised_to_others() -> None:
    others_mb = sum(count * mb for what, count, mb in memory_parts(config()) if what != "learner")
    assert host_room_mb(config(), total_mb=50_000, available_mb=49_000) == 50_000 - others_mb
    assert host_room_mb(config(), total_mb=50_000, available_mb=3_000) == 3_000
    apart = config(cluster={"num_worker_nodes": 1})
    assert host_room_mb(apart, total_mb=50_000, available_mb=49_000) == 49_000


@pytest.mark.parametrize(
    ("sections", "num_cards", "expected"),
    [
        ({"actor": {"engine": "vllm", "gpu_memory": 0.4}}, 1, 48_000),
        ({"actor": {"engine": "vllm"}}, 2, 79_000),
        ({"actor": {"engine": "vllm"}, "cluster": {"num_worker_nodes": 1}}, 1, 79_000),
    ],
)
def test_card_s_room_leaves_the_engine_its_part(sections: dict, num_cards: int, expected: float) -> None:
    assert card_room_mb(config(**sections), total_mb=80_000, free_mb=79_000, num_cards=num_cards) == pytest.approx(expected)


def test_plan_of_a_machine_shows_the_learner_as_it_will_run() -> None:
    least_mb = sum(count * mb for _, count, mb in memory_parts(config()))
    plenty, little = plan_memory(config(), MACHINE), plan_memory(config(), replace(MACHINE, available_memory_mb=least_mb))
    learner = [next(mb for what, _, mb in plan.parts if what == "learner") for plan in (plenty, little)]
    assert learner == [learner_mb(config(), "none"), learner_mb(config(), "full")]
    assert describe_choice(config(), plenty.choice).startswith("activation_checkpointing none: keeping all")
    assert describe_choice(config(), little.choice).startswith("activation_checkpointing full: keeping all")


def test_plan_of_a_machine_with_a_gpu_leaves_the_choice_to_the_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    plan = plan_memory(config(), replace(MACHINE, gpus=("a",)))
    assert plan.choice is None
    assert "auto: none where" in describe_choice(config(), plan.choice)


def test_host_of_a_learner_on_gpus_is_asked_for_no_activations() -> None:
    without, on_gpus = role_resources(config()), role_resources(config(), learner_has_gpus=True)
    libraries_mb = CUDA_HOST_MB * config().cluster.memory_margin
    assert on_gpus["learner"].memory_mb - libraries_mb < without["learner"].memory_mb


class OtherRankIsFull(Solo):
    """Two ranks; the other one has no room."""

    num_ranks = 2


def test_ranks_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "total_and_available_mb", lambda: (500_000, 400_000))
    assert agreed_recomputation(config(), device=CPU, ranks=SOLO) == "none"
    assert agreed_recomputation(config(), device=CPU, ranks=OtherRankIsFull()) == "full"
    monkeypatch.setattr(host, "total_and_available_mb", lambda: (500_000, 500))
    assert agreed_recomputation(config(), device=CPU, ranks=SOLO) == "full"
