"""Weights that are not whole, not plain or not those of the model are named before a run starts, or where they are loaded."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from computerrl.actor.engines.base import PolicyEngine
from computerrl.actor.engines.transformers_engine import make_transformers_engine
from computerrl.common.config import RunConfig
from computerrl.common.errors import ConfigError
from computerrl.common.models.folder import model_folder_problems
from computerrl.learner.model.policy import load_policy
from tests.support.data.tokenizer_data import FAMILIES, make_folder

ONE = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = make_folder(FAMILIES["bytes"], tmp_path_factory.mktemp("whole"))
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    for file in whole.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def settings(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def weights(folder: Path, change: Callable[[str, torch.Tensor], torch.Tensor | None]) -> None:
    changed = {name: change(name, tensor) for name, tensor in load_file(folder / ONE).items()}
    save_file({name: tensor for name, tensor in changed.items() if tensor is not None}, folder / ONE, metadata={"format": "pt"})


def shards(folder: Path, **places: object) -> None:
    tensors = load_file(folder / ONE)
    (folder / ONE).unlink()
    index: dict[str, object] = {}
    for number, part in enumerate((sorted(tensors)[:5], sorted(tensors)[5:])):
        save_file({name: tensors[name] for name in part}, folder / f"part-{number}.safetensors", metadata={"format": "pt"})
        index |= dict.fromkeys(part, f"part-{number}.safetensors")
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index | places}))


def cut(folder: Path, name: str, end: int) -> None:
    (folder / name).write_bytes((folder / name).read_bytes()[:end])


def header(folder: Path, text: bytes, *, length: int | None = None) -> None:
    (folder / ONE).write_bytes(struct.pack("<Q", len(text) if length is None else length) + text)


def rename(folder: Path, old: str, new: str) -> None:
    (folder / old).rename(folder / new)


def without(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def both(*changes: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for one in changes:
            one(folder)

    return change


_KEPT: dict[str, Callable[[Path], object]] = {
    "as it is": lambda folder: None,
    "shards": shards,
    "shard named for another": lambda folder: shards(folder, **{"lm_head.weight": "part-1.safetensors"}),
    "half": lambda folder: weights(folder, lambda name, tensor: tensor.half()),
    "tied": both(
        lambda folder: settings(folder, tie_word_embeddings=True),
        lambda folder: weights(folder, lambda name, tensor: None if name == "lm_head.weight" else tensor),
    ),
    "link": both(lambda folder: rename(folder, ONE, "blob"), lambda folder: (folder / ONE).symlink_to(folder / "blob")),
    "a single file beside an old index": lambda folder: (folder / INDEX).write_text('{"weight_map": {"x": "gone.safetensors"}}'),
}

_REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda folder: cut(folder, ONE, 50_000), "has 50000 bytes, and its header tells of"),
    "cut header": (lambda folder: cut(folder, ONE, 500), "no safetensors file, or the beginning of one"),
    "empty": (lambda folder: cut(folder, ONE, 0), "no safetensors file"),
    "page": (lambda folder: (folder / ONE).write_text("<!doctype html><title>404</title>"), "no safetensors file"),
    "huge header": (lambda folder: header(folder, b"{}", length=2**60), "no safetensors file"),
    "header that is no JSON": (lambda folder: header(folder, b"{{"), "damaged header"),
    "header that is a list": (lambda folder: header(folder, b"[1]"), "damaged header"),
    "header without places": (lambda folder: header(folder, b'{"a": {"dtype": "F32"}}'), "damaged header"),
    "header with an infinite place": (
        lambda folder: header(folder, b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, Infinity]}}'),
        "damaged header",
    ),
    "header whose type is a list": (
        lambda folder: header(folder, b'{"a.weight": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 0]}}'),
        "damaged header",
    ),
    "layer of 5,000 digits": (
        lambda folder: header(folder, b'{"layers.%s.w": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}' % (b"9" * 5000)),
        "weights lack layer 0",
    ),
    "index with a name of 300 letters": (
        both(without(ONE), lambda folder: (folder / INDEX).write_text(json.dumps({"weight_map": {"x": "x" * 300}}))),
        "cannot be read: File name too long",
    ),
    "deep header": (lambda folder: header(folder, b"[" * 100_000), "damaged header"),
    "folder": (both(without(ONE), lambda folder: (folder / ONE).mkdir()), f"holds no {ONE}"),
    "link to nothing": (both(without(ONE), lambda folder: (folder / ONE).symlink_to("gone")), f"holds no {ONE}"),
    "pickle": (lambda folder: rename(folder, ONE, "pytorch_model.bin"), f"pickled weights, .* no {ONE}"),
    "gguf": (lambda folder: rename(folder, ONE, "model.Q4_K_M.gguf"), "holds GGUF weights"),
    "adapter": (
        both(
            lambda folder: rename(folder, ONE, "adapter_model.safetensors"),
            lambda folder: rename(folder, "config.json", "adapter_config.json"),
        ),
        "holds an adapter, not a model",
    ),
    "no head": (lambda folder: weights(folder, lambda name, t: None if name == "lm_head.weight" else t), "lack 'lm_head.weight'"),
    "no last layer": (lambda folder: weights(folder, lambda name, t: None if "layers.1." in name else t), "lack layer 1"),
    "whole numbers": (lambda folder: weights(folder, lambda name, tensor: tensor.to(torch.int8)), "is of type I8"),
    "eight bits": (lambda folder: weights(folder, lambda name, t: t.to(torch.float8_e4m3fn)), "is of type F8_E4M3"),
    "other vocabulary": (lambda folder: settings(folder, vocab_size=7), r"vocab_size 7, but 'model.embed\S+' has \[259\]"),
    "quantised": (lambda folder: settings(folder, quantization_config={"quant_method": "gptq"}), "are quantised .*gptq"),
    "no layers": (lambda folder: settings(folder, num_hidden_layers=0), "num_hidden_layers 0, not a whole number"),
    "wide": (lambda folder: settings(folder, hidden_size="32"), "hidden_size '32', not a whole number"),
    "no shards": (both(shards, lambda folder: (folder / INDEX).write_text('{"weight_map": {}}')), "names no weight files"),
    "shard missing": (both(shards, without("part-1.safetensors")), "'part-1.s.*is missing"),
    "shard cut": (both(shards, lambda folder: cut(folder, "part-1.safetensors", 9000)), "'part-1.s.*has 9000 bytes"),
    "shard elsewhere": (lambda folder: shards(folder, **{"lm_head.weight": "/etc/passwd"}), "'/etc/passwd' .*is missing"),
    "shard without a name": (lambda folder: shards(folder, **{"lm_head.weight": 5}), "'5' .*is missing"),
    "tensor in no shard": (lambda folder: shards(folder, **{"model.more": "part-0.safetensors"}), "lack 'model.more', which"),
}

_REFUSED_BY_ROLES: dict[str, tuple[Callable[[Path], object], str]] = {
    "other names": (
        lambda folder: save_file({"x.weight": torch.zeros(2)}, folder / ONE, metadata={"format": "pt"}),
        "lack 21 tensors of LlamaForCausalLM, among them 'lm_head.weight'",
    ),
    "other shape": (
        lambda folder: weights(folder, lambda name, tensor: tensor[:60] if "layers.0.mlp.up" in name else tensor),
        r"'model.layers.0.mlp.up_proj.weight' in .* is \[60, 32\], but config.json makes it \[64, 32\]",
    ),
    "no causal model": (lambda folder: settings(folder, model_type="t5"), "T5Config"),
    "code": (
        lambda folder: settings(folder, model_type="new", auto_map={"AutoConfig": "x.C", "AutoModelForCausalLM": "x.M"}),
        "contains custom code",
    ),
}


@pytest.mark.parametrize("name", _KEPT)
def test_whole_weights_are_read_the_same_by_learner_and_actor(folder: Path, name: str) -> None:
    _KEPT[name](folder)
    assert model_folder_problems(folder) == []
    policy, engine = load_policy(_config(folder)), _engine(folder)
    try:
        assert engine.load(0, {}, expected_probe=policy.probe_logprobs()) >= 0
    finally:
        engine.close()


@pytest.mark.parametrize("name", _REFUSED)
def test_weights_that_are_not_whole_are_named_before_a_run_starts(folder: Path, name: str) -> None:
    change, reason = _REFUSED[name]
    change(folder)
    with pytest.raises(ConfigError, match=rf"(?s)^model\.name: .*{reason}.*\n    -> \w+"):
        load_policy(_config(folder))


@pytest.mark.parametrize("name", _REFUSED_BY_ROLES)
def test_weights_that_a_library_refuses_or_would_invent_are_named_by_learner_and_actor(folder: Path, name: str) -> None:
    change, reason = _REFUSED_BY_ROLES[name]
    change(folder)
    for load in (lambda: load_policy(_config(folder)), lambda: _engine(folder)):
        with pytest.raises(ConfigError, match=rf"(?s)^model\.name: .*{reason}.*\n    -> \w+"):
            load()


def test_weights_that_compute_no_numbers_are_refused(folder: Path) -> None:
    weights(folder, lambda name, tensor: tensor * float("nan"))
    with pytest.raises(ConfigError, match="log-probs that are no numbers"):
        load_policy(_config(folder))


def _config(folder: Path) -> RunConfig:
    learner, model = {"device": "cpu"}, {"name": str(folder), "dtype": "float32"}
    return RunConfig.model_validate({"name": "trial", "model": model, "learner": learner})


def _engine(folder: Path) -> PolicyEngine:
    return make_transformers_engine(
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
