"""A screen, the two ComputerRL formats, and answers in them, for the tests of formats."""

from __future__ import annotations

from msgspec.structs import replace

from computerrl.actor.prompts.formats import make_format
from computerrl.common.actions import parse_action
from computerrl.common.config import PromptConfig
from computerrl.common.messages import Action, Element, Observation, ScreenshotRef
from tests.support.data.actor_data import make_observation

TEXT = make_format(PromptConfig.model_validate({"format": "computerrl_text"}))
COMPACT = make_format(PromptConfig())
VISION = make_format(PromptConfig.model_validate({"format": "computerrl_vision"}))
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
