"""Requests and replies of model servers, in the three published forms: OpenAI's chat completions and Responses, and Anthropic's
Messages. Pure: `actor.agents.service` sends them.

An answer is repeated to the server as it came (`Said`), so that what we do not read of it, such as a signed thought, survives.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from computerrl.actor.agents.tools import COMPUTER, Function, ToolCall
from computerrl.common.actions.json_schema import Json
from computerrl.common.config import AgentConfig
from computerrl.common.errors import EndpointRefused
from computerrl.common.messages import Usage
from computerrl.common.vision.encoded import as_png, data_uri, image_type


@dataclass(frozen=True, slots=True)
class Screen:
    """A turn that shows a screen."""

    text: str
    image: bytes | None = None
    """Encoded screenshot."""
    head: str = ""
    """Words before ``text`` that stay when the screen is left out."""

    @property
    def words(self) -> str:
        """All text of the turn."""
        return f"{self.head}\n{self.text}" if self.head else self.text


@dataclass(frozen=True, slots=True)
class Said:
    """A turn of the model."""

    native: Any
    """As the server sent it."""


@dataclass(frozen=True, slots=True)
class Results:
    """Results of the calls of the turn before, and the screen after them."""

    of: tuple[tuple[ToolCall, str, bool], ...]
    """Call, its result, and whether it failed."""
    screen: Screen


Turn = Screen | Said | Results


@dataclass(frozen=True, slots=True)
class Request:
    """Request for a model's next turn."""

    model: str
    system: str
    turns: Sequence[Turn]
    functions: Sequence[Function]
    max_new_tokens: int
    temperature: float | None
    """None: the server's own."""
    screen_size: tuple[int, int]
    """Width and height in pixels."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's turn."""

    text: str
    calls: tuple[ToolCall, ...]
    said: Said
    usage: Usage | None
    """None where the server counts nothing."""
    is_cut: bool
    """Whether it reached the maximum number of tokens before its end."""


class Dialect(Protocol):
    """One form of requests and replies."""

    path: str
    """Of the requests, behind the server's address."""
    key_header: str
    headers: Mapping[str, str]
    has_computer: bool
    """Whether mouse and keyboard are a tool that the model knows from its training."""

    def body(self, request: Request) -> Json:
        """The request as JSON."""

    def read(self, reply: Any) -> Reply:
        """The turn in a server's reply. Raises `EndpointRefused` for a reply that holds none."""


def make_dialect(config: AgentConfig, *, sends_png: bool) -> Dialect:
    """The form that ``config`` means. ``sends_png``: send every image as PNG."""
    if config.kind == "anthropic":
        return Messages(config, sends_png=sends_png)
    return Responses(sends_png=sends_png) if config.interface == "responses" else Chat(sends_png=sends_png)


class Chat:
    """OpenAI's chat completions."""

    path, key_header, has_computer = "chat/completions", "Authorization", False
    headers: Mapping[str, str] = {}

    def __init__(self, *, sends_png: bool) -> None:
        self._sends_png = sends_png

    def body(self, request: Request) -> Json:
        messages: list[Json] = [{"role": "system", "content": request.system}]
        for turn in request.turns:
            if isinstance(turn, Said):
                messages.append(turn.native)
            elif isinstance(turn, Results):
                messages += [{"role": "tool", "tool_call_id": call.id, "content": text} for call, text, _ in turn.of]
                messages.append({"role": "user", "content": self._content(turn.screen)})
            else:
                messages.append({"role": "user", "content": self._content(turn)})
        tools = [
            {"type": "function", "function": {"name": one.name, "description": one.help, "parameters": one.schema}}
            for one in request.functions
        ]
        return {
            "model": request.model,
            "messages": messages,
            **({"tools": tools} if tools else {}),
            "max_completion_tokens": request.max_new_tokens,
            **({} if request.temperature is None else {"temperature": request.temperature}),
        }

    def _content(self, screen: Screen) -> list[Json]:
        parts: list[Json] = [{"type": "text", "text": screen.words}]
        if screen.image is not None:
            parts.append({"type": "image_url", "image_url": {"url": _uri(screen.image, sends_png=self._sends_png)}})
        return parts

    def read(self, reply: Any) -> Reply:
        choice = _first(_field(reply, "choices"))
        message = _field(choice, "message")
        if not isinstance(message, dict):
            raise _no_turn(reply, "choices[0].message")
        calls = tuple(
            ToolCall(_text(call.get("id")), _text(function.get("name")), function.get("arguments"))
            for call in _objects(message.get("tool_calls"))
            if isinstance(function := call.get("function"), dict)
        )
        text = _text(message.get("content"))
        native: Json = {"role": "assistant", "content": text}
        if calls:
            native["tool_calls"] = [_chat_call(call) for call in calls]
        usage = _usage(_field(reply, "usage"), ("prompt_tokens",), "completion_tokens")
        return Reply(text, calls, Said(native), usage, is_cut=_field(choice, "finish_reason") == "length")


def _chat_call(call: ToolCall) -> Json:
    arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


class Responses:
    """OpenAI's Responses. Nothing is stored there: each request holds the whole conversation."""

    path, key_header, has_computer = "responses", "Authorization", False
    headers: Mapping[str, str] = {}

    def __init__(self, *, sends_png: bool) -> None:
        self._sends_png = sends_png

    def body(self, request: Request) -> Json:
        items: list[Json] = []
        for turn in request.turns:
            if isinstance(turn, Said):
                items += turn.native
            elif isinstance(turn, Results):
                items += [{"type": "function_call_output", "call_id": call.id, "output": text} for call, text, _ in turn.of]
                items.append({"role": "user", "content": self._content(turn.screen)})
            else:
                items.append({"role": "user", "content": self._content(turn)})
        tools = [
            {"type": "function", "name": one.name, "description": one.help, "parameters": one.schema, "strict": False}
            for one in request.functions
        ]
        return {
            "model": request.model,
            "instructions": request.system,
            "input": items,
            **({"tools": tools} if tools else {}),
            "max_output_tokens": request.max_new_tokens,
            "store": False,
            "include": ["reasoning.encrypted_content"],
            **({} if request.temperature is None else {"temperature": request.temperature}),
        }

    def _content(self, screen: Screen) -> list[Json]:
        parts: list[Json] = [{"type": "input_text", "text": screen.words}]
        if screen.image is not None:
            parts.append({"type": "input_image", "image_url": _uri(screen.image, sends_png=self._sends_png)})
        return parts

    def read(self, reply: Any) -> Reply:
        output = _field(reply, "output")
        if not isinstance(output, list):
            raise _no_turn(reply, "output")
        items = _objects(output)
        calls = tuple(
            ToolCall(_text(item.get("call_id")), _text(item.get("name")), item.get("arguments"))
            for item in items
            if item.get("type") == "function_call"
        )
        said = [part for item in items if item.get("type") == "message" for part in _objects(item.get("content"))]
        usage = _usage(_field(reply, "usage"), ("input_tokens",), "output_tokens")
        is_cut = _field(_field(reply, "incomplete_details"), "reason") == "max_output_tokens"
        return Reply("\n".join(_text(part.get("text")) for part in said), calls, Said(items), usage, is_cut=is_cut)


class Messages:
    """Anthropic's Messages, with its computer-use tool."""

    path, key_header, has_computer = "messages", "x-api-key", True

    def __init__(self, config: AgentConfig, *, sends_png: bool) -> None:
        self._sends_png = sends_png
        self._tool = config.computer_tool
        self.headers: Mapping[str, str] = {
            "anthropic-version": "2023-06-01",
            **({"anthropic-beta": config.beta} if config.beta else {}),
        }

    def body(self, request: Request) -> Json:
        messages: list[Json] = []
        for turn in request.turns:
            if isinstance(turn, Said):
                messages.append({"role": "assistant", "content": turn.native})
            elif isinstance(turn, Results):
                *others, last = turn.of
                blocks = [_tool_result(*one, content=[{"type": "text", "text": one[1]}]) for one in others]
                blocks.append(_tool_result(*last, content=[{"type": "text", "text": last[1]}, *self._content(turn.screen)]))
                messages.append({"role": "user", "content": blocks})
            else:
                messages.append({"role": "user", "content": self._content(turn)})
        width, height = request.screen_size
        computer = {"type": self._tool, "name": COMPUTER, "display_width_px": width, "display_height_px": height}
        tools = [{"name": one.name, "description": one.help, "input_schema": one.schema} for one in request.functions]
        return {
            "model": request.model,
            "system": request.system,
            "messages": messages,
            "tools": [computer, *tools],
            "max_tokens": request.max_new_tokens,
            **({} if request.temperature is None else {"temperature": min(1.0, request.temperature)}),
        }

    def _content(self, screen: Screen) -> list[Json]:
        blocks: list[Json] = [{"type": "text", "text": screen.words}]
        if screen.image is not None:
            image = as_png(screen.image) if self._sends_png else screen.image
            source = {"type": "base64", "media_type": image_type(image), "data": base64.b64encode(image).decode()}
            blocks.append({"type": "image", "source": source})
        return blocks

    def read(self, reply: Any) -> Reply:
        content = _field(reply, "content")
        if not isinstance(content, list):
            raise _no_turn(reply, "content")
        blocks = _objects(content)
        calls = tuple(
            ToolCall(_text(block.get("id")), _text(block.get("name")), block.get("input"))
            for block in blocks
            if block.get("type") == "tool_use"
        )
        text = "\n".join(_text(block.get("text")) for block in blocks if block.get("type") == "text")
        counted = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        usage = _usage(_field(reply, "usage"), counted, "output_tokens")
        is_cut = _field(reply, "stop_reason") == "max_tokens"
        # A turn without content cannot be repeated.
        return Reply(text, calls, Said(blocks or [{"type": "text", "text": "(nothing)"}]), usage, is_cut=is_cut)


def _tool_result(call: ToolCall, _: str, is_error: bool, *, content: list[Json]) -> Json:
    return {"type": "tool_result", "tool_use_id": call.id, "content": content, "is_error": is_error}


def _uri(image: bytes, *, sends_png: bool) -> str:
    return data_uri(as_png(image) if sends_png else image)


# --- reading what servers send ---------------------------------------------------------------------------------------


def _field(tree: Any, name: str) -> Any:
    return tree.get(name) if isinstance(tree, dict) else None


def _first(tree: Any) -> Any:
    return tree[0] if isinstance(tree, list) and tree else None


def _objects(tree: Any) -> list[Json]:
    return [one for one in tree if isinstance(one, dict)] if isinstance(tree, list) else []


def _text(tree: Any) -> str:
    # JSON may hold half a surrogate pair, which no message can.
    return tree.encode(errors="replace").decode() if isinstance(tree, str) else ""


def _usage(tree: Any, inputs: Sequence[str], output: str) -> Usage | None:
    """Tokens that a server has counted; None where it names none."""
    counts = [_field(tree, name) for name in (*inputs, output)]
    numbers = [count if isinstance(count, int) and 0 <= count < 2**31 else 0 for count in counts]
    return Usage(sum(numbers[:-1]), numbers[-1], 1) if any(numbers) else None


def _no_turn(reply: Any, what: str) -> EndpointRefused:
    step = "look at the address (up to and with /v1) and at actor.agent.kind and interface"
    return EndpointRefused(f"the server's reply holds no {what}: {json.dumps(reply):.200}", step)
