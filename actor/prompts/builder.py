"""An episode's state as prompt tokens, and completion text as an action: the chosen format, one tokenizer, the token budget.

Pure but for warnings: no engine, no sockets, no clock. What is said is the format's (`actor.prompts.formats`); here it becomes
tokens, rows and old actions are left out until the prompt fits, and demonstrations become the tokens that sampling would have
given.

Without chat template (compact only) the completion starts with a space (`` click`` is one token after ``:``) and ends with a
newline, one token that no action contains: strings in actions escape theirs. With one it ends as the template ends a turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from computerrl.actor.engines.base import RequestImage, SentImage
from computerrl.actor.prompts.formats import make_format
from computerrl.actor.prompts.formats.base import ChatMessage, PastAction
from computerrl.actor.prompts.formats.completions import without_opening
from computerrl.actor.prompts.formats.coordinates import thousand
from computerrl.actor.prompts.images import ImageTokens
from computerrl.actor.prompts.tokenizer import FolderTokenizer, Tokenizer
from computerrl.common import log
from computerrl.common.actions import ActionSyntaxError
from computerrl.common.chat import ChatTurn
from computerrl.common.config import Actions, PromptConfig, RunConfig
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.messages import Action, Observation, ScreenshotRef, ShownImages
from computerrl.common.vision.screens import ReadScreenshot

__all__ = ["FolderTokenizer", "Prompt", "PromptBuilder", "Tokenizer"]

_ENDS_ACTIONS = ")"
"""The last character of every action of `common.actions`."""
CUT_MARK = "… [the rest of the task does not fit]"
"""Ends an instruction that is longer than the budget."""


Receiver = Literal["engine", "engine_process", "chat"]
"""Receiver of prompts. `engine`: an engine of this process takes tokens and prepared images. `engine_process`: another process
takes tokens and encoded images. `chat`: a server takes turns of a chat with encoded images."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A whole prompt."""

    tokens: np.ndarray
    """[P] int32; ids are final, image tokens included."""
    images: tuple[ScreenshotRef, ...] = ()
    """Screenshots that it shows, in its order."""
    messages: tuple[ChatMessage, ...] = ()
    """The turns that the tokens stand for."""


class PromptBuilder:
    """Builds prompts and parses completions for one tokenizer; safe to share between threads."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        config: PromptConfig,
        *,
        actions: Actions = "api_gui",
        images: ImageTokens | None = None,
        screen_size: tuple[int, int] = (1280, 720),
        receiver: Receiver = "engine",
    ) -> None:
        """``images``: for a format that shows them. ``screen_size``: width and height of the desktops in pixels. ``receiver``: of
        the prompts.

        Raises `ConfigError` when this tokenizer or the token budget is not enough for the format."""
        self._tokenizer = tokenizer
        self._config = config
        extents = thousand if images is None else images.extents(config.coordinates)
        self._format = make_format(config, actions=actions, extents=extents)
        if self._format.shows_images and images is None:
            reason = f"{config.format} shows images, and this builder has none"
            raise ConfigError([Problem("actor.prompt.format", reason, "use computerrl_text (the screen as rows) or compact")])
        self._images = images if self._format.shows_images else None
        self._screen_size = screen_size
        self._receiver = receiver
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
        self._check_answers()

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
        nothing = self._nothing_on_screen("")
        num_pieces = 0 if self._images is None else self._images.require_screen(nothing.screenshot, self._tokenizer)
        prompts = [self._encode("", self._nothing_on_screen(app), [], []).tokens for app in self._format.apps]
        if self._config.history_steps:
            # Not every template takes turns that are over.
            past = PastAction("wait()", screenshot=nothing.screenshot)
            self._encode("", nothing, [], [past], num_images=min(2, self._config.images))
        needed, limit = max(map(len, prompts)), self._config.max_prompt_tokens
        if needed > limit:
            reason = f"{limit}, but what every prompt of {self._config.format} holds takes up to {needed} tokens"
            step = f"set it to {needed + 256} or more, so that something of the screen fits"
            if num_pieces:
                width, height = self._screen_size
                reason += f", {num_pieces} of them for one screen of {width} x {height}"
                step = f"set it to {needed + 64} or more, or lower desktop.screen_width and desktop.screen_height"
            raise ConfigError([Problem("actor.prompt.max_prompt_tokens", reason, step)])
        largest, num_rows = max(self.end_token, *map(max, prompts)), self._tokenizer.num_rows
        if num_rows is not None and largest >= num_rows:
            reason = f"the tokenizer writes token {largest} in every prompt or answer, but the model knows {num_rows} tokens"
            step = "use the model's own tokenizer, or save the model after resize_token_embeddings()"
            raise ConfigError([Problem("model.name", reason, step)])

    def _check_answers(self) -> None:
        """What is demonstrated has to be read back from the tokens that stand for it."""
        nothing = self._nothing_on_screen("")
        tokens = self.encode_action(self.render("wait()", nothing))
        text = self.said(self._tokenizer.decode(tokens[:-1].tolist()), tokens)
        try:
            self.parse(text, nothing)
        except ActionSyntaxError as error:
            reason = f"the tokenizer makes {text!r:.200} of an answer in {self._config.format}, which is none: {error}"
            raise ConfigError([Problem("actor.prompt.format", reason, "use another format, or another model")]) from error

    def num_instruction_tokens(self, instruction: str) -> int:
        """Tokens of a prompt that shows ``instruction`` whole and nothing of a screen."""
        nothing = (self._nothing_on_screen(app) for app in self._format.apps)
        return max(len(self._encode(instruction, one, [], []).tokens) for one in nothing)

    def build(self, instruction: str, observation: Observation, history: Sequence[PastAction]) -> Prompt:
        """A prompt of at most ``max_prompt_tokens``. Left out are, in this order, whole images from the oldest to the last but
        one, element rows from the end, old actions, and the end of the instruction, with a mark and a warning.

        Raises `PictureError` for a screen of a size that the model does not take."""
        rows = self._format.rows(instruction, observation)
        past = list(history)[len(history) - min(len(history), self._config.history_steps) :]
        limit = self._config.max_prompt_tokens
        num_images = self._num_images(len(history) + 1)
        prompt = self._encode(instruction, observation, rows, past, num_images=num_images)
        is_shown = not rows
        while len(prompt.tokens) > limit and (len(prompt.images) > 1 or rows or past):
            # Shorten by what is probably too much, so that a long screen is not encoded once per row.
            if len(prompt.images) > 1:
                num_images = len(prompt.images) - 1
            elif rows:
                rows = rows[: min(len(rows) - 1, len(rows) * limit // len(prompt.tokens))]
            else:
                past = past[1:]
            prompt = self._encode(instruction, observation, rows, past, num_images=num_images)
        if len(prompt.tokens) > limit:
            self._warn("prompt.instruction_cut", instruction, num_tokens=len(prompt.tokens))
            prompt = self._with_part(instruction, observation)
        elif not (is_shown or rows):
            self._warn("prompt.screen_left_out", instruction, num_tokens=len(prompt.tokens))
        if len(prompt.tokens) > limit and prompt.images:
            self._warn("prompt.image_left_out", instruction, num_tokens=len(prompt.tokens))
            prompt = self._encode("", observation, [], [], num_images=0)
        if len(prompt.tokens) > limit:
            # A long window title in a small budget is all that may be left to blame: the end asks for the action.
            first = len(self._tokenizer.start_tokens) if self._cue is not None else 0
            tokens = np.concatenate([prompt.tokens[:first], prompt.tokens[first - limit :]])
            prompt = Prompt(tokens, messages=prompt.messages)
        return prompt

    def _num_images(self, num_screens: int) -> int:
        """How many of the newest screenshots of an episode to show. The oldest ones go ``image_stride`` at a time, so that the
        beginning of a prompt stays that of the turn before as long as possible."""
        most, stride = self._config.images, self._config.image_stride
        num_left_out = -(-max(0, num_screens - most) // stride) * stride
        return num_screens - num_left_out

    def _with_part(self, instruction: str, observation: Observation) -> Prompt:
        """The prompt with as much of ``instruction`` as fits, and no rows."""
        limit, best = self._config.max_prompt_tokens, self._encode("", observation, [], [])
        # A token has a byte at least, or is one of few that stand for none.
        low, high = 0, min(len(instruction), limit)
        while low < high:
            middle = (low + high + 1) // 2
            prompt = self._encode(instruction[:middle].rstrip() + CUT_MARK, observation, [], [])
            if len(prompt.tokens) <= limit:
                low, best = middle, prompt
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

    def request_images(self, prompt: Prompt, *, shown: ShownImages = "own") -> tuple[RequestImage, ...]:
        """The images of ``prompt`` for an engine, or those ``shown`` in place of them. Raises `PictureError` when one cannot be
        read."""
        if self._images is None or self._receiver != "engine":
            return ()
        return self._images.asked(prompt.images, shown)

    def sent_images(self, prompt: Prompt, *, shown: ShownImages = "own") -> tuple[SentImage, ...]:
        """As `request_images`, for an engine process; none for an engine of this process."""
        if self._images is None or self._receiver != "engine_process":
            return ()
        return tuple(self._images.sent(ref, shown) for ref in prompt.images)

    def chat_turns(self, prompt: Prompt, *, shown: ShownImages = "own") -> tuple[ChatTurn, ...]:
        """``prompt`` as turns of a chat with the stored bytes of its images, or of those ``shown`` in place of them; none for an
        engine that takes tokens. Raises `PictureError` when an image cannot be read."""
        if self._receiver != "chat":
            return ()
        return tuple(_turn(message, shown, tokenizer=self._tokenizer, images=self._images) for message in prompt.messages)

    def render(self, action_text: str, observation: Observation, *, seed: str = "", thought: str = "") -> str:
        """Completion that stands for a demonstrated action. ``seed`` and ``thought``: see `PromptFormat.render`.

        Raises `LookupError` when its target is not on screen, and `Unsayable` when the format cannot say it."""
        return without_opening(self._format.render(action_text, observation, seed=seed, thought=thought).strip(), self._opening)

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

    def _encode(
        self,
        instruction: str,
        observation: Observation,
        rows: Sequence[str],
        past: Sequence[PastAction],
        *,
        num_images: int = 1,
    ) -> Prompt:
        shown = 0 if self._images is None else num_images
        messages = self._format.messages(instruction, observation, rows, past, num_images=shown)
        refs = tuple(message.image for message in messages if message.image is not None)
        texts = [self._images.text(ref) for ref in refs] if self._images is not None else []
        if self._cue is None:
            tokens = self._tokenizer.encode_chat(messages, image_texts=texts)
        else:
            tokens = self._encode_plain(messages, texts)
        if self._images is not None:
            self._images.require_written(tokens, refs)
        return Prompt(np.asarray(tokens, dtype=np.int32), refs, tuple(messages))

    def _encode_plain(self, messages: Sequence[ChatMessage], image_texts: Sequence[str]) -> list[int]:
        """Without chat template: a line break between messages, and around each image."""
        tokens = list(self._tokenizer.start_tokens)
        images, pending = iter(image_texts), ""
        for number, message in enumerate(messages):
            pending += "\n" * (number > 0)
            if message.image is not None:
                pending += "\n" if pending and not pending.endswith("\n") else ""
                tokens += self._tokenizer.encode_text(pending, after="\n" if number else "")
                tokens += self._tokenizer.encode_image(next(images))
                pending = "\n" if message.text else ""
            pending += message.text
        assert self._cue is not None
        return [*tokens, *self._tokenizer.encode_text(pending + self._cue, after="\n" if image_texts else "")]

    def _nothing_on_screen(self, app: str) -> Observation:
        width, height = self._screen_size
        black = ScreenshotRef("none", "none", 0, 0, width, height) if self._format.shows_images else None
        return Observation(app, "", (), black, width, height, "none", 0.0, "")


def _turn(message: ChatMessage, shown: ShownImages, *, tokenizer: Tokenizer, images: ImageTokens | None) -> ChatTurn:
    # Text on a screen must not end its turn: servers read names of special tokens as those tokens.
    message = tokenizer.harmless(message)
    image = () if message.image is None or images is None else (images.encoded(message.image, shown),)
    return ChatTurn(message.role, tuple(part for part in (*image, message.text) if part) or ("",))


def make_builder(
    folder: Path,
    tokenizer: Tokenizer,
    config: PromptConfig,
    *,
    actions: Actions,
    screen_size: tuple[int, int],
    read: ReadScreenshot,
    receiver: Receiver = "engine",
) -> PromptBuilder:
    """The builder for the model in ``folder``. ``screen_size``: width and height of the desktops in pixels; ``read``: of
    screenshots; ``receiver``: see `PromptBuilder`.

    Raises `ConfigError` like `PromptBuilder`, and where a format shows images that the model does not take."""
    images = ImageTokens.of(folder, tokenizer, read=read) if config.shows_images else None
    return PromptBuilder(tokenizer, config, actions=actions, images=images, screen_size=screen_size, receiver=receiver)


def builder_of_run(config: RunConfig, folder: Path, tokenizer: Tokenizer, *, read: ReadScreenshot) -> PromptBuilder:
    """The builder of an actor of ``config``. ``read``: of screenshots that its episodes have observed."""
    size = (config.desktop.screen_width, config.desktop.screen_height)
    endpoint = config.actor.endpoint
    receiver: Receiver = "engine" if config.actor.inference == "local" else "engine_process"
    if endpoint is not None and endpoint.mode == "chat":
        receiver = "chat"
    return make_builder(
        folder,
        tokenizer,
        config.actor.prompt,
        actions=config.tasks.actions,
        screen_size=size,
        read=read,
        receiver=receiver,
    )


def unreadable(ref: ScreenshotRef) -> bytes:
    """A `ReadScreenshot` for builders whose prompts go to no engine."""
    raise FileNotFoundError(ref.segment)
