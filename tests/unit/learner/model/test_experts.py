"""A mixture of experts: packed it computes what the model itself does, routers stay or train, folders keep published names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from computerrl.actor.engines.vllm_parts.weights import check_tensors, published, require_known_experts, tensor_shapes
from computerrl.common.config import LearnerConfig, ModelConfig, OptimizerConfig, RunConfig
from computerrl.common.errors import ConfigError, WeightError
from computerrl.common.weight_plan import PROBE_TOKENS
from computerrl.learner.algorithms import PolicyAges
from computerrl.learner.checkpoints.export import export_model
from computerrl.learner.model.policy import load_policy
from computerrl.learner.training.trainer import Trainer
from tests.support.data.trainer_data import make_mixture, random_groups
from tests.unit.learner.checkpoints.test_export_folder import make_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_mixture(tmp_path_factory.mktemp("model") / "experts")


def make_trainer(tmp_path: Path, folder: Path, **model: Any) -> Trainer:
    config = RunConfig(
        name="experts",
        run_dir=str(tmp_path),
        model=ModelConfig(name=str(folder), dtype="float32", **model),
        learner=LearnerConfig(device="cpu", max_logprob_gap=None, optimizer=OptimizerConfig(lr=1e-2)),
    )
    return Trainer(config, load_policy(config))


def own_probe(folder: Path) -> np.ndarray:
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = torch.tensor([PROBE_TOKENS])
    with torch.no_grad():
        logprobs = torch.log_softmax(model(input_ids=tokens).logits[0, :-1], dim=-1)
    return logprobs.gather(1, tokens[0, 1:, None])[:, 0].numpy()


@pytest.mark.parametrize("router", ["frozen", "trained"])
@pytest.mark.parametrize("top_layers", [None, 2])
def test_experts_train_and_routers_as_they_are_told(tmp_path: Path, folder: Path, router: str, top_layers: int | None) -> None:
    trainer = make_trainer(tmp_path, folder, router=router, trainable_top_layers=top_layers)
    before = {name: tensor.clone() for name, tensor in trainer.trainable_tensors().items()}
    trainer.update(trainer.algorithm.prepare(random_groups(num_groups=2), ages=PolicyAges(0)))
    changed = {name for name, tensor in trainer.trainable_tensors().items() if not torch.equal(tensor, before[name])}
    layers = range(3) if top_layers is None else range(1, 3)
    assert {f"model.layers.{layer}.mlp.experts.{part}" for layer in layers for part in ("gate_up_proj", "down_proj")} <= changed
    routers = {f"model.layers.{layer}.mlp.gate.weight" for layer in layers}
    assert routers & before.keys() == (routers if router == "trained" else set())
    if router == "trained":
        assert routers <= changed
    assert "model.layers.0.mlp.experts.down_proj" in before or top_layers == 2


def test_exported_folder_has_published_names_and_computes_what_the_learner_does(tmp_path: Path, folder: Path) -> None:
    run, trainer = make_run(tmp_path, model=str(folder), lr=1e-2)
    out = export_model(run, tmp_path / "exported")
    np.testing.assert_allclose(trainer.probe_logprobs(), own_probe(out), atol=1e-4)
    assert np.abs(own_probe(out) - own_probe(folder)).max() > 1e-3
    files = load_file(out / "model.safetensors")
    assert files.keys() == load_file(folder / "model.safetensors").keys()
    for name, tensor in published(trainer.trainable_tensors()).items():
        assert torch.equal(tensor, files[name]), name


def test_experts_go_to_vllm_by_published_names_without_a_copy(tmp_path: Path, folder: Path) -> None:
    shapes = tensor_shapes(folder)
    require_known_experts(folder, shapes)
    tensors = make_trainer(tmp_path, folder).trainable_tensors()
    found = published(tensors)
    check_tensors(shapes, found)
    fused = tensors["model.layers.2.mlp.experts.gate_up_proj"]
    assert found["model.layers.2.mlp.experts.3.up_proj.weight"].data_ptr() == fused[3, 32:].data_ptr()


def test_experts_of_a_layer_come_together_or_not_at_all(tmp_path: Path, folder: Path) -> None:
    tensors = published(make_trainer(tmp_path, folder).trainable_tensors())
    lacking = "model.layers.1.mlp.experts.5.down_proj.weight"
    with pytest.raises(WeightError, match=f"came without {lacking}"):
        check_tensors(tensor_shapes(folder), {name: tensor for name, tensor in tensors.items() if name != lacking})


def test_experts_under_other_names_are_refused_before_vllm_starts(tmp_path: Path) -> None:
    other = tmp_path / "mixtral"
    config = transformers.MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
    )
    transformers.MixtralForCausalLM(config).save_pretrained(other)
    with pytest.raises(ConfigError, match="weights of experts are not known for model type 'mixtral'"):
        require_known_experts(other, tensor_shapes(other))
