"""Forward passes for the transformers engine over a ragged batch: new tokens of all requests laid end to end.

`HFDecoder` runs any Hugging Face causal language model through transformers' attention registry. `LlamaDecoder` runs the
same weights of Llama-shaped models with fewer, fused calls and packed matrices (`matrices`). Both write keys and values straight
into the `KVCache` rows. No sampling, no scheduling here.

Shape legend: N new tokens of this pass, S live rows spanned, T cached positions, Q query heads, H key/value heads,
G = Q / H, D head size, R rows that need logits, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from actor.engines.kv_cache import KVCache
from actor.engines.matrices import Matrix
from common.errors import WeightError

_ATTENTION = "computerrl_ragged"
"""Name of `_hf_attention` in transformers' attention registry."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Several new tokens of one request: of its prompt, or a guess of how its completion goes on."""

    row: int
    start: int
    """First of its tokens in the pass."""
    begin: int
    """Its position in the request: this many tokens are cached already."""
    end: int
    mask: torch.Tensor
    """[(end - begin) * G, end] additive, G rows per token."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass: first one new token of each decoding row, in row order, then the chunks."""

    tokens_N: torch.Tensor
    positions_N: torch.Tensor
    places: torch.Tensor
    """Where the new tokens' keys and values go, from `KVCache.places`."""
    decode_rows: torch.Tensor
    num_decode: int
    span: int
    """Rows 0 .. span-1 take part in decode attention; those not decoding are computed and ignored."""
    num_cached: int
    """Longest decoding request, its new token included."""
    decode_mask: torch.Tensor | None
    """[span, 1, 1, num_cached] additive."""
    chunks: tuple[Chunk, ...]
    logit_rows_R: torch.Tensor


class Decoder(Protocol):
    """A model on a cache."""

    def forward(self, batch: Pass) -> torch.Tensor:
        """Logits [R, V] in float32."""

    def update(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Replace named weights; all or nothing. Raises `WeightError`."""


def make_chunk(*, row: int, start: int, begin: int, end: int, group: int, dtype: torch.dtype, device: str) -> Chunk:
    """A `Chunk` with its causal mask."""
    query = torch.arange(begin, end, device=device).repeat_interleave(group)
    seen = torch.arange(end, device=device)[None, :] <= query[:, None]
    mask = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, float("-inf"))
    return Chunk(row=row, start=start, begin=begin, end=end, mask=mask)


def attend(q_NQD: torch.Tensor, batch: Pass, keys_SHTD: torch.Tensor, values_SHTD: torch.Tensor, scale: float) -> torch.Tensor:
    """Attention of every new token over its own request, [N, Q * D].

    Query heads that share a key/value head are laid out as further query positions, so nothing is repeated.
    """
    num_tokens, num_heads, head_dim = q_NQD.shape
    num_kv = keys_SHTD.shape[1]
    group = num_heads // num_kv
    q = q_NQD.reshape(num_tokens, num_kv, group, head_dim)
    parts = []
    if batch.num_decode:
        rows = q[: batch.num_decode]
        if batch.num_decode < batch.span:
            rows = q.new_zeros(batch.span, num_kv, group, head_dim).index_copy_(0, batch.decode_rows, rows)
        keys, values = (cache[: batch.span, :, : batch.num_cached] for cache in (keys_SHTD, values_SHTD))
        out = F.scaled_dot_product_attention(rows, keys, values, attn_mask=batch.decode_mask, scale=scale)
        if batch.num_decode < batch.span:
            out = out.index_select(0, batch.decode_rows)
        parts.append(out.reshape(batch.num_decode, num_heads * head_dim))
    for chunk in batch.chunks:
        count = chunk.end - chunk.begin
        rows = q[chunk.start : chunk.start + count].transpose(0, 1).reshape(1, num_kv, count * group, head_dim)
        keys, values = (cache[chunk.row : chunk.row + 1, :, : chunk.end] for cache in (keys_SHTD, values_SHTD))
        out = F.scaled_dot_product_attention(rows, keys, values, attn_mask=chunk.mask, scale=scale)
        out = out.view(num_kv, count, group, head_dim).transpose(0, 1)
        parts.append(out.reshape(count, num_heads * head_dim))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def check_tensors(parameters: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise `WeightError` unless every tensor is known and fits."""
    for name, tensor in tensors.items():
        target = parameters.get(name)
        if target is None:
            raise WeightError(f"the model has no tensor {name!r}")
        if target.shape != tensor.shape:
            raise WeightError(f"{name}: shape {tuple(tensor.shape)} does not fit {tuple(target.shape)}")


def named_weights(model: Any) -> dict[str, torch.Tensor]:
    """Parameters by name; a tied output matrix goes by both its names."""
    return {name: parameter.data for name, parameter in model.named_parameters(remove_duplicate=False)}


class HFDecoder:
    """Any causal language model of transformers, as it is."""

    def __init__(self, model: Any, cache: KVCache) -> None:
        from transformers import AttentionInterface

        AttentionInterface.register(_ATTENTION, _hf_attention)
        model.set_attn_implementation(_ATTENTION)
        self._model = model
        self._cache = cache
        self._weights = named_weights(model)

    def forward(self, batch: Pass) -> torch.Tensor:
        hidden = self._model.base_model(
            input_ids=batch.tokens_N[None],
            position_ids=batch.positions_N[None],
            use_cache=False,
            ragged_pass=batch,
            ragged_cache=self._cache,
        ).last_hidden_state[0]
        return self._model.get_output_embeddings()(hidden[batch.logit_rows_R]).float()

    def update(self, tensors: Mapping[str, torch.Tensor]) -> None:
        check_tensors(self._weights, tensors)
        for name, tensor in tensors.items():
            self._weights[name].copy_(tensor)


def _hf_attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, *,
    scaling: float, ragged_pass: Pass, ragged_cache: KVCache, **_: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """transformers' attention function: [1, heads, N, D] in, [1, N, Q * D] out."""
    layer = module.layer_idx
    new = torch.cat([key[0], value[0]]).transpose(0, 1)
    ragged_cache.write(layer, ragged_pass.places, new)
    q_NQD = query[0].transpose(0, 1)
    return attend(q_NQD, ragged_pass, ragged_cache.keys_SHTD[layer], ragged_cache.values_SHTD[layer], scaling)[None], None


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
    """Llama-shaped models: rotary attention without biases, RMS norms, gated SiLU."""

    @staticmethod
    def supports(config: Any) -> bool:
        """Is every part of the model one that this class computes?"""
        rope = getattr(config, "rope_parameters", None) or {}
        return (
            config.model_type == "llama"
            and not config.attention_bias
            and not config.mlp_bias
            and config.hidden_act == "silu"
            and rope.get("rope_type", "default") in ("default", "linear", "llama3")
        )

    def __init__(self, model: Any, cache: KVCache, *, half: bool = False) -> None:
        """``half``: see `Matrix`."""
        self._cache = cache
        self._half = half
        self._weights = named_weights(model)
        self._eps = float(model.config.rms_norm_eps)
        self._head_dim = int(model.model.layers[0].self_attn.head_dim)
        self._num_heads = int(model.config.num_attention_heads)
        self._num_kv = int(model.config.num_key_value_heads)
        self._scale = float(model.model.layers[0].self_attn.scaling)
        self._owners: dict[str, Matrix] = {}
        self._embedding = model.get_input_embeddings().weight.data
        self._layers = [self._layer(index) for index in range(model.config.num_hidden_layers)]
        self._final_norm = self._weights["model.norm.weight"]
        self._head = Matrix("lm_head", [model.get_output_embeddings().weight.data], half=half)
        self._tied = model.get_output_embeddings().weight.data_ptr() == self._embedding.data_ptr()
        self._owners["lm_head.weight"] = self._head
        if self._tied:
            self._owners["model.embed_tokens.weight"] = self._head
        self._cos_TD, self._sin_TD = self._rotary_tables(model)

    def _layer(self, index: int) -> _Layer:
        prefix = f"model.layers.{index}."

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

    def _rotary_tables(self, model: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin per position; the sign that rotating by halves needs is already in sin."""
        positions = torch.arange(self._cache.max_tokens, device=self._embedding.device)[None]
        cos, sin = model.model.rotary_emb(self._embedding[:1, None], positions)
        half = self._head_dim // 2
        signed = torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)
        return cos[0].contiguous(), signed.contiguous()

    def forward(self, batch: Pass) -> torch.Tensor:
        hidden = F.embedding(batch.tokens_N, self._embedding)
        cos_N1D = self._cos_TD[batch.positions_N][:, None]
        sin_N1D = self._sin_TD[batch.positions_N][:, None]
        width = (hidden.shape[-1],)
        num_tokens, num_rotated = hidden.shape[0], self._num_heads + self._num_kv
        shape = (num_tokens, num_rotated + self._num_kv, self._head_dim)
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(F.rms_norm(hidden, width, layer.input_norm, self._eps)).view(shape)
            rotated = qkv[:, :num_rotated]
            halves = rotated.roll(self._head_dim // 2, dims=-1)
            rotated.mul_(cos_N1D).addcmul_(halves, sin_N1D)
            self._cache.write(index, batch.places, qkv[:, self._num_heads :])
            keys, values = self._cache.keys_SHTD[index], self._cache.values_SHTD[index]
            attended = attend(qkv[:, : self._num_heads], batch, keys, values, self._scale)
            hidden = layer.out.combine(attended, hidden, "add")
            normed = F.rms_norm(hidden, width, layer.post_norm, self._eps)
            gated = layer.up.combine(normed, layer.gate(normed, "swish"), "mul")
            hidden = layer.down.combine(gated, hidden, "add")
        wanted = hidden[batch.logit_rows_R]
        return self._head(F.rms_norm(wanted, width, self._final_norm, self._eps)).float()

    def update(self, tensors: Mapping[str, torch.Tensor]) -> None:
        check_tensors(self._weights, tensors)
        stale: dict[int, Matrix] = {}
        for name, tensor in tensors.items():
            self._weights[name].copy_(tensor)
            owner = self._owners.get(name)
            if owner is not None:
                stale[id(owner)] = owner
        for owner in stale.values():
            owner.refresh()
