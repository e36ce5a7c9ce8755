"""An agent that is a Python class of somebody else's: `actor.agent.kind: module:Class`.

    class Mine:
        def __init__(self, **options): ...                 # actor.agent.options
        def predict(self, instruction, observation): ...   # -> 'click(3)', an action's text

In a run that trains it, its model is the run's policy: `__init__` gets base_url, api_key and model as well, and asks by OpenAI's
interface. Each episode has an object of its own. Its code runs in the actor's process with the actor's rights: it is the user's.
"""

from __future__ import annotations

import functools
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from msgspec import to_builtins

from computerrl.actor.agents.base import Answer, Conversation, Sight
from computerrl.actor.agents.policy_endpoint import MODEL, Demonstrate, PolicySession
from computerrl.actor.agents.refused import told
from computerrl.actor.agents.server import Access, AgentServer
from computerrl.actor.engines.base import Sampler
from computerrl.common import log
from computerrl.common.actions import ActionSyntaxError, parse_action
from computerrl.common.actions.screen_text import element_rows
from computerrl.common.config import AgentConfig, PromptConfig
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.messages import Assignment
from computerrl.common.plugins import load_named

_FIELD = "actor.agent.kind"
_ROWS = PromptConfig(format="computerrl_text")
"""How much of a screen the rows tell."""


class ModuleAgent:
    """See `actor.agents.base.Agent`."""

    def __init__(self, config: AgentConfig, server: AgentServer | None = None) -> None:
        """``server``: with the run's policy, for an agent without a model of its own; it is closed with the agent.

        Raises as `check_class` and `demonstrate_of`."""
        self._config = config
        self._server = server
        self._demonstrate = demonstrate_of(config)
        check_class(config, is_trained=server is not None)

    def begin(self, instruction: str, *, assignment: Assignment, engine: Sampler | None) -> Conversation:
        limit_s = self._config.timeout_s
        if self._server is None:
            return _Episode(_make(self._config), instruction, limit_s=limit_s)
        session = PolicySession(engine, assignment, max_calls=self._config.max_calls)
        key = self._server.open(Access(session))
        end = functools.partial(self._server.end, key)
        try:
            agent = _make(self._config, base_url=self._server.url, api_key=key, model=MODEL)
        except BaseException:
            end()
            raise
        return _TrainedEpisode(agent, instruction, session, limit_s=limit_s, demonstrate=self._demonstrate, end=end)

    def metrics(self) -> dict[str, float]:
        return {} if self._server is None else self._server.metrics()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


def check_class(config: AgentConfig, *, is_trained: bool) -> None:
    """Raise `ConfigError` for a class that cannot be imported, or made with its options, and for one without `predict`.

    ``is_trained``: its model is the run's policy."""
    access = {"base_url": "http://127.0.0.1/v1", "api_key": "none yet", "model": MODEL} if is_trained else {}
    if not callable(getattr(_make(config, **access), "predict", None)):
        step = "give it predict(instruction, observation), which returns an action's text"
        raise ConfigError([Problem(_FIELD, f"{config.kind!r} has no method predict", step)])


def demonstrate_of(config: AgentConfig) -> Demonstrate | None:
    """The function `actor.agent.demonstrate`. Raises `ConfigError` when it cannot be imported or called."""
    if config.demonstrate is None:
        return None
    field = "actor.agent.demonstrate"
    found = load_named(config.demonstrate, field=field, what="function")
    if not callable(found):
        step = "give it (messages, action); it returns what the policy should answer so that the agent does the action"
        raise ConfigError([Problem(field, f"{config.demonstrate!r} is no function", step)])
    return found


def _make(config: AgentConfig, **access: str) -> Any:
    """An object for one episode. ``access``: to the run's policy."""
    made_by = load_named(config.kind, field=_FIELD, what="Class")
    try:
        return made_by(**access, **config.options)
    except Exception as error:  # code of others may raise anything; the cause goes along
        reason = f"{config.kind!r} cannot be made: {told(error)}"
        step = "its constructor gets actor.agent.options by name, and in a run that trains it base_url, api_key and model"
        raise ConfigError([Problem(_FIELD, reason, step)]) from error


class _Failed(Exception):
    """`predict` raised an error or returned nothing in time."""


class _Episode:
    """See `actor.agents.base.Conversation`."""

    def __init__(self, agent: Any, instruction: str, *, limit_s: float) -> None:
        self._agent, self._instruction, self._limit_s = agent, instruction, limit_s

    def act(self, sight: Sight, *, shown: str = "") -> Answer:
        try:
            said = self._predict(observation_of(sight))
        except _Failed as error:
            return Answer("", None, failure=str(error))
        if not isinstance(said, str):
            return Answer("", None, failure=f"predict returned {type(said).__name__} in place of an action's text")
        return answer_of(said)

    def close(self) -> None:
        """Nothing is open."""

    def _predict(self, observation: dict[str, Any]) -> object:
        """What `predict` returns. One that hangs is left behind: a thread cannot be ended. Raises `_Failed`."""
        found: list[object] = []
        failed: list[Exception] = []

        def call() -> None:
            try:
                found.append(self._agent.predict(self._instruction, observation))
            except Exception as error:  # noqa: BLE001  (code of others may raise anything)
                log.get_logger().warning("agent.failed", reason=told(error), traceback=traceback.format_exc())
                failed.append(error)

        thread = threading.Thread(target=call, name="predict", daemon=True)
        thread.start()
        thread.join(self._limit_s)
        if failed:
            raise _Failed(f"predict raised {told(failed[0])}") from failed[0]
        if not found:
            raise _Failed(f"predict has returned nothing within {self._limit_s:g} s")
        return found[0]


class _TrainedEpisode(_Episode):
    """An episode of an agent that asks the run's policy."""

    def __init__(
        self,
        agent: Any,
        instruction: str,
        session: PolicySession,
        *,
        limit_s: float,
        demonstrate: Demonstrate | None,
        end: Callable[[], None],
    ) -> None:
        super().__init__(agent, instruction, limit_s=limit_s)
        self._session, self._demonstrate, self._end = session, demonstrate, end

    def act(self, sight: Sight, *, shown: str = "") -> Answer:
        if shown:
            self._session.demonstrate(self._demonstrate, shown)
        self._session.see(sight.observation)
        answer = super().act(sight)
        calls, failure = self._session.take_calls()
        return replace(answer, calls=calls, failure=failure or answer.failure)

    def close(self) -> None:
        self._end()


def answer_of(said: str) -> Answer:
    """What an agent said, with the action in it."""
    try:
        return Answer(said, parse_action(said))
    except ActionSyntaxError as error:
        return Answer(said, None, problem=str(error))


def observation_of(sight: Sight) -> dict[str, Any]:
    """``sight`` for an agent, of plain Python types."""
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
