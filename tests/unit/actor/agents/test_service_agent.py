"""Conversations of agents on servers: calls one after the other, what comes of them, and servers and models that misbehave."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computerrl.actor.agents import service
from computerrl.actor.agents.base import Answer, Sight
from computerrl.actor.agents.dialects import Chat, Messages, Responses
from computerrl.actor.agents.service import ServiceAgent
from computerrl.actor.engines import patience
from computerrl.common.config import AgentConfig, RunConfig
from computerrl.common.errors import ConfigError, EndpointRefused, EngineFailed
from computerrl.common.vision.encoded import black_image
from tests.support.data.actor_data import make_assignment, make_observation
from tests.support.data.chat_server import Answer as ServerAnswer
from tests.support.data.chat_server import ChatServer, chat_server, images_of

SCREEN = black_image(80, 60, "png")
Scripted = Callable[[dict[str, Any]], ServerAnswer]


def config_of(url: str, kind: str = "openai", **agent: Any) -> RunConfig:
    actor = {
        "engine": "agent",
        "endpoint": {"url": url, "model": "theirs"},
        "agent": {"kind": kind, **agent},
        "max_new_tokens": 64,
        "prompt": {"format": "computerrl_text"},
    }
    recipe = {"demos_per_family": 0, "max_updates": 0}
    return RunConfig.model_validate({"actor": actor, "learner": {"recipe": recipe}, "tasks": {"families": ["calc-set-cell"]}})


class Player:
    """One conversation, and what its server was asked."""

    def __init__(self, server: ChatServer, **agent: Any) -> None:
        self.server = server
        self._conversation = ServiceAgent(config_of(server.url, **agent)).begin(
            "Do it.", assignment=make_assignment(), engine=None
        )

    def act(self, error: str = "", *, result: str = "", screenshot: bytes | None = SCREEN) -> Answer:
        return self._conversation.act(Sight(make_observation(result=result), screenshot, error))


def calls(*functions: tuple[str, Any], text: str = "", finish: str = "tool_calls") -> ServerAnswer:
    """A reply that calls ``functions``: name and arguments."""
    made = [
        {"id": f"{name}{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(functions)
    ]
    message = {"role": "assistant", "content": text, "tool_calls": made}
    return 200, {"choices": [{"message": message, "finish_reason": finish}]}


def results_in(body: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["tool_call_id"], one["content"]) for one in body["messages"] if one["role"] == "tool"]


def test_calls_of_one_answer_are_done_one_after_the_other_and_all_are_answered() -> None:
    answers = iter([calls(("wait", "{}"), ("click", '{"target": 1}'), ("calc_get_cell", '{"cell": "A1"}')), calls(("done", ""))])
    with chat_server(lambda _: next(answers)) as server:
        player = Player(server)
        names = [player.act().action, player.act().action, player.act().action]
        assert [one.name for one in names if one is not None] == ["wait", "click", "calc.get_cell"] and len(server.asked) == 1
        final = player.act(result="42").action
    assert final is not None and final.name == "done"
    assert results_in(server.asked[1]) == [("wait0", "done"), ("click1", "done"), ("calc_get_cell2", "42")]


def test_call_after_one_that_failed_is_not_done_and_the_model_learns_why() -> None:
    answers = iter([calls(("wait", "{}"), ("click", '{"target": 1}')), calls(("done", ""))])
    with chat_server(lambda _: next(answers)) as server:
        player = Player(server)
        player.act()
        player.act("the window is gone")
    assert results_in(server.asked[1]) == [("wait0", "the window is gone"), ("click1", "not done, as a call before it failed")]


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("no_such_function", "{}", "no function"),
        ("click", "not JSON", "no JSON object"),
        ("click", "[1]", "no JSON object"),
        ("click", '{"target": NaN}', "NaN is no number"),
        ("click", '{"target": ' + "[" * 5000 + "]" * 5000 + "}", "more than"),
        ("click", "[" * 3000, "no JSON object"),
        ("click", "{}", "target"),
        ("click", '{"target": 1, "path": "/etc"}', "path"),
        ("click", '{"target": {"a": 1}}', "target"),
        ("type", json.dumps({"text": "x" * 1999}), "longer than 2000"),
        ("click", 7, "no JSON object"),
    ],
)
def test_call_that_is_none_costs_a_step_and_is_answered_by_its_reason(name: str, arguments: Any, reason: str) -> None:
    answers = iter([calls((name, arguments)), calls(("done", ""))])
    with chat_server(lambda _: next(answers)) as server:
        player = Player(server)
        answer = player.act()
        assert answer.action is None and reason in answer.problem
        assert player.act(answer.problem).action is not None
    assert results_in(server.asked[1]) == [(f"{name}0", answer.problem)]


def test_answer_without_a_call_and_one_that_is_cut_off_are_no_actions() -> None:
    answers = iter([
        (200, {"choices": [{"message": {"content": "I am done."}, "finish_reason": "stop"}]}),
        (200, {"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}),
        calls(("click", '{"targ'), text="I think", finish="length"),
        calls(("wait", "{}")),
    ])  # fmt: skip
    with chat_server(lambda _: next(answers)) as server:
        player = Player(server)
        problems = [player.act().problem]
        for _ in range(2):
            problems.append(player.act(problems[-1]).problem)
        assert player.act(problems[-1]).action is not None
    assert "calls no function" in problems[0] and problems[1] == problems[0] and "cut off after 64 tokens" in problems[2]
    assert "calls no function" in json.dumps(server.asked[1]["messages"][-1])
    assert results_in(server.asked[3]) == [("click0", "the answer was cut off")]


def test_only_the_newest_screens_are_shown_and_the_task_stays() -> None:
    with chat_server(lambda _: calls(("wait", "{}"))) as server:
        player = Player(server, images=2)
        for _ in range(5):
            player.act()
        without = Player(server, images=0)
        without.act()
        without.act()
    assert [len(images_of(body)) for body in server.asked] == [1, 2, 2, 2, 2, 0, 0]
    last = [json.dumps(message) for message in server.asked[4]["messages"] if message["role"] == "user"]
    assert ["left out" in text for text in last] == [True, True, True, False, False] and "Task: Do it." in last[0]
    of_text = [json.dumps(message) for message in server.asked[6]["messages"] if message["role"] == "user"]
    assert ["left out" in text for text in of_text] == [True, False]


def test_answers_in_text_are_read_in_the_prompt_s_format() -> None:
    texts = iter(["Nothing.", "<think>\nx\n</think>\n```python\nAgent.click([3, 4])\n```"])
    with chat_server(lambda _: next(texts)) as server:
        player = Player(server, answers="text")
        problem = player.act().problem
        action = player.act(problem).action
    assert problem and action is not None and (action.name, action.args["target"], action.args["y"]) == ("click", 3, 4)
    assert "tools" not in server.asked[0] and problem[:40] in json.dumps(server.asked[1]["messages"])


def test_tools_of_anthropic_s_models_are_their_own_and_calls_act_where_the_pointer_is() -> None:
    def use(number: int, **call: Any) -> dict[str, Any]:
        return {"type": "tool_use", "id": f"u{number}", "name": "computer", "input": call}

    used = [use(0, action="screenshot"), use(1, action="left_click", coordinate=[30, 40]), use(2, action="double_click")]
    used += [use(3, action="left_click_drag", coordinate=[5, 6]), use(4, action="key", text="ctrl+Page_Down")]
    used += [use(5, action="left_click", coordinate=[1, 2], text="shift"), use(6, action="left_mouse_down")]
    answers = iter([(200, {"content": used, "stop_reason": "tool_use"}), (200, {"content": [{"type": "text", "text": "Done."}]})])
    with chat_server(lambda _: next(answers)) as server:
        player = Player(server, kind="anthropic")
        seen = [player.act() for _ in range(6)]
        last = player.act(seen[-1].problem)
    made = [(one.action.name, one.action.args) for one in seen[:5] if one.action is not None]
    assert [name for name, _ in made] == ["click", "double_click", "drag_pixels", "key", "click"]
    assert (made[1][1]["target"], made[1][1]["y"]) == (30, 40) and made[2][1]["path"] == [30, 40, 5, 6]
    assert made[3][1]["keys"] == "ctrl+Page_Down" and made[4][1]["hold"] == "shift"
    assert "left_mouse_down" in seen[5].problem and last.action is not None and last.action.name == "done"
    tools = {tool["name"] for tool in server.asked[0]["tools"]}
    assert {"computer", "done", "fail", "calc_set_cell"} <= tools and "click" not in tools
    blocks = server.asked[1]["messages"][-1]["content"]
    assert [block["tool_use_id"] for block in blocks] == [f"u{number}" for number in range(7)]
    assert [block["is_error"] for block in blocks] == [False] * 6 + [True]
    assert server.headers[0]["anthropic-beta"] == "computer-use-2025-01-24"


def test_server_without_time_is_asked_again_and_one_that_answers_nonsense_fails_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patience, "_BACKOFF_S", (0.01, 0.02))
    answers: list[ServerAnswer] = [(429, "slow down"), (503, "starting"), calls(("wait", "{}"))]
    with chat_server(lambda _: answers.pop(0)) as server:
        assert Player(server).act().action is not None and not answers
        for nonsense in ({}, [], None, {"choices": []}, {"choices": [{}]}, {"choices": [{"message": "text"}]}, {"error": "x"}):
            answers.append((200, nonsense))
            with pytest.raises(EngineFailed, match="holds no choices"):
                Player(server).act()


def test_requests_wait_for_their_turn_in_a_limited_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    limited = patience.Patience(max_requests_per_min=60)
    monkeypatch.setattr(limited._closing, "wait", waits.append)
    for _ in range(4):
        limited.ask(lambda: None)
    assert [round(wait) for wait in waits] == [1, 2, 3], "nobody has waited in this test, so the turns pile up"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["choices", "message", "content", "tool_calls", "function", "name", "arguments", "id", "usage",
                         "prompt_tokens", "output", "type", "input", "call_id", "text", "incomplete_details", "reason"]),
        inner, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(JSON)
def test_reply_of_any_shape_is_a_turn_or_refused_by_name(reply: Any) -> None:
    for dialect in (Chat(sends_png=False), Responses(sends_png=False), Messages(AgentConfig(kind="anthropic"), sends_png=False)):
        try:
            read = dialect.read(reply)
        except EndpointRefused:
            continue
        json.dumps(read.said.native)
        assert all(isinstance(part, str) for call in read.calls for part in (call.id, call.name))


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
@pytest.mark.parametrize("host", ["127.0.0.1", "nowhere.invalid"])
def test_server_that_is_not_there_is_said_before_the_run(kind: str, host: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://{host}:{free.getsockname()[1]}/v1"
        with pytest.raises(ConfigError, match=r"(?s)actor\.endpoint\.url: .*does not answer.*start the server"):
            ServiceAgent(config_of(url, kind)).check()


def test_server_that_takes_its_time_may_be_asked_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "LOOK_S", 0.2)
    with socket.socket() as slow:
        slow.bind(("127.0.0.1", 0))
        slow.listen()
        ServiceAgent(config_of(f"http://127.0.0.1:{slow.getsockname()[1]}/v1")).check()
