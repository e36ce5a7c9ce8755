"""The interface of an agent: a program with a model and a scaffold of its own, which plays an episode in place of prompts and
engine.

Types and protocols only. An agent never knows about leases, tokens or policy versions: it sees a screen and names an action. Its
model is its own, or the policy of the run, which is trained on what the agent asked of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from computerrl.actor.engines.base import Completion, Sampler
from computerrl.common.messages import Action, Assignment, Observation, ScreenshotRef, Usage


@dataclass(frozen=True, slots=True)
class Sight:
    """What an agent sees before it acts."""

    observation: Observation
    screenshot: bytes | None
    """Encoded image of the screen; None where the desktops observe none."""
    error: str
    """Reason why the last action was not carried out; empty when it was, and before the first one."""


@dataclass(frozen=True, slots=True)
class Call:
    """A completion of the run's policy that an agent has asked for."""

    prompt_tokens: np.ndarray
    """[P] int32."""
    completion: Completion
    images: tuple[ScreenshotRef, ...] = ()
    """Screenshots that the prompt shows, in the order of their tokens."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An agent's next action."""

    text: str
    """Words of the answer, with the action as a call, for people."""
    action: Action | None
    """The action; None where the answer holds none."""
    problem: str = ""
    """Reason why there is no action, written for the agent."""
    usage: Usage | None = None
    """Tokens that the agent's model took; None where nothing was asked, or nobody counts."""
    failure: str = ""
    """Reason why the agent cannot go on: it raised an error, hangs, or returned no text. Its episode ends, and is judged as it
    is."""
    calls: tuple[Call, ...] = ()
    """Completions of the run's policy since the last answer, in the order in which they ended. None for an agent with a model of
    its own."""


class Conversation(Protocol):
    """An agent's side of one episode."""

    def act(self, sight: Sight, *, shown: str = "") -> Answer:
        """The next action. ``shown``: in a demonstration, the action that the model's answers are to lead to.

        Raises `EngineFailed` and `ConfigError` for trouble of a model's server."""

    def close(self) -> None:
        """The episode has ended: nothing is answered any more."""


class Agent(Protocol):
    """An agent. Thread-safe: its conversations go on side by side."""

    def begin(self, instruction: str, *, assignment: Assignment, engine: Sampler | None) -> Conversation:
        """Begin an episode of ``assignment``. ``engine``: of the run's policy, for an agent that has no model of its own; it may
        be None for a demonstration.

        Raises as `Conversation.act`."""

    def metrics(self) -> dict[str, float]:
        """Figures for heartbeats, see docs/reference/metrics.md; empty for an agent that counts nothing."""

    def close(self) -> None:
        """End requests that wait; those under way fail by themselves."""
