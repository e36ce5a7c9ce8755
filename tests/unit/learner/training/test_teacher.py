"""On-policy distillation on small models of 61 tokens: gradients against padded transformers, a KL that falls, resuming, and
teachers that cannot judge the policy's tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from msgspec.structs import replace

from computerrl.common.config import RunConfig
from computerrl.common.errors import ConfigError
from computerrl.common.memory_plan import learner_mb
from computerrl.common.messages import TrajectoryGroup
from computerrl.common.models.teacher import FIELD, teacher_name, teacher_problems
from computerrl.launch.plan.machine import inspect_machine
from computerrl.launch.run.preflight import check_algorithm
from computerrl.learner.algorithms import PolicyAges, TrainBatch, make_algorithm
from computerrl.learner.model.policy import load_policy
from computerrl.learner.training.trainer import Trainer
from tests.support.data.tensors import assert_near
from tests.support.data.trainer_data import make_group, make_step
from tests.unit.learner.training.test_trainer_updates import plain_logprobs

NUM_TOKENS = 61
PROMPT_LENGTH = 4


def save_model(folder: Path, *, seed: int, width: int = 16, num_layers: int = 2, num_tokens: int = NUM_TOKENS) -> Path:
    """A random Llama whose tokenizer has the tokens t0, t1, ..."""
    config = transformers.LlamaConfig(
        vocab_size=num_tokens,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=4096,
        initializer_range=0.2,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
    write_tokenizer(folder, {f"t{number}": number for number in range(num_tokens)})
    return folder


def write_tokenizer(folder: Path, vocabulary: dict[str, int], *, of_class: str = "PreTrainedTokenizer") -> None:
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t0"}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": of_class}))


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy's and the teacher's model, in the current folder. The teacher is wider and deeper."""
    monkeypatch.chdir(tmp_path)
    save_model(Path("policy"), seed=1)
    save_model(Path("teacher"), seed=2, width=32, num_layers=3)


def make_config(teacher: str = "teacher", *, options: dict[str, Any] | None = None, **sections: Any) -> RunConfig:
    learner = {
        "device": "cpu",
        "num_minibatches": 2,
        "max_logprob_gap": None,
        "optimizer": {"lr": 1e-2, "warmup_updates": 0},
        "algorithm": {"name": "distillation", "options": {"teacher": teacher, **(options or {})}},
        **sections.pop("learner", {}),
    }
    model = {"name": "policy", "dtype": "float32", "trainable_top_layers": None}
    return RunConfig.model_validate({"model": model, "learner": learner, **sections})


def make_trainer(teacher: str = "teacher", **settings: Any) -> Trainer:
    config = make_config(teacher, **settings)
    return Trainer(config, load_policy(config))


def plain(folder: str) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def sampled(model: Any, *, seed: int, num_prompts: int = 4, num_rollouts: int = 4, length: int = 3) -> list[TrajectoryGroup]:
    """Groups whose actions ``model`` samples, all of them failures; the prompts are always the same."""
    prompts = torch.tensor(np.random.default_rng(0).integers(0, NUM_TOKENS, (num_prompts, PROMPT_LENGTH)))
    rows, generator = prompts.repeat_interleave(num_rollouts, 0), torch.Generator().manual_seed(seed)
    for _ in range(length):
        with torch.no_grad():
            probabilities = torch.softmax(model(input_ids=rows).logits[:, -1], dim=-1)
        rows = torch.cat([rows, torch.multinomial(probabilities, 1, generator=generator)], dim=1)
    groups = []
    for number in range(num_prompts):
        episodes = []
        for row in rows[number * num_rollouts : (number + 1) * num_rollouts].tolist():
            step = make_step(row[:PROMPT_LENGTH], row[PROMPT_LENGTH:])
            logprobs = plain_logprobs(model, step).detach().numpy()
            episodes.append((False, [replace(step, behavior_logprobs=logprobs)]))
        groups.append(make_group(episodes, group_seq=number))
    return groups


def prepared(trainer: Trainer, *, seed: int = 0) -> TrainBatch:
    return trainer.algorithm.prepare(sampled(plain("policy"), seed=seed), ages=PolicyAges(0))


def gradients_of(trainer: Trainer, batch: TrainBatch, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """Summed over minibatches, without a step between them."""
    summed: dict[str, torch.Tensor] = {}

    def keep(lr: float, seen: Any, **_: Any) -> float:
        for name, master in trainer.policy.weights.masters.items():
            assert master.grad is not None
            summed[name] = summed.get(name, torch.zeros_like(master)) + master.grad
        trainer.policy.weights.clear_gradients()
        return 1.0

    monkeypatch.setattr(trainer.optimizer, "step", keep)
    trainer.update(batch)
    return summed


@pytest.mark.parametrize("max_pack_tokens", [4096, 64])
def test_gradient_is_that_of_the_reverse_kl_by_padded_transformers(max_pack_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In packs of any size; each minibatch counts twice, as two of them share the batch's weights."""
    trainer = make_trainer(learner={"max_pack_tokens": max_pack_tokens})
    batch = prepared(trainer)
    found = gradients_of(trainer, batch, monkeypatch)
    model, teacher = plain("policy"), plain("teacher")
    num_tokens = sum(len(step.action_tokens) for step in batch.samples)
    loss = torch.zeros(())
    for step in batch.samples:
        own = plain_logprobs(model, step)
        advantages = plain_logprobs(teacher, step).detach().numpy() - own.detach().numpy()
        for advantage, logprob in zip(advantages, own, strict=True):
            loss = loss - 2 * float(advantage) * logprob / num_tokens
    loss.backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradient is not None
        assert_near(found[name], gradient, part=1e-4)


def test_policy_that_equals_its_teacher_has_no_gradient_though_the_sampler_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer("policy")
    groups = [
        replace(
            group,
            trajectories=tuple(
                replace(one, steps=tuple(replace(step, behavior_logprobs=step.behavior_logprobs - 0.01) for step in one.steps))
                for one in group.trajectories
            ),
        )
        for group in sampled(plain("policy"), seed=3)
    ]
    found = gradients_of(trainer, trainer.algorithm.prepare(groups, ages=PolicyAges(0)), monkeypatch)
    assert max(float(gradient.abs().max()) for gradient in found.values()) < 1e-6


def exact_kl(model: Any, teacher: Any, groups: list[TrajectoryGroup]) -> float:
    """Mean of KL(policy || teacher) over the whole vocabulary, in the states of ``groups``."""
    steps = [step for group in groups for one in group.trajectories for step in one.steps]
    rows = torch.tensor([[*step.prompt_tokens.tolist(), *step.action_tokens.tolist()] for step in steps])
    with torch.no_grad():
        own, its = (torch.log_softmax(one(input_ids=rows).logits[:, PROMPT_LENGTH - 1 : -1], -1) for one in (model, teacher))
    return float((own.exp() * (own - its)).sum(-1).mean())


@pytest.mark.parametrize("options", [{}, {"correction": "none"}])
def test_training_brings_the_policy_nearer_to_its_teacher(options: dict[str, Any]) -> None:
    trainer, model, teacher = make_trainer(options=options), plain("policy"), plain("teacher")
    divergences, metrics = [], []
    for seed in range(25):
        model.load_state_dict(trainer.trainable_tensors())
        groups = sampled(model, seed=seed, num_prompts=8)
        divergences.append(exact_kl(model, teacher, groups))
        metrics.append(trainer.update(trainer.algorithm.prepare(groups, ages=PolicyAges(0))))
    first, last = np.mean(divergences[:3]), np.mean(divergences[-3:])
    assert last < 0.7 * first, divergences
    assert np.mean([one["reference_kl"] for one in metrics[-3:]]) < np.mean([one["reference_kl"] for one in metrics[:3]])
    assert all(one["num_steps_computed"] == 32 and one["num_groups_without_signal"] == 0 for one in metrics)


def test_resumed_run_continues_exactly_and_keeps_its_teacher() -> None:
    trainer = make_trainer()
    batches = [prepared(trainer, seed=seed) for seed in range(3)]
    trainer.update(batches[0])
    trainer.set_reference()  # A phase begins: the teacher stays the reference.
    state = {name: tensor.clone() for name, tensor in trainer.state_dict().items()}
    assert not [name for name in state if name.startswith("reference/")]
    expected = [trainer.update(batch)["reference_kl"] for batch in batches[1:]]
    other = make_trainer()
    other.load_state_dict(state)
    assert [other.update(batch)["reference_kl"] for batch in batches[1:]] == expected
    for name, tensor in trainer.trainable_tensors().items():
        torch.testing.assert_close(other.trainable_tensors()[name], tensor, atol=0, rtol=0)
    save_model(Path("teacher"), seed=5, width=32, num_layers=3)
    with pytest.raises(ConfigError, match=f"{FIELD}.*another model.*\n.*new run"):
        make_trainer().load_state_dict(state)


def test_teacher_is_frozen_and_stays_out_of_what_is_sent_and_saved() -> None:
    trainer = make_trainer()
    before = plain("teacher").state_dict()
    trainer.update(prepared(trainer))
    assert trainer._teacher is not None and not trainer._teacher.weights.compute
    for name, tensor in trainer._teacher._model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], atol=0, rtol=0)
    own = {tuple(tensor.shape) for tensor in plain("policy").state_dict().values()}
    assert {tuple(tensor.shape) for tensor in trainer.trainable_tensors().values()} <= own
    assert [name for name in trainer.state_dict() if "teacher" in name] == ["teacher/digest"]


def test_memory_of_the_learner_counts_its_teacher_only_where_it_trains() -> None:
    def of(teacher: str, **recipe: Any) -> int:
        return learner_mb(make_config(teacher, learner={"recipe": recipe}), "full")

    teacher_mb = 135_000_000 * 4 / 2**20
    assert of("smollm2-135m") - of("policy") == pytest.approx(teacher_mb, abs=2)
    assert of("smollm2-135m", max_updates=0) == of("policy", max_updates=0)
    assert teacher_name(make_config(learner={"recipe": {"max_updates": 0}})) is None


# --- bad input ---------------------------------------------------------------------------------------------------------


def other_ids(folder: Path) -> None:
    write_tokenizer(folder, {f"t{number}": (number + 1) % NUM_TOKENS for number in range(NUM_TOKENS)})


def other_words(folder: Path) -> None:
    write_tokenizer(folder, {f"u{number}": number for number in range(NUM_TOKENS)})


def other_class(folder: Path) -> None:
    words = {f"t{number}": number for number in range(NUM_TOKENS)}
    write_tokenizer(folder, words, of_class="LlamaTokenizerFast")
    write_tokenizer(Path("policy"), words, of_class="Qwen2Tokenizer")


def fewer_tokens(folder: Path) -> None:
    save_model(folder, seed=2, num_tokens=NUM_TOKENS - 1)


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def no_tokens(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("[]")


def short_context(folder: Path) -> None:
    tree = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**tree, "max_position_embeddings": 64}))


def takes_images(folder: Path) -> None:
    tree = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**tree, "vision_config": {}}))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (other_ids, "61 of 61 tokens .* 't0' is 0 here and 1 there"),
        (other_words, "'t0' is 0 here and no token there"),
        (other_class, "tokenizer is a LlamaTokenizer, and the policy's a Qwen2Tokenizer"),
        (fewer_tokens, "the teacher knows 60 tokens, and the policy may sample 61"),
        (no_weights, "teacher"),
        (no_tokens, "no readable tokenizer.json"),
        (short_context, "'teacher' has a context of 64 tokens"),
        (takes_images, "a teacher reads text, and it takes images"),
    ],
)
def test_teacher_that_cannot_judge_the_policy_s_tokens_is_refused(spoil: Callable[[Path], None], reason: str) -> None:
    spoil(Path("teacher"))
    config = make_config()
    findings = check_algorithm(config, inspect_machine())
    assert findings and all(finding.error is ConfigError and finding.problem.next_step for finding in findings)
    with pytest.raises(ConfigError, match=reason):
        Trainer(config, load_policy(config))
    assert not check_algorithm(make_config(learner={"recipe": {"max_updates": 0}}), inspect_machine())


@pytest.mark.parametrize(
    ("options", "field", "reason"),
    [
        ({}, FIELD, "required"),
        ({"teacher": ""}, FIELD, "at least 1 character"),
        ({"teacher": 3}, FIELD, "string"),
        ({"teacher": "teacher", "kl_beta": 0.1}, "learner.algorithm.options", "kl_beta: no effect"),
        ({"teacher": "teacher", "strength": 2}, "learner.algorithm.options.strength", "unknown option"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], field: str, reason: str) -> None:
    config = make_config().learner
    config = config.model_copy(update={"algorithm": config.algorithm.model_copy(update={"options": options})})
    with pytest.raises(ConfigError) as refused:
        make_algorithm(config)
    (problem,) = refused.value.problems
    assert problem.field == field and reason in problem.reason


def test_teacher_that_is_not_there_is_named_before_anything_starts() -> None:
    (problem,) = teacher_problems(make_config("models/nowhere"))
    assert problem.field == FIELD and "models/nowhere" in problem.reason
    assert "hf download models/nowhere" in problem.next_step
    shown = make_config(actor={"prompt": {"format": "compact_vision"}})
    assert "prompts show images" in teacher_problems(shown)[0].reason


def test_teacher_with_more_tokens_than_the_policy_is_taken() -> None:
    save_model(Path("teacher"), seed=2, num_tokens=NUM_TOKENS + 3)
    assert not teacher_problems(make_config())
