"""The language model behind the eyes, with low-rank changes of its attention (LoRA), for pages and questions beside each other.

Shape legend: B pages of a batch, P tokens of a page's image, C cells among them, Q questions of all pages, L tokens of the
longest question, N = B P + Q L tokens, H heads of attention, G heads of keys and values, R = H / G heads that share one,
T = P + L, D head size, E hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from computerrl.learner.pretraining.labels import CELLS
from computerrl.learner.pretraining.questions import Batch
from computerrl.learner.pretraining.tower import Eyes, is_for_training_alone
from computerrl.learner.tiny_vision import AROUND_IMAGE, IMAGE_TOKEN, LORA_SCALE, WHOLE_IMAGE

RANKS = {"q_proj": 32, "k_proj": 32, "v_proj": 20, "o_proj": 20}
"""Maps of attention -> rank of their change: enough for a thousand words, and for ten digits of x and of y."""
BEGINNING = [AROUND_IMAGE, WHOLE_IMAGE, *[IMAGE_TOKEN] * CELLS**2, AROUND_IMAGE]
"""Tokens of the image."""
CELLS_AT = slice(2, 2 + CELLS**2)
"""The cells among them."""
NAMING_LAYERS = 11
"""So many layers have read a question when its name should have told where the thing lies."""
_LOOK_UP_SCALE = 2.5
"""Of queries and keys of `Reader.look_up_words`. With a larger one tokens look at themselves alone, and cannot unlearn it."""
_OWN_TEXT_SCALE = 0.2
_MIN_NORM_WEIGHT = 3e-3
_ATTENTION = "computerrl_pages_and_questions"


@dataclass(frozen=True, slots=True)
class Layout:
    """Which of N tokens belong together, for `attend`."""

    num_pages: int
    page_Q: torch.Tensor
    length: int
    """L."""
    watched: frozenset[int]
    """Layers to keep the attention of."""
    seen: dict[int, torch.Tensor] = field(default_factory=dict)
    """Layer -> [Q, H, L, T] how much of its attention each token of a question gives to each token of page and question."""


@dataclass(frozen=True, slots=True)
class Read:
    """What a pass over a batch gives."""

    hidden_QLE: torch.Tensor
    """The last hidden states of the questions."""
    named_QE: torch.Tensor
    """Those of `Question.name_end` after `NAMING_LAYERS` layers, of length 1 on average."""
    seen: Mapping[int, torch.Tensor]
    """`Layout.seen`."""


def attend(
    module: torch.nn.Module,
    query_1HND: torch.Tensor,
    key_1GND: torch.Tensor,
    value_1GND: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    layout: Layout,
    **_kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """An attention of transformers for pages and questions beside each other; returns [1, N, H, D]. It knows its mask itself."""
    heads, groups, size = query_1HND.shape[1], key_1GND.shape[1], query_1HND.shape[-1]
    pages, questions, length, num = layout.num_pages, len(layout.page_Q), layout.length, len(BEGINNING)
    (image_q, own_q), (image_k, own_k), (image_v, own_v) = (
        (part[0, :, : pages * num].unflatten(1, (pages, num)).transpose(0, 1), part[0, :, pages * num :])
        for part in (query_1HND, key_1GND, value_1GND)
    )
    image_BHPD = F.scaled_dot_product_attention(image_q, image_k, image_v, is_causal=True, scale=scaling, enable_gqa=True)
    own_k, own_v = (part.unflatten(1, (questions, length)).transpose(0, 1) for part in (own_k, own_v))
    key_QGTD = torch.cat([image_k[layout.page_Q], own_k], dim=2)
    value_QGTD = torch.cat([image_v[layout.page_Q], own_v], dim=2)
    own_q = own_q.view(groups, heads // groups, questions, length, size).permute(2, 0, 1, 3, 4)
    scores_QGRLT = (own_q.flatten(2, 3) @ key_QGTD.transpose(2, 3)).unflatten(2, (heads // groups, length)).float() * scaling
    is_later_LL = torch.ones(length, length, dtype=torch.bool, device=own_q.device).triu(1)
    later_LT = F.pad(is_later_LL, (num, 0))
    share_QGRLT = scores_QGRLT.masked_fill(later_LT, float("-inf")).softmax(-1)
    if getattr(module, "layer_idx", None) in layout.watched:
        layout.seen[int(module.layer_idx)] = share_QGRLT.flatten(1, 2)
    own_QHLD = (share_QGRLT.to(own_v.dtype).flatten(2, 3) @ value_QGTD).view(questions, heads, length, size)
    out_NHD = torch.cat([image_BHPD.transpose(1, 2).flatten(0, 1), own_QHLD.transpose(1, 2).flatten(0, 1)])
    return out_NHD[None], None


class Lora(torch.nn.Module):
    """A frozen linear map with a low-rank change (arXiv 2106.09685, section 4.1)."""

    def __init__(self, base: torch.nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.A = torch.nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.B = torch.nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + LORA_SCALE * ((x @ self.A.T.to(x.dtype)) @ self.B.T.to(x.dtype))


class Reader(torch.nn.Module):
    """The language model behind the eyes."""

    def __init__(self, language_model: Any, eyes: Eyes) -> None:
        import transformers

        super().__init__()
        language_model.requires_grad_(False)
        self.changes = torch.nn.ModuleDict()
        for number, layer in enumerate(language_model.model.layers):
            for name, rank in RANKS.items():
                lora = Lora(getattr(layer.self_attn, name), rank)
                setattr(layer.self_attn, name, lora)
                self.changes[f"{number}-{name}"] = lora
        self.language_model, self.eyes = language_model, eyes
        transformers.AttentionInterface.register(_ATTENTION, attend)
        language_model.config._attn_implementation = _ATTENTION

    def forward(self, batch: Batch, *, watched: frozenset[int] = frozenset(), only_names: bool = False) -> Read:
        """``watched``: the layers of `Read.seen`. ``only_names``: run the first `NAMING_LAYERS` layers alone."""
        with torch.autocast(batch.images.device.type, torch.bfloat16):
            features_BCE = self.eyes(batch.images)
        model, (questions, length) = self.language_model.model, batch.tokens_QL.shape
        device, pages, num = batch.images.device, len(batch.images), len(BEGINNING)
        beginning_BPE = model.embed_tokens(torch.tensor(BEGINNING, device=device)).repeat(pages, 1, 1)
        beginning_BPE[:, CELLS_AT] = features_BCE.to(beginning_BPE.dtype)
        hidden_1NE = torch.cat([beginning_BPE.flatten(0, 1), model.embed_tokens(batch.tokens_QL).flatten(0, 1)])[None]
        position_P, position_L = torch.arange(num, device=device), num + torch.arange(length, device=device)
        position_1N = torch.cat([position_P.repeat(pages), position_L.repeat(questions)])[None]
        rotation = model.rotary_emb(hidden_1NE, position_ids=position_1N)
        layout = Layout(pages, batch.page_Q, length, watched)
        for number, layer in enumerate(model.layers[: NAMING_LAYERS if only_names else None], start=1):
            hidden_1NE = layer(hidden_1NE, attention_mask=None, position_embeddings=rotation, layout=layout)
            own_QLE = hidden_1NE[0, pages * num :].unflatten(0, (questions, length))
            if number == min(NAMING_LAYERS, len(model.layers)):
                named_QE = own_QLE[batch.name_ends_QL].float()
        return Read(model.norm(own_QLE), F.rms_norm(named_QE, named_QE.shape[-1:]), layout.seen)

    @torch.no_grad()
    def look_up_words(self, seed: int) -> None:
        """Let the first heads of the first layer look at tokens like their own, wherever those stand: there a token still is its
        word, and a cell, by the first stage, is the words under it.

        Queries and keys become one random projection of the word. It lies in the slower half of the rotary frequencies, which
        turn little over the length of a prompt. One number of it is the mean of all words, which cells lack: it begins to keep a
        token from looking at itself."""
        config, layer = self.language_model.config, self.language_model.model.layers[0]
        size = config.hidden_size // config.num_attention_heads
        slow = torch.cat([torch.arange(size // 4, size // 2), torch.arange(3 * size // 4, size)])
        generator = torch.Generator().manual_seed(seed)
        mean_E = F.normalize(self.language_model.get_input_embeddings().weight.float().mean(0), dim=0)
        words_RE = torch.randn(len(slow), config.hidden_size, generator=generator) / config.hidden_size**0.5
        words_RE -= torch.outer(words_RE @ mean_E, mean_E)
        # The norm before it would make few numbers of a word count.
        norm_E = layer.input_layernorm.weight.float()
        undo_norm_E = norm_E.sign() / norm_E.abs().clamp(min=_MIN_NORM_WEIGHT)
        for name, num_heads, sign in (("q_proj", len(self.look_up_heads), 1), ("k_proj", 1, -1)):
            change = self.changes[f"0-{name}"]
            words_RE[-1] = sign * _OWN_TEXT_SCALE * mean_E
            change.A[: len(slow)] = words_RE * undo_norm_E
            change.B.zero_()
            for head in range(num_heads):
                change.B[head * size + slow, torch.arange(len(slow))] = _LOOK_UP_SCALE / LORA_SCALE

    @property
    def look_up_heads(self) -> list[tuple[int, int]]:
        """(layer, head) of `look_up_words`."""
        config = self.language_model.config
        return [(0, head) for head in range(config.num_attention_heads // config.num_key_value_heads)]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.language_model.lm_head(hidden).float()

    def state(self) -> dict[str, torch.Tensor]:
        """Names and tensors of `learner.tiny_vision.WEIGHTS_FILE`."""
        tensors = {name: tensor for name, tensor in self.eyes.state_dict().items() if not is_for_training_alone(name)}
        return tensors | {name: parameter.detach() for name, parameter in self._changes()}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """What `state` gave. Raises `KeyError` for a tensor that is missing, `RuntimeError` for one of another shape."""
        for name, tensor in self.state().items():
            tensor.copy_(tensors[name])

    def _changes(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        for name, lora in self.changes.items():
            number, _, part = name.partition("-")
            for end in "AB":
                yield f"model.layers.{number}.self_attn.{part}.lora_{end}", getattr(lora, end)
