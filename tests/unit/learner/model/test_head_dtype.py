"""`model.head_dtype`: learner and own engine compute the output layer in float32, on states in bfloat16, and agree.

In the model here nothing is added to the embeddings, so that both sides have the same states and only the output layer differs.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from computerrl.actor.engines.llama import LlamaModel
from computerrl.actor.engines.transformers_engine import TransformersCore, load_model
from computerrl.common.config import RunConfig, load_config
from computerrl.common.errors import ConfigError
from computerrl.common.memory_plan import engine_mb, learner_mb
from computerrl.common.weight_plan import PROBE_TOKENS
from computerrl.learner.model.policy import Policy, _pack_of, _sample_of, load_policy
from computerrl.learner.model_store import ensure_model

PROBE = np.array(PROBE_TOKENS, dtype=np.int32)


def save(folder: Path) -> Path:
    """A Llama whose layers add nothing."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=max(PROBE_TOKENS) + 1,
        hidden_size=64,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    model.to(torch.bfloat16).save_pretrained(folder)
    for file in ensure_model("tiny-random").glob("tokenizer*"):
        shutil.copy(file, folder)
    return folder


def exact(folder: Path, scale: float = 1.0) -> np.ndarray:
    """Log-probs of the probe: norm and states in bfloat16, output layer in float64."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    with torch.no_grad():
        states = model.model.norm(model.model.embed_tokens(torch.tensor(PROBE_TOKENS[:-1])))
        logprobs = torch.log_softmax(states.double() @ (scale * model.lm_head.weight).double().T, dim=-1)
    return logprobs.gather(1, torch.tensor(PROBE_TOKENS[1:])[:, None])[:, 0].numpy()


def of_learner(folder: Path, head_dtype: str) -> Policy:
    model = {"name": str(folder), "dtype": "bfloat16", "head_dtype": head_dtype, "trainable_top_layers": None}
    return load_policy(RunConfig.model_validate({"mode": "serial", "model": model, "learner": {"device": "cpu"}}))


def engine(folder: Path, *, fused: bool, float32_head: bool) -> TransformersCore:
    model: Any = load_model(folder, dtype="bfloat16", device="cpu")
    if fused:
        model = LlamaModel.read(folder, dtype=torch.bfloat16, device="cpu")
    return TransformersCore(
        model, num_live=1, max_tokens=64, seed=0, max_draft_tokens=0, fused=fused, half=True, float32_head=float32_head
    )


@pytest.mark.parametrize("fused", [True, False])
def test_float32_head_of_learner_and_engine_agree_and_lose_nothing(fused: bool, tmp_path: Path) -> None:
    folder = save(tmp_path)
    wanted = exact(folder)
    assert of_learner(folder, "float32").probe_logprobs() == pytest.approx(wanted, abs=1e-4)
    assert engine(folder, fused=fused, float32_head=True).probe(PROBE) == pytest.approx(wanted, abs=1e-4)
    rounded = [of_learner(folder, "model").probe_logprobs(), engine(folder, fused=fused, float32_head=False).probe(PROBE)]
    assert all(np.abs(one - wanted).mean() > 1e-3 for one in rounded), "bfloat16 logits are rounded"


@pytest.mark.parametrize("fused", [True, False])
def test_float32_head_of_an_engine_follows_new_weights(fused: bool, tmp_path: Path) -> None:
    folder = save(tmp_path)
    core = engine(folder, fused=fused, float32_head=True)
    head = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).lm_head.weight.detach()
    core.load(1, {"lm_head.weight": head * 0.5})
    assert core.probe(PROBE) == pytest.approx(exact(folder, scale=0.5), abs=1e-4)


def test_float32_head_gradient_is_that_of_the_head_in_float64(tmp_path: Path) -> None:
    folder = save(tmp_path)
    policy = of_learner(folder, "float32")
    pack = _pack_of([_sample_of(PROBE)])
    policy.forward(pack, temperature=0.7).logprobs_U.sum().backward()
    found = policy.weights.masters["lm_head.weight"].grad
    plain = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    states = plain.model.norm(plain.model.embed_tokens(torch.tensor(PROBE_TOKENS[:-1]))).detach().double()
    weight = plain.lm_head.weight.detach().double().requires_grad_()
    logprobs = torch.log_softmax(states @ weight.T / 0.7, dim=-1)
    logprobs.gather(1, torch.tensor(PROBE_TOKENS[1:])[:, None]).sum().backward()
    assert found is not None and weight.grad is not None
    # The gradient passes the bfloat16 parameter on its way to the master.
    torch.testing.assert_close(found.double(), weight.grad, rtol=1e-2, atol=1e-3)


def test_float32_head_is_refused_where_the_engine_cannot_and_counted_where_it_can(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("name: x\nmodel: {head_dtype: float32, dtype: bfloat16}\n")
    with pytest.raises(ConfigError, match=r"model\.head_dtype: float32, but the engine vllm"):
        load_config(path, overrides=["actor.engine=vllm"])
    config, plain = load_config(path), load_config(path, overrides=["model.head_dtype=model"])
    copy_mb = 4 * 49_152 * 576 // 2**20
    assert learner_mb(config, "none") - learner_mb(plain, "none") == pytest.approx(copy_mb, abs=1)
    assert engine_mb(config) - engine_mb(plain) == pytest.approx(copy_mb, abs=1)
