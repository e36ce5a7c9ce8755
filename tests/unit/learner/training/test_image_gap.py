"""The log-prob gap of steps with images: counted alone, so that it cannot hide among steps of text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from computerrl.common.errors import EngineMismatch
from computerrl.common.messages import Step
from computerrl.learner.algorithms import PolicyAges
from computerrl.learner.model.images import after_images
from computerrl.learner.model.policy import load_policy
from computerrl.learner.training.trainer import Trainer
from tests.support.data.trainer_data import make_group, make_step
from tests.support.data.vision_data import TALL, WIDE, Screens, make_config, own_logprobs, own_model, save_model


def batch_of(trainer: Trainer, screens: Screens, model: Any, *, of_text: float, of_images: float) -> Any:
    """Two steps with images and 14 of text, 20 tokens each, whose engine differs from the learner by so much."""
    rng = np.random.default_rng(0)
    steps: list[Step] = []
    for number in range(16):
        action = rng.integers(10, 1000, 20).tolist()
        shown = screens.step(screens.take(number, WIDE), screens.take(9, TALL), action=action)
        step = shown if number in (3, 8) else make_step([5, 6, 7, number], action)
        apart = of_images if step.images else of_text
        steps.append(replace(step, behavior_logprobs=own_logprobs(model, screens, step).detach().numpy() - apart))
    group = make_group([(number % 2 == 0, [step]) for number, step in enumerate(steps)], group_seq=0)
    return trainer.algorithm.prepare([group], ages=PolicyAges(0))


def test_gap_of_steps_with_images_ends_the_run_though_that_of_all_tokens_is_small(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model")
    config = make_config(folder, tmp_path, top_layers=1, max_logprob_gap=0.3)
    trainer, screens, model = Trainer(config, load_policy(config)), Screens(folder, config), own_model(folder)
    before = {name: tensor.clone() for name, tensor in trainer.trainable_tensors().items()}
    with pytest.raises(EngineMismatch, match=r"over 40 tokens after images .* differ by 0\.800 on average"):
        trainer.update(batch_of(trainer, screens, model, of_text=0.0, of_images=0.8))
    assert all(bool((tensor == before[name]).all()) for name, tensor in trainer.trainable_tensors().items())
    metrics = trainer.update(batch_of(trainer, screens, model, of_text=0.02, of_images=0.1))
    assert metrics["logprob_gap_images"] == pytest.approx(0.1, abs=1e-3)
    assert metrics["logprob_gap"] == pytest.approx((14 * 0.02 + 2 * 0.1) / 16, abs=1e-3)


@pytest.mark.parametrize("max_tokens", [4096, 60])
def test_tokens_after_images_are_those_of_steps_that_show_one(tmp_path: Path, max_tokens: int) -> None:
    folder = save_model(tmp_path / "model")
    config = make_config(folder, tmp_path, top_layers=1)
    policy, screens = load_policy(config), Screens(folder, config)
    first, second = screens.take(1, WIDE), screens.take(2, WIDE)
    steps = [
        make_step([5, 6], [11, 12]),
        screens.step(first, action=[11, 12, 13]),
        screens.step(first, action=[11, 14]),
        make_step([5, 6, 7], [11, 12, 15]),
        screens.step(second, first, action=[11]),
    ]
    for pack in policy.packs(steps, max_tokens=max_tokens):
        expected = [bool(steps[i].images) for i in pack.samples_S for _ in steps[i].action_tokens]
        assert after_images(pack).tolist() == expected
