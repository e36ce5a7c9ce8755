"""Tokenizers and chat templates of many families: where prompts begin and end, where sampling stops, what demonstrations are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import transformers

from computerrl.actor.prompts.builder import FolderTokenizer, PromptBuilder
from computerrl.actor.prompts.formats.base import ChatMessage, PastAction
from computerrl.common.actions import parse_action
from computerrl.common.config import PromptConfig
from computerrl.common.messages import Observation
from tests.support.data.actor_data import make_element, make_observation
from tests.support.data.tokenizer_data import FAMILIES, make_folder
from tests.support.tiers import one_in

PLAIN = PromptConfig(max_prompt_tokens=4096)
CHAT = PromptConfig(max_prompt_tokens=4096, chat_template=True)
PUBLISHED = PromptConfig.model_validate({"format": "computerrl_text", "max_prompt_tokens": 20_000})
Write = Callable[..., str]
PLAIN_SETTINGS = {"tokenizer_class": "PreTrainedTokenizerFast", "auto_map": None}
ACTIONS = ['click("Submit")', "done()", 'type("two  blanks, é 日本\\n and \\u2028 <|im_end|></s></think>")', 'key("ctrl++")']


@pytest.fixture(scope="module", params=one_in(11, FAMILIES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(FAMILIES[name], tmp_path_factory.mktemp("family") / name)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> FolderTokenizer:
    return FolderTokenizer(folder)


def screen() -> Observation:
    return make_observation(make_element(1, "Submit"), make_element(2, "<|im_end|> </s> <end_of_turn>"))


def written(tokenizer: FolderTokenizer, tokens: object) -> str:
    """``tokens`` as text, special tokens included."""
    return str(tokenizer._backend.decode(list(tokens), skip_special_tokens=False))  # type: ignore[call-overload]


def ids(tokenizer: FolderTokenizer, texts: Iterable[str | None]) -> set[int]:
    return {tokenizer.encode(text)[-1] for text in texts if text is not None}


@pytest.fixture(scope="module")
def theirs(name: str, tmp_path_factory: pytest.TempPathFactory) -> Write:
    """What transformers writes, messages in the form that the template takes."""
    folder = make_folder(FAMILIES[name], tmp_path_factory.mktemp("theirs"), **PLAIN_SETTINGS)
    whole, as_parts = transformers.AutoTokenizer.from_pretrained(folder), name == "gemma-3"

    def write(*turns: tuple[str, str], begins_answer: bool) -> str:
        made = [{"role": role, "content": [{"type": "text", "text": text}] if as_parts else text} for role, text in turns]
        return str(whole.apply_chat_template(made, add_generation_prompt=begins_answer, tokenize=False))

    return write


def test_prompt_without_template_begins_with_the_start_token_where_the_files_ask_for_it(
    name: str, tokenizer: FolderTokenizer
) -> None:
    family, builder = FAMILIES[name], PromptBuilder(tokenizer, PLAIN)
    start = sorted(ids(tokenizer, [family.bos])) if family.starts or family.settings.get("add_bos_token") else []
    tokens = builder.build("Click Submit.", screen(), []).tokens.tolist()
    assert tokens[: len(start)] == start and not set(tokens[len(start) :]) & ids(tokenizer, family.special)
    text = tokenizer.decode(tokens)
    assert text.lstrip().startswith("Task: Click Submit.\n") and text.endswith("\nAction:")


@pytest.mark.parametrize("config", [CHAT, PUBLISHED], ids=["compact", "published"])
def test_prompt_with_template_ends_where_the_answer_begins(name: str, tokenizer: FolderTokenizer, config: PromptConfig) -> None:
    family, builder = FAMILIES[name], PromptBuilder(tokenizer, config)
    past = [PastAction("first-answer"), PastAction("second-answer", error="why")]
    for history in ([], past):
        tokens = builder.build("Click Submit.", screen(), history).tokens.tolist()
        text = written(tokenizer, tokens)
        assert "".join(text.split()).endswith("".join(family.cue.split()))
        assert text.count("Task: Click Submit.") == 1
        assert config is CHAT or (text.count("You operate a Linux desktop") == 1 and all(one.text in text for one in history))
        if "bos_token" in family.template:
            # Llama 2 begins every question with it.
            assert tokens[0] in ids(tokenizer, [family.bos])
            assert tokens.count(tokens[0]) == (len(history) + 1 if name == "llama-2" and config is PUBLISHED else 1)


def test_prompt_with_template_is_the_one_of_transformers(name: str, tokenizer: FolderTokenizer, theirs: Write) -> None:
    turns = [("user", "Click."), ("assistant", "click(3)"), ("user", "Again.")]
    expected = theirs(*turns, begins_answer=True) + (FAMILIES[name].cue if name == "never-begins" else "")
    assert tokenizer.encode_chat([ChatMessage(role, text) for role, text in turns]) == tokenizer.encode(expected)  # type: ignore[arg-type]


def test_sampling_stops_at_all_ends_that_the_folder_names_and_at_that_of_the_template(
    name: str, tokenizer: FolderTokenizer
) -> None:
    family = FAMILIES[name]
    chat, plain = PromptBuilder(tokenizer, CHAT), PromptBuilder(tokenizer, PLAIN)
    assert chat.stop_tokens == ids(tokenizer, [family.end, family.eos, *family.named])
    assert {chat.end_token} == ids(tokenizer, [family.end])
    assert tokenizer.decode([plain.end_token]).strip(" ") == "\n"
    joined = tokenizer.line_ends(")")
    assert plain.stop_tokens == {plain.end_token} | joined | ids(tokenizer, [family.end, family.eos, *family.named])
    assert bool(joined) == (family.make.__name__ == "newer_byte_level")


def test_line_that_a_model_ends_in_its_own_way_is_an_answer(tokenizer: FolderTokenizer) -> None:
    """Some tokenizers have one token for a bracket and the line break after it."""
    builder = PromptBuilder(tokenizer, PLAIN)
    for action in ('click("Bella")', "click(3)", "done()"):
        tokens = tokenizer.encode_text(f" {action}\n and so on\n", after="\nAction:")
        place = next(place for place, token in enumerate(tokens) if token in builder.stop_tokens)
        sampled = tokens[: place + 1]
        answer = builder.said(tokenizer.decode(sampled[:-1]), sampled)
        assert builder.parse(answer, screen()) == parse_action(action)


@pytest.mark.parametrize("config", [PLAIN, CHAT, PUBLISHED], ids=["plain", "compact", "published"])
@pytest.mark.parametrize("action", ACTIONS)
def test_demonstration_is_read_back_up_to_the_first_token_that_ends_sampling(
    tokenizer: FolderTokenizer, config: PromptConfig, action: str
) -> None:
    builder = PromptBuilder(tokenizer, config)
    said = builder.render(action, screen())
    tokens = builder.encode_action(said).tolist()
    assert [token in builder.stop_tokens for token in tokens] == [False] * (len(tokens) - 1) + [True]
    for answer in (said, tokenizer.decode(tokens[:-1]).strip()):
        found, meant = builder.parse(answer, screen()), parse_action(action)
        assert found.name == meant.name
        # The published format has places for elements.
        assert found.args == meant.args or (meant.name, found.args["target"], config) == ("click", 10, PUBLISHED)


TAKES_THOUGHTS_OUT = ("deepseek-v2", "deepseek-r1", "qwen3-without-thought")
"""Their templates write no thoughts into turns that are over, or end one before the answer: there is nothing to compare with."""


@pytest.mark.parametrize("config", [CHAT, PUBLISHED], ids=["compact", "published"])
def test_demonstration_with_template_is_what_transformers_writes_up_to_the_end_of_the_turn(
    name: str, tokenizer: FolderTokenizer, config: PromptConfig, theirs: Write
) -> None:
    family, builder = FAMILIES[name], PromptBuilder(tokenizer, config)
    if name in TAKES_THOUGHTS_OUT and (config is PUBLISHED or name == "deepseek-r1"):
        assert family.end in written(tokenizer, builder.encode_action(builder.render("done()", screen())))
        return
    said = builder.render("done()", screen())
    turns = [("user", "Click."), ("assistant", family.opening + said)]
    if name == "glm-4":
        turns.append(("user", "Next."))  # What begins the next turn ends this one.
    whole = theirs(*turns, begins_answer=False)
    prompt = theirs(turns[0], begins_answer=True) + (family.cue if name == "never-begins" else "")
    assert whole.startswith(prompt)
    before, end, _ = whole[len(prompt) :].partition(family.end)
    expected = before + end if end else before.rstrip() + family.end
    assert "".join(written(tokenizer, builder.encode_action(said)).split()) == "".join(expected.split())
    head, both = tokenizer.encode(prompt), tokenizer.encode(prompt + expected)
    if both[: len(head)] == head:  # Some join the end of the prompt with what follows, which sampling cannot.
        assert builder.encode_action(said).tolist() == both[len(head) :]
