"""An episode's state as prompt tokens, and completion text as an action: the chosen format, one tokenizer, the token budget.

Pure: no engine, no sockets, no clock. What is said is the format's (`actor.formats`); here it becomes tokens, rows and old
actions are left out until the prompt fits, and demonstrations become the tokens that sampling would have given.

Without chat template (compact only) the completion starts with a space (`` click`` is one token after ``:``) and ends with a
newline, one token that no action contains: strings in actions escape theirs. With one it ends with the end-of-text token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from actor.formats import make_format
from actor.formats.base import ChatMessage, PastAction
from common.config import VISION_PROBLEM, Actions, PromptConfig
from common.errors import ConfigError, Problem
from common.messages import Action, Observation


class Tokenizer(Protocol):
    """What the prompt needs of a tokenizer."""

    eos_token: int

    def encode(self, text: str) -> list[int]:
        """Token ids, nothing added."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of ``tokens``."""

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        """The conversation and the start of the assistant's next turn, by the model's chat template."""


class PromptBuilder:
    """Builds prompts and reads answers for one tokenizer; safe to share between threads."""

    def __init__(self, tokenizer: Tokenizer, config: PromptConfig, *, actions: Actions = "api_gui") -> None:
        """Raises `ConfigError` when this tokenizer or the token budget is not enough for the format."""
        if config.format == "computerrl_vision":
            raise ConfigError([VISION_PROBLEM])
        self._tokenizer = tokenizer
        self._config = config
        self._format = make_format(config, actions=actions)
        newline = tokenizer.encode("\n")
        cue = None if config.chat_template else self._format.plain_cue
        self._cue = cue
        if cue is not None and len(newline) != 1:
            raise ValueError(f"the tokenizer writes a newline as {len(newline)} tokens: set actor.prompt.chat_template")
        end = tokenizer.eos_token if cue is None else newline[0]
        self.end_token = end
        """Ends every demonstrated action."""
        self.stop_tokens = frozenset({end, tokenizer.eos_token})
        """Sampling ends at these."""
        self._check_budget()

    def _check_budget(self) -> None:
        needed = max(len(self._encode("", _nothing_on_screen(app), [], [])) for app in self._format.apps)
        limit = self._config.max_prompt_tokens
        if needed > limit:
            reason = f"{limit}, but what every prompt of {self._config.format} holds takes up to {needed} tokens"
            step = f"set it to {needed + 256} or more, so that something of the screen fits"
            raise ConfigError([Problem("actor.prompt.max_prompt_tokens", reason, step)])

    def build(self, instruction: str, observation: Observation, history: Sequence[PastAction]) -> np.ndarray:
        """[P] int32 prompt tokens; at most ``max_prompt_tokens``, leaving out element rows from the end, then old actions."""
        rows = self._format.rows(instruction, observation)
        past = list(history)[len(history) - min(len(history), self._config.history_steps) :]
        limit = self._config.max_prompt_tokens
        tokens = self._encode(instruction, observation, rows, past)
        while len(tokens) > limit and (rows or past or instruction):
            # Shorten by what is probably too much, so that a long screen is not encoded once per row.
            if rows:
                rows = rows[: min(len(rows) - 1, len(rows) * limit // len(tokens))]
            elif past:
                past = past[1:]
            else:
                # A token has one character at least: what is longer is too long in any case.
                instruction = instruction[: min(len(instruction) - 1, len(instruction) * limit // len(tokens), limit)]
            tokens = self._encode(instruction, observation, rows, past)
        # A long window title in a small budget is all that may be left to blame: the end asks for the action.
        return np.asarray(tokens[-limit:], dtype=np.int32)

    def render(self, action_text: str, observation: Observation) -> str:
        """How a policy would say a demonstrated action. Raises `LookupError` when its target is not on screen."""
        return self._format.render(action_text, observation).strip()

    def encode_action(self, answer: str) -> np.ndarray:
        """[A] int32: ``answer`` as the policy would have to sample it, end token included."""
        spoken = answer.strip() if self._cue is None else f" {answer.strip()}"
        return np.asarray([*self._tokenizer.encode(spoken), self.end_token], dtype=np.int32)

    def parse(self, completion_text: str, observation: Observation) -> Action:
        """The action in an answer to ``observation``. Raises `common.actions.ActionSyntaxError`."""
        return self._format.parse(completion_text, observation)

    def _encode(self, instruction: str, observation: Observation, rows: Sequence[str], past: Sequence[PastAction]) -> list[int]:
        messages = self._format.messages(instruction, observation, rows, past)
        if self._cue is None:
            return self._tokenizer.encode_chat(messages)
        return self._tokenizer.encode("\n".join(message.text for message in messages) + self._cue)


def _nothing_on_screen(app: str) -> Observation:
    return Observation(app, "", (), None, 3840, 2160, "none", 0.0, 0.0, "")


class FolderTokenizer:
    """The tokenizer of a Hugging Face model folder."""

    def __init__(self, folder: Path) -> None:
        """Raises `ConfigError`."""
        self._folder = folder
        self._whole: Any = None
        """Transformers' tokenizer: for chat templates, and for folders whose tokenizer.json does not stand alone."""
        try:
            self._backend, end = _read_plain(folder) or self._read_whole()
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001  (tokenizers raises nothing narrower for a file that it cannot read)
            reason = f"the tokenizer in {folder} cannot be read: {str(error)[:300]}"
            step = "copy the model folder again, or save the tokenizer anew"
            raise ConfigError([Problem("model.name", reason, step)]) from None
        if end is None:
            reason = f"the tokenizer in {folder} names no end-of-text token (eos_token)"
            raise ConfigError([Problem("model.name", reason, "name one in tokenizer_config.json: answers end with it")])
        # Fine-tuning leaves its own limits in the file.
        self._backend.no_truncation()
        self._backend.no_padding()
        self.eos_token = int(end)
        added = self._backend.get_added_tokens_decoder().values()
        special = [token.content for token in added if token.special and len(token.content) > 1]
        self._special = re.compile("|".join(map(re.escape, special)) or "(?!)")

    def _read_whole(self) -> tuple[Any, int | None]:
        self._whole = _whole_tokenizer(self._folder)
        backend = getattr(self._whole, "backend_tokenizer", None)
        if backend is None:
            reason = f"the tokenizer in {self._folder} has no fast form (tokenizer.json)"
            raise ConfigError([Problem("model.name", reason, "save it with AutoTokenizer(use_fast=True).save_pretrained()")])
        return backend, self._whole.eos_token_id

    # The Rust object itself: thread-safe as long as nobody changes its truncation, and ten times quicker to call.
    def encode(self, text: str) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._backend.decode(list(tokens), skip_special_tokens=True))

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        if self._whole is None:
            self._whole = _whole_tokenizer(self._folder)
        if self._whole.chat_template is None:
            step = "use a model with a chat template, or actor.prompt.format: compact with chat_template: false"
            raise ConfigError([Problem("actor.prompt", f"the tokenizer in {self._folder} has no chat template", step)])
        turns = [{"role": message.role, "content": self._without_special(message.text)} for message in messages]
        try:
            text = self._whole.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        except Exception as error:  # noqa: BLE001  (a template is a program of the model's, and may raise anything)
            reason = f"the chat template in {self._folder} does not take turns of {_in_words(turns)}: {str(error)[:300]}"
            step = "use a model whose template does, or actor.prompt.format: compact with chat_template: false"
            raise ConfigError([Problem("actor.prompt", reason, step)]) from None
        return self.encode(text)

    def _without_special(self, text: str) -> str:
        """Text on a screen must not end its turn: `<|im_end|>` there is written with a blank inside."""
        return self._special.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)


_AS_IT_STANDS = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""Classes of transformers that take tokenizer.json as it stands; others build parts of the tokenizer anew."""


def _read_plain(folder: Path) -> tuple[Any, int] | None:
    """tokenizer.json without transformers, whose import takes 5 s, and the end-of-text token; None when transformers has to read
    it."""
    files = (folder / "tokenizer_config.json", folder / "tokenizer.json")
    if not all(file.is_file() for file in files):
        return None
    settings = json.loads(files[0].read_text(encoding="utf-8"))
    if settings.get("tokenizer_class") not in _AS_IT_STANDS or settings.get("extra_special_tokens"):
        return None
    from tokenizers import Tokenizer as FastTokenizer

    backend = FastTokenizer.from_file(str(files[1]))
    named = [settings.get(f"{name}_token") for name in ("eos", "bos", "pad", "unk", "sep", "cls", "mask")]
    texts = [token["content"] if isinstance(token, dict) else token for token in named]
    tokens: list[Any] = [backend.token_to_id(text) for text in texts if text is not None]
    # Tokens that only the settings name get their numbers from transformers.
    return None if texts[0] is None or None in tokens else (backend, tokens[0])


def _in_words(turns: Sequence[dict[str, str]]) -> str:
    return ", ".join(turn["role"] for turn in turns)


def _whole_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True)
