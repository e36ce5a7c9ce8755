"""A model's chat template: conversations as text, and how the template writes a completion and ends a turn.

Pure: a template is given as a function that renders turns. What a template takes is found by rendering marked texts: some take no
system role, some want a message's content as a list of parts, and some lose what they do not take without an error.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from computerrl.actor.prompts.formats.base import ChatMessage, Role
from computerrl.actor.prompts.formats.completions import last_part, opened_thought
from computerrl.common import log
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.messages import ScreenshotRef

Turn = Mapping[str, Any]
Render = Callable[[Sequence[Turn], bool], str]
"""(turns, is the start of a completion added) -> text; may raise anything."""

MAX_OWN_CHARS = 100_000
"""A template's own text in a conversation; those of published models stay below a tenth of it."""

_ENDING = ": \"a\", <b> & 'c'\n\td" + " and so on" * 2000
"""Ends a marked text: characters that a template for another use of its text would write otherwise, and a line as long as a whole
prompt, which a template must neither cut nor break."""

_PARTS = "'type': 'text'"
"""Stands in the text of a template that writes a list of parts as Python would."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """The form in which a template takes messages."""

    in_parts: bool
    """Content is a list of parts."""
    folds_system: bool
    """The system text begins the first user turn."""


class ChatTemplate:
    """Safe to share between threads."""

    def __init__(self, render: Render, *, source: str, image_token: str | None = None) -> None:
        """``source``: the folder, for errors. ``image_token``: text that the template writes once for each image; None where the
        model takes text alone."""
        self._raw = render
        self._source = source
        self._image_token = image_token
        self._shape_of = functools.cache(self._find_shape)

    def prompt(self, messages: Sequence[ChatMessage]) -> str:
        """The conversation up to where the completion begins, with the image token once for each image.

        Raises `ConfigError` for a template that does not take it."""
        return self._start(messages) + self._header

    def completion(self, completion: str) -> str:
        """``completion`` as the template writes it after `prompt`, without the end of the turn. A template may put an empty
        thought or blanks before it. Where the template drops a part of the completion, the completion stays as it is."""
        prompt = self.prompt(_ASK)
        written = self._finished(completion)
        if written is not None and written.startswith(prompt) and written.endswith(self.after_completion):
            said = written[len(prompt) : len(written) - len(self.after_completion)]
            if said.endswith(last_part(self.opening + completion)) and _solid(completion) in _solid(said):
                return said
        return completion

    @functools.cached_property
    def opening(self) -> str:
        """The thought that a prompt has begun already when the completion starts: a tag and blanks; mostly nothing."""
        return opened_thought(self.prompt(_ASK))

    @functools.cached_property
    def after_completion(self) -> str:
        """The text between the end of the last completion and the end of the conversation."""
        written = self._finished(_COMPLETION)
        return "" if written is None else written.partition(_COMPLETION)[2]

    @functools.cached_property
    def next_turn(self) -> str:
        """The text between a completion and the text of the user's next turn."""
        return self.example.partition(_COMPLETION)[2].partition(_NEXT)[0]

    @functools.cached_property
    def example(self) -> str:
        """A conversation of three turns, with all that the template writes itself; empty where the template takes none."""
        try:
            return self._start([*_ASK, ChatMessage("assistant", _COMPLETION), ChatMessage("user", _NEXT)])
        except ConfigError:
            return ""

    @functools.cached_property
    def _header(self) -> str:
        """The start of the assistant's turn, for a template that does not write it when asked to."""
        start, bare = self._start(_ASK), self._written(_ASK, begins_completion=False)
        written = self._finished(_COMPLETION)
        if start != bare or written is None or not written.startswith(start):
            return ""
        header = written[len(start) :].partition(_COMPLETION)[0]
        # A blank before the completion is the completion's.
        return header if header.strip() else ""

    def _finished(self, completion: str) -> str | None:
        """A conversation that ends with ``completion``; None where the template takes none."""
        try:
            return self._written([*_ASK, ChatMessage("assistant", completion)], begins_completion=False)
        except ConfigError:
            return None

    def _start(self, messages: Sequence[ChatMessage]) -> str:
        return self._written(messages, begins_completion=True)

    def _written(self, messages: Sequence[ChatMessage], *, begins_completion: bool) -> str:
        shape = self._shape_of(tuple((message.role, message.image is not None) for message in messages))
        try:
            return self._rendered(_turns(messages, shape), begins_completion)
        except Exception as error:  # noqa: BLE001  (a template is a program of the model's, and may raise anything)
            raise self._refused([message.role for message in messages], str(error) or type(error).__name__) from None

    def _rendered(self, turns: Sequence[Turn], begins_completion: bool) -> str:
        text = self._raw(turns, begins_completion)
        given = len(str(turns))
        if len(text) > given + MAX_OWN_CHARS:
            raise ValueError(f"it writes {len(text)} characters for {given} of messages")
        return text

    def _find_shape(self, turns: tuple[tuple[Role, bool], ...]) -> _Shape:
        """``turns``: role of each, and whether it shows an image."""
        roles = [role for role, _ in turns]
        marked = [
            ChatMessage(role, f"{role}-text-{number}{_ENDING}", _MARK if shows else None)
            for number, (role, shows) in enumerate(turns)
        ]
        num_images = sum(shows for _, shows in turns)
        first = "it has no token for images" if num_images and self._image_token is None else ""
        for folds_system, in_parts in itertools.product((False, True) if "system" in roles else (False,), (False, True)):
            shape = _Shape(in_parts, folds_system)
            try:
                text = self._rendered(_turns(marked, shape), True)
            except Exception as error:  # noqa: BLE001  (as in `_written`)
                first = first or str(error) or type(error).__name__
                continue
            num_written = text.count(self._image_token) if self._image_token is not None else 0
            if num_written != num_images:
                first = first or f"it writes {num_written} places for {num_images} images"
                continue
            lost = [message.role for message in marked if message.text not in text]
            places = [text.find(message.text) for message in marked if message.role != "system"]
            if not lost and _PARTS not in text and places == sorted(places):
                if folds_system:
                    log.get_logger().warning("template.without_system_role", model=self._source, system="in the first user turn")
                return shape
            first = first or (f"the text of {', '.join(lost)} is lost or changed" if lost else "it writes them in another order")
        raise self._refused(roles, first)

    def _refused(self, roles: Sequence[str], reason: str) -> ConfigError:
        reason = f"the chat template in {self._source} does not take turns of {', '.join(roles)}: {reason[:300]}"
        step = "use a model whose template does, or actor.prompt.format: compact with chat_template: false"
        return ConfigError([Problem("actor.prompt", reason, step)])


_MARK = ScreenshotRef("mark", "mark", 0, 0, 1, 1)
"""Stands for an image: a template learns of it only that it is there."""
_ASK = (ChatMessage("user", "question-text"),)
_COMPLETION, _NEXT = "answer-text", "next-text"


def _turns(messages: Sequence[ChatMessage], shape: _Shape) -> list[Turn]:
    if shape.folds_system:
        messages = _folded(messages)
    return [{"role": message.role, "content": _parts(message) if shape.in_parts else message.text} for message in messages]


def _parts(message: ChatMessage) -> list[dict[str, str]]:
    image = [] if message.image is None else [{"type": "image"}]
    text = [{"type": "text", "text": message.text}] if message.text or not image else []
    return [*image, *text]


def _folded(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """``messages`` with the system text at the start of the first user turn."""
    system = "\n\n".join(message.text for message in messages if message.role == "system")
    others = [message for message in messages if message.role != "system"]
    first = next((place for place, message in enumerate(others) if message.role == "user"), None)
    if first is None:
        return [ChatMessage("user", system), *others]
    others[first] = replace(others[first], text=f"{system}\n\n{others[first].text}")
    return others


def _solid(text: str) -> str:
    """``text`` without blanks."""
    return "".join(text.split())
