"""Offloaded masters (`learner.optimizer.offload`): the same training to the bit, and what lies where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from computerrl.common.config import RunConfig
from computerrl.common.memory_plan import learner_mb, learner_parts, offloaded_mb
from computerrl.learner.algorithms import PolicyAges
from computerrl.learner.model import transfers
from computerrl.learner.model.policy import load_policy
from computerrl.learner.model.transfers import HostBuffers
from computerrl.learner.training.trainer import Trainer
from tests.support.data.trainer_data import make_step, random_groups

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def runs_below_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a trainer dumps goes there."""
    monkeypatch.chdir(tmp_path)


def make_config(*, offload: bool, dtype: str = "float32", top_layers: int | None = 2, **learner: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": {"name": "tiny-random", "dtype": dtype, "trainable_top_layers": top_layers},
            "learner": {
                # The batches here say of made-up log-probs that the present weights sampled them.
                "max_logprob_gap": None,
                "num_minibatches": 2,
                "algorithm": {"name": "grpo", "options": {"kl_beta": 0.01}},
                "optimizer": {"lr": 1e-3, "max_grad_norm": 0.05, "weight_decay": 0.01, "offload": offload},
                **learner,
            },
        }
    )


def make_trainer(**settings: Any) -> Trainer:
    config = make_config(**settings)
    return Trainer(config, load_policy(config))


def play(trainer: Trainer, seeds: range) -> list[dict[str, float]]:
    """Supervised steps, a reference, updates; their metrics without times."""
    steps = [make_step([5, 6, 7, i], [8, 9, i + 20], logprobs=[], version=[]) for i in range(3, 9)]
    metrics = []
    for seed in seeds:
        metrics.append(trainer.sft_step(steps[seed % 3 :], 1e-3))
        trainer.change_objective(1e-3)
        if not seed:
            trainer.set_reference()
        metrics.append(trainer.update(trainer.algorithm.prepare(random_groups(seed=seed), ages=PolicyAges(0))))
    return [{name: value for name, value in one.items() if name not in ("train_s", "trained_tokens_per_s")} for one in metrics]


def copied(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in state.items()}


def assert_same_bits(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    assert [name for name, tensor in left.items() if not torch.equal(tensor, right[name])] == []


@pytest.mark.parametrize(("dtype", "top_layers"), [("float32", 2), ("bfloat16", 2), ("float32", None)])
def test_training_with_offloaded_masters_is_the_same_to_the_bit(dtype: str, top_layers: int | None) -> None:
    found = []
    for offload in (False, True):
        trainer = make_trainer(offload=offload, dtype=dtype, top_layers=top_layers)
        metrics = play(trainer, range(3))
        found.append((metrics, copied(trainer.trainable_tensors()), copied(trainer.state_dict())))
    (metrics, weights, state), (offloaded_metrics, offloaded_weights, offloaded_state) = found
    assert offloaded_metrics == metrics
    assert any(one["grad_norm"] > 0.05 for one in metrics), "no gradient was clipped"
    assert_same_bits(offloaded_weights, weights)
    assert_same_bits(offloaded_state, state)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("before", "after"), [(False, True), (True, False), (True, True)])
def test_resume_with_another_setting_goes_on_to_the_same_bits(dtype: str, before: bool, after: bool) -> None:
    trainer = make_trainer(offload=before, dtype=dtype)
    play(trainer, range(2))
    state = copied(trainer.state_dict())
    expected = play(trainer, range(2, 4))
    resumed = make_trainer(offload=after, dtype=dtype)
    resumed.load_state_dict(state)
    assert play(resumed, range(2, 4)) == expected
    assert_same_bits(copied(resumed.trainable_tensors()), copied(trainer.trainable_tensors()))
    assert_same_bits(copied(resumed.state_dict()), copied(trainer.state_dict()))


def test_step_that_is_not_finite_is_skipped_and_leaves_nothing_behind() -> None:
    trainer = make_trainer(offload=True)
    before = copied(trainer.trainable_tensors())
    weights = trainer.policy.weights
    (next(iter(weights.compute.values())).sum() * torch.inf).backward()
    assert weights.has_gradients
    trainer.optimizer.step(1e-3, [])
    assert trainer.optimizer.num_skipped == 1 and not weights.has_gradients
    assert_same_bits(copied(trainer.trainable_tensors()), before)


# --- memory ------------------------------------------------------------------------------------------------------------


def num_bytes(tensors: Any) -> int:
    """Of the distinct pieces of memory that ``tensors`` lie in."""
    pieces = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors if one is not None}
    return sum(pieces.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_device_and_host_hold_what_the_estimate_counts(dtype: str) -> None:
    trainer = make_trainer(offload=True, dtype=dtype, top_layers=None)
    weights, element_bytes = trainer.policy.weights, 4 if dtype == "float32" else 2
    trained = list(weights.compute.values())
    num_trained = num_bytes(trained) / element_bytes
    logprobs = trainer.policy.forward(*_pack_of(trainer), temperature=1.0).logprobs_U
    logprobs.sum().backward()
    of_device = num_bytes([*(one.grad for one in trained), *(one.grad for one in weights._gathering.values())])
    before_step = {one.untyped_storage().data_ptr() for one in trained}
    trainer.optimizer.step(1e-3, [])
    state = trainer.state_dict()
    of_host = num_bytes([tensor for name, tensor in state.items() if name.startswith(("master/", "optimizer/exp_avg"))])
    buffers = weights._buffers
    assert buffers is not None
    of_host += num_bytes(buffers._buffers.values())
    config = make_config(offload=True, dtype=dtype, top_layers=None)
    parts = learner_parts(config, "none")
    assert (of_device, of_host) == (4 * num_trained, 16 * num_trained)
    assert parts["offloaded masters and moments"] == 4 * parts["gradient"]
    assert {one.untyped_storage().data_ptr() for one in trained} == before_step
    masters = {one.untyped_storage().data_ptr() for one in weights.masters.values()}
    assert not masters & before_step


def _pack_of(trainer: Trainer) -> list[Any]:
    return trainer.policy.packs([make_step([5, 6, 7], [8, 9])], max_tokens=64)


@pytest.mark.parametrize(
    ("dtype", "num_ranks", "kept", "of_device"),
    [("bfloat16", 1, 16, 4), ("bfloat16", 4, 16, 8), ("float32", 1, 12, 4), ("float32", 4, 12, 4)],
)
def test_estimate_counts_bytes_of_a_parameter_where_they_lie(dtype: str, num_ranks: int, kept: int, of_device: int) -> None:
    plain, offloaded = (
        make_config(offload=offload, dtype=dtype, top_layers=None, num_ranks=num_ranks) for offload in (False, True)
    )
    share = learner_parts(plain, "full", on_card=True)["masters, moments and gradient"] / kept
    parts = learner_parts(offloaded, "full", on_card=True)
    assert parts["gradient"] == pytest.approx(of_device * share)
    assert parts["offloaded masters and moments"] == 0.0 == offloaded_mb(plain)
    assert offloaded_mb(offloaded) == int(16 * share / 2**20)
    on_host = learner_mb(offloaded, "full") - learner_mb(plain, "full")
    assert on_host == pytest.approx((16 + of_device - kept) * share / 2**20, abs=1)


# --- buffers -----------------------------------------------------------------------------------------------------------


def test_gradients_come_with_one_wait_into_the_same_memory_each_time() -> None:
    waits: list[int] = []
    buffers = HostBuffers(CPU, wait=lambda: waits.append(1))
    rng = torch.Generator().manual_seed(0)
    places = []
    for number in range(1, 4):
        tensors = {name: torch.randn(shape, generator=rng) for name, shape in (("a", (3, 2)), ("b", (5,)), ("c", (0, 4)))}
        found = buffers.fetch(tensors)
        assert len(waits) == number
        assert_same_bits(found, tensors)
        places.append([tensor.data_ptr() for tensor in found.values()])
        masters = {name: torch.randn(tensor.shape, generator=rng) for name, tensor in tensors.items()}
        weights = {name: torch.zeros(tensor.shape, dtype=torch.bfloat16) for name, tensor in tensors.items()}
        buffers.send(masters, into=weights)
        assert_same_bits(weights, {name: master.to(torch.bfloat16) for name, master in masters.items()})
    assert len(waits) == 3 and places[0] == places[1] == places[2]


def test_buffers_of_a_gpu_are_page_locked_and_copied_without_a_wait_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the GPU: what is asked of torch is recorded, and done on the CPU."""
    asked: list[dict[str, Any]] = []
    waits: list[int] = []

    def empty(*shape: Any, pin_memory: bool, dtype: torch.dtype) -> torch.Tensor:
        asked.append({"pinned": pin_memory})
        return torch.zeros(*shape, dtype=dtype)

    class Recorded(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.Tensor.copy_:
                asked.append({"non_blocking": (kwargs or {}).get("non_blocking", False)})
            return super().__torch_function__(func, types, args, kwargs or {})

    monkeypatch.setattr(transfers.torch, "empty", empty)
    monkeypatch.setattr(transfers, "_wait_for_stream", lambda: waits.append(1))
    buffers = HostBuffers(torch.device("cuda"))
    there = {name: torch.ones(4).as_subclass(Recorded) for name in "ab"}
    buffers.fetch(there)
    assert waits == [1]
    buffers.send({name: torch.full((4,), 2.0) for name in "ab"}, into=there)
    assert waits == [1] and torch.equal(there["a"], torch.full((4,), 2.0))
    assert [one["pinned"] for one in asked if "pinned" in one] == [True, True]
    assert [one["non_blocking"] for one in asked if "non_blocking" in one] == [True] * 4
