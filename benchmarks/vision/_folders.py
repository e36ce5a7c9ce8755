"""Random vision-language models of each family, small enough to measure on a CPU, with the image processors of their families.

Only the shapes matter: weights are random, and the tokenizer is never asked. Processors keep the sizes of real ones, so that a
screen takes as many image tokens as with a real model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

Settings = Mapping[str, Any]
_NO_SETTINGS: Settings = MappingProxyType({})
FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v", "idefics3", "smolvlm")
IMAGE = 1050
"""Id of the image token."""
_PATCH = {"qwen3_vl": 16}
"""Side of a patch in pixels, where it is not 14."""
_TEXT: dict[str, Any] = {
    "vocab_size": 1100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16_384,
    "initializer_range": 0.1,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_TOWER: dict[str, Any] = {"hidden_size": 64, "initializer_range": 0.1}


def save_random_model(path: Path, family: str, *, text: Settings = _NO_SETTINGS, tower: Settings = _NO_SETTINGS) -> Path:
    """A model folder of ``family`` in ``path``. ``text``, ``tower``: settings of its parts that are others than here."""
    import torch
    import transformers

    with torch.random.fork_rng():
        torch.manual_seed(11)
        config = _of_tiles(family, text, tower) if family in ("idefics3", "smolvlm") else _of_grid(family, text, tower)
        transformers.AutoModelForImageTextToText.from_config(config).save_pretrained(path)
    _processor(family).save_pretrained(path)
    (path / "tokenizer.json").write_text("{}", encoding="utf-8")
    return path


def _of_grid(family: str, other_text: Settings, other_tower: Settings) -> Any:
    import transformers

    rope: dict[str, Any] = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10_000.0}
    kind = "image" if family == "glm4v" else "vision"
    tokens = {"image_token_id": IMAGE, "video_token_id": 1051}
    tokens |= {f"{kind}_start_token_id": 1052, f"{kind}_end_token_id": 1053}
    tower = {**_TOWER, "depth": 4, "num_heads": 4, "patch_size": _PATCH.get(family, 14)}
    if family == "qwen2_vl":
        tower |= {"embed_dim": 64, "mlp_ratio": 2}
    else:
        tower |= {"intermediate_size": 128, "out_hidden_size": 64}
    if family == "qwen2_5_vl":
        tower |= {"window_size": 112, "fullatt_block_indexes": [3]}
    if family == "qwen3_vl":
        tower |= {"deepstack_visual_indexes": [1, 2], "num_position_embeddings": 2304}
    head = {"head_dim": 16} if family == "qwen3_vl" else {}
    text = {**_TEXT, "rope_parameters": rope, **head, **other_text}
    return transformers.AutoConfig.for_model(family, text_config=text, vision_config={**tower, **other_tower}, **tokens)


def _of_tiles(family: str, other_text: Settings, other_tower: Settings) -> Any:
    import transformers

    tower = {**_TOWER, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
    tower |= {"image_size": 512, "patch_size": 16}
    text = {**_TEXT, "model_type": "llama", **other_text}
    shape = {
        "text_config": text,
        "vision_config": {**tower, **other_tower},
        "image_token_id": IMAGE,
        "scale_factor": 4,
        "pad_token_id": 0,
    }
    return transformers.AutoConfig.for_model(family, **shape)


def _processor(family: str) -> Any:
    import transformers

    if family in ("idefics3", "smolvlm"):
        name = {"idefics3": "Idefics3ImageProcessor", "smolvlm": "SmolVLMImageProcessor"}[family]
        return getattr(transformers, name)(size={"longest_edge": 2048}, max_image_size={"longest_edge": 512})
    name = "Glm4vImageProcessor" if family == "glm4v" else "Qwen2VLImageProcessor"
    size = {"shortest_edge": 56 * 56, "longest_edge": 2048 * 2048}
    return getattr(transformers, name)(size=size, patch_size=_PATCH.get(family, 14))
