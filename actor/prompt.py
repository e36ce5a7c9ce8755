"""An episode's state as prompt tokens, and completion text as an action.

Pure: no engine, no sockets, no clock. The default format is plain text, made so that a small model learns it from few examples
and that episodes of one group share the longest possible prefix: task and application first, then the elements (which
change little from step to step), the agent's own past last. With SmolLM2's tokenizer a step takes 60 to 130 tokens:

    Task: Select Bella and click Submit.
    App: chromium, Click Option
    radio-button Bella selected 1
    radio-button Ana 2
    push-button Submit 3
    Done: click("Bella")
    Action: click("Submit")

Application and elements are written by `common.screen_text`.

The completion starts with a space (`` click`` is one token after ``:``) and ends with a newline, one token that no action
contains: strings in actions escape theirs, and so does everything quoted from the screen, so that no text on a screen
can end a row and pretend to be another part of the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from common.actions import parse_action
from common.config import PromptConfig
from common.messages import Action, Observation
from common.screen_text import MAX_INSTRUCTION_CHARS, app_line, element_rows, one_line

MAX_HISTORY_CHARS = 64
"""A past action, and what was said about the newest one, are cut to this."""


class Tokenizer(Protocol):
    """What the prompt needs of a tokenizer."""

    eos_token: int

    def encode(self, text: str) -> list[int]:
        """Token ids, nothing added."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of ``tokens``."""

    def encode_chat(self, user_text: str) -> list[int]:
        """One user turn and the start of the assistant's, by the model's chat template."""


@dataclass(frozen=True, slots=True)
class PastAction:
    """One earlier action of the episode."""

    text: str
    error: str = ""
    """Why it could not be done."""
    result: str = ""
    """What its API call returned."""


class PromptBuilder:
    """Builds prompts and reads answers for one tokenizer; safe to share between threads."""

    def __init__(self, tokenizer: Tokenizer, config: PromptConfig) -> None:
        self._tokenizer = tokenizer
        self._config = config
        self._newline = tokenizer.encode("\n")
        if not config.chat_template and len(self._newline) != 1:
            raise ValueError(f"the tokenizer writes a newline as {len(self._newline)} tokens: set actor.prompt.chat_template")
        end = tokenizer.eos_token if config.chat_template else self._newline[0]
        self.end_token = end
        """Ends every demonstrated action."""
        self.stop_tokens = frozenset({end, tokenizer.eos_token})
        """Sampling ends at these."""

    def build(self, instruction: str, observation: Observation, history: Sequence[PastAction]) -> np.ndarray:
        """[P] int32 prompt tokens; at most ``max_prompt_tokens``, leaving out element rows from the end, then old actions."""
        rows = element_rows(observation.elements, self._config, instruction=instruction)
        past = list(history)[len(history) - min(len(history), self._config.history_steps) :]
        limit = self._config.max_prompt_tokens
        tokens = self._encode(instruction, observation, rows, past)
        while len(tokens) > limit and (rows or past):
            # Shorten by what is probably too much, so that a long screen is not encoded once per row.
            if rows:
                rows = rows[: min(len(rows) - 1, len(rows) * limit // len(tokens))]
            else:
                past = past[1:]
            tokens = self._encode(instruction, observation, rows, past)
        if len(tokens) > limit:
            # Only the instruction is left to blame: keep its start and the cue to act.
            tail = len(self._encode("", observation, [], []))
            tokens = tokens[: limit - tail] + tokens[len(tokens) - tail :]
        return np.asarray(tokens, dtype=np.int32)

    def encode_action(self, text: str) -> np.ndarray:
        """[A] int32: ``text`` as the policy would have to sample it, end token included."""
        spoken = text.strip() if self._config.chat_template else f" {text.strip()}"
        return np.asarray([*self._tokenizer.encode(spoken), self.end_token], dtype=np.int32)

    def parse(self, completion_text: str) -> Action:
        """The action in a completion. Raises `common.actions.ActionSyntaxError`."""
        return parse_action(completion_text)

    def _encode(
        self, instruction: str, observation: Observation, rows: Sequence[str], past: Sequence[PastAction]
    ) -> list[int]:
        text = prompt_text(instruction, observation, rows, past, window_title=self._config.window_title)
        if self._config.chat_template:
            return self._tokenizer.encode_chat(text)
        return self._tokenizer.encode(f"{text}\nAction:")


def prompt_text(
    instruction: str, observation: Observation, rows: Sequence[str], past: Sequence[PastAction], *, window_title: bool = True
) -> str:
    """The prompt without the cue to act."""
    task = f"Task: {one_line(instruction, MAX_INSTRUCTION_CHARS)}"
    lines = [task, app_line(observation, window_title=window_title), *rows]
    lines.extend(f"Done: {one_line(action.text, MAX_HISTORY_CHARS)}" for action in past)
    if past and past[-1].error:
        lines.append(f"Error: {one_line(past[-1].error, MAX_HISTORY_CHARS)}")
    if past and past[-1].result:
        lines.append(f"Result: {one_line(past[-1].result, MAX_HISTORY_CHARS)}")
    return "\n".join(lines)


class FolderTokenizer:
    """The tokenizer of a Hugging Face model folder."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ValueError(f"{folder}: the tokenizer has no fast (tokenizer.json) form")
        if tokenizer.eos_token_id is None:
            raise ValueError(f"{folder}: the tokenizer names no end-of-text token")
        self._tokenizer = tokenizer
        # The Rust object itself: thread-safe as long as nobody changes its truncation, and ten times quicker to call.
        self._backend = backend
        self.eos_token = int(tokenizer.eos_token_id)

    def encode(self, text: str) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._backend.decode(list(tokens), skip_special_tokens=True))

    def encode_chat(self, user_text: str) -> list[int]:
        messages = [{"role": "user", "content": user_text}]
        text = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return self.encode(text)
