"""Where a program and its episode meet: the episode puts a screen there, the program answers it with an action.

    episode   show(screen) ── next_action() ──►         show(screen) ──  ...  ── end()
    program   look() ◄── screen      act(action) ────►  its next screen

No HTTP and no processes. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from computerrl.actor.agents.refused import Refused

ENDED: dict[str, Any] = {"ended": True}
_LOOK_S = 0.1
"""Period in which an episode looks whether its program is still there."""


class Desk:
    """The desk of one episode."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._screen: dict[str, Any] | None = None
        self._number = 0
        """Number of screens so far."""
        self._action: str | None = None
        """Posted and not yet taken."""
        self._is_acting = False
        """Whether an action was posted that the next screen answers."""
        self._has_ended = False

    # --- the episode's side

    def show(self, screen: dict[str, Any]) -> None:
        """Put the next screen there."""
        with self._changed:
            self._screen, self._is_acting = {**screen, "ended": False}, False
            self._number += 1
            self._changed.notify_all()

    def next_action(self, *, is_over: Callable[[], bool]) -> str | None:
        """The action that answers the screen; None once ``is_over`` says that none will come."""
        with self._changed:
            while self._action is None:
                if is_over():
                    return None
                self._changed.wait(_LOOK_S)
            action, self._action = self._action, None
            return action

    def end(self) -> None:
        """The episode has ended."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    # --- the program's side

    def look(self) -> dict[str, Any]:
        """The present screen, waited for; or that the episode has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or (self._screen is not None and not self._is_acting))
            return self._seen()

    def act(self, action: object) -> dict[str, Any]:
        """Have ``action`` done; gives the next screen, or that the episode has ended. Raises `Refused`."""
        if not isinstance(action, str):
            raise Refused(400, "invalid_request_error", 'an action is a text: {"action": "click(3)"}')
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or self._screen is not None)
            if self._is_acting:
                raise Refused(409, "busy", "an action is under way: one at a time")
            if self._has_ended:
                return ENDED
            self._action, self._is_acting = action, True
            number = self._number
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._has_ended or self._number > number)
            return self._seen()

    def _seen(self) -> dict[str, Any]:
        return ENDED if self._has_ended or self._screen is None else self._screen
