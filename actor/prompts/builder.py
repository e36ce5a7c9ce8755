"""An episode's state as prompt tokens, and completion text as an action: the chosen format, one tokenizer, the token budget.

Pure but for warnings: no engine, no sockets, no clock. What is said is the format's (`actor.prompts.formats`); here it becomes
tokens, rows and old actions are left out until the prompt fits, and demonstrations become the tokens that sampling would have
given.

Without chat template (compact only) the completion starts with a space (`` click`` is one token after ``:``) and ends with a
newline, one token that no action contains: strings in actions escape theirs. With one it ends as the template ends a turn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from computerrl.actor.prompts.formats import make_format
from computerrl.actor.prompts.formats.base import PastAction
from computerrl.actor.prompts.formats.completions import without_opening
from computerrl.actor.prompts.tokenizer import FolderTokenizer, Tokenizer
from computerrl.common import log
from computerrl.common.config import VISION_PROBLEM, Actions, PromptConfig
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.messages import Action, Observation

__all__ = ["FolderTokenizer", "PromptBuilder", "Tokenizer"]

_ENDS_ACTIONS = ")"
"""The last character of every action of `common.actions`."""
CUT_MARK = "… [the rest of the task does not fit]"
"""Ends an instruction that is longer than the budget."""


class PromptBuilder:
    """Builds prompts and parses completions for one tokenizer; safe to share between threads."""

    def __init__(self, tokenizer: Tokenizer, config: PromptConfig, *, actions: Actions = "api_gui") -> None:
        """Raises `ConfigError` when this tokenizer or the token budget is not enough for the format."""
        if config.format == "computerrl_vision":
            raise ConfigError([VISION_PROBLEM])
        self._tokenizer = tokenizer
        self._config = config
        self._format = make_format(config, actions=actions)
        self._cue = None if config.chat_template else self._format.plain_cue
        self._warned: set[tuple[str, str]] = set()
        self._opening = tokenizer.opening() if self._cue is None else ""
        self.end_token = self._find_end()
        """Ends every demonstrated action."""
        # Some tokenizers join the last character of an action with the newline.
        self._joined_ends = frozenset[int]() if self._cue is None else tokenizer.line_ends(_ENDS_ACTIONS)
        of_template = frozenset[int]() if self._cue is None else tokenizer.template_ends()
        self.stop_tokens = tokenizer.stop_tokens | of_template | self._joined_ends | {self.end_token}
        """Sampling ends at these."""
        self._check_budget()

    def _find_end(self) -> int:
        if self._cue is None:
            end = self._tokenizer.end_of_turn()
            if end is None:
                reason = "the tokenizer names no end-of-text token (eos_token), and the chat template writes none after an answer"
                step = "name one in tokenizer_config.json or generation_config.json: answers end with it"
                raise ConfigError([Problem("model.name", reason, step)])
            return end
        newline = self._tokenizer.encode_text("\n", after=self._cue)
        if len(newline) != 1 or self._tokenizer.decode(newline).strip(" ") != "\n":
            reason = f"the tokenizer writes a newline as {len(newline)} tokens, and answers end with one"
            if len(newline) == 1:
                reason = "the tokenizer has no newline, and answers end with one"
            raise ConfigError([Problem("actor.prompt.chat_template", reason, "set it to true")])
        return newline[0]

    def _check_budget(self) -> None:
        prompts = [self._encode("", _nothing_on_screen(app), [], []) for app in self._format.apps]
        if self._config.history_steps:
            # Not every template takes turns that are over.
            self._encode("", _nothing_on_screen(""), [], [PastAction("wait()")])
        needed, limit = max(map(len, prompts)), self._config.max_prompt_tokens
        if needed > limit:
            reason = f"{limit}, but what every prompt of {self._config.format} holds takes up to {needed} tokens"
            step = f"set it to {needed + 256} or more, so that something of the screen fits"
            raise ConfigError([Problem("actor.prompt.max_prompt_tokens", reason, step)])
        largest, num_rows = max(self.end_token, *map(max, prompts)), self._tokenizer.num_rows
        if num_rows is not None and largest >= num_rows:
            reason = f"the tokenizer writes token {largest} in every prompt or answer, but the model knows {num_rows} tokens"
            step = "use the model's own tokenizer, or save the model after resize_token_embeddings()"
            raise ConfigError([Problem("model.name", reason, step)])

    def num_instruction_tokens(self, instruction: str) -> int:
        """Tokens of a prompt that shows ``instruction`` whole and nothing of a screen."""
        return max(len(self._encode(instruction, _nothing_on_screen(app), [], [])) for app in self._format.apps)

    def build(self, instruction: str, observation: Observation, history: Sequence[PastAction]) -> np.ndarray:
        """[P] int32 prompt tokens; at most ``max_prompt_tokens``, leaving out element rows from the end, then old actions, then
        the end of the instruction, with a mark and a warning."""
        rows = self._format.rows(instruction, observation)
        past = list(history)[len(history) - min(len(history), self._config.history_steps) :]
        limit = self._config.max_prompt_tokens
        tokens = self._encode(instruction, observation, rows, past)
        is_shown = not rows
        while len(tokens) > limit and (rows or past):
            # Shorten by what is probably too much, so that a long screen is not encoded once per row.
            if rows:
                rows = rows[: min(len(rows) - 1, len(rows) * limit // len(tokens))]
            else:
                past = past[1:]
            tokens = self._encode(instruction, observation, rows, past)
        if len(tokens) > limit:
            self._warn("prompt.instruction_cut", instruction, num_tokens=len(tokens))
            tokens = self._with_part(instruction, observation)
        elif not (is_shown or rows):
            self._warn("prompt.screen_left_out", instruction, num_tokens=len(tokens))
        if len(tokens) > limit:
            # A long window title in a small budget is all that may be left to blame: the end asks for the action.
            first = len(self._tokenizer.start_tokens) if self._cue is not None else 0
            tokens = [*tokens[:first], *tokens[first - limit :]]
        return np.asarray(tokens, dtype=np.int32)

    def _with_part(self, instruction: str, observation: Observation) -> list[int]:
        """The prompt with as much of ``instruction`` as fits, and no rows."""
        limit, best = self._config.max_prompt_tokens, self._encode("", observation, [], [])
        # A token has a byte at least, or is one of few that stand for none.
        low, high = 0, min(len(instruction), limit)
        while low < high:
            middle = (low + high + 1) // 2
            tokens = self._encode(instruction[:middle].rstrip() + CUT_MARK, observation, [], [])
            if len(tokens) <= limit:
                low, best = middle, tokens
            else:
                high = middle - 1
        return best

    def _warn(self, event: str, instruction: str, *, num_tokens: int) -> None:
        """Once for each instruction: an episode has many prompts, a task many episodes."""
        if (event, instruction) in self._warned:
            return
        self._warned.add((event, instruction))
        limit = self._config.max_prompt_tokens
        log.get_logger().warning(event, instruction=instruction[:80], num_tokens=num_tokens, max_prompt_tokens=limit)

    def render(self, action_text: str, observation: Observation) -> str:
        """Completion that stands for a demonstrated action. Raises `LookupError` when its target is not on screen."""
        return without_opening(self._format.render(action_text, observation).strip(), self._opening)

    def encode_action(self, completion: str) -> np.ndarray:
        """[A] int32, tokens of ``completion`` as the policy would have to sample them, end token included."""
        if self._cue is None:
            return np.asarray(self._tokenizer.encode_completion(completion.strip()), dtype=np.int32)
        spoken = self._tokenizer.encode_text(f" {completion.strip()}", after=self._cue)
        return np.asarray([*spoken, self.end_token], dtype=np.int32)

    def said(self, completion_text: str, tokens: Sequence[int] | np.ndarray) -> str:
        """Text of a completion with its stop token where that holds the end of the action; ``completion_text`` lacks it."""
        if len(tokens) == 0 or int(tokens[-1]) not in self._joined_ends:
            return completion_text.strip()
        return (completion_text + self._tokenizer.decode([int(tokens[-1])])).strip()

    def parse(self, completion_text: str, observation: Observation) -> Action:
        """The action in a completion for ``observation``. Raises `common.actions.ActionSyntaxError`."""
        return self._format.parse(self._opening + completion_text, observation)

    def _encode(self, instruction: str, observation: Observation, rows: Sequence[str], past: Sequence[PastAction]) -> list[int]:
        messages = self._format.messages(instruction, observation, rows, past)
        if self._cue is None:
            return self._tokenizer.encode_chat(messages)
        text = "\n".join(message.text for message in messages) + self._cue
        return [*self._tokenizer.start_tokens, *self._tokenizer.encode_text(text)]


def _nothing_on_screen(app: str) -> Observation:
    return Observation(app, "", (), None, 3840, 2160, "none", 0.0, "")
