"""LoRA: only adapters train, and everybody else sees merged weights."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from computerrl.common.config import LearnerConfig, LoraConfig, ModelConfig, OptimizerConfig, RunConfig
from computerrl.common.errors import ConfigError, SetupError
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.weight_plan import PROBE_TOKENS
from computerrl.learner.algorithms import PolicyAges
from computerrl.learner.checkpoints.checkpoint import CheckpointStore
from computerrl.learner.checkpoints.export import export_model
from computerrl.learner.model.lora import adapters_among
from computerrl.learner.model.policy import load_policy
from computerrl.learner.model_store import ensure_model
from computerrl.learner.supervised.pool import pack_run
from computerrl.learner.training.trainer import Trainer
from tests.support.data.trainer_data import make_step, random_groups

LORA = LoraConfig(rank=4, alpha=8, targets=("q_proj", "down_proj"))


def make_config(tmp_path: Path, *, dtype: str = "float32", lora: LoraConfig | None = LORA) -> RunConfig:
    return RunConfig(
        name="lora",
        run_dir=str(tmp_path),
        model=ModelConfig(name="tiny-random", dtype=dtype, trainable_top_layers=2),
        # The batches here say of made-up log-probs that the present weights sampled them.
        learner=LearnerConfig(device="cpu", lora=lora, max_logprob_gap=None, optimizer=OptimizerConfig(lr=1e-2)),
    )


def make_trainer(tmp_path: Path, **settings: Any) -> Trainer:
    config = make_config(tmp_path, **settings)
    return Trainer(config, load_policy(config))


def base_weights() -> dict[str, torch.Tensor]:
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(ensure_model("tiny-random"), dtype=torch.float32)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def train(trainer: Trainer) -> list[dict[str, float]]:
    batch = trainer.algorithm.prepare(random_groups(num_groups=2), ages=PolicyAges(0))
    steps = [make_step([5, 6, 7, i], [8, 9, i + 20], logprobs=[], version=[]) for i in range(3, 9)]
    return [trainer.sft_step(steps, 1e-2), trainer.update(batch), trainer.update(batch)]


def probe_with(weights: dict[str, torch.Tensor]) -> np.ndarray:
    """[15] of the base model with ``weights`` in it, by transformers alone."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(ensure_model("tiny-random"), dtype=torch.float32)
    missing = model.load_state_dict(weights, strict=False).unexpected_keys
    assert missing == []
    tokens = torch.tensor([PROBE_TOKENS])
    with torch.no_grad():
        logprobs = torch.log_softmax(model(input_ids=tokens).logits[0, :-1], dim=-1)
    return logprobs.gather(1, tokens[0, 1:, None])[:, 0].numpy()


def test_adapters_begin_as_the_base_model_and_train_into_merged_weights_of_its_names(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    base = base_weights()
    names = {f"model.layers.{i}.{module}.weight" for i in (2, 3) for module in ("self_attn.q_proj", "mlp.down_proj")}
    before = trainer.trainable_tensors()
    assert before.keys() == names
    assert all(torch.equal(tensor, base[name]) for name, tensor in before.items())
    metrics = train(trainer)
    assert all(values["grad_norm"] > 0 for values in metrics)
    after = trainer.trainable_tensors()
    assert all(not torch.equal(tensor, base[name]) for name, tensor in after.items())
    assert all(torch.linalg.matrix_rank(tensor - base[name], atol=1e-5) <= 4 for name, tensor in after.items())
    np.testing.assert_allclose(trainer.probe_logprobs(), probe_with(after), atol=1e-5)
    masters = {name for name in trainer.state_dict() if name.startswith("master/")}
    assert len(masters) == 8 and all("lora_" in name for name in masters)


def test_adapters_restored_continue_exactly_and_begin_the_same_everywhere(tmp_path: Path) -> None:
    left, right = make_trainer(tmp_path), make_trainer(tmp_path)
    assert train(left)[2]["loss"] == train(right)[2]["loss"]
    state = {name: tensor.clone() for name, tensor in left.state_dict().items()}
    expected = train(left)[1:]
    other = make_trainer(tmp_path)
    other.load_state_dict(state)
    assert [values["loss"] for values in train(other)[1:]] == [values["loss"] for values in expected]
    with pytest.raises(ValueError, match="trained tensors"):
        make_trainer(tmp_path, lora=None).load_state_dict(state)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_export_of_adapters_is_what_actors_got(tmp_path: Path, dtype: str) -> None:
    trainer = make_trainer(tmp_path, dtype=dtype)
    config = make_config(tmp_path, dtype=dtype)
    folder = RunFolder(config.folder)
    folder.create(config)
    train(trainer)
    store = CheckpointStore(folder.checkpoints, num_kept=2)
    sections, tree = pack_run({"policy_version": 3, "phase": "rl-1", "update": 2}, trainer.state_dict(), {})
    store.save(sections, tree, cursor=0)
    store.close()
    out = export_model(config.folder, tmp_path / "out")
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(out, dtype="auto")
    exported = dict(model.named_parameters())
    for name, tensor in trainer.trainable_tensors().items():
        assert torch.equal(exported[name], tensor), name
    assert not [file for file in out.iterdir() if "adapter" in file.name]


def test_adapters_of_a_layer_that_is_not_there_are_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"learner\.lora\.targets.*c_attn"):
        make_trainer(tmp_path, lora=LoraConfig(targets=("q_proj", "c_attn")))


def test_adapters_without_peft_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "peft" else there(name, *rest))
    with pytest.raises(SetupError, match="pip install peft"):
        make_trainer(tmp_path)


def test_adapters_among_names_are_found_and_merged() -> None:
    names = ["a.q.base_layer.weight", "a.q.lora_A.default.weight", "a.q.lora_B.default.weight", "a.norm.weight"]
    [adapter] = adapters_among(names, LORA)
    assert (adapter.weight, adapter.base, adapter.down, adapter.up) == ("a.q.weight", *names[:3])
    base, down, up = torch.ones(3, 2), torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0], [0.0], [-1.0]])
    assert adapter.merged(base, down, up).tolist() == [[3.0, 5.0], [1.0, 1.0], [-1.0, -3.0]]
    assert adapters_among(names, None) == ()
