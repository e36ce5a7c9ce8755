"""Model folders with small tokenizers and chat templates in the style of the families that people bring; all made here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

_CORPUS = [
    'Task: Select Bella and click Submit.\nApp: chromium, Click Option\nbutton Submit 3\nAction: click("Bella")\n',
    '<think>\nClick the push-button.\n</think>\n```python\nAgent.click([412, 230])\n```\ncalc.set_cell("B2", "=SUM(A1:A3)")\n',
    "tag\ttext\tcentre\tsize\tstates\npush-button\tOK\t(10, 20)\t(5, 5)\nsystem user assistant question answer\n\n",
]
_NEW_SPLIT = r"(?i:'[stmd]|'re|'ve|'ll)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def byte_level(*, split: bool = False) -> Tokenizer:
    """GPT-2's way; ``split``: with the newer expression, which joins punctuation and line breaks."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if split:
        as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_NEW_SPLIT), "isolated"), as_bytes])
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(_CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False))
    return made


def newer_byte_level() -> Tokenizer:
    return byte_level(split=True)


def bytes_alone() -> Tokenizer:
    """256 tokens and no merges."""
    alphabet = {char: place for place, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return made


def _pieces() -> dict[str, int]:
    texts = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *map(chr, range(0x21, 0x7F)), "▁c", "cl", "▁cl"]
    return {text: place for place, text in enumerate(texts)}


def sentencepiece(*, prepend: bool = True) -> Tokenizer:
    """Llama 2's way: byte fallback, blanks as ▁, one put before each text."""
    merges = [("▁", "c"), ("c", "l"), ("▁", "cl")]
    made = Tokenizer(models.BPE(vocab=_pieces(), merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    blanks = normalizers.Replace(" ", "▁")
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), blanks]) if prepend else blanks  # type: ignore[list-item]
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prepend else steps)  # type: ignore[list-item]
    return made


def metaspace(scheme: str = "first") -> Tokenizer:
    """The newer form of the same."""
    merges = [("▁", "c"), ("c", "l"), ("▁", "cl")]
    made = Tokenizer(models.BPE(vocab=_pieces(), merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(steps)  # type: ignore[arg-type]
    return made


def unigram() -> Tokenizer:
    made = Tokenizer(models.Unigram([(text, -float(place)) for text, place in _pieces().items()], unk_id=0, byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])  # type: ignore[list-item]
    return made


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
LLAMA2 = (
    "{% if messages[0].role == 'system' %}{% set sys = '<<SYS>>\n' ~ messages[0].content ~ '\n<</SYS>>\n\n' %}"
    "{% set turns = messages[1:] %}{% else %}{% set sys = '' %}{% set turns = messages %}{% endif %}"
    "{% for m in turns %}{% if m.role == 'user' %}{{ bos_token }}[INST] {{ (sys if loop.first else '') ~ m.content }} [/INST]"
    "{% else %} {{ m.content | trim }} {{ eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}"
    "{% endif %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
GEMMA_PARTS = (
    "{{ bos_token }}{% set first = '' %}{% if messages[0].role == 'system' %}"
    "{% set first = messages[0].content[0].text ~ '\n\n' %}"
    "{% set turns = messages[1:] %}{% else %}{% set turns = messages %}{% endif %}{% for m in turns %}<start_of_turn>"
    "{{ 'model' if m.role == 'assistant' else m.role }}\n{{ first if loop.first else '' }}{% for part in m.content %}"
    "{{ part.text }}{% endfor %}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
PHI = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
PHI4 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}"
)
MISTRAL = (
    "{% if messages[0].role == 'system' %}{% set sys = messages[0].content ~ '\n\n' %}{% set turns = messages[1:] %}{% else %}"
    "{% set sys = '' %}{% set turns = messages %}{% endif %}{{ bos_token }}{% for m in turns %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}[INST]{{ (sys if loop.last else '') ~ m.content }}[/INST]"
    "{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}{% elif m.role == 'assistant' %}"
    "<｜Assistant｜>{{ m.content.split('</think>')[-1] }}{{ eos_token }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜>%THINK%{% endif %}"
)
GLM = (
    "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
QWEN3 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% set c = m.content %}{% set t = '' %}"
    "{% if '</think>' in c %}{% set t = c.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set c = c.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{% if loop.last %}<think>\n{{ t }}\n</think>\n\n{% endif %}{{ c }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n%THINK%{% endif %}"
)
COMMAND = (
    "{{ bos_token }}{% for m in messages %}<|START_OF_TURN_TOKEN|>{{ {'user': '<|USER_TOKEN|>', 'system': '<|SYSTEM_TOKEN|>',"
    " 'assistant': '<|CHATBOT_TOKEN|>'}[m.role] }}{{ m.content | trim }}<|END_OF_TURN_TOKEN|>{% endfor %}"
    "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}"
)
ZEPHYR = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
PLAIN = (
    "{% for m in messages %}### {{ m.role }}:\n{{ m.content }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}### assistant:\n{% endif %}"
)
NEVER_BEGINS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
NO_SYSTEM = "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}" + (
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_THOUGHT = ("<think>", "</think>")
_IM = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_HEADERS = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>")
_TURNS = ("<bos>", "<eos>", "<pad>", "<start_of_turn>", "<end_of_turn>")
_ROLES = ("<|user|>", "<|assistant|>", "<|system|>", "<|observation|>")
_DEEP = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")


@dataclass(frozen=True)
class Family:
    """One kind of folder, and what is right for it."""

    make: Callable[[], Tokenizer]
    template: str
    special: tuple[str, ...]
    end: str
    """Ends an answer."""
    cue: str
    """Ends a prompt in chat form."""
    eos: str | None = None
    bos: str | None = None
    starts: bool = False
    """The post-processor puts the start token before each text."""
    named: tuple[str, ...] = ()
    """Ends by generation_config.json."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of tokenizer_config.json."""
    plain: tuple[str, ...] = ()
    """Added tokens that are not special."""
    where: str = "settings"
    """Where the template lies: settings, file, list."""
    opening: str = ""


FAMILIES: Mapping[str, Family] = {
    "smollm2": Family(byte_level, CHATML, _IM, "<|im_end|>", "<|im_start|>assistant\n", "<|im_end|>", "<|im_start|>"),
    "smollm3": Family(byte_level, QWEN3.replace("%THINK%", ""), _IM, "<|im_end|>", "assistant\n", "<|im_end|>", plain=_THOUGHT),
    "llama-2": Family(sentencepiece, LLAMA2, ("<s>", "</s>"), "</s>", " [/INST]", "</s>", "<s>", starts=True),
    "llama-3": Family(
        newer_byte_level,
        LLAMA3,
        _HEADERS,
        "<|eot_id|>",
        "<|end_header_id|>\n\n",
        "<|end_of_text|>",
        "<|begin_of_text|>",
        starts=True,
        named=("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
    ),
    "llama-3-base": Family(
        newer_byte_level,
        LLAMA3,
        _HEADERS,
        "<|eot_id|>",
        "<|end_header_id|>\n\n",
        "<|end_of_text|>",
        "<|begin_of_text|>",
        starts=True,
    ),
    "qwen2.5": Family(
        newer_byte_level,
        CHATML,
        _IM,
        "<|im_end|>",
        "<|im_start|>assistant\n",
        "<|im_end|>",
        named=("<|im_end|>", "<|endoftext|>"),
        settings={"add_bos_token": False},
    ),
    "qwen2.5-base": Family(
        newer_byte_level,
        CHATML,
        _IM,
        "<|im_end|>",
        "<|im_start|>assistant\n",
        "<|endoftext|>",
        named=("<|endoftext|>",),
    ),
    "qwen3": Family(
        newer_byte_level,
        QWEN3.replace("%THINK%", ""),
        _IM,
        "<|im_end|>",
        "<|im_start|>assistant\n",
        "<|im_end|>",
        named=("<|im_end|>", "<|endoftext|>"),
        plain=_THOUGHT,
    ),
    "qwen3.5": Family(
        newer_byte_level,
        QWEN3.replace("%THINK%", "<think>\n"),
        _IM,
        "<|im_end|>",
        "<|im_start|>assistant\n<think>\n",
        "<|im_end|>",
        plain=_THOUGHT,
        where="file",
        opening="<think>\n",
    ),
    "qwen3-without-thought": Family(
        byte_level,
        QWEN3.replace("%THINK%", "<think>\n\n</think>\n\n"),
        _IM,
        "<|im_end|>",
        "<think>\n\n</think>\n\n",
        "<|im_end|>",
        plain=_THOUGHT,
    ),
    "gemma-2": Family(
        lambda: sentencepiece(prepend=False),
        GEMMA,
        _TURNS,
        "<end_of_turn>",
        "<start_of_turn>model\n",
        "<eos>",
        "<bos>",
        starts=True,
        named=("<eos>", "<end_of_turn>"),
    ),
    "gemma-3": Family(
        lambda: sentencepiece(prepend=False),
        GEMMA_PARTS,
        _TURNS,
        "<end_of_turn>",
        "<start_of_turn>model\n",
        "<eos>",
        "<bos>",
        starts=True,
        named=("<eos>", "<end_of_turn>"),
        where="file",
    ),
    "gemma-by-settings": Family(
        lambda: sentencepiece(prepend=False),
        GEMMA,
        _TURNS,
        "<end_of_turn>",
        "<start_of_turn>model\n",
        "<eos>",
        "<bos>",
        settings={"add_bos_token": True},
    ),
    "phi-3": Family(
        metaspace,
        PHI,
        ("<s>", "<|endoftext|>", "<|end|>", *_ROLES),
        "<|end|>",
        "<|assistant|>\n",
        "<|endoftext|>",
        "<s>",
        named=("<|endoftext|>", "<|end|>"),
    ),
    "phi-4": Family(
        newer_byte_level,
        PHI4,
        (*_IM, "<|im_sep|>"),
        "<|im_end|>",
        "<|im_sep|>",
        "<|im_end|>",
        "<|endoftext|>",
    ),
    "mistral": Family(metaspace, MISTRAL, ("<s>", "</s>", "[INST]", "[/INST]"), "</s>", "[/INST]", "</s>", "<s>", starts=True),
    "mistral-tekken": Family(
        newer_byte_level, MISTRAL, ("<s>", "</s>", "[INST]", "[/INST]"), "</s>", "[/INST]", "</s>", "<s>", starts=True
    ),
    "deepseek-v2": Family(
        byte_level,
        DEEPSEEK.replace("%THINK%", ""),
        _DEEP,
        _DEEP[1],
        "<｜Assistant｜>",
        _DEEP[1],
        _DEEP[0],
        starts=True,
    ),
    "deepseek-r1": Family(
        newer_byte_level,
        DEEPSEEK.replace("%THINK%", "<think>\n"),
        _DEEP,
        _DEEP[1],
        "<｜Assistant｜><think>\n",
        _DEEP[1],
        _DEEP[0],
        starts=True,
        plain=_THOUGHT,
        opening="<think>\n",
    ),
    "special-thoughts": Family(
        byte_level,
        QWEN3.replace("%THINK%", ""),
        (*_IM, "<think>", "</think>"),
        "<|im_end|>",
        "assistant\n",
        "<|im_end|>",
    ),
    "glm-4": Family(
        newer_byte_level,
        GLM,
        ("<|endoftext|>", "[gMASK]", "<sop>", *_ROLES),
        "<|user|>",
        "<|assistant|>\n",
        "<|endoftext|>",
        named=("<|endoftext|>", "<|user|>", "<|observation|>"),
    ),
    "command": Family(
        byte_level,
        COMMAND,
        ("<BOS>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|CHATBOT_TOKEN|>"),
        "<|END_OF_TURN_TOKEN|>",
        "<|CHATBOT_TOKEN|>",
        "<|END_OF_TURN_TOKEN|>",
        "<BOS>",
        starts=True,
    ),
    "zephyr": Family(metaspace, ZEPHYR, ("<s>", "</s>", *_ROLES), "</s>", "<|assistant|>\n", "</s>", "<s>", starts=True),
    "plain-words": Family(byte_level, PLAIN, ("<|endoftext|>",), "<|endoftext|>", "### assistant:\n", "<|endoftext|>"),
    "unigram": Family(unigram, ZEPHYR, ("<s>", "</s>", *_ROLES), "</s>", "<|assistant|>\n", "</s>", "<s>"),
    "bytes": Family(bytes_alone, CHATML, _IM, "<|im_end|>", "assistant\n", "<|im_end|>"),
    "no-eos": Family(byte_level, CHATML, _IM, "<|im_end|>", "assistant\n"),
    "never-begins": Family(byte_level, NEVER_BEGINS, _IM, "<|im_end|>", "<|im_start|>assistant\n", "<|endoftext|>"),
    "silent-about-system": Family(byte_level, NO_SYSTEM, _IM, "<|im_end|>", "assistant\n", "<|endoftext|>", where="list"),
    "odd-class": Family(
        byte_level,
        CHATML,
        _IM,
        "<|im_end|>",
        "assistant\n",
        "<|im_end|>",
        settings={"tokenizer_class": "SomebodysTokenizer"},
    ),
    "code-in-the-folder": Family(
        byte_level,
        CHATML,
        _IM,
        "<|im_end|>",
        "assistant\n",
        "<|im_end|>",
        settings={"tokenizer_class": "ChatTokenizer", "auto_map": {"AutoTokenizer": ["tokenization_chat.ChatTokenizer", None]}},
    ),
    "tokens-not-special": Family(
        byte_level, CHATML, ("<|endoftext|>",), "<|im_end|>", "assistant\n", "<|endoftext|>", plain=_IM[:2]
    ),
}


def make_folder(family: Family, folder: Path, **changes: object) -> Path:
    """The folder without weights; ``changes`` to tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    made = family.make()
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in family.special])
    made.add_tokens([AddedToken(text, special=False, normalized=False) for text in family.plain])
    if family.starts:
        assert family.bos is not None
        start = (family.bos, made.token_to_id(family.bos))
        made.post_processor = processors.TemplateProcessing(single=f"{family.bos} $A", pair=None, special_tokens=[start])
    made.save(str(folder / "tokenizer.json"))
    settings: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings |= {f"{name}_token": text for name, text in (("eos", family.eos), ("bos", family.bos)) if text is not None}
    if family.where == "file":
        (folder / "chat_template.jinja").write_text(family.template, encoding="utf-8")
    elif family.where == "list":
        settings["chat_template"] = [{"name": "tool_use", "template": "{{ no.tools }}"}]
        settings["chat_template"] += [{"name": "default", "template": family.template}]  # type: ignore[operator]
    else:
        settings["chat_template"] = family.template
    settings |= dict(family.settings) | changes
    _write(folder / "tokenizer_config.json", {key: value for key, value in settings.items() if value is not None})
    _write(folder / "config.json", {"model_type": "llama", "vocab_size": made.get_vocab_size(), "max_position_embeddings": 65536})
    ids = [made.token_to_id(text) for text in family.named]
    if ids:
        _write(folder / "generation_config.json", {"eos_token_id": ids if len(ids) > 1 else ids[0]})
    return folder


def _write(file: Path, tree: object) -> None:
    file.write_text(json.dumps(tree), encoding="utf-8")
