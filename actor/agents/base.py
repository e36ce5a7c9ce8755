"""The interface of an agent: a program with a model and a scaffold of its own, which plays an episode in place of prompts and
engine.

Types and protocols only. An agent never knows about leases, tokens or policy versions: it sees a screen and names an action.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from computerrl.common.messages import Action, Observation, Usage


@dataclass(frozen=True, slots=True)
class Sight:
    """What an agent sees before it acts."""

    observation: Observation
    screenshot: bytes | None
    """Encoded image of the screen; None where the desktops observe none."""
    error: str
    """Reason why the last action was not carried out; empty when it was, and before the first one."""


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


class Conversation(Protocol):
    """An agent's side of one episode."""

    def act(self, sight: Sight) -> Answer:
        """The next action. Raises `AgentFailed`, or what a server's trouble is (`EngineFailed`, `ConfigError`)."""


class Agent(Protocol):
    """An agent. Thread-safe: its conversations go on side by side."""

    def begin(self, instruction: str, *, temperature: float) -> Conversation:
        """Begin an episode. Raises as `Conversation.act`."""

    def close(self) -> None:
        """End requests that wait; those under way fail by themselves."""
