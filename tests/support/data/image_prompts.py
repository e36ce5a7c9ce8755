"""Folders of tiny vision-language models whose tokenizers know the tokens of images and whose chat templates write them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from computerrl.learner.model_store import ensure_model
from tests.support.data.vision_data import save_model

_TURNS = (
    "{{% for m in messages %}}{begin}{{{{ m['role'] }}}}\n{{% if m['content'] is string %}}{{{{ m['content'] }}}}{{% else %}}"
    "{{% for c in m['content'] %}}{{% if c['type'] == 'image' %}}{image}{{% else %}}{{{{ c['text'] }}}}{{% endif %}}"
    "{{% endfor %}}{{% endif %}}{end}\n{{% endfor %}}{{% if add_generation_prompt %}}{begin}assistant\n{{% endif %}}"
)
_GRID_TOKENS = ["<|vision_start|>", "<|image_pad|>", "<|vision_end|>"]
_GLM_TOKENS = ["<|begin_of_image|>", "<|image|>", "<|end_of_image|>"]
_TILE_TOKENS = ["<fake_token_around_image>", "<image>", "<global-img>"]
_ROWS = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
_TURN_TOKENS = ["<|im_start|>", "<|im_end|>"]

VLLM_TEXT = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
"""For `save_model`: a language model as small, whose heads have 32 numbers. vLLM on CPUs takes no smaller ones."""

TOKENS_OF = {
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl"), _GRID_TOKENS),
    "glm4v": _GLM_TOKENS,
    **dict.fromkeys(("idefics3", "smolvlm"), _TILE_TOKENS),
}
"""Family -> tokens around an image, and its image token in the middle."""


def make_folder(
    path: Path, family: str, *, image: str | None = None, text: Mapping[str, Any] | None = None, tied: bool = False
) -> Path:
    """A model of ``family``. ``image``: what its chat template writes for an image, if not what the family's does. ``text``
    and ``tied``: see `save_model`."""
    first, piece, last = TOKENS_OF[family]
    backend = Tokenizer.from_file(str(ensure_model("tiny-random") / "tokenizer.json"))
    names = [first, piece, last, *_TURN_TOKENS, *(_ROWS if first in _TILE_TOKENS else [])]
    backend.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])
    vocabulary, token = backend.get_vocab_size(), backend.token_to_id(piece)
    save_model(path, model_type=family, vocab_size=vocabulary, image_token=token, text=text, tied=tied)
    backend.save(str(path / "tokenizer.json"))
    written = image if image is not None else piece if first in _TILE_TOKENS else f"{first}{piece}{last}"
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": _TURNS.format(begin="<|im_start|>", end="<|im_end|>", image=written),
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path
