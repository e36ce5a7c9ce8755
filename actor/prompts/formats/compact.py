"""Our own format: as few tokens as possible, so that a small model learns it from few examples.

Episodes of one group share the longest possible prefix: task and application first, then the elements (which change little
from step to step), the agent's own past last. With SmolLM2's tokenizer a step takes 60 to 130 tokens:

    Task: Select Bella and click Submit.
    App: chromium, Click Option
    radio-button Bella selected 1
    radio-button Ana 2
    push-button Submit 3
    Done: click("Bella")
    Action: click("Submit")

Application and elements are written by `common.actions.screen_text`. The completion is one action as `common.actions` reads it,
after a thought where a model thinks first. Text quoted from the screen is put on one line, so that no text on a screen can end a
row and pretend to be another part of the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from computerrl.actor.prompts.formats.base import ChatMessage, PastAction, shown_screens
from computerrl.actor.prompts.formats.completions import after_first_thought
from computerrl.actor.prompts.formats.coordinates import Extents, Grid, from_places, has_place, thousand, to_places
from computerrl.actor.prompts.formats.points import make_aim
from computerrl.common.actions import parse_action, render_action
from computerrl.common.actions.screen_text import app_line, element_rows, one_line
from computerrl.common.config import PromptConfig
from computerrl.common.messages import Action, Observation

MAX_HISTORY_CHARS = 64
"""A past action, and what was said about the newest one, are cut to this."""


class CompactFormat:
    """See `actor.prompts.formats.base.PromptFormat`."""

    plain_cue: str | None = "\nAction:"
    shows_images: bool = False
    apps: tuple[str, ...] = ("",)

    def __init__(self, config: PromptConfig) -> None:
        self._config = config

    def rows(self, instruction: str, observation: Observation) -> list[str]:
        return element_rows(observation.elements, self._config, instruction=instruction)

    def messages(
        self, instruction: str, observation: Observation, rows: Sequence[str], past: Sequence[PastAction], *, num_images: int = 0
    ) -> list[ChatMessage]:
        task = f"Task: {one_line(instruction)}"
        lines = [task, app_line(observation, window_title=self._config.window_title), *rows, *_past_lines(past)]
        return [ChatMessage("user", "\n".join(lines))]

    def parse(self, completion: str, observation: Observation) -> Action:
        return parse_action(after_first_thought(completion))

    def render(self, action_text: str, observation: Observation, *, seed: str = "", thought: str = "") -> str:
        return action_text


class CompactVision(CompactFormat):
    """`compact_vision`: the screen as an image, and no word about it.

        [image]
        Task: Select Bella and click Submit.
        Done: click(412, 230)
        Action: click(500, 071)

    Coordinates are those of the model's family (`actor.prompt.coordinates`). They are written with as many digits as the largest,
    three for thousandths, so that a digit always means the same: the first one is the tenth of the screen. A target is a place:
    neither numbers nor texts of elements are accepted, since the instruction often names the text and an element's number stands
    nowhere. Several screenshots stand one after another, the oldest first. The task comes last: all that is asked about one
    screen shares the screen's tokens.
    """

    shows_images: bool = True

    def __init__(self, config: PromptConfig, *, extents: Extents = thousand) -> None:
        super().__init__(config)
        self._extents = extents

    def rows(self, instruction: str, observation: Observation) -> list[str]:
        return []

    def messages(
        self, instruction: str, observation: Observation, rows: Sequence[str], past: Sequence[PastAction], *, num_images: int = 1
    ) -> list[ChatMessage]:
        text = "\n".join([f"Task: {one_line(instruction)}", *_past_lines(past, names_screen=self._config.window_title)])
        screens = shown_screens(observation, past, num_images=num_images)
        if not screens:
            return [ChatMessage("user", text)]
        return [*(ChatMessage("user", "", ref) for ref in screens[:-1]), ChatMessage("user", text, screens[-1])]

    def parse(self, completion: str, observation: Observation) -> Action:
        call = _TEXT_OR_LEADING_ZEROS.sub(lambda found: found[1] or "", after_first_thought(completion))
        return from_places(parse_action(call), self._grid(observation))

    def render(self, action_text: str, observation: Observation, *, seed: str = "", thought: str = "") -> str:
        grid, elements = self._grid(observation), observation.elements
        action = to_places(parse_action(action_text), grid, elements, aim=make_aim(elements, grid, seed=seed))
        call, num_digits = render_action(action), len(str(max(grid.ends) - 1))
        return _TEXT_OR_NUMBER.sub(lambda found: found[1] or found[2].zfill(num_digits), call) if has_place(action) else call

    def _grid(self, observation: Observation) -> Grid:
        width, height = observation.screen_width, observation.screen_height
        return Grid(width, height, self._extents(width, height))


_TEXT = r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')"""
_TEXT_OR_LEADING_ZEROS = re.compile(_TEXT + r"|(?<![\w.])0+(?=\d)")
_TEXT_OR_NUMBER = re.compile(_TEXT + r"|(?<![\w.])(\d+)(?![\w.])")


def _past_lines(past: Sequence[PastAction], *, names_screen: bool = True) -> list[str]:
    """``names_screen``: whether errors of the desktop, which may name what is on screen, are quoted."""
    lines = [f"Done: {one_line(action.text, MAX_HISTORY_CHARS)}" for action in past]
    if past and past[-1].error:
        is_quoted = names_screen or past[-1].is_malformed
        lines.append(f"Error: {one_line(past[-1].error, MAX_HISTORY_CHARS) if is_quoted else 'not done'}")
    if past and past[-1].result:
        lines.append(f"Result: {one_line(past[-1].result, MAX_HISTORY_CHARS)}")
    return lines
