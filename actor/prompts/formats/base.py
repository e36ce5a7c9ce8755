"""The interface of a prompt format: an episode's state as chat messages, and a policy's completion as an action.

Types and protocol only. A format is pure text on both sides; tokens, budgets and templates are `actor.prompt`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from computerrl.common.messages import Action, Observation, ScreenshotRef

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of the conversation."""

    role: Role
    text: str
    image: ScreenshotRef | None = None
    """Screenshot before the text; only formats that show images set it."""


@dataclass(frozen=True, slots=True)
class PastAction:
    """One earlier action of the episode."""

    text: str
    """Whole completion that held the action."""
    error: str = ""
    """Why it could not be done."""
    is_malformed: bool = False
    """Whether the completion held no action. ``error`` then speaks of the completion alone, else it is the desktop's and may name
    what is on screen."""
    result: str = ""
    """What its API call returned."""
    screenshot: ScreenshotRef | None = None
    """Screen on which it was chosen."""


WhyUnsayable = Literal["no_form", "no_visible_point", "other_action"]
"""`no_form`: the format has no words for the action. `no_visible_point`: the action's element shows no point that a policy could
name. `other_action`: an agent made another action of what `actor.agent.demonstrate` had answered."""


class Unsayable(Exception):
    """A demonstrated action that a policy could not choose in this format; the task is not to blame."""

    def __init__(self, reason: WhyUnsayable, detail: str) -> None:
        super().__init__(detail)
        self.reason: WhyUnsayable = reason


class PromptFormat(Protocol):
    """One way of asking and answering."""

    plain_cue: str | None
    """Ends a prompt that is written without chat template; None: the format needs the chat template."""
    shows_images: bool
    """Whether messages refer to screenshots."""
    apps: tuple[str, ...]
    """Applications in front that change what every prompt holds, whatever is on screen; for checking the token budget."""

    def rows(self, instruction: str, observation: Observation) -> list[str]:
        """The lines about elements, the most important first; some of the last may be left out of the messages."""

    def messages(
        self, instruction: str, observation: Observation, rows: Sequence[str], past: Sequence[PastAction], *, num_images: int
    ) -> list[ChatMessage]:
        """The prompt: what was done before (``past``, oldest first), what is on screen now (``rows``).

        ``num_images``: how many of the newest screenshots it shows, where the format shows images."""

    def parse(self, completion: str, observation: Observation) -> Action:
        """Action in a completion for ``observation``. Raises `common.actions.ActionSyntaxError` with a message for the agent."""

    def render(self, action_text: str, observation: Observation, *, seed: str = "", thought: str = "") -> str:
        """Completion that `parse` reads as the action in ``action_text`` (`common.actions` grammar), for demonstrations.

        ``seed``: decides the points at which a format with images acts on elements; equal seeds give equal points. ``thought``:
        the thought before the action, where the format has thoughts; empty: one that is made from the action. Raises
        `LookupError` when the action means an element that is not on screen or a place outside it, and `Unsayable`.
        """


def shown_screens(observation: Observation, past: Sequence[PastAction], *, num_images: int) -> list[ScreenshotRef]:
    """The ``num_images`` newest screenshots at most, the oldest first.

    Raises `ValueError` when the observation holds none."""
    if observation.screenshot is None:
        raise ValueError("the observation holds no screenshot: set desktop.observation to both or screenshot")
    screens = [*(action.screenshot for action in past if action.screenshot is not None), observation.screenshot]
    return screens[len(screens) - min(len(screens), num_images) :]
