"""Llama-shaped models without transformers: read from a model folder, and run by fused calls on packed matrices (`matrices`).

Importing transformers and building its model take 6 s of processor time, more than half of what an actor needs to start.

Shape legend: see `decoders`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from computerrl.actor.engines.decoders import attend, check_tensors, embed, named_weights
from computerrl.actor.engines.kv_cache import KVCache
from computerrl.actor.engines.matrices import Matrix
from computerrl.actor.engines.passes import Pass
from computerrl.common.models.weight_files import weight_files

_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class LlamaModel:
    """Weights of a model with rotary attention without biases, RMS norms and gated SiLU."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    """Of the RMS norms."""
    weights: Mapping[str, torch.Tensor]
    """By the names of transformers; a tied output matrix stands under both of its names."""
    rotary: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
    """Positions [T] -> cos and sin [T, D] in the weights' type."""
    body: str = "model."
    """Prefix of the names of all weights but the output matrix's, and of the vision tower's."""

    @staticmethod
    def of(model: Any) -> LlamaModel | None:
        """The parts of a transformers ``model``, which shares its weights; None when it is not of this shape. Of a model that
        takes images, the language model has to be."""
        config = model.config.get_text_config()
        if not _is_llama(config.to_dict(), rope_types=("default", "linear", "llama3")):
            return None
        embedding = model.get_input_embeddings().weight.data
        decoder = model.get_decoder()

        def rotary(positions_T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            cos, sin = decoder.rotary_emb(embedding[:1, None], positions_T[None])
            return cos[0], sin[0]

        return LlamaModel(
            num_layers=config.num_hidden_layers,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=int(decoder.layers[0].self_attn.head_dim),
            eps=float(config.rms_norm_eps),
            weights=named_weights(model),
            rotary=rotary,
            body=next(name for name, module in model.named_modules() if module is decoder) + ".",
        )

    @staticmethod
    def read(folder: Path, *, dtype: torch.dtype, device: str) -> LlamaModel | None:
        """The model in ``folder``; None when transformers has to read it: another shape, or settings that this does not know."""
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if not _is_llama(config, rope_types=("default",)) or "quantization_config" in config:
            return None
        num_heads = int(config["num_attention_heads"])
        head_dim = int(config.get("head_dim") or config["hidden_size"] // num_heads)
        num_kv_heads = int(config.get("num_key_value_heads") or num_heads)
        weights = _read_weights(folder, dtype=dtype, device=device)
        if config.get("tie_word_embeddings"):
            weights[_HEAD] = weights["model.embed_tokens.weight"]
        shapes = _shapes(config, queries=num_heads * head_dim, keys=num_kv_heads * head_dim)
        if {name: tuple(tensor.shape) for name, tensor in weights.items()} != shapes:
            return None
        # Older versions of transformers write it beside the other settings.
        rope = config.get("rope_parameters") or {}
        theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0)

        def rotary(positions_T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            # RoFormer (arXiv 2104.09864), equation 15; in float32, since positions times frequencies need its digits.
            frequencies = theta ** -(torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
            angles_TD = (positions_T[:, None].float() * frequencies).repeat(1, 2)
            return angles_TD.cos().to(dtype), angles_TD.sin().to(dtype)

        return LlamaModel(
            num_layers=config["num_hidden_layers"],
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            eps=float(config.get("rms_norm_eps", 1e-6)),
            weights=weights,
            rotary=rotary,
        )

    @property
    def embedding(self) -> torch.Tensor:
        """[V, hidden]."""
        return self.weights[f"{self.body}embed_tokens.weight"]

    @property
    def head(self) -> torch.Tensor:
        """[V, hidden]: the output matrix."""
        return self.weights[_HEAD]


def _is_llama(config: Mapping[str, Any], *, rope_types: tuple[str, ...]) -> bool:
    """Is every part of the model with this config.json one that `LlamaDecoder` computes?"""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return (
        config.get("model_type") == "llama"
        and not config.get("attention_bias")
        and not config.get("mlp_bias")
        and config.get("hidden_act", "silu") == "silu"
        and rope.get("rope_type", rope.get("type", "default")) in rope_types
        and (rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0) == 1.0
    )


def _shapes(config: Mapping[str, Any], *, queries: int, keys: int) -> dict[str, tuple[int, ...]]:
    """Shape of every weight by name."""
    hidden, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    in_layer = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    shapes = {
        f"model.layers.{layer}.{name}.weight": shape
        for layer in range(config["num_hidden_layers"])
        for name, shape in in_layer.items()
    }
    whole = {"model.embed_tokens.weight": (vocabulary, hidden), _HEAD: (vocabulary, hidden), "model.norm.weight": (hidden,)}
    return shapes | whole


def _read_weights(folder: Path, *, dtype: torch.dtype, device: str) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    weights: dict[str, torch.Tensor] = {}
    for name in weight_files(folder):
        weights |= {key: tensor.to(device, dtype) for key, tensor in load_file(folder / name).items()}
    return weights


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: torch.Tensor
    qkv: Matrix
    out: Matrix
    post_norm: torch.Tensor
    gate: Matrix
    up: Matrix
    down: Matrix


class LlamaDecoder:
    """A `LlamaModel` on a cache."""

    def __init__(self, model: LlamaModel, cache: KVCache, *, half: bool = False, float32_head: bool = False) -> None:
        """``half``: see `Matrix`. ``float32_head``: compute the output layer in float32, see `ModelConfig.head_dtype`."""
        self._cache = cache
        self._half = half
        self._model = model
        self._weights = model.weights
        self._owners: dict[str, Matrix] = {}
        self._layers = [self._layer(index) for index in range(model.num_layers)]
        self._head = Matrix(
            "lm_head", [model.head], half=half and not float32_head, dtype=torch.float32 if float32_head else None
        )
        self._owners[_HEAD] = self._head
        if model.head.data_ptr() == model.embedding.data_ptr():
            self._owners[f"{model.body}embed_tokens.weight"] = self._head
        self._final_norm = self._weights[f"{model.body}norm.weight"]
        self._cos_TD, self._sin_TD = self._rotary_tables()

    def _layer(self, index: int) -> _Layer:
        prefix = f"{self._model.body}layers.{index}."

        def matrix(*names: str) -> Matrix:
            full = [f"{prefix}{name}.weight" for name in names]
            made = Matrix(prefix + "+".join(names), [self._weights[name] for name in full], half=self._half)
            self._owners.update(dict.fromkeys(full, made))
            return made

        return _Layer(
            input_norm=self._weights[prefix + "input_layernorm.weight"],
            qkv=matrix("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            out=matrix("self_attn.o_proj"),
            post_norm=self._weights[prefix + "post_attention_layernorm.weight"],
            gate=matrix("mlp.gate_proj"),
            up=matrix("mlp.up_proj"),
            down=matrix("mlp.down_proj"),
        )

    def _rotary_tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin per position; the sign that rotating by halves needs is already in sin."""
        cos_TD, sin_TD = self._model.rotary(torch.arange(self._cache.max_tokens, device=self._model.embedding.device))
        half = self._model.head_dim // 2
        return cos_TD.contiguous(), torch.cat([-sin_TD[:, :half], sin_TD[:, half:]], dim=-1)

    def forward(self, batch: Pass) -> torch.Tensor:
        model = self._model
        hidden = embed(batch, partial(F.embedding, weight=model.embedding))
        cos_N1D = self._cos_TD[batch.positions_N][:, None]
        sin_N1D = self._sin_TD[batch.positions_N][:, None]
        width, scale = (hidden.shape[-1],), model.head_dim**-0.5
        num_tokens, num_rotated = hidden.shape[0], model.num_heads + model.num_kv_heads
        shape = (num_tokens, num_rotated + model.num_kv_heads, model.head_dim)
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(F.rms_norm(hidden, width, layer.input_norm, model.eps)).view(shape)
            rotated = qkv[:, :num_rotated]
            halves = rotated.roll(model.head_dim // 2, dims=-1)
            rotated.mul_(cos_N1D).addcmul_(halves, sin_N1D)
            self._cache.write(index, batch.places, qkv[:, model.num_heads :])
            keys, values = self._cache.keys_SHTD[index], self._cache.values_SHTD[index]
            attended = attend(qkv[:, : model.num_heads], batch, keys, values, scale)
            hidden = layer.out.combine(attended, hidden, "add")
            normed = F.rms_norm(hidden, width, layer.post_norm, model.eps)
            gated = layer.up.combine(normed, layer.gate(normed, "swish"), "mul")
            hidden = layer.down.combine(gated, hidden, "add")
        wanted = F.rms_norm(hidden[batch.logit_rows_R], width, self._final_norm, model.eps)
        return self._head(wanted.to(self._head.dtype)).float()

    def update(self, tensors: Mapping[str, torch.Tensor]) -> None:
        check_tensors(self._weights, tensors)
        for name, tensor in tensors.items():
            self._weights[name].copy_(tensor)
        for owner in dict.fromkeys(self._owners[name] for name in tensors if name in self._owners):
            owner.refresh()
