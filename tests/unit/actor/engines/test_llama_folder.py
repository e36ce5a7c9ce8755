"""Llama-shaped model folders are read without transformers, to the same numbers; all others are left to transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from computerrl.actor.engines.llama import LlamaModel
from computerrl.actor.engines.transformers_engine import TransformersCore, load_model, make_transformers_engine
from computerrl.common.errors import ConfigError
from computerrl.learner.model_store import ensure_model

PROBE = np.arange(3, 43, dtype=np.int32)
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def save(folder: Path, *, shard_size: str = "5GB", **settings: Any) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        **{
            "vocab_size": 64,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "initializer_range": 0.3,
        }
        | settings
    )
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size=shard_size)
    return folder


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def probe(model: Any, *, fused: bool = True) -> np.ndarray:
    return TransformersCore(model, num_live=1, max_tokens=64, seed=0, max_draft_tokens=0, fused=fused).probe(PROBE)


def check_same(folder: Path, dtype: str = "float32") -> None:
    read = LlamaModel.read(folder, dtype=getattr(torch, dtype), device="cpu")
    assert read is not None
    expected = load_model(folder, dtype=dtype, device="cpu")
    assert set(read.weights) == set(dict(expected.named_parameters(remove_duplicate=False)))
    tolerance = 1e-5 if dtype == "float32" else 0.05
    assert probe(read) == pytest.approx(probe(expected, fused=False), abs=tolerance)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="as it is"),
        pytest.param({"tie_word_embeddings": True}, id="tied"),
        pytest.param({"shard_size": "20KB"}, id="in shards"),
        pytest.param({"head_dim": 16}, id="wide heads"),
        pytest.param({"num_key_value_heads": 4, "rms_norm_eps": 1e-3}, id="every head its own keys"),
        pytest.param({"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}, id="other frequencies"),
    ],
)
def test_folder_read_without_transformers_computes_what_transformers_does(settings: dict[str, Any], tmp_path: Path) -> None:
    check_same(save(tmp_path, **settings))


@pytest.mark.parametrize("rope", [None, {"rope_type": "default"}])
def test_settings_of_older_versions_of_transformers_are_understood(tmp_path: Path, rope: dict[str, Any] | None) -> None:
    save(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    change_config(tmp_path, rope_parameters=rope, rope_theta=500.0, head_dim=None, attention_bias=None, hidden_act=None)
    check_same(tmp_path)


def test_weights_that_were_read_can_be_changed_and_their_file_stays(tmp_path: Path) -> None:
    """In the type that is in the file, which is when nothing has to be converted."""
    before = (save(tmp_path, dtype="float32") / "model.safetensors").read_bytes()
    read = LlamaModel.read(tmp_path, dtype=torch.float32, device="cpu")
    assert read is not None
    core = TransformersCore(read, num_live=1, max_tokens=64, seed=0, max_draft_tokens=0)
    expected = load_model(tmp_path, dtype="float32", device="cpu")
    name = "model.layers.0.mlp.up_proj.weight"
    changed = expected.get_parameter(name).add_(0.1)
    core.load(1, {name: changed})
    assert core.probe(PROBE) == pytest.approx(probe(expected, fused=False), abs=1e-5)
    assert (tmp_path / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("vocabulary", [2, 261, 934])
def test_probe_of_a_small_vocabulary_is_the_same_for_learner_and_engine(vocabulary: int, tmp_path: Path) -> None:
    from computerrl.common.config import RunConfig
    from computerrl.learner.model.policy import load_policy
    from tests.support.data.tokenizer_data import FAMILIES, make_folder

    folder = make_folder(FAMILIES["bytes"], tmp_path)
    save(folder, vocab_size=vocabulary)
    sections = {"model": {"name": str(folder), "dtype": "float32", "trainable_top_layers": None}, "learner": {"device": "cpu"}}
    policy = load_policy(RunConfig.model_validate({"run_dir": str(tmp_path), **sections}))
    engine = make_transformers_engine(
        folder,
        decode=lambda _: "",
        dtype="float32",
        device="cpu",
        num_live=1,
        max_tokens=64,
        seed=0,
        num_threads=None,
        max_draft_tokens=0,
    )
    try:
        engine.load(1, {}, expected_probe=policy.probe_logprobs())
        assert engine.policy_version == 1 and len(engine.probe()) == len(policy.probe_logprobs())
    finally:
        engine.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_built_in_model_is_read_without_transformers(dtype: str) -> None:
    check_same(ensure_model("tiny-random"), dtype)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"attention_bias": True}, id="biases"),
        pytest.param({"hidden_act": "gelu"}, id="gelu"),
        pytest.param({"rope_parameters": LLAMA3}, id="stretched positions"),
    ],
)
def test_folder_of_another_shape_is_left_to_transformers(settings: dict[str, Any], tmp_path: Path) -> None:
    assert LlamaModel.read(save(tmp_path, **settings), dtype=torch.float32, device="cpu") is None


@pytest.mark.parametrize(
    "changes",
    [{"num_hidden_layers": 1}, {"hidden_size": 16}, {"num_key_value_heads": 4}, {"quantization_config": {"quant_method": "fp8"}}],
)
def test_folder_whose_weights_do_not_fit_its_settings_is_left_to_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    change_config(save(tmp_path), **changes)
    assert LlamaModel.read(tmp_path, dtype=torch.float32, device="cpu") is None


def test_stretched_positions_of_a_transformers_model_are_its_own(tmp_path: Path) -> None:
    model = load_model(save(tmp_path, rope_parameters=LLAMA3), dtype="float32", device="cpu")
    fused = probe(model)
    assert fused == pytest.approx(probe(model, fused=False), abs=1e-5)


def test_folder_with_broken_weights_is_a_problem_of_the_configuration(tmp_path: Path) -> None:
    (save(tmp_path) / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ConfigError, match="cannot run"):
        make_transformers_engine(
            tmp_path,
            decode=lambda _: "",
            dtype="float32",
            device="cpu",
            num_live=1,
            max_tokens=64,
            seed=0,
            num_threads=None,
            max_draft_tokens=0,
        )


def test_actor_with_the_built_in_model_imports_no_transformers() -> None:
    script = """
import sys
import computerrl.actor.process
assert "torch" not in sys.modules, "an actor without an engine of its own needs none"
from computerrl.actor.engines.transformers_engine import make_transformers_engine
from computerrl.actor.prompts.builder import FolderTokenizer
from computerrl.common.models.folder import model_folder
folder = model_folder("tiny-random")
decode = FolderTokenizer(folder).decode
make_transformers_engine(folder, decode=decode, dtype="float32", device="cpu", num_live=1, max_tokens=64, seed=0,
                         num_threads=1, max_draft_tokens=0).close()
sys.exit("transformers" in sys.modules)
"""
    ensure_model("tiny-random")
    assert subprocess.run([sys.executable, "-c", script], timeout=300).returncode == 0
