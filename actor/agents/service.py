"""Agents that are models on a server: the conversation of an episode, by calls of tools or by text.

What is sent and how it is read is `actor.agents.dialects`'; keys, proxies and deadlines are `common.endpoint`'s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from computerrl.actor.agents.base import Answer, Conversation, Sight
from computerrl.actor.agents.dialects import Dialect, Reply, Request, Results, Screen, Turn, make_dialect
from computerrl.actor.agents.tools import COMPUTER, Computer, ToolCall, action_of, functions
from computerrl.actor.engines.base import Sampler
from computerrl.actor.engines.patience import Patience
from computerrl.actor.prompts.formats import make_format
from computerrl.actor.prompts.formats.base import ChatMessage, PastAction
from computerrl.common.actions import ACTIONS, ActionSyntaxError, complete, render_call
from computerrl.common.actions.screen_text import app_line, element_rows
from computerrl.common.chat import ChatRequest, ChatTurn
from computerrl.common.config import PromptConfig, RunConfig
from computerrl.common.endpoint import LOOK_S, Endpoint
from computerrl.common.errors import ConfigError, EndpointAway, EndpointRefused, PeerTimeout, Problem
from computerrl.common.messages import Action, Assignment, Usage, total_usage

MIN_NEW_TOKENS = 16
"""The smallest answer that all three interfaces can be asked for."""
_MAX_LOOKS = 5
"""Number of answers in a row that only look at the screen; after them the episode's step is over."""
_ROWS = PromptConfig(format="computerrl_text")
"""How much of a screen the rows tell."""
_LEFT_OUT = "(The screen of that turn is left out.)"
_NO_CALL = "the answer calls no function: call one for each action, and done when the task is finished"
_ADDRESS = "start the server, or give its address up to and with /v1"
_SYSTEM = """\
You operate a Linux desktop without network for a person, until the task is done. {see} Act by calling functions; every call is \
followed by the screen that came of it. {advice}Call done when the task is finished, or fail when it cannot be done. Nobody \
answers questions."""
_SEE_ROWS = (
    "You see the elements on the screen, one a line: role, text, states, and a number where the text is not unique. "
    "An element is named by its number, or by its text."
)
_SEE_BOTH = f"You see a picture of the screen, whose pixels are coordinates. {_SEE_ROWS}"
_SEE_PICTURE = "You see a picture of the screen; coordinates are its pixels."
_ADVICE = "Where one of an application's own calls does the work, prefer it to many clicks. "


class ServiceAgent:
    """A model on a server. See `actor.agents.base.Agent`."""

    def __init__(self, config: RunConfig) -> None:
        """Raises `ConfigError` for a key that cannot be read."""
        agent, endpoint = config.actor.agent, config.actor.endpoint
        assert agent is not None and endpoint is not None and endpoint.model is not None, "the configuration was checked"
        self._config, self._agent, self._model = config, agent, endpoint.model
        self._dialect = make_dialect(agent, sends_png=endpoint.image_format == "png")
        self._sends_png = endpoint.image_format == "png"
        self._server = Endpoint(endpoint, key_header=self._dialect.key_header, headers=self._dialect.headers)
        self._patience = Patience(max_requests_per_min=agent.max_requests_per_min)

    def begin(self, instruction: str, *, assignment: Assignment, engine: Sampler | None) -> Conversation:
        del engine
        given = assignment.temperature if self._agent.sends_temperature else None
        if self._agent.answers == "text":
            return _TextConversation(self._config, self._ask, instruction, temperature=given, sends_png=self._sends_png)
        return _ToolConversation(self._config, self._dialect, self._ask, instruction, temperature=given)

    def metrics(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        self._patience.close()

    def check(self) -> None:
        """Ask for a few words. Raises `ConfigError` when the server refuses that, or is not there.

        One that has no time now may have it later."""
        size = self._config.desktop.screen_width, self._config.desktop.screen_height
        request = Request(self._model, "Say ok.", (Screen("Say ok."),), (), MIN_NEW_TOKENS, None, size)
        try:
            self._dialect.read(self._server.ask(self._dialect.path, self._dialect.body(request), timeout_s=LOOK_S))
        except EndpointAway as error:
            raise ConfigError([Problem("actor.endpoint.url", str(error), _ADDRESS)]) from None
        except PeerTimeout:
            return
        except EndpointRefused as error:
            raise ConfigError([Problem("actor.endpoint", error.reason, error.next_step)]) from None

    def _ask(self, body: dict[str, Any]) -> Reply:
        return self._patience.ask(lambda: self._dialect.read(self._server.ask(self._dialect.path, body)))


class _ToolConversation:
    """An episode in which each action is a call. An answer may hold several: they are done one after the other."""

    def __init__(
        self,
        config: RunConfig,
        dialect: Dialect,
        ask: Callable[[dict[str, Any]], Reply],
        instruction: str,
        *,
        temperature: float | None,
    ) -> None:
        assert config.actor.agent is not None and config.actor.endpoint is not None
        self._config, self._dialect, self._ask = config, dialect, ask
        self._model = config.actor.endpoint.model or ""
        self._instruction, self._temperature = instruction, temperature
        self._num_images = config.actor.agent.images
        self._size = config.desktop.screen_width, config.desktop.screen_height
        self._computer = Computer(width=self._size[0], height=self._size[1])
        self._turns: list[Turn] = []
        self._waiting: deque[ToolCall] = deque()
        """Calls of the last answer that are still to be done."""
        self._done: ToolCall | None = None
        """The call that is being done: the next sight tells what came of it."""
        self._results: list[tuple[ToolCall, str, bool]] = []
        """Results of the calls of the last answer that are over."""

    def act(self, sight: Sight, *, shown: str = "") -> Answer:
        self._take_result(sight)
        words: list[str] = []
        usage: Usage | None = None
        for _ in range(_MAX_LOOKS):
            if not self._waiting:
                reply = self._next(sight)
                words.append(reply.text)
                usage = total_usage(usage, reply.usage)
                problem = self._problem_of(reply)
                if problem is not None:
                    return Answer(_joined(words), None, problem, usage)
                if not reply.calls:  # a model with a tool of its own has nothing more to do
                    return Answer(_joined([*words, "done()"]), complete("done"), usage=usage)
                self._waiting.extend(reply.calls)
            while self._waiting:
                call = self._done = self._waiting.popleft()
                try:
                    action = self._computer.action_of(call) if self._has_computer(call) else action_of(call)
                except ActionSyntaxError as error:
                    said = f"{call.name}({call.arguments})"[:1000]
                    return Answer(_joined([*words, said]), None, str(error), usage)
                if action is not None:
                    return Answer(_joined([*words, _written(action)]), action, usage=usage)
                self._results.append((call, "the screen as it is now", False))
                self._done = None
        return Answer(_joined([*words, "wait()"]), complete("wait"), usage=usage)

    def close(self) -> None:
        """Nothing is open: each request holds the whole conversation."""

    def _has_computer(self, call: ToolCall) -> bool:
        return self._dialect.has_computer and call.name == COMPUTER

    def _take_result(self, sight: Sight) -> None:
        """Note what came of the last call; after a failure the rest of its answer is not done."""
        if self._done is None:
            return
        self._results.append((self._done, sight.error or sight.observation.result or "done", bool(sight.error)))
        self._done = None
        if sight.error:
            self._results += [(call, "not done, as a call before it failed", True) for call in self._waiting]
            self._waiting.clear()

    def _problem_of(self, reply: Reply) -> str | None:
        """Why the answer is none; its calls, if there are any, are answered by that."""
        if reply.is_cut:
            self._results = [(call, "the answer was cut off", True) for call in reply.calls]
            return f"cut off after {self._config.actor.max_new_tokens} tokens"
        if reply.calls or (self._dialect.has_computer and reply.text):
            return None
        return _NO_CALL

    def _next(self, sight: Sight) -> Reply:
        """The model's next turn, after what is on the screen now."""
        rows = element_rows(sight.observation.elements, _ROWS, instruction=self._instruction)
        screen = Screen("\n".join([app_line(sight.observation), *rows]), sight.screenshot)
        if not self._turns:
            self._turns.append(replace(screen, head=f"Task: {self._instruction}"))
        elif self._results:
            self._turns.append(Results(tuple(self._results), screen))
        else:
            self._turns.append(replace(screen, head=f"Error: {sight.error}"))
        self._results = []
        offered = functions(
            sight.observation.app,
            apps=self._config.desktop.apps,
            actions=self._config.tasks.actions,
            has_computer=self._dialect.has_computer,
        )
        turns = _with_newest(self._turns, num_images=self._num_images)
        system = _system(self._config, has_rows=bool(rows), has_picture=sight.screenshot is not None and self._num_images > 0)
        most = self._config.actor.max_new_tokens
        request = Request(self._model, system, turns, offered, most, self._temperature, self._size)
        reply = self._ask(self._dialect.body(request))
        self._turns.append(reply.said)
        return reply


def _system(config: RunConfig, *, has_rows: bool, has_picture: bool) -> str:
    see = (_SEE_BOTH if has_rows else _SEE_PICTURE) if has_picture else _SEE_ROWS
    return _SYSTEM.format(see=see, advice=_ADVICE if config.tasks.actions == "api_gui" else "")


def _with_newest(turns: Sequence[Turn], *, num_images: int) -> list[Turn]:
    """``turns`` with the newest ``num_images`` screens, and the text of the newest one in any case."""
    shown: list[Turn] = []
    num_left = num_images
    is_newest = True
    for turn in reversed(turns):
        screen = turn.screen if isinstance(turn, Results) else turn
        if isinstance(screen, Screen):
            if num_left <= 0:
                screen = replace(screen, image=None, text=screen.text if is_newest else _LEFT_OUT)
            num_left, is_newest = num_left - 1, False
        shown.append(replace(turn, screen=screen) if isinstance(turn, Results) and isinstance(screen, Screen) else screen)
    return shown[::-1]


class _TextConversation:
    """An episode in which a model answers in text, in `actor.prompt.format`."""

    def __init__(
        self,
        config: RunConfig,
        ask: Callable[[dict[str, Any]], Reply],
        instruction: str,
        *,
        temperature: float | None,
        sends_png: bool,
    ) -> None:
        assert config.actor.endpoint is not None
        self._config, self._ask, self._sends_png = config, ask, sends_png
        self._model = config.actor.endpoint.model or ""
        self._instruction, self._temperature = instruction, temperature
        self._format = make_format(config.actor.prompt, actions=config.tasks.actions)
        self._history: list[PastAction] = []
        self._answered: PastAction | None = None
        """The last answer: the next sight tells what came of it."""
        self._images: dict[str, bytes] = {}
        """Screenshots that prompts may show, by content hash."""

    def act(self, sight: Sight, *, shown: str = "") -> Answer:
        observation, prompt = sight.observation, self._config.actor.prompt
        if self._answered is not None:
            self._history.append(replace(self._answered, error=sight.error, result=observation.result))
        if observation.screenshot is not None and sight.screenshot is not None:
            self._images[observation.screenshot.content_hash] = sight.screenshot
        past = self._history[-prompt.history_steps :] if prompt.history_steps else []
        rows = self._format.rows(self._instruction, observation)
        messages = self._format.messages(self._instruction, observation, rows, past, num_images=prompt.images)
        reply = self._ask(self._body(messages))
        action, problem = None, ""
        try:
            if reply.is_cut:
                raise ActionSyntaxError(f"cut off after {self._config.actor.max_new_tokens} tokens")
            action = self._format.parse(reply.text, observation)
        except ActionSyntaxError as error:
            problem = str(error)
        self._answered = PastAction(reply.text, is_malformed=action is None, screenshot=observation.screenshot)
        return Answer(reply.text, action, problem, reply.usage)

    def close(self) -> None:
        """Nothing is open."""

    def _body(self, messages: Sequence[ChatMessage]) -> dict[str, Any]:
        turns = tuple(ChatTurn(message.role, self._parts(message)) for message in messages)
        asked = ChatRequest(self._model, turns, self._config.actor.max_new_tokens, self._temperature or 0.0, seed=0)
        body = asked.body(sends_png=self._sends_png)
        given = {} if self._temperature is None else {"temperature": self._temperature}
        return {
            "model": self._model,
            "messages": body["messages"],
            "max_completion_tokens": self._config.actor.max_new_tokens,
            **given,
        }

    def _parts(self, message: ChatMessage) -> tuple[str | bytes, ...]:
        image = () if message.image is None else (self._images[message.image.content_hash],)
        return (*image, message.text) if message.text else image or ("",)


def _written(action: Action) -> str:
    return render_call(ACTIONS[action.name], action.args)


def _joined(words: Sequence[str]) -> str:
    return "\n".join(filter(None, words))
