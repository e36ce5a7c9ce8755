"""Self-distillation on a small model of 61 tokens: gradients against padded transformers, what is shown to whom, and a policy
that comes nearer to itself with a success in its prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from computerrl.common.config import RunConfig
from computerrl.common.errors import ConfigError
from computerrl.common.messages import ScreenshotRef, Step, Trajectory, TrajectoryGroup
from computerrl.launch.plan.machine import inspect_machine
from computerrl.launch.run.preflight import check_algorithm
from computerrl.learner.algorithms import PolicyAges, TrainBatch
from computerrl.learner.algorithms.self_distillation import SelfDistillation
from computerrl.learner.model.policy import load_policy
from computerrl.learner.training.trainer import Trainer
from tests.support.data.tensors import assert_near
from tests.unit.learner.training.test_teacher import gradients_of, plain, sampled, save_model
from tests.unit.learner.training.test_trainer_updates import plain_logprobs


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_model(Path("policy"), seed=1)


def make_trainer(*, max_pack_tokens: int = 4096, **options: Any) -> Trainer:
    learner = {
        "device": "cpu",
        "num_minibatches": 2,
        "max_logprob_gap": None,
        "max_pack_tokens": max_pack_tokens,
        "optimizer": {"lr": 1e-2, "warmup_updates": 0},
        "algorithm": {"name": "self_distillation", "options": options},
    }
    model = {"name": "policy", "dtype": "float32", "trainable_top_layers": None}
    config = RunConfig.model_validate({"model": model, "learner": learner})
    return Trainer(config, load_policy(config))


def with_success(group: TrajectoryGroup, *places: int) -> TrajectoryGroup:
    made = [replace(one, success=place in places) for place, one in enumerate(group.trajectories)]
    return replace(group, trajectories=tuple(made))


def as_played(trajectory: Trajectory) -> list[int]:
    return [token for step in trajectory.steps for token in (*step.prompt_tokens.tolist(), *step.action_tokens.tolist())]


def refined(trainer: Trainer, groups: list[TrajectoryGroup]) -> TrainBatch:
    return trainer.refine(trainer.algorithm.prepare(groups, ages=PolicyAges(0)))


def after_hint(step: Step, hint: list[int]) -> Step:
    return replace(step, prompt_tokens=np.array([*hint, *step.prompt_tokens.tolist()], np.int32))


@pytest.mark.parametrize("max_pack_tokens", [4096, 64])
def test_gradient_is_that_of_the_reverse_kl_to_the_hinted_policy(max_pack_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By padded transformers; each minibatch counts twice, as two of them share the batch's weights."""
    trainer, model = make_trainer(max_pack_tokens=max_pack_tokens), plain("policy")
    groups = [with_success(group, 1) for group in sampled(model, seed=0)]
    batch = refined(trainer, groups)
    found = gradients_of(trainer, batch, monkeypatch)
    loss, divergence, num_tokens = torch.zeros(()), 0.0, 4 * 3 * 3
    for group in groups:
        hint = as_played(group.trajectories[1])
        for step in (step for place in (0, 2, 3) for step in group.trajectories[place].steps):
            own = plain_logprobs(model, step)
            hinted = plain_logprobs(model, after_hint(step, hint)).detach()
            advantages = hinted - own.detach()
            divergence -= float(advantages.sum()) / num_tokens
            loss = loss - 2 * (advantages * own).sum() / num_tokens
    loss.backward()
    assert len(batch.samples) == 12 and batch.metrics["hint_kl"] == pytest.approx(divergence, rel=1e-3, abs=1e-5)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert_near(found[name], parameter.grad, part=1e-4)


def test_groups_in_which_all_fail_are_shown_the_familys_latest_success_and_without_one_do_not_train() -> None:
    trainer, model = make_trainer(), plain("policy")
    algorithm = trainer.algorithm
    assert isinstance(algorithm, SelfDistillation)
    failed = sampled(model, seed=1, num_prompts=1)
    nothing = algorithm.prepare(failed, ages=PolicyAges(0))
    assert not nothing.samples and nothing.metrics["hinted"] == 0 and set(nothing.left_out.values()) == {"no_signal"}
    kept = with_success(sampled(model, seed=2, num_prompts=2)[1], 2)  # of another group, whose ids are others
    algorithm.remember([kept])
    batch = algorithm.prepare(failed, ages=PolicyAges(0))
    assert len(batch.samples) == 4 and batch.metrics["hinted"] == 1 and batch.hints is not None
    assert [hint.tolist() for hint in batch.hints] == [as_played(kept.trajectories[2])] * 4
    cut = batch.subset(np.array([1]))
    assert cut.hints is not None and len(cut.hints) == 1
    metrics = trainer.update(trainer.refine(batch))
    assert metrics["grad_norm"] > 0 and metrics["num_skipped"] == 0


def test_a_success_that_is_too_long_is_not_shown_and_one_with_images_is_refused() -> None:
    group = with_success(sampled(plain("policy"), seed=1, num_prompts=1)[0], 0)
    length = len(as_played(group.trajectories[0]))
    for limit, num_steps in ((length, 3), (length - 1, 0)):
        trainer = make_trainer(max_hint_tokens=limit)
        assert len(trainer.algorithm.prepare([group], ages=PolicyAges(0)).samples) == num_steps
    image = ScreenshotRef(content_hash="0" * 32, segment="a", offset=0, num_bytes=1, width=1, height=1)
    first, *others = group.trajectories
    seen = replace(first, steps=tuple(replace(step, images=(image,)) for step in first.steps))
    with pytest.raises(ConfigError, match="as text"):
        make_trainer().algorithm.prepare([replace(group, trajectories=(seen, *others))], ages=PolicyAges(0))


def test_training_brings_the_policy_nearer_to_itself_with_a_success_in_its_prompt() -> None:
    trainer, model = make_trainer(), plain("policy")
    divergences = []
    for seed in range(12):
        model.load_state_dict(trainer.trainable_tensors())
        groups = [with_success(group, 0) for group in sampled(model, seed=seed, num_prompts=8)]
        batch = refined(trainer, groups)
        divergences.append(batch.metrics["hint_kl"])
        trainer.update(batch)
    assert np.mean(divergences[-3:]) < np.mean(divergences[:3]), divergences


@pytest.mark.parametrize(
    ("model", "prompt", "hint", "field"),
    [
        ("smollm2-135m", {"max_prompt_tokens": 512}, 7600, None),
        ("smollm2-135m", {"max_prompt_tokens": 512}, 7700, "learner.algorithm.options.max_hint_tokens"),
        ("smollm2-135m", {"max_prompt_tokens": 8200}, 2048, "learner.algorithm.options.max_hint_tokens"),
        ("nobody/knows-its-context", {"max_prompt_tokens": 512}, 10**6, None),
        ("tiny-vision", {"format": "compact_vision", "images": 1, "max_prompt_tokens": 512}, 100, "actor.prompt.format"),
    ],
)
def test_model_or_prompt_that_it_does_not_fit_is_named_before_anything_starts(
    model: str, prompt: dict[str, Any], hint: int, field: str | None
) -> None:
    values = {
        "model": {"name": model},
        "actor": {"prompt": prompt, "max_new_tokens": 64},
        "learner": {"algorithm": {"name": "self_distillation", "options": {"max_hint_tokens": hint}}},
    }
    config = RunConfig.model_validate(values)
    found = [finding.problem for finding in check_algorithm(config, inspect_machine())]
    assert [problem.field for problem in found] == ([] if field is None else [field])
    assert all(problem.next_step for problem in found)
