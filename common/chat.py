"""A conversation with images as an OpenAI-compatible server takes it (`/v1/chat/completions`), and the reply that it sends.

Images are data URIs of the stored bytes, so that the server sees what is stored. Sends nothing itself (`common.endpoint` does).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from computerrl.common.errors import EndpointRefused
from computerrl.common.vision.encoded import as_png, data_uri

_NO_CHAT = "use a server that answers /v1/chat/completions as OpenAI's does, or actor.endpoint.mode: tokens"
_THOUGHT_FIELDS = ("reasoning_content", "reasoning")
"""Fields of a message that hold a thought which the server has cut out of the text."""
_MAX_TOKEN_CHARS = 256
"""Vocabularies hold no longer tokens: runs of blanks are the longest."""


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One turn of a conversation."""

    role: str
    """`system`, `user` or `assistant`."""
    parts: tuple[str | bytes, ...]
    """Texts, and images as encoded bytes (PNG, WebP or JPEG), in their order."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """Request for the next turn of a conversation."""

    model: str
    turns: tuple[ChatTurn, ...]
    max_new_tokens: int
    temperature: float
    seed: int

    def body(self, *, sends_png: bool) -> dict[str, Any]:
        """The request as JSON, of fields that OpenAI's interface names. ``sends_png``: send every image as PNG."""
        return {
            "model": self.model,
            "messages": [{"role": turn.role, "content": _content(turn.parts, sends_png=sends_png)} for turn in self.turns],
            "max_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
        }


@dataclass(frozen=True, slots=True)
class ChatReply:
    """The turn that a server adds."""

    text: str
    """Its text; a thought that the server has cut out stands before it, inside `<think>` and `</think>`."""
    is_cut: bool
    """Whether it reached the maximum number of tokens before its end."""


def read_reply(choice: Mapping[str, Any], *, max_new_tokens: int) -> ChatReply:
    """The reply in a server's ``choice``. Raises `EndpointRefused` when it holds no text, or more than was asked for."""
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else None
    thoughts = [message.get(name) for name in _THOUGHT_FIELDS] if isinstance(message, dict) else []
    thought = next((one for one in thoughts if isinstance(one, str) and one.strip()), "")
    is_cut = choice.get("finish_reason") == "length"
    if text is None and thought and is_cut:
        text = ""  # It was cut in the middle of its thought.
    if not isinstance(text, str):
        raise EndpointRefused("the server's reply holds no text (choices[0].message.content)", _NO_CHAT)
    whole = f"<think>\n{thought}\n</think>\n{text}" if thought else text
    if len(whole) > _MAX_TOKEN_CHARS * max_new_tokens:
        raise EndpointRefused(
            f"the server's reply has {len(whole)} characters, and {max_new_tokens} tokens were allowed", _NO_CHAT
        )
    # JSON may hold half a surrogate pair, which no message can.
    return ChatReply(whole.encode(errors="replace").decode(), is_cut)


def _content(parts: Sequence[str | bytes], *, sends_png: bool) -> str | list[dict[str, Any]]:
    """Parts of a turn; one text alone is sent as text, which servers of text models expect."""
    if len(parts) == 1 and isinstance(parts[0], str):
        return parts[0]
    return [_part(part, sends_png=sends_png) for part in parts]


def _part(part: str | bytes, *, sends_png: bool) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image_url", "image_url": {"url": data_uri(as_png(part) if sends_png else part)}}
