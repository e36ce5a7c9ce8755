"""Steps as chats for supervised fine-tuning: the turns of a stored prompt, found again in its tokens.

A run stores tokens, not turns. The turns are read from the text between what the model's chat template writes around them, and
count only where encoding them again gives exactly the stored tokens. A prompt without chat template is one turn of the user.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from computerrl.common.errors import ConfigError
from computerrl.common.messages import ScreenshotRef
from computerrl.launch.watch.run_state import Record
from computerrl.launch.web.episodes import prompt_tokens

if TYPE_CHECKING:
    from computerrl.actor.prompts.formats.base import ChatMessage, Role
    from computerrl.launch.export.stored import StoredRun

_MARKS = ("system-mark-text", "user-mark-text", "assistant-mark-text", "next-mark-text")
_IMAGE = "\0"
"""Stands for an image in the text of a prompt, which holds no such character."""


class NoChat(ValueError):
    """A step that is no chat of the model's template; the text is the reason."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """The text that a template writes around turns."""

    start: str
    """Before the first turn."""
    after_system: str | None
    """Between system and user; None: the conversation has no system turn."""
    after_user: str
    """Between a user's turn and the assistant's, and at the end of a prompt."""
    after_assistant: str


class Conversations:
    """Chats of one run's steps."""

    def __init__(self, stored: StoredRun) -> None:
        prompt = stored.config.actor.prompt
        self._tokenizer = stored.tokenizer
        self._stored = stored
        self._is_plain = prompt.format.startswith("compact") and not prompt.chat_template
        self.shows_images = prompt.shows_images
        """Whether content is a list of parts, and images stand beside the chats."""

    def chat(self, sample: Record, completion: str, refs: dict[str, ScreenshotRef]) -> tuple[dict[str, Any], list[str]]:
        """(`prompt` and `completion` of a step as lists of messages, content hashes of its images in their order).

        ``sample``: the step's tokens as the learner wrote them. Raises `NoChat`.
        """
        tokens = prompt_tokens(sample["prompt"])
        names = [image["content_hash"] for image in sample.get("images") or ()]
        if any(name not in refs for name in names) or len([token for token in tokens if token < 0]) != len(names):
            raise NoChat("images of the prompt not stored")
        images = [refs[name] for name in names]
        text = self._text(tokens, images)
        turns = [("user", text)] if self._is_plain else self._turns(text, tokens, images)
        prompt = [{"role": role, "content": self._content(said)} for role, said in turns]
        answer = [{"role": "assistant", "content": self._content(completion)}]
        return {"prompt": prompt, "completion": answer}, names

    def _content(self, text: str) -> str | list[dict[str, str]]:
        if not self.shows_images:
            return text
        parts: list[dict[str, str]] = []
        for number, piece in enumerate(text.split(_IMAGE)):
            parts += [{"type": "image"}] if number else []
            parts += [{"type": "text", "text": piece}] if piece else []
        return parts

    def _text(self, tokens: Sequence[int], images: Sequence[ScreenshotRef]) -> str:
        """The prompt's text, with `_IMAGE` in place of each image and of the markers around it."""
        pieces = [self._tokenizer.decode(part, has_special=not self._is_plain) for part in _between_images(tokens)]
        if any(_IMAGE in piece for piece in pieces):
            raise NoChat("character U+0000 in the prompt")
        text = pieces[0]
        for ref, piece in zip(images, pieces[1:], strict=True):
            before, after = self._around(ref)
            if not text.endswith(before) or not piece.startswith(after):
                raise NoChat("other markers around an image than the model's")
            text = text.removesuffix(before) + _IMAGE + piece.removeprefix(after)
        return text

    def _around(self, ref: ScreenshotRef) -> tuple[str, str]:
        """The text that stands for an image before its first and after its last image token, the template's markers included."""
        from computerrl.actor.prompts.formats.base import ChatMessage

        token, user = self._tokenizer.image_token, _MARKS[1]
        assert token is not None  # A run whose prompts show images has a model that takes them.
        if self._is_plain:
            before, _, rest = self._image_text(ref).partition(token)
            # Special tokens among them are decoded away.
            after = rest.rpartition(token)[2] if token in rest else rest
            encode, decode = self._tokenizer.encode_image, self._tokenizer.decode
            return decode(encode(before)), decode(encode(after))
        bare = self._written([ChatMessage("user", user)])
        text = self._written([ChatMessage("user", user, ref)], image_texts=[self._image_text(ref)])
        before, _, rest = text.partition(token)
        after = rest.rpartition(token)[2] if token in rest else rest
        return before.removeprefix(bare.partition(user)[0]), after.partition(user)[0]

    def _written(self, messages: Sequence[ChatMessage], *, image_texts: Sequence[str] = ()) -> str:
        """The text of a prompt with ``messages``, special tokens included. Raises `ConfigError` where the template takes none."""
        return str(self._tokenizer.decode(self._tokenizer.encode_chat(messages, image_texts=image_texts), has_special=True))

    def _image_text(self, ref: ScreenshotRef) -> str:
        return str(self._images.text(ref))

    @cached_property
    def _images(self) -> Any:
        from computerrl.actor.prompts.builder import unreadable
        from computerrl.actor.prompts.images import ImageTokens

        return ImageTokens.of(self._stored.model, self._tokenizer, read=unreadable)

    # --- the template's turns -----------------------------------------------------------------------------------------

    def _turns(self, text: str, tokens: Sequence[int], images: Sequence[ScreenshotRef]) -> list[tuple[Role, str]]:
        if self._tokenizer.opening():
            raise NoChat("prompt that begins the completion's thought")
        for frame in self._frames:
            turns = list(_read_turns(text, frame))
            if turns and self._encoded(turns, images) == list(tokens):
                return turns
        raise NoChat("prompt that is no chat of the model's template")

    def _encoded(self, turns: Sequence[tuple[Role, str]], images: Sequence[ScreenshotRef]) -> list[int] | None:
        """``turns`` as stored tokens, with one number below 0 for each image; None where no message has such a content."""
        from computerrl.actor.prompts.formats.base import ChatMessage

        left, messages = list(images), []
        for role, said in turns:
            shown = said.startswith(_IMAGE)
            if _IMAGE in said[shown:] or (shown and not left):
                return None
            messages.append(ChatMessage(role, said[shown:], left.pop(0) if shown else None))
        try:
            tokens = self._tokenizer.encode_chat(messages, image_texts=[self._image_text(ref) for ref in images])
        except ConfigError:
            return None  # The template takes no such turns.
        return tokens if not images else _with_markers(tokens, self._images.token, num_images=len(images))

    @cached_property
    def _frames(self) -> list[_Frame]:
        from computerrl.actor.prompts.formats.base import ChatMessage

        system, user, assistant, after = _MARKS
        talk = [ChatMessage("user", user), ChatMessage("assistant", assistant), ChatMessage("user", after)]
        bare = self._frame(talk)
        whole = self._frame([ChatMessage("system", system), *talk])
        return [frame for frame in (bare, whole) if frame is not None]

    def _frame(self, messages: Sequence[ChatMessage]) -> _Frame | None:
        try:
            text = self._written(messages)
        except ConfigError:
            return None  # The template takes no such turns, so no prompt has them.
        found = []
        for message in messages:
            before, mark, text = text.partition(message.text)
            if not mark:
                return None
            found.append(before)
        after_system = found[1] if messages[0].role == "system" else None
        is_whole = text == found[-2] and all(found[1:])
        return _Frame(found[0], after_system, found[-2], found[-1]) if is_whole else None


def _read_turns(text: str, frame: _Frame) -> Iterator[tuple[Role, str]]:
    """The turns of ``text``; not all of it where ``frame`` does not fit."""
    if not text.startswith(frame.start) or not text.endswith(frame.after_user):
        return
    rest = text.removeprefix(frame.start)
    if frame.after_system is not None:
        said, found, rest = rest.partition(frame.after_system)
        if not found:
            return
        yield "system", said
    while True:
        said, found, rest = rest.partition(frame.after_user)
        if not found:
            return
        yield "user", said
        if not rest:
            return
        said, found, rest = rest.partition(frame.after_assistant)
        if not found:
            return
        yield "assistant", said


def _between_images(tokens: Sequence[int]) -> list[list[int]]:
    """The tokens before, between and after the images, which are numbers below 0."""
    parts: list[list[int]] = [[]]
    for token in tokens:
        if token < 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _with_markers(tokens: Sequence[int], image_token: int, *, num_images: int) -> list[int] | None:
    """``tokens`` with -1, -2, ... in place of the tokens of each image, all of one size, as stored prompts have them."""
    places = [place for place, token in enumerate(tokens) if token == image_token]
    if not places or len(places) % num_images:
        return None
    each = len(places) // num_images
    found: list[int] = []
    end = 0
    for number in range(num_images):
        found += [*tokens[end : places[number * each]], -1 - number]
        end = places[(number + 1) * each - 1] + 1
    return [*found, *tokens[end:]]
