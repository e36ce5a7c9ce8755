"""Every algorithm in the real trainer: an update of the tiny model with each file of configs/algorithms, whatever the packs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from computerrl.common.config import ModelConfig, OptimizerConfig, RunConfig, load_config
from computerrl.common.messages import ElementTarget, TrajectoryGroup
from computerrl.learner.algorithms import PolicyAges
from computerrl.learner.model.policy import load_policy
from computerrl.learner.training.trainer import Trainer
from tests.support.data.trainer_data import random_groups

FOLDER = Path(__file__).resolve().parents[4] / "configs" / "algorithms"
ONLY_SUPERVISED = {"behaviour_cloning"}
"""Their groups are for no update."""


def trainer_of(name: str, *, max_pack_tokens: int) -> Trainer:
    """A trainer of ``configs/algorithms/name.yaml`` on the tiny model."""
    learner = load_config(FOLDER / f"{name}.yaml").learner
    options = {**learner.algorithm.options}
    if "teacher" in options:
        options["teacher"] = "tiny-random"
    config = RunConfig(
        model=ModelConfig(name="tiny-random", dtype="float32", trainable_top_layers=2),
        learner=learner.model_copy(
            update={
                "max_pack_tokens": max_pack_tokens,
                "max_logprob_gap": None,  # The log-probs of the groups here are made up.
                "algorithm": learner.algorithm.model_copy(update={"options": options}),
                "optimizer": OptimizerConfig(lr=1e-3, warmup_updates=0),
            }
        ),
    )
    return Trainer(config, load_policy(config))


def groups_with_all_that_algorithms_read() -> list[TrajectoryGroup]:
    """Groups of both outcomes and several lengths, with matches and targets, and one state that two rollouts share."""
    rng = np.random.default_rng(1)
    made = []
    for group in random_groups(num_groups=4, size=6, seed=5):
        rollouts = tuple(
            replace(
                one,
                steps=tuple(
                    replace(
                        step,
                        matched=bool(rng.random() < 0.6),
                        places=(int(rng.integers(100)), 30),
                        target=ElementTarget(50, 30, 40, 20, 100, 60, True),
                    )
                    for step in one.steps
                ),
            )
            for one in group.trajectories
        )
        made.append(replace(group, trajectories=rollouts))
    return made


def after_an_update(name: str, *, max_pack_tokens: int) -> tuple[dict[str, torch.Tensor], bool, dict[str, float]]:
    """(weights, whether they changed, metrics)."""
    trainer = trainer_of(name, max_pack_tokens=max_pack_tokens)
    trainer.set_reference()
    before = {name: one.clone() for name, one in trainer.trainable_tensors().items()}
    batch = trainer.refine(trainer.algorithm.prepare(groups_with_all_that_algorithms_read(), ages=PolicyAges(0)))
    metrics = trainer.update(batch)
    after = {name: one.clone() for name, one in trainer.trainable_tensors().items()}
    return after, any(not torch.equal(after[name], one) for name, one in before.items()), metrics


@pytest.mark.parametrize("name", sorted({path.stem for path in FOLDER.glob("*.yaml")} - ONLY_SUPERVISED))
def test_update_as_configured_trains_and_is_the_same_in_any_packs(name: str) -> None:
    cut, changed, metrics = after_an_update(name, max_pack_tokens=48)
    whole, _, _ = after_an_update(name, max_pack_tokens=4096)
    assert changed and metrics["num_skipped"] == 0 and np.isfinite(metrics["loss"]) and metrics["grad_norm"] > 0
    # The first AdamW step is lr * sign(gradient): only entries whose gradient is all rounding may differ.
    for tensor, one in whole.items():
        assert ((cut[tensor] - one).abs() > 1e-4).float().mean() < 0.01, tensor
