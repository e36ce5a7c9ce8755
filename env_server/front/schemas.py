"""Actions and views as JSON, and their JSON Schemas, made from the tables of actions. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from computerrl.common.actions import ACTIONS, MAX_ACTION_CHARS
from computerrl.common.actions.json_schema import arguments_schema
from computerrl.common.actions.screen_text import element_rows
from computerrl.common.config import PromptConfig
from computerrl.env_server.front.sessions import BadRequest, Call, View

Json = dict[str, Any]

_ROWS = PromptConfig()
"""How much of a screen the rows tell: what policies get by default."""


def action_schema() -> Json:
    """JSON Schema of an action: its name and arguments, or its text."""
    named = [
        {
            "title": spec.name,
            "description": spec.help,
            "type": "object",
            "properties": {"name": {"const": spec.name}, "arguments": arguments_schema(spec)},
            "required": ["name", *(["arguments"] if any(param.default is ... for param in spec.params) else [])],
            "additionalProperties": False,
        }
        for spec in ACTIONS.values()
    ]
    text = {
        "title": "text",
        "description": 'an action as text, such as click(3) or calc.set_cell("B2", 5)',
        "type": "object",
        "properties": {"text": {"type": "string", "maxLength": MAX_ACTION_CHARS}},
        "required": ["text"],
        "additionalProperties": False,
    }
    return {"title": "Action", "oneOf": [*named, text]}


def call_of(action: Mapping[str, Any]) -> Call:
    """The call that ``action`` means. Raises `BadRequest` for what is no object of `action_schema`; what an action's name and
    arguments are worth is the session's business."""
    # OpenEnv's typed actions all have a field for remarks.
    given = {name: value for name, value in action.items() if name != "metadata"}
    if set(given) == {"text"} and isinstance(given["text"], str):
        return given["text"]
    arguments = given.get("arguments", {})
    if set(given) - {"arguments"} == {"name"} and isinstance(given["name"], str) and isinstance(arguments, dict):
        return given["name"], arguments
    raise BadRequest('an action is {"name": "click", "arguments": {"target": 3}}, or {"text": "click(3)"}')


_TEXT = {"type": "string"}
_NUMBER = {"type": "integer", "minimum": 0}

OBSERVATION_SCHEMA: Json = {
    "title": "Observation",
    "type": "object",
    "properties": {
        "instruction": {**_TEXT, "description": "the task"},
        "app": {**_TEXT, "description": "application in front"},
        "window_title": _TEXT,
        "elements": {
            "type": "array",
            "items": _TEXT,
            "description": "rows of what is on screen: role, text, states, and a number where the text is not unique",
        },
        "screenshot": {**_TEXT, "contentEncoding": "base64", "description": "the screen; empty where none are stored"},
        "screenshot_format": {"enum": ["webp", "png", "jpeg"]},
        "screen_width": _NUMBER,
        "screen_height": _NUMBER,
        "result": {**_TEXT, "description": "what the last call of an application returned"},
        "action_error": {**_TEXT, "description": "why the last action was not carried out; empty where it was"},
        "step": {**_NUMBER, "description": "actions of the episode so far"},
        "task": {**_TEXT, "description": "family of the task"},
        "seed": {**_NUMBER, "description": "instance of the task"},
        "success": {"type": ["boolean", "null"], "description": "verdict, once the episode has ended"},
        "detail": {**_TEXT, "description": "reason of the verdict"},
        "truncated": {"type": "boolean", "description": "whether the episode ended because it was too long"},
        "metadata": {"type": "object"},
    },
}


def element_rows_of(view: View) -> list[str]:
    """Rows of the elements on the screen."""
    return element_rows(view.observation.elements, _ROWS, instruction=view.instruction)


def observation_json(view: View, *, picture_format: str) -> Json:
    """``view`` as an object of `OBSERVATION_SCHEMA`."""
    seen, verdict = view.observation, view.verdict
    return {
        "instruction": view.instruction,
        "app": seen.app,
        "window_title": seen.window_title,
        "elements": element_rows_of(view),
        "screenshot": base64.b64encode(view.screenshot).decode(),
        "screenshot_format": picture_format,
        "screen_width": seen.screen_width,
        "screen_height": seen.screen_height,
        "result": seen.result,
        "action_error": view.action_error,
        "step": view.num_steps,
        "task": view.task.family,
        "seed": view.task.seed,
        "success": verdict.success if verdict else None,
        "detail": verdict.detail if verdict else "",
        "truncated": view.truncated,
        "metadata": {},
    }
