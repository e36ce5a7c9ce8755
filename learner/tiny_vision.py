"""The model `tiny-vision`: SmolLM2-135M in the body of Idefics3 (arXiv 2408.12637), behind a small vision tower.

`tiny_vision.safetensors` holds what was trained: tower and connector, and, after the second stage, low-rank changes (LoRA, arXiv
2106.09685) of the language model's attention that teach it to say where a thing lies. `learner.pretraining` made it. Everything
else is SmolLM2's own: three special tokens that it never used mark images.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WEIGHTS_FILE = Path(__file__).with_name("tiny_vision.safetensors")

SIDE = 240
"""Pixels: side of the square that the tower sees, whatever the shape of the screen."""
PATCH = 12
"""Pixels: side of a patch."""
SCALE = 2
"""So many patches by so many stand behind one image token: 100 tokens for a screen, the tenths of its width and height."""
TOWER = {
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "image_size": SIDE,
    "patch_size": PATCH,
}
LORA_SCALE = 2.0
"""A weight is SmolLM2's and this times B A."""

TOKENS = {"<jupyter_output>": "<global-img>", "<jupyter_script>": "<image>", "<empty_output>": "<fake_token_around_image>"}
"""Special tokens of SmolLM2, and what they mean here."""
WHOLE_IMAGE, IMAGE_TOKEN, AROUND_IMAGE = 14, 15, 16
"""Their ids."""

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}"
    "{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def save_tiny_vision(folder: Path, *, language_model: Path, trained: Path = WEIGHTS_FILE) -> None:
    """Write the model into ``folder``. ``language_model``: the folder of `smollm2-135m`. ``trained``: what was trained."""
    import torch
    import transformers
    from safetensors.torch import load_file

    text = transformers.AutoConfig.from_pretrained(language_model)
    model = transformers.Idefics3ForConditionalGeneration(model_config(text.to_dict())).to(torch.bfloat16)
    tensors = load_file(trained)
    weights = {_inside(name): tensor for name, tensor in load_file(language_model / "model.safetensors").items()}
    for name in [name for name in tensors if name.endswith(".lora_A")]:
        changed = f"model.text_model.{name.removeprefix('model.').removesuffix('.lora_A')}.weight"
        change = tensors[name.replace(".lora_A", ".lora_B")].float() @ tensors[name].float()
        weights[changed] = (weights[changed].float() + LORA_SCALE * change).to(torch.bfloat16)
    weights |= {f"model.{name}": tensor for name, tensor in tensors.items() if ".lora_" not in name}
    weights["lm_head.weight"] = weights["model.text_model.embed_tokens.weight"]
    model.load_state_dict(weights, strict=True)
    model.tie_weights()
    model.generation_config = transformers.GenerationConfig.from_pretrained(language_model)
    model.save_pretrained(folder)
    processor = transformers.Idefics3ImageProcessorPil(
        size={"longest_edge": 420}, max_image_size={"longest_edge": SIDE}, do_image_splitting=False
    )
    processor.save_pretrained(folder)
    _save_tokenizer(folder, source=language_model)


def model_config(text: Mapping[str, Any]) -> Any:
    """Configuration of the whole model around a language model with configuration ``text``."""
    import transformers

    return transformers.Idefics3Config(
        text_config={key: value for key, value in text.items() if "name_or_path" not in key} | {"tie_word_embeddings": True},
        vision_config=TOWER,
        image_token_id=IMAGE_TOKEN,
        scale_factor=SCALE,
        tie_word_embeddings=True,
        pad_token_id=text["pad_token_id"],
    )


def _inside(name: str) -> str:
    """Name of a language model's tensor in the whole model."""
    return name if name.startswith("lm_head.") else name.replace("model.", "model.text_model.", 1)


def _save_tokenizer(folder: Path, *, source: Path) -> None:
    """SmolLM2's tokenizer, whose special tokens of `TOKENS` have new names, and a chat template with images."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        tree = _renamed(json.loads((source / name).read_text(encoding="utf-8")))
        (folder / name).write_text(json.dumps(tree, ensure_ascii=False, indent=1), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(_CHAT_TEMPLATE, encoding="utf-8")


def _renamed(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {TOKENS.get(key, key): _renamed(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_renamed(value) for value in tree]
    return TOKENS.get(tree, tree) if isinstance(tree, str) else tree
