"""Forward passes for the transformers engine over a ragged batch: new tokens of all requests laid end to end.

`HFDecoder` runs any Hugging Face causal language model through transformers' attention registry. `llama.LlamaDecoder` runs
Llama-shaped models with fewer, fused calls and packed matrices. Both write keys and values straight into the `KVCache` rows. No
sampling, no scheduling here.

Shape legend: N new tokens of this pass, S live rows spanned, T cached positions, Q query heads, H key/value heads,
G = Q / H, D head size, R rows that need logits, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from computerrl.actor.engines.kv_cache import KVCache
from computerrl.actor.engines.passes import Pass
from computerrl.common.errors import WeightError

_ATTENTION = "computerrl_ragged"
"""Name of `_hf_attention` in transformers' attention registry."""


class Decoder(Protocol):
    """A model on a cache."""

    def forward(self, batch: Pass) -> torch.Tensor:
        """Logits [R, V] in float32."""

    def update(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Replace all named weights, or none. Raises `WeightError`."""


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


def embed(batch: Pass, embeddings: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """[N, E] what enters the lowest layer: ``embeddings`` of tokens, and features in place of those of pieces of images."""
    if batch.images is None:
        return embeddings(batch.tokens_N)
    embedded_NE = embeddings(batch.tokens_N.clamp_min(0))
    return embedded_NE.index_copy(0, batch.images.nodes_V, batch.images.features.rows_RE.to(embedded_NE.dtype))


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

    def __init__(self, model: Any, cache: KVCache, *, float32_head: bool = False) -> None:
        """``float32_head``: compute the output layer in float32, see `ModelConfig.head_dtype`."""
        from transformers import AttentionInterface

        AttentionInterface.register(_ATTENTION, _hf_attention)
        has_tower = hasattr(model.config, "vision_config")
        model.set_attn_implementation({"text_config": _ATTENTION, "vision_config": "sdpa"} if has_tower else _ATTENTION)
        self._body = model.get_decoder()
        self._embedding = model.get_input_embeddings()
        self._cache = cache
        self._weights = named_weights(model)
        self._head = model.get_output_embeddings()
        self._float32_head = copy.deepcopy(self._head).float() if float32_head else None

    def forward(self, batch: Pass) -> torch.Tensor:
        hidden = self._body(
            inputs_embeds=embed(batch, self._embedding)[None],
            position_ids=batch.positions_N[None] if batch.rope_3N is None else batch.rope_3N[:, None],
            use_cache=False,
            ragged_pass=batch,
            ragged_cache=self._cache,
            **_deep_arguments(batch),
        ).last_hidden_state[0]
        wanted = hidden[batch.logit_rows_R]
        return self._head(wanted).float() if self._float32_head is None else self._float32_head(wanted.float())

    def update(self, tensors: Mapping[str, torch.Tensor]) -> None:
        check_tensors(self._weights, tensors)
        for name, tensor in tensors.items():
            self._weights[name].copy_(tensor)
        if self._float32_head is not None:
            self._float32_head.load_state_dict(self._head.state_dict())


def _deep_arguments(batch: Pass) -> dict[str, Any]:
    """Arguments for features that enter higher layers (DeepStack)."""
    if batch.images is None or not batch.images.features.deep:
        return {}
    is_piece_N = torch.zeros(len(batch.tokens_N), dtype=torch.bool, device=batch.tokens_N.device)
    is_piece_N.index_fill_(0, batch.images.nodes_V, True)
    return {"visual_pos_masks": is_piece_N[None], "deepstack_visual_embeds": list(batch.images.features.deep)}


def _hf_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    *,
    scaling: float,
    ragged_pass: Pass,
    ragged_cache: KVCache,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function: [1, heads, N, D] in, [1, N, Q * D] out."""
    layer = module.layer_idx
    new = torch.cat([key[0], value[0]]).transpose(0, 1)
    ragged_cache.write(layer, ragged_pass.places, new)
    q_NQD = query[0].transpose(0, 1)
    return attend(q_NQD, ragged_pass, ragged_cache.keys_SHTD[layer], ragged_cache.values_SHTD[layer], scaling)[None], None
