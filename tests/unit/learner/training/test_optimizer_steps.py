"""The optimizer alone, on a model of one layer: masters, warm-up, skipped steps, and its state."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from computerrl.common.config import LearnerConfig
from computerrl.common.config.learner import OptimizerConfig
from computerrl.common.errors import TrainingDiverged
from computerrl.learner.model.ranks import SOLO
from computerrl.learner.model.trained_weights import TrainedWeights
from computerrl.learner.training.optimizer import PolicyOptimizer


class Layer(torch.nn.Linear):
    """A "model" of one layer with the attribute that trained weights read."""

    @property
    def dtype(self) -> torch.dtype:
        return self.weight.dtype


def weights_of(dtype: torch.dtype = torch.float32) -> TrainedWeights:
    torch.manual_seed(0)
    layer = Layer(3, 2, bias=False).to(dtype)
    return TrainedWeights.of(layer, dict(layer.named_parameters()))


def optimizer_of(weights: TrainedWeights, folder: Path, **optimizer: object) -> PolicyOptimizer:
    settings = OptimizerConfig.model_validate({"lr": 1e-2, "warmup_updates": 0, **optimizer})
    return PolicyOptimizer(LearnerConfig(optimizer=settings), weights, None, ranks=SOLO, dumps=folder / "dumps")


def backward(weights: TrainedWeights, scale: float = 1.0) -> None:
    parameter = weights.compute["weight"]
    (parameter.float().sum() * scale).backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_gather_in_masters_and_a_step_syncs_the_compute_weights(dtype: torch.dtype, tmp_path: Path) -> None:
    weights = weights_of(dtype)
    before = weights.copy()["weight"]
    backward(weights)
    backward(weights)
    assert weights.compute["weight"].grad is None
    torch.testing.assert_close(weights.gradients()["weight"], torch.full((2, 3), 2.0))
    norm = optimizer_of(weights, tmp_path).step(1e-2, [])
    assert norm == pytest.approx(2.0 * 6**0.5) and not weights.has_gradients
    torch.testing.assert_close(weights.compute["weight"].detach(), weights.masters["weight"].detach().to(dtype))
    assert not torch.equal(weights.compute["weight"], before)


def test_step_without_gradients_changes_nothing(tmp_path: Path) -> None:
    weights = weights_of()
    before = weights.copy()["weight"]
    assert optimizer_of(weights, tmp_path).step(1e-2, []) == 0.0
    assert torch.equal(weights.compute["weight"], before)


def test_warm_up_counts_updates_and_survives_a_change_of_objective(tmp_path: Path) -> None:
    optimizer = optimizer_of(weights_of(), tmp_path, lr=1.0, warmup_updates=4)
    rates = []
    for _ in range(2):
        rates.append(optimizer.rl_lr)
        optimizer.count_update()
    optimizer.change_objective(2.0)
    rates.append(optimizer.rl_lr)
    assert rates == [0.25, 0.5, 1.5]


def test_steps_that_are_not_finite_are_skipped_and_five_in_a_row_end_the_run(tmp_path: Path) -> None:
    weights = weights_of()
    optimizer = optimizer_of(weights, tmp_path)
    before = weights.copy()["weight"]
    for _ in range(4):
        backward(weights, float("inf"))
        optimizer.step(1e-2, [])
    assert optimizer.num_skipped == 4 and torch.equal(weights.compute["weight"], before)
    backward(weights, float("nan"))
    with pytest.raises(TrainingDiverged, match="5 optimizer steps in a row"):
        optimizer.step(1e-2, [])


def test_state_continues_as_undisturbed(tmp_path: Path) -> None:
    def stepped(optimizer: PolicyOptimizer, weights: TrainedWeights, number: int) -> None:
        for scale in range(1, number + 1):
            backward(weights, float(scale))
            optimizer.step(1e-2, [])
            optimizer.count_update()

    whole = weights_of()
    stepped(optimizer_of(whole, tmp_path), whole, 3)
    first = weights_of()
    left = optimizer_of(first, tmp_path)
    stepped(left, first, 2)
    state = {name: tensor.clone() for name, tensor in left.state_dict().items()}
    again = weights_of()
    right = optimizer_of(again, tmp_path)
    with torch.no_grad():
        right.load_state_dict(state, shard=lambda name, like: again.shard(state[name], like=like))
    backward(again, 3.0)
    right.step(1e-2, [])
    right.count_update()
    torch.testing.assert_close(again.masters["weight"], whole.masters["weight"], atol=0, rtol=0)
    with pytest.raises(ValueError, match="not this model's"):
        right.load_state_dict({"master/other": torch.zeros(1)}, shard=lambda name, like: like)


def test_reference_weights_replace_the_trained_ones_for_a_while() -> None:
    weights = weights_of()
    reference = {"weight": torch.zeros(2, 3)}
    own = weights.copy()["weight"]
    with weights.replaced_by(reference):
        assert not weights.compute["weight"].any() and not torch.is_grad_enabled()
    assert torch.equal(weights.compute["weight"], own)
    with pytest.raises(ValueError, match="another model"):
        weights.shard(torch.zeros(1), like=weights.masters["weight"])
