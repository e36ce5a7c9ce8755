"""Texts from screens, instructions and answers give none of the tokens that a model's own conversations are built of."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from computerrl.actor.prompts.builder import FolderTokenizer, PromptBuilder
from computerrl.actor.prompts.formats.base import ChatMessage, PastAction
from computerrl.common.config import PromptConfig
from computerrl.learner.model_store import ensure_model
from tests.support.data.actor_data import make_element, make_observation
from tests.support.data.tokenizer_data import FAMILIES, Family, make_folder, sentencepiece
from tests.support.tiers import one_in

Change = Callable[[dict[str, Any]], object]

NAMES = ["<|im_end|>", "</s>", "<end_of_turn>", "<|eot_id|>", "<｜User｜>", "<unk>", "<|im_start|>system"]
SPELLINGS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "wide": lambda name: name.replace("<", "＜").replace(">", "＞"),
    "large": str.upper,
    "invisible character inside": lambda name: f"{name[:3]}\u200b{name[3:]}",
    "blanks around": lambda name: f"  {name}  ",
    "one in another": lambda name: name[:4] + name + name[4:],
    "twice": lambda name: name * 2,
}


def normalized(normalizer: dict[str, Any]) -> Change:
    def change(tree: dict[str, Any]) -> None:
        before = [tree["normalizer"]] if tree["normalizer"] else []
        tree["normalizer"] = {"type": "Sequence", "normalizers": [normalizer, *before]}
        for token in tree["added_tokens"]:
            token["normalized"] = True

    return change


def stripping(tree: dict[str, Any]) -> None:
    for token in tree["added_tokens"]:
        token |= {"lstrip": True, "rstrip": True}


def all_ordinary(tree: dict[str, Any]) -> None:
    for token in tree["added_tokens"]:
        token["special"] = False


CHANGES: dict[str, Change] = {
    "as it is": lambda tree: None,
    "compatible forms": normalized({"type": "NFKC"}),
    "small letters": normalized({"type": "Lowercase"}),
    "nothing invisible": normalized({"type": "Replace", "pattern": {"String": "\u200b"}, "content": ""}),
    "tokens that take blanks": stripping,
    "tokens that are not special": all_ordinary,
}


def unigram_with_names() -> Tokenizer:
    """Its vocabulary holds the special tokens as pieces of their own."""
    made = sentencepiece()
    pieces = {"<unk>": 0.0, "<s>": 0.0, "</s>": 0.0, **{text: -float(place) for text, place in made.get_vocab().items()}}
    made = Tokenizer(models.Unigram([(text, min(score, 0.0)) for text, score in pieces.items()], unk_id=0, byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])  # type: ignore[list-item]
    return made


def words_with_names() -> Tokenizer:
    """Its words are what stands between blanks, special tokens among them."""
    words = ["<unk>", "\n", "Task:", "do", "click(1)", *NAMES]
    made = Tokenizer(models.WordLevel({word: place for place, word in enumerate(dict.fromkeys(words))}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    return made


KINDS: dict[str, Family] = {
    **{name: FAMILIES[name] for name in ("smollm2", "qwen3", "llama-2", "mistral", "gemma-2", "deepseek-v2", "plain-words")},
    "unigram": replace(FAMILIES["unigram"], make=unigram_with_names),
    "words": replace(FAMILIES["smollm2"], make=words_with_names),
}


def turns(text: str) -> list[ChatMessage]:
    return [ChatMessage("user", text), ChatMessage("assistant", text), ChatMessage("user", text)]


def ids_of(tokenizer: FolderTokenizer, names: Iterable[str]) -> set[int]:
    """Ids of added tokens, but of those that begin and end thoughts."""
    return {tokenizer.encode(name)[0] for name in names if "think>" not in name}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", one_in(3, KINDS))
def test_no_spelling_of_a_token_in_a_text_becomes_that_token(tmp_path: Path, kind: str, change: str) -> None:
    folder = make_folder(KINDS[kind], tmp_path)
    file = folder / "tokenizer.json"
    tree = json.loads(file.read_text())
    CHANGES[change](tree)
    file.write_text(json.dumps(tree))
    tokenizer = FolderTokenizer(folder)
    meant = ids_of(tokenizer, [*KINDS[kind].special, *KINDS[kind].plain])

    def own(tokens: list[int]) -> list[int]:
        return [token for token in tokens if token in meant]

    for text in (spell(name) for spell in SPELLINGS.values() for name in NAMES):
        assert own(tokenizer.encode_chat(turns(f"a {text} b"))) == own(tokenizer.encode_chat(turns("a b"))), text
        assert own(tokenizer.encode_completion(f"a {text} b")[:-1]) == [], text
        assert own(tokenizer.encode_text(f"a {text} b", after="Action:")) == [], text


PROMPT_IDS = [
    22188, 42, 10753, 41130, 284, 5803, 39101, 30, 198, 6477, 42, 29988, 28, 10151, 198, 37064, 41130, 198, 13046, 39101, 198,
    41462, 42, 5803, 1470, 50, 7129, 1715, 198, 3505, 42, 787, 715, 4047, 198, 16521, 42,
]  # fmt: skip


def test_prompt_of_the_default_model_has_the_ids_that_its_policies_were_trained_with() -> None:
    builder = PromptBuilder(FolderTokenizer(ensure_model("tiny-random")), PromptConfig())
    screen = make_observation(make_element(1, "Bella", role="radio-button"), make_element(2, "Submit"))
    tokens = builder.build(
        "Select Bella and click Submit.", screen, [PastAction('click("Bella")', error="no such element")]
    ).tokens
    assert tokens.tolist() == PROMPT_IDS
    assert builder.encode_action('click("Submit")').tolist() == [5803, 1470, 7871, 1713, 1715, 198]
