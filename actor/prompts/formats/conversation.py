"""The conversation that published agents are trained on: system, then a user and an assistant turn for each past action, then the
screen of now. A format adds its own system text and the form of its answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from computerrl.actor.prompts.formats.base import ChatMessage, PastAction, shown_screens
from computerrl.actor.prompts.formats.completions import without_tags
from computerrl.actor.prompts.formats.coordinates import Extents, Grid, thousand
from computerrl.common.actions import ACTIONS, FINAL_ACTIONS, ActionSyntaxError, calls_application
from computerrl.common.actions.screen_text import cut, one_line
from computerrl.common.actions.targets import find_target
from computerrl.common.config import PromptConfig
from computerrl.common.messages import Action, Element, Observation

MAX_PAST_CHARS = 2000
"""Maximum number of characters of an earlier completion, and of its result, in a prompt."""
MAX_THOUGHT_CHARS = 160


class Conversation(ABC):
    """See `actor.prompts.formats.base.PromptFormat`; it always uses the chat template."""

    plain_cue: str | None = None
    shows_images: bool = True
    apps: tuple[str, ...] = ("",)

    def __init__(self, config: PromptConfig, *, extents: Extents | None) -> None:
        """``extents``: of coordinates; None: they are pixels of the screen."""
        self._config = config
        self._extents = extents

    def rows(self, instruction: str, observation: Observation) -> list[str]:
        return []

    def messages(
        self, instruction: str, observation: Observation, rows: Sequence[str], past: Sequence[PastAction], *, num_images: int = 1
    ) -> list[ChatMessage]:
        """Earlier turns show their screenshots while there are fewer than ``num_images`` newer ones."""
        if self.shows_images:
            shown_screens(observation, past, num_images=num_images)
        else:
            num_images = 0
        before = [f"Task: {one_line(instruction)}"]
        turns = [ChatMessage("system", self._system_text(observation))]
        for num_newer, action in zip(range(len(past), 0, -1), past, strict=True):
            image = action.screenshot if num_newer < num_images else None
            left_out = [] if image is not None else ["(The screen of that turn is left out.)"]
            turns.append(ChatMessage("user", "\n".join([*before, *left_out]), image))
            turns.append(ChatMessage("assistant", cut(action.text, MAX_PAST_CHARS)))
            before = [outcome(action, names_screen=not self.hides_names)]
        shown = observation.screenshot if num_images else None
        turns.append(ChatMessage("user", "\n".join([*before, *self._screen(observation, rows)]), shown))
        return turns

    @property
    def hides_names(self) -> bool:
        """Whether no text of the prompt may tell what the image shows."""
        return self.shows_images and not self._config.window_title

    @abstractmethod
    def _system_text(self, observation: Observation) -> str:
        """The text of the system turn."""

    def _screen(self, observation: Observation, rows: Sequence[str]) -> list[str]:
        """Lines about the screen of now."""
        if self.hides_names:
            return []
        title = f", window: {one_line(observation.window_title, 80)}" if self._config.window_title else ""
        return [f"Application in front: {one_line(observation.app, 32) or 'none'}{title}"]

    def parse(self, completion: str, observation: Observation) -> Action:
        try:
            return self._action(completion, self._grid(observation))
        except ActionSyntaxError as error:
            raise ActionSyntaxError(f"Invalid action: {error}") from error

    @abstractmethod
    def _action(self, completion: str, grid: Grid) -> Action:
        """The action in ``completion``. Raises `ActionSyntaxError`."""

    def _grid(self, observation: Observation) -> Grid:
        width, height = observation.screen_width, observation.screen_height
        return Grid(width, height, None if self._extents is None else self._extents(width, height))


def outcome(action: PastAction, *, names_screen: bool) -> str:
    """What came of ``action``. ``names_screen``: whether errors of the desktop, which may name what is on screen, are quoted."""
    if action.error and not (names_screen or action.is_malformed):
        return "The last action was not done."
    if action.error:
        return f"The last action was not done: {one_line(action.error, MAX_PAST_CHARS)}"
    result = one_line(action.result, MAX_PAST_CHARS)
    return f"Result of the last action: {result}" if result else "The last action was done."


def coordinates_in_words(grid: Grid) -> str:
    """How to write a place of ``grid``, for a system text."""
    across, down = grid.ends
    edges = f"x goes from 0 at the left edge to {across} at the right one, y from 0 at the top to {down} at the bottom."
    if grid.ends == thousand(grid.width, grid.height):
        return f"Coordinates are relative: {edges}"
    return f"It has {across} x {down} pixels, and coordinates are its pixels: {edges}"


def demonstrated_thought(action: Action, elements: Sequence[Element], *, names_screen: bool) -> str:
    """The thought that a demonstrator, who says nothing, may have had: the purpose of the action, and the name of its element.
    ``names_screen``: whether it may hold a text that is on the screen."""
    spec = ACTIONS[action.name]
    target = action.args.get("target")
    if calls_application(action.name) or action.name in FINAL_ACTIONS:
        text = spec.help
    elif target is not None and action.args.get("y") is None:
        element = find_target(elements, target)
        named = f' "{element.text}"' if element.text and names_screen else ""
        text = f"{action.name.replace('_', ' ')} the {element.role}{named}"
    else:
        values = [action.args[param.name] for param in spec.params if param.default is ...]
        quoted = "".join(f' "{value}"' for value in values if isinstance(value, str))
        text = action.name.replace("_", " ") + quoted
    return as_thought(text[:1].upper() + text[1:], MAX_THOUGHT_CHARS).rstrip(".") + "."


def as_thought(text: str, max_chars: int | None = None) -> str:
    """``text`` on one line of a completion, before its action: neither a fence nor a tag may end the thought. ``max_chars``: the
    end of a longer one is left out."""
    return one_line(without_tags(text.replace("`", "'").replace("<", "(")), max_chars)
