"""Decoder layers in fewer operations, for GPUs: the launches of kernels bound a small model there, not arithmetic.

An RMS norm is one operation of torch. Attention keeps queries and keys in the order in which the kernel reads them, and rotates
each by its positions in three operations. The numbers are the same up to rounding: a module is replaced where a trial of its
class passes, and stays as it is elsewhere. Nothing is compiled, and no weight is moved or copied.

Shape legend: N nodes, H heads of a tensor, D head size, E hidden size.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from computerrl.common import log
from computerrl.learner.model.attention import trie_attention
from computerrl.learner.model.attention_blocks import BlockLayout
from computerrl.learner.model.batching import make_packs

_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 1e-2}
"""Largest difference, relative to the length of the output, that rounding explains."""
_NUM_NODES = 24
"""Tokens of a trial of attention."""


class _TrialSample:
    prompt_tokens = np.arange(_NUM_NODES)
    action_tokens = np.arange(1)


def fuse(model: Any, *, attends: bool) -> list[str]:
    """Replace modules of the decoder of ``model`` whose class passes a trial; returns the names of those classes.

    The model's attention must be `learner.model.attention.ATTENTION`. ``attends``: replace attention too, for a model without
    images.
    """
    decoder = model.get_decoder()
    classes = {type(module): module for module in reversed(list(decoder.modules()))}
    fused = [kind for kind, first in classes.items() if kind.__name__.endswith("RMSNorm") and _norm_passes(first)]
    for module in decoder.modules():
        if type(module) in fused:
            module.forward = partial(_norm, module)
    attentions = [layer.self_attn for layer in decoder.layers if hasattr(layer, "self_attn")]
    if attends and attentions and _attention_passes(attentions[0], decoder):
        for module in attentions:
            if type(module) is type(attentions[0]):
                module.forward = partial(_attention, module)
        fused.append(type(attentions[0]))
    names = [kind.__name__ for kind in fused]
    log.get_logger().info("model.fused", classes=names)
    return names


# --- norms -------------------------------------------------------------------------------------------------------------


def _norm(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    eps = module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps
    return torch.nn.functional.rms_norm(hidden, module.weight.shape, module.weight, eps)


@torch.no_grad()
def _norm_passes(module: Any) -> bool:
    if getattr(module, "weight", None) is None or not (hasattr(module, "variance_epsilon") or hasattr(module, "eps")):
        return False
    return _same(module(hidden := _random(8, module.weight)), _norm(module, hidden))


# --- attention ---------------------------------------------------------------------------------------------------------


def _attention(
    module: Any,
    hidden_states: torch.Tensor,
    position_embeddings: tuple[torch.Tensor, torch.Tensor],
    attention_mask: Any,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' signature of a layer's attention: hidden states [1, N, E], cos and sin [1, N, D] -> [1, N, E]."""
    shape = (hidden_states.shape[1], -1, module.head_dim)
    query, key, value = (project(hidden_states).view(shape) for project in (module.q_proj, module.k_proj, module.v_proj))
    if hasattr(module, "q_norm"):
        query, key = module.q_norm(query), module.k_norm(key)
    cos, sin = position_embeddings
    query, key = _Rotate.apply(query, key, cos[0, :, None], sin[0, :, None])
    query, key, value = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
    window = getattr(module, "sliding_window", None)
    mixed, _ = trie_attention(module, query, key, value, attention_mask, scaling=module.scaling, sliding_window=window)
    return module.o_proj(mixed.reshape(1, shape[0], -1)), None


class _Rotate(torch.autograd.Function):
    """Rotary positions: of halves a and b of each head a cos - b sin and b cos + a sin, for queries and keys [N, H, D]."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(cos, sin)
        half = cos.shape[-1] // 2
        low, high = sin[..., :half], sin[..., half:]
        return _turned(query, cos, low, high, sign=1), _turned(key, cos, low, high, sign=1)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        half = cos.shape[-1] // 2
        low, high = sin[..., half:], sin[..., :half]
        return _turned(grads[0], cos, low, high, sign=-1), _turned(grads[1], cos, low, high, sign=-1), None, None


def _turned(heads: torch.Tensor, cos: torch.Tensor, low: torch.Tensor, high: torch.Tensor, *, sign: int) -> torch.Tensor:
    half = cos.shape[-1] // 2
    out = heads * cos
    out[..., :half].addcmul_(heads[..., half:], low, value=-sign)
    out[..., half:].addcmul_(heads[..., :half], high, value=sign)
    return out


@torch.no_grad()
def _attention_passes(module: Any, decoder: Any) -> bool:
    (pack,) = make_packs([_TrialSample()], max_tokens=_NUM_NODES)
    try:
        hidden = _random(_NUM_NODES, decoder.layers[0].input_layernorm.weight)[None]
        positions = torch.arange(_NUM_NODES, device=hidden.device)[None]
        rest = {
            "position_embeddings": decoder.rotary_emb(hidden, position_ids=positions),
            "attention_mask": BlockLayout.of(pack, device=hidden.device),
        }
        own = module(hidden, position_ids=positions, use_cache=False, **rest)[0]
        return _same(own, _attention(module, hidden, **rest)[0])
    except (AttributeError, TypeError, ValueError, RuntimeError):
        # Other projections or other positions: the model's own attention stays.
        return False


# --- trial -------------------------------------------------------------------------------------------------------------


def _random(num_rows: int, weight: torch.Tensor) -> torch.Tensor:
    """[rows, E], E and all else as those of a norm's ``weight``."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(num_rows, len(weight), generator=generator).to(weight)


def _same(expected: torch.Tensor, found: torch.Tensor) -> bool:
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return False
    apart = (expected.float() - found.float()).norm() / expected.float().norm()
    return bool(apart < _TOLERANCE[expected.dtype])
