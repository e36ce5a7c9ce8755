"""An agent that is a Python class of somebody else's: `actor.agent.kind: module:Class`.

    class Mine:
        def __init__(self, **options): ...                 # actor.agent.options
        def predict(self, instruction, observation): ...   # -> 'click(3)', an action's text

Each episode has an object of its own. Its code runs in the actor's process with the actor's rights: it is the user's own.
"""

from __future__ import annotations

import threading
import traceback
from typing import Any

from msgspec import to_builtins

from computerrl.actor.agents.base import Answer, Sight
from computerrl.common import log
from computerrl.common.actions import ActionSyntaxError, parse_action
from computerrl.common.actions.screen_text import element_rows
from computerrl.common.config import AgentConfig, PromptConfig
from computerrl.common.errors import AgentFailed, ConfigError, Problem
from computerrl.common.plugins import load_named

_FIELD = "actor.agent.kind"
_ROWS = PromptConfig(format="computerrl_text")
"""How much of a screen the rows tell."""


class ModuleAgent:
    """See `actor.agents.base.Agent`."""

    def __init__(self, config: AgentConfig) -> None:
        """Raises `ConfigError` for a class that cannot be imported, or that cannot be made with its options."""
        self._config = config
        self._class = load_named(config.kind, field=_FIELD, what="Class")
        if not callable(getattr(self._make(), "predict", None)):
            step = "give it predict(instruction, observation), which returns an action's text"
            raise ConfigError([Problem(_FIELD, f"{config.kind!r} has no method predict", step)])

    def begin(self, instruction: str, *, temperature: float) -> _Episode:
        del temperature  # its model is its own affair
        return _Episode(self._make(), instruction, limit_s=self._config.timeout_s)

    def close(self) -> None:
        """Nothing is open."""

    def _make(self) -> Any:
        try:
            return self._class(**self._config.options)
        except Exception as error:  # code of others may raise anything; the cause goes along
            reason = f"{self._config.kind!r} cannot be made: {_told(error)}"
            raise ConfigError([Problem(_FIELD, reason, "its constructor gets actor.agent.options by name")]) from error


class _Episode:
    """See `actor.agents.base.Conversation`."""

    def __init__(self, agent: Any, instruction: str, *, limit_s: float) -> None:
        self._agent, self._instruction, self._limit_s = agent, instruction, limit_s

    def act(self, sight: Sight) -> Answer:
        said = self._predict(_observation(sight))
        if not isinstance(said, str):
            raise AgentFailed(f"predict returned {type(said).__name__} in place of an action's text")
        try:
            return Answer(said, parse_action(said))
        except ActionSyntaxError as error:
            return Answer(said, None, problem=str(error))

    def _predict(self, observation: dict[str, Any]) -> object:
        """What `predict` returns. One that hangs is left behind: a thread cannot be ended."""
        found: list[object] = []
        failed: list[Exception] = []

        def call() -> None:
            try:
                found.append(self._agent.predict(self._instruction, observation))
            except Exception as error:  # noqa: BLE001  (code of others may raise anything)
                log.get_logger().warning("agent.failed", reason=_told(error), traceback=traceback.format_exc())
                failed.append(error)

        thread = threading.Thread(target=call, name="predict", daemon=True)
        thread.start()
        thread.join(self._limit_s)
        if failed:
            raise AgentFailed(f"predict raised {_told(failed[0])}") from failed[0]
        if not found:
            raise AgentFailed(f"predict has returned nothing within {self._limit_s:g} s")
        return found[0]


def _observation(sight: Sight) -> dict[str, Any]:
    """``sight`` for `predict`, of plain Python types."""
    seen = sight.observation
    return {
        "app": seen.app,
        "window_title": seen.window_title,
        "elements": to_builtins(seen.elements),
        "rows": element_rows(seen.elements, _ROWS),
        "screenshot": sight.screenshot,
        "screen_width": seen.screen_width,
        "screen_height": seen.screen_height,
        "result": seen.result,
        "error": sight.error,
    }


def _told(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return log.on_one_line(f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})")[:500]
