"""What can go wrong inside the guest, by whose fault."""

from __future__ import annotations


class Refused(ValueError):
    """The action cannot be done: the agent's mistake; the message is for it."""


class TaskError(ValueError):
    """The task asks for something that is not there."""


class DesktopError(RuntimeError):
    """A part of the desktop does not do what it should: ours."""
