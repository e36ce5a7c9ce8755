"""The trainer on the tiny model in float32: gradients against padded transformers, minibatches, resuming, bad numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from msgspec.structs import replace
from safetensors import safe_open

from computerrl.common.config import AlgorithmConfig, LearnerConfig, ModelConfig, OptimizerConfig, RunConfig
from computerrl.common.errors import EngineMismatch, TrainingDiverged
from computerrl.common.messages import Step
from computerrl.common.weight_plan import PROBE_TOKENS
from computerrl.learner.algorithms import PolicyAges, TrainBatch
from computerrl.learner.model.batching import make_packs
from computerrl.learner.model.policy import load_policy
from computerrl.learner.model_store import ensure_model
from computerrl.learner.training.trainer import Trainer
from tests.support.data.tensors import assert_near
from tests.support.data.trainer_data import make_step, random_groups


@pytest.fixture(autouse=True)
def runs_below_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a trainer dumps goes there."""
    monkeypatch.chdir(tmp_path)


def make_trainer(
    *,
    top_layers: int | None = 2,
    lr: float = 1e-3,
    options: dict[str, Any] | None = None,
    name: str = "grpo",
    warmup_updates: int = 0,
    **learner: Any,
) -> Trainer:
    # Most batches here say of made-up log-probs that the present weights sampled them.
    learner = {"max_logprob_gap": None, **learner}
    config = RunConfig(
        model=ModelConfig(name="tiny-random", dtype="float32", trainable_top_layers=top_layers),
        learner=LearnerConfig(
            algorithm=AlgorithmConfig(name=name, options=options or {}),
            optimizer=OptimizerConfig(lr=lr, warmup_updates=warmup_updates),
            **learner,
        ),
    )
    return Trainer(config, load_policy(config))


def plain_model() -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(ensure_model("tiny-random"), dtype=torch.float32)


def plain_logprobs(model: Any, step: Step) -> torch.Tensor:
    """[A] by the model's own forward pass over one step."""
    tokens = torch.tensor([[*step.prompt_tokens.tolist(), *step.action_tokens.tolist()]])
    logprobs = torch.log_softmax(model(input_ids=tokens).logits[0, :-1], dim=-1).gather(1, tokens[0, 1:, None])[:, 0]
    return logprobs[len(step.prompt_tokens) - 1 :]


def on_policy_batch(trainer: Trainer, **groups: Any) -> TrainBatch:
    """A prepared batch whose behaviour log-probs are the plain model's own."""
    model = plain_model()
    made = random_groups(**groups)
    exact = [
        replace(
            group,
            trajectories=tuple(
                replace(
                    trajectory,
                    steps=tuple(
                        replace(step, behavior_logprobs=plain_logprobs(model, step).detach().numpy()) for step in trajectory.steps
                    ),
                )
                for trajectory in group.trajectories
            ),
        )
        for group in made
    ]
    return trainer.algorithm.prepare(exact, ages=PolicyAges(0))


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.trainable_tensors().items()}


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor], *, atol: float = 0.0) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        torch.testing.assert_close(tensor, right[name], atol=atol, rtol=0)


@pytest.mark.parametrize("weight", [None, 0.3])
def test_update_on_policy_gradient_is_plain_grpo_of_padded_transformers(
    monkeypatch: pytest.MonkeyPatch, weight: float | None
) -> None:
    """``weight``: of demonstrations that are imitated as well."""
    trainer = make_trainer()
    batch = on_policy_batch(trainer)
    shown = () if weight is None else tuple(demonstrations())
    batch = dataclasses.replace(batch, demonstrated=shown, demonstration_weight=weight or 0.0)
    gradients: dict[str, torch.Tensor] = {}

    def keep(lr: float, seen: Any, **_: Any) -> float:
        for name, master in trainer.policy.weights.masters.items():
            assert master.grad is not None
            gradients[name] = master.grad.clone()
        return 1.0

    monkeypatch.setattr(trainer.optimizer, "step", keep)
    metrics = trainer.update(batch)
    assert metrics["importance_weight"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-8)
    model = plain_model()
    loss = torch.zeros(())
    for step, advantage, token_weight in zip(batch.samples, batch.advantage_S, batch.token_weight_S, strict=True):
        loss = loss - float(token_weight) * float(advantage) * plain_logprobs(model, step).sum()
    if weight is not None:
        nll = -torch.cat([plain_logprobs(model, step) for step in shown]).mean()
        assert metrics["demonstration_loss"] == pytest.approx(nll.item(), rel=1e-5)
        loss = loss + weight * nll
    loss.backward()
    expected = {name: p.grad for name, p in model.named_parameters() if name in gradients}
    assert set(expected) == set(trainer.policy.weights.compute)
    for name, gradient in expected.items():
        assert_near(gradients[name], gradient, part=3e-5)


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_update_without_samples_imitates_its_demonstrations_and_without_any_changes_nothing(name: str) -> None:
    trainer = make_trainer(lr=1e-2, name=name)
    batch = trainer.algorithm.prepare([], ages=PolicyAges(0))
    assert not batch.samples
    before = weights(trainer)
    assert trainer.update(batch)["grad_norm"] == 0
    assert_same(weights(trainer), before)
    shown = tuple(demonstrations())
    losses = [
        trainer.update(dataclasses.replace(batch, demonstrated=shown, demonstration_weight=1.0))["demonstration_loss"]
        for _ in range(4)
    ]
    assert losses[-1] < losses[0]


def test_update_trains_top_layers_and_leaves_the_rest() -> None:
    trainer = make_trainer(lr=1e-2)
    before, probe = weights(trainer), trainer.probe_logprobs()
    base = {name: p.detach().clone() for name, p in trainer.policy._model.named_parameters()}
    metrics = trainer.update(on_policy_batch(trainer))
    assert metrics["grad_norm"] > 0
    changed = {name for name, p in trainer.policy._model.named_parameters() if not torch.equal(p, base[name])}
    assert changed == set(before)
    assert all(name.startswith(("model.layers.2.", "model.layers.3.", "model.norm.")) for name in changed)
    assert np.abs(trainer.probe_logprobs() - probe).max() > 0


@pytest.mark.parametrize("max_pack_tokens", [64, 120])
def test_update_any_pack_size_gives_the_same_weights(max_pack_tokens: int) -> None:
    results = []
    for size in (4096, max_pack_tokens):
        trainer = make_trainer(max_pack_tokens=size)
        metrics = trainer.update(on_policy_batch(trainer))
        results.append((metrics, {name: m.clone() for name, m in trainer.policy.weights.masters.items()}))
    assert results[1][0]["num_packs"] > results[0][0]["num_packs"]
    assert results[1][0]["grad_norm"] == pytest.approx(results[0][0]["grad_norm"], rel=1e-4)
    assert results[1][0]["entropy"] == pytest.approx(results[0][0]["entropy"], rel=1e-5)
    # The first AdamW step is lr * sign(gradient): only entries whose gradient is all rounding may differ.
    for name, tensor in results[0][1].items():
        assert ((tensor - results[1][1][name]).abs() > 1e-5).float().mean() < 0.01, name


def test_update_recomputed_activations_give_the_same_weights_with_less_kept() -> None:
    found = []
    for recompute in ("none", "full"):
        trainer = make_trainer(top_layers=None, activation_checkpointing=recompute)
        kept_bytes: dict[int, int] = {}

        def keep(tensor: torch.Tensor, kept: dict[int, int] = kept_bytes) -> torch.Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        pack = make_packs(demonstrations(), max_tokens=4096)[0]
        parameters = {p.untyped_storage().data_ptr() for p in trainer.policy.weights.compute.values()}
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            outputs = trainer.policy.forward(pack, temperature=1.0)
        num_bytes = sum(size for place, size in kept_bytes.items() if place not in parameters)
        del outputs
        trainer.update(on_policy_batch(trainer))
        found.append((num_bytes, weights(trainer)))
    assert found[1][0] < found[0][0] / 2
    assert_same(found[1][1], found[0][1])


def test_update_minibatches_split_no_group_and_measure_against_the_weights_at_the_start() -> None:
    trainer = make_trainer(num_minibatches=3, lr=3e-2)
    batch = on_policy_batch(trainer, num_groups=4)
    parts = trainer.minibatches(batch)
    assert sorted(place for part in parts for place in part) == list(range(len(batch.samples)))
    assert not set.intersection(*(set(batch.group_S[part].tolist()) for part in parts))
    minibatches = [trainer.passes.of_batch(batch, part) for part in parts]
    behavior = [torch.cat([item.batch.behavior_logprobs_M for item in passes]) for passes in minibatches]
    assert len(minibatches) == 3
    assert sum(len(part) for part in behavior) == sum(len(step.action_tokens) for step in batch.samples)
    assert len({id(item) for passes in minibatches for item in passes}) == sum(map(len, minibatches))
    metrics = trainer.update(batch)
    # On policy, pi_p is pi_b for all minibatches, though the weights have moved when the later ones are trained.
    assert metrics["importance_weight"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["ratio"] != pytest.approx(1.0, abs=1e-4)


def test_update_empty_batch_changes_nothing() -> None:
    trainer = make_trainer()
    before = weights(trainer)
    metrics = trainer.update(trainer.algorithm.prepare([], ages=PolicyAges(0)))
    assert_same(weights(trainer), before)
    assert metrics["grad_norm"] == 0.0
    assert all(np.isfinite(value) for value in metrics.values())


def test_update_entropy_counts_left_out_tokens_by_their_sampled_estimate() -> None:
    trainer = make_trainer()
    groups = random_groups(num_groups=2)
    flat = replace(groups[0], trajectories=tuple(replace(t, success=True) for t in groups[0].trajectories))
    batch = trainer.algorithm.prepare([flat, groups[1]], ages=PolicyAges(0))
    alone = trainer.algorithm.prepare([groups[1]], ages=PolicyAges(0))
    num_computed = sum(len(step.action_tokens) for step in batch.samples)
    computed = make_trainer().update(alone)["entropy"]
    expected = (computed * num_computed + batch.left_out_nll) / (num_computed + batch.left_out_tokens)
    assert batch.left_out_tokens > 0
    assert trainer.update(batch)["entropy"] == pytest.approx(expected, rel=1e-5)


def test_update_entropy_is_that_of_steps_that_are_not_replayed() -> None:
    trainer = make_trainer()
    batch = trainer.algorithm.prepare(random_groups(num_groups=2), ages=PolicyAges(0))
    own = batch.group_S == batch.group_S[0]
    num_tokens = np.array([len(step.action_tokens) for step in batch.samples])
    alone = make_trainer().update(batch.subset(np.flatnonzero(own)))["entropy"]
    # Without uncertainty in what was left out, the mean says how many tokens were counted.
    mixed = dataclasses.replace(batch, replayed_S=~own, left_out_nll=0.0, left_out_tokens=int(num_tokens.sum()))
    expected = alone * num_tokens[own].sum() / (num_tokens[own].sum() + num_tokens.sum())
    assert trainer.update(mixed)["entropy"] == pytest.approx(expected, rel=1e-3)


def test_reference_kl_is_zero_until_weights_move() -> None:
    trainer = make_trainer(options={"kl_beta": 0.01}, lr=3e-2)
    batch = on_policy_batch(trainer)
    assert trainer.update(batch)["reference_kl"] == pytest.approx(0.0, abs=1e-9)
    assert trainer.update(batch)["reference_kl"] > 1e-6
    trainer.set_reference()
    assert trainer.update(batch)["reference_kl"] == pytest.approx(0.0, abs=1e-9)


# --- supervised steps --------------------------------------------------------------------------------------------------


def demonstrations() -> Sequence[Step]:
    return [make_step([5, 6, 7, i], [8, 9, i + 20], logprobs=[], version=[]) for i in range(3, 9)]


def test_sft_step_loss_is_mean_token_nll_and_falls() -> None:
    trainer = make_trainer(top_layers=None)
    steps = demonstrations()
    model = plain_model()
    expected = -torch.cat([plain_logprobs(model, step) for step in steps]).mean().item()
    first = trainer.sft_step(steps, 1e-2)
    assert first["loss"] == pytest.approx(expected, rel=1e-5)
    for _ in range(15):
        last = trainer.sft_step(steps, 1e-2)
    assert last["loss"] < first["loss"] - 1.0


# --- state -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"kl_beta": 0.01}])
def test_state_restored_continues_exactly(options: dict[str, Any]) -> None:
    trainer = make_trainer(options=options, num_minibatches=2)
    batches = [on_policy_batch(trainer, seed=seed) for seed in range(3)]
    trainer.update(batches[0])
    trainer.sft_step(demonstrations(), 1e-3)
    state = {name: tensor.clone() for name, tensor in trainer.state_dict().items()}
    expected = [trainer.update(batch) for batch in batches[1:]]
    other = make_trainer(options=options, num_minibatches=2)
    other.load_state_dict(state)
    found = [other.update(batch) for batch in batches[1:]]
    assert_same(weights(other), weights(trainer))
    for left, right in zip(found, expected, strict=True):
        timings = {"train_s", "trained_tokens_per_s"}
        assert {k: v for k, v in left.items() if k not in timings} == {k: v for k, v in right.items() if k not in timings}


@pytest.mark.parametrize("options", [{}, {"kl_beta": 0.01}])
def test_state_changes_only_with_its_revision(options: dict[str, Any]) -> None:
    trainer = make_trainer(options=options)
    batch, look = on_policy_batch(trainer), on_policy_batch(trainer, seed=1)
    state = {name: tensor.clone() for name, tensor in trainer.state_dict().items()}
    changes: list[Callable[[], Any]] = [
        lambda: trainer.update(batch),
        lambda: trainer.sft_step(demonstrations(), 1e-3),
        trainer.set_reference,
        lambda: trainer.change_objective(2e-3),
        lambda: trainer.load_state_dict(state),
        lambda: trainer.refine(look),
        trainer.probe_logprobs,
        trainer.trainable_tensors,
        trainer.state_dict,
    ]
    is_new = []
    for change in changes:
        before, revision = {name: tensor.clone() for name, tensor in trainer.state_dict().items()}, trainer.revision
        change()
        after = trainer.state_dict()
        differs = before.keys() != after.keys() or any(not torch.equal(before[name], after[name]) for name in before)
        assert not differs or trainer.revision != revision
        is_new.append(trainer.revision != revision)
    assert is_new[:2] == [True, True] and is_new[-4:] == [False] * 4


def test_state_of_another_split_is_refused() -> None:
    with pytest.raises(ValueError, match="trainable_top_layers"):
        make_trainer(top_layers=1).load_state_dict(make_trainer(top_layers=2).state_dict())


def test_state_holds_only_plain_tensors_of_the_trained_part() -> None:
    trainer = make_trainer()
    trainer.update(on_policy_batch(trainer))
    state = trainer.state_dict()
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    assert {name.removeprefix("master/") for name in state if name.startswith("master/")} == set(trainer.policy.weights.compute)


def test_warmup_raises_the_learning_rate_step_by_step() -> None:
    trainer = make_trainer(lr=4e-3, warmup_updates=4)
    batch = on_policy_batch(trainer)
    rates = []
    for _ in range(5):
        rates.append(trainer.optimizer.rl_lr)
        trainer.update(batch)
    assert rates == pytest.approx([1e-3, 2e-3, 3e-3, 4e-3, 4e-3])


# --- bad numbers -------------------------------------------------------------------------------------------------------


def test_update_nonfinite_gradient_skips_the_step_then_gives_up() -> None:
    trainer = make_trainer()
    batch = on_policy_batch(trainer)
    poisoned = dataclasses.replace(batch, advantage_S=np.full_like(batch.advantage_S, np.nan))
    before = weights(trainer)
    for count in range(1, 5):
        assert trainer.update(poisoned)["num_skipped"] == count
    assert_same(weights(trainer), before)
    said = "5 optimizer steps in a row, .* the loss of .* although their log-probs were finite; .* algorithm 'grpo'"
    with pytest.raises(TrainingDiverged, match=said):
        trainer.update(poisoned)


def test_nonfinite_step_is_dumped_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = make_trainer()
    batch = on_policy_batch(trainer)
    advantages = batch.advantage_S.copy()
    advantages[0] = np.nan
    trainer.update(dataclasses.replace(batch, advantage_S=advantages))
    (path,) = Path("runs/run/dumps").glob("*.safetensors")
    with safe_open(path, framework="np") as file:
        assert file.metadata()["reason"].startswith("the loss of 1 of")
        logprobs, advantage = (
            np.concatenate([file.get_tensor(key) for key in sorted(file.keys()) if key.startswith(name)])
            for name in ("logprobs_", "advantage_")
        )
    assert len(logprobs) == sum(len(step.action_tokens) for step in batch.samples)
    assert np.isnan(advantage).sum() == len(batch.samples[0].action_tokens)
    assert "step.skipped" in capsys.readouterr().out
    for _ in range(9):
        trainer.update(batch)
        trainer.update(dataclasses.replace(batch, advantage_S=advantages))
    assert len(list(Path("runs/run/dumps").iterdir())) == 5


def test_supervised_step_that_is_not_finite_is_dumped_too() -> None:
    trainer = make_trainer()
    samples = on_policy_batch(trainer).samples
    with torch.no_grad():
        next(iter(trainer.policy.weights.masters.values())).fill_(math.nan)
    trainer.policy.weights.sync_compute_weights()
    assert trainer.sft_step(samples, 1e-4)["num_skipped"] == 1
    (path,) = Path("runs/run/dumps").glob("*.safetensors")
    with safe_open(path, framework="np") as file:
        assert "the loss of" in file.metadata()["reason"]
        assert {key.rpartition("_")[0] for key in file.keys()} == {"tokens", "logprobs"}  # noqa: SIM118


def test_logprob_gap_of_present_weights_is_shown_and_ends_the_run_beyond_its_limit() -> None:
    trainer = make_trainer(max_logprob_gap=0.3)
    batch = on_policy_batch(trainer)
    metrics = trainer.update(batch)
    assert 0.0 <= metrics["logprob_gap"] <= metrics["logprob_gap_max"] < 1e-4
    before = weights(trainer)
    wrong = [replace(step, behavior_logprobs=step.behavior_logprobs - 0.5) for step in batch.samples]
    with pytest.raises(EngineMismatch, match=r"differ by 0\.[45]\d\d on average"):
        trainer.update(dataclasses.replace(batch, samples=tuple(wrong)))
    assert_same(weights(trainer), before)
    # Of older tokens the difference says nothing.
    assert "logprob_gap" not in trainer.update(dataclasses.replace(batch, samples=tuple(wrong), ages=PolicyAges(1)))


def test_effective_sample_size_falls_with_uneven_weights_and_vcpo_steps_shorter() -> None:
    trainer, scaled = make_trainer(lr=1e-2), make_trainer(lr=1e-2, options={"lr_scaling": "effective_samples"})
    batch = on_policy_batch(trainer)
    rng = np.random.default_rng(0)
    uneven = tuple(
        replace(step, behavior_logprobs=step.behavior_logprobs + rng.normal(0, 0.3, len(step.action_tokens)))
        for step in batch.samples
    )
    batch = dataclasses.replace(batch, samples=uneven)
    log_weights = np.zeros(len(batch.trajectory_ids))
    for owner, step in zip(batch.trajectory_S, uneven, strict=True):
        log_weights[owner] += (plain_logprobs(plain_model(), step).detach().numpy() - step.behavior_logprobs).sum()
    assert set(batch.trajectory_S) == set(range(len(log_weights)))
    w = np.exp(log_weights)
    share = w.sum() ** 2 / (len(w) * (w**2).sum())
    lrs: list[float] = []
    for one in (trainer, scaled):
        metrics = one.update(batch)
        assert metrics["effective_samples"] == pytest.approx(share, rel=1e-3)
        lrs.append(metrics["lr"])
    assert share < 0.7 and lrs == pytest.approx([1e-2, 1e-2 * share**0.5], rel=1e-3)


def test_value_head_learns_its_targets_and_leaves_the_policy_alone() -> None:
    weights_of = []
    for coefficient in (1e-6, 100.0):
        trainer = make_trainer(name="ppo", lr=1e-3, options={"value_coefficient": coefficient})
        trainer.update(trainer.refine(on_policy_batch(trainer)))
        weights_of.append(weights(trainer))
    assert_same(*weights_of)
    trainer = make_trainer(name="ppo", lr=1e-9)
    batch = on_policy_batch(trainer)
    first = trainer.refine(batch)
    assert first.value_targets is not None and first.token_advantages is not None
    errors = []
    for _ in range(20):
        errors.append(trainer.update(trainer.refine(batch))["value_error"])
    assert errors[0] == pytest.approx(np.mean(np.concatenate(first.value_targets) ** 2), rel=1e-5), "values start at 0"
    assert errors[-1] < 0.9 * errors[0]
    state = {name: tensor.clone() for name, tensor in trainer.state_dict().items()}
    expected = trainer.update(trainer.refine(batch))["value_error"]
    again = make_trainer(name="ppo", lr=1e-9)
    again.load_state_dict(state)
    assert again.update(again.refine(batch))["value_error"] == expected
    plain = make_trainer(lr=1e-9)
    assert all("value" not in name for name in trainer.trainable_tensors())
    assert trainer.trainable_tensors().keys() == plain.trainable_tensors().keys()


def test_values_that_are_not_finite_skip_the_step_as_the_policys_do() -> None:
    trainer = make_trainer(name="ppo")
    batch = trainer.refine(on_policy_batch(trainer))
    assert batch.value_targets is not None
    far = dataclasses.replace(batch, value_targets=tuple(np.full_like(one, 1e30) for one in batch.value_targets))
    before = weights(trainer)
    for count in range(1, 5):
        assert trainer.update(far)["num_skipped"] == count
    assert_same(weights(trainer), before)
    assert len(list(Path("runs/run/dumps").glob("*.safetensors"))) == 4
    with pytest.raises(TrainingDiverged, match="5 optimizer steps"):
        trainer.update(far)


def test_new_objective_keeps_second_moments_and_the_warm_up_and_forgets_the_first_moments() -> None:
    trainer = make_trainer(warmup_updates=3)
    batch = on_policy_batch(trainer)
    rates = [trainer.update(batch)["lr"] for _ in range(2)]

    def moments(name: str) -> dict[str, torch.Tensor]:
        return {key: value.clone() for key, value in trainer.state_dict().items() if key.startswith(f"optimizer/{name}/")}

    before = moments("exp_avg_sq")
    trainer.change_objective(1e-3)
    assert before and all(value.any() for value in before.values())
    assert_same(moments("exp_avg_sq"), before)
    assert not any(value.any() for value in moments("exp_avg").values())
    rates.append(trainer.update(batch)["lr"])
    assert rates == pytest.approx([1e-3 / 3, 2e-3 / 3, 1e-3])


def test_log_probs_of_a_first_look_are_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(name="ppo", num_minibatches=3, lr=3e-2)
    batch = trainer.refine(on_policy_batch(trainer, num_groups=4))
    again: list[Any] = []
    monkeypatch.setattr(trainer.passes, "logprobs", again.append)
    metrics = trainer.update(batch)
    assert not again
    # On policy, what the look saw is what sampled, though the weights have moved when the later minibatches are trained.
    assert metrics["importance_weight"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["ratio"] != pytest.approx(1.0, abs=1e-4)


def test_update_good_batch_between_bad_ones_resets_the_count() -> None:
    trainer = make_trainer()
    batch = on_policy_batch(trainer)
    poisoned = dataclasses.replace(batch, advantage_S=np.full_like(batch.advantage_S, np.inf))
    for _ in range(2):
        for _ in range(4):
            trainer.update(poisoned)
        assert np.isfinite(trainer.update(batch)["grad_norm"])


def test_probe_logprobs_are_the_models_own() -> None:
    trainer = make_trainer()
    tokens = torch.tensor([PROBE_TOKENS])
    logprobs = torch.log_softmax(plain_model()(input_ids=tokens).logits[0, :-1], dim=-1)
    expected = logprobs.gather(1, tokens[0, 1:, None])[:, 0].detach().numpy()
    np.testing.assert_allclose(trainer.probe_logprobs(), expected, atol=1e-5)


@pytest.mark.parametrize("sizes", [(1, 20), (20, 1, 1, 1), (3, 3, 3), (1, 2, 30, 4, 5)])
def test_an_update_has_as_many_optimizer_steps_as_minibatches_whatever_the_sizes_of_groups(sizes: tuple[int, ...]) -> None:
    trainer = make_trainer(num_minibatches=3)
    group_S = np.repeat(np.arange(len(sizes)), sizes)
    for _ in range(5):
        parts = trainer.minibatches(SimpleNamespace(group_S=group_S))  # type: ignore[arg-type]
        assert len(parts) == min(3, len(sizes))
        assert all(part and np.isin(group_S, group_S[part]).sum() == len(part) for part in parts)
