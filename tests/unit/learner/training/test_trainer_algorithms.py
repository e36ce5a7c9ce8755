"""Every algorithm in the real trainer: an update of the tiny model with each file of configs/algorithms, whatever the packs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from computerrl.common.config import ModelConfig, OptimizerConfig, RunConfig, load_config
from computerrl.common.messages import ElementTarget, Step, TrajectoryGroup
from computerrl.learner.algorithms import PolicyAges
from computerrl.learner.model.policy import load_policy
from computerrl.learner.training.trainer import Trainer
from tests.support.data.trainer_data import random_groups
from tests.unit.learner.training.test_trainer_updates import plain_logprobs, plain_model

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


@pytest.fixture(scope="module")
def groups() -> list[TrajectoryGroup]:
    """Groups of both outcomes, nearly on policy, with all that algorithms read: matches and targets."""
    rng, model, made = np.random.default_rng(1), plain_model(), []

    def filled(step: Step) -> Step:
        exact = plain_logprobs(model, step).detach().numpy()
        return replace(
            step,
            behavior_logprobs=(exact + rng.normal(0, 0.003, len(exact))).astype(np.float32),
            matched=bool(rng.random() < 0.6),
            places=(int(rng.integers(100)), 30),
            target=ElementTarget(50, 30, 40, 20, 100, 60, True),
        )

    for group in random_groups(num_groups=4, size=6, seed=5):
        rollouts = tuple(replace(one, steps=tuple(map(filled, one.steps))) for one in group.trajectories)
        made.append(replace(group, trajectories=rollouts))
    return made


def after_an_update(
    name: str, groups: Sequence[TrajectoryGroup], *, max_pack_tokens: int
) -> tuple[dict[str, torch.Tensor], bool, dict[str, float]]:
    """(weights, whether they changed, metrics)."""
    trainer = trainer_of(name, max_pack_tokens=max_pack_tokens)
    trainer.set_reference()
    if name == "distillation":  # The teacher is the policy itself: first move away from it.
        trainer.sft_step([step for one in groups[0].trajectories for step in one.steps], 1e-3)
    before = {name: one.clone() for name, one in trainer.trainable_tensors().items()}
    batch = trainer.refine(trainer.algorithm.prepare(groups, ages=PolicyAges(0)))
    metrics = trainer.update(batch)
    after = {name: one.clone() for name, one in trainer.trainable_tensors().items()}
    return after, any(not torch.equal(after[name], one) for name, one in before.items()), metrics


@pytest.mark.parametrize("name", sorted({path.stem for path in FOLDER.glob("*.yaml")} - ONLY_SUPERVISED))
def test_update_as_configured_trains_and_is_the_same_in_any_packs(name: str, groups: list[TrajectoryGroup]) -> None:
    cut, changed, metrics = after_an_update(name, groups, max_pack_tokens=48)
    whole, _, _ = after_an_update(name, groups, max_pack_tokens=4096)
    assert changed and metrics["num_skipped"] == 0 and np.isfinite(metrics["loss"]) and metrics["grad_norm"] > 0
    # The first AdamW step is lr * sign(gradient): only entries whose gradient is all rounding may differ.
    for tensor, one in whole.items():
        assert ((cut[tensor] - one).abs() > 1e-4).float().mean() < 0.01, tensor
