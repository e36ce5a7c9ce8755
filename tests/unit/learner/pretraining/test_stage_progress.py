"""A stage that was ended goes on as if it had not been: tensors, optimizer, number of steps, and the batches that follow."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
import torch

from computerrl.learner.pretraining.progress import Progress
from computerrl.learner.pretraining.tower import Batches, make_optimizer, set_lr


def trained(file: Path, *ends: int) -> dict[str, torch.Tensor]:
    """A small model after the last of ``ends`` steps; it was ended and made anew at each of them."""
    for end in ends:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
        optimizer = make_optimizer([(model, 0.1)])
        progress = Progress(file, model.state_dict())
        first = progress.restore(optimizer)
        batches = iter(Batches(lambda rng, _: torch.tensor([[rng.random() for _ in range(3)]]), seed=5, first=first))
        for step in range(first, end):
            set_lr(optimizer, 1 / (step + 1))
            optimizer.zero_grad()
            (model(next(batches)) - 1).square().sum().backward()
            optimizer.step()
        progress.keep(optimizer, end)
    return model.state_dict()


def test_ended_and_gone_on_is_the_same_to_the_bit(tmp_path: Path) -> None:
    at_once, in_parts = trained(tmp_path / "a.safetensors", 9), trained(tmp_path / "b.safetensors", 2, 3, 7, 9)
    for name, tensor in at_once.items():
        assert torch.equal(in_parts[name], tensor), name
    assert not torch.equal(trained(tmp_path / "c.safetensors", 8)["0.weight"], at_once["0.weight"])


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    trained(file, 1)
    other = torch.nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match="another model: remove it"):
        Progress(file, other.state_dict()).restore(make_optimizer([(other, 0.1)]))


@pytest.mark.parametrize("first", [0, 1, 4])
def test_batches_are_drawn_from_their_numbers(first: int) -> None:
    def make(rng: random.Random, number: int) -> tuple[int, float]:
        return number, rng.random()

    whole = list(itertools.islice(Batches(make, seed=1), 8))
    assert list(itertools.islice(Batches(make, seed=1, first=first), 8 - first)) == whole[first:]
    assert [number for number, _ in whole] == list(range(8)) and len({drawn for _, drawn in whole}) == 8
