"""A screen, the formats, answers in them, and what their prompts tell as text, for the tests of formats."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec.structs import replace

from computerrl.actor.prompts.formats import make_format
from computerrl.actor.prompts.formats.base import ChatMessage, PastAction, PromptFormat
from computerrl.common.actions import ActionSyntaxError, parse_action
from computerrl.common.config import PromptConfig
from computerrl.common.messages import Action, Element, Observation, ScreenshotRef
from tests.support.data.actor_data import make_observation

TEXT = make_format(PromptConfig.model_validate({"format": "computerrl_text"}))
COMPACT = make_format(PromptConfig())
VISION = make_format(PromptConfig.model_validate({"format": "computerrl_vision"}))
UI_TARS = make_format(PromptConfig.model_validate({"format": "ui_tars"}))
QWEN = make_format(PromptConfig.model_validate({"format": "qwen_computer_use"}))
SCREEN = replace(
    make_observation(
        Element(1, "push-button", "Submit", 412, 230, 60, 24, ("focused",)),
        Element(2, "entry", "two\nlines", 10, 590, 100, 20, ()),
        Element(3, "menu", "File", 30, 20, 40, 20, (), False),
    ),
    app="calc",
)
PICTURE = ScreenshotRef("hash", "segment-0.bin", 0, 10, 800, 600)


def block(*lines: str, thought: str = "Why.") -> str:
    source = "\n".join(lines)
    return f"<think>\n{thought}\n</think>\n```python\n{source}\n```"


def read(answer: str, screen: Observation = SCREEN) -> Action:
    return TEXT.parse(answer, screen)


def meant(text: str) -> Action:
    return parse_action(text)


# --- what the text of a prompt with images tells --------------------------------------------------------------------

_OWN_WORDS = {"Task", "Done", "Error", "Result", "Action", "Thought"}
"""Of the formats themselves."""


def told_names(form: PromptFormat, instruction: str, seen: Observation, past: Sequence[PastAction]) -> list[str]:
    """Names of elements, and of the application and window in front, that stand in the prompt's text and were given neither by
    the instruction nor by the policy's own typing."""
    messages = form.messages(instruction, seen, [], past, num_images=2)
    blank = Observation("", "", (), seen.screenshot, seen.screen_width, seen.screen_height, "none", 0.0, "")
    told = [] if _system(messages) == _system(form.messages("", blank, [], [], num_images=2)) else ["the system text"]
    text = "\n".join(f"{message.text}" for message in messages if message.role != "system")
    known = "\n".join([instruction, *(_typed(form, action.text, seen) for action in past)])
    names = {seen.app, seen.window_title, *(element.text for element in seen.elements)}
    for name in sorted({" ".join(name.split()) for name in names} - _OWN_WORDS):
        # A number may be a coordinate, a single letter a key.
        if len(name) > 1 and re.search(r"[^\W\d]", name) and not _stands_in(name, known) and _stands_in(name, text):
            told.append(name)
    return told


def _system(messages: Sequence[ChatMessage]) -> list[str]:
    return [message.text for message in messages if message.role == "system"]


def _typed(form: PromptFormat, completion: str, seen: Observation) -> str:
    try:
        args = form.parse(completion, seen).args
    except ActionSyntaxError:
        return completion
    return " ".join(str(args[name]) for name in ("text", "keys", "direction", "button") if name in args)


def _stands_in(name: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE) is not None
