"""OpenEnv's protocol over HTTP and WebSocket, and who may speak it. Its own client: tests/integration/front."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from starlette.websockets import WebSocketDisconnect

from computerrl.common.actions import ACTIONS, render_action
from computerrl.env_server.front.access import MAX_BODY_BYTES, Access
from computerrl.env_server.front.app import make_app
from computerrl.env_server.front.openenv import SESSION_HEADER
from computerrl.env_server.front.schemas import OBSERVATION_SCHEMA, action_schema, call_of
from computerrl.env_server.front.sessions import BadRequest, Sessions, _action_of
from computerrl.env_server.front.threads import Threads
from computerrl.env_server.gym import ActionText

TOKEN = "a-token-of-a-test-that-is-long"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
TASK = {"task": "calc-set-cell", "seed": 5}
SOCKET = "ws://127.0.0.1:8000/ws"
_WORDS = (
    "task",
    "seed",
    "episode_id",
    "action",
    "name",
    "arguments",
    "text",
    "metadata",
    "timeout_s",
    "target",
    "click",
    "wait()",
)


@pytest.fixture
def client(sessions: Sessions) -> Iterator[TestClient]:
    app = make_app(sessions, Threads(2), picture_format="webp", port=8000)
    with TestClient(Access(app, token=TOKEN, host="127.0.0.1"), base_url="http://127.0.0.1:8000", headers=HEADERS) as client:
        yield client


def begin(client: TestClient) -> dict[str, str]:
    """Headers of a session that shows `TASK`."""
    return {SESSION_HEADER: client.post("/reset", json=TASK).headers[SESSION_HEADER]}


# --- HTTP ------------------------------------------------------------------------------------------------------------


def test_episode_over_http(client: TestClient) -> None:
    first = client.post("/reset", json={**TASK, "episode_id": "mine"})
    session = {SESSION_HEADER: first.headers[SESSION_HEADER]}
    assert first.json()["done"] is False and first.json()["reward"] == 0.0
    seen = first.json()["observation"]
    Draft202012Validator(OBSERVATION_SCHEMA).validate(seen)
    assert base64.b64decode(seen["screenshot"])[8:12] == b"WEBP" and seen["screenshot_format"] == "webp"
    assert "cell apple" in seen["elements"] and seen["instruction"] == "Set cell C7 to ocean."
    action = {"name": "calc.set_cell", "arguments": {"cell": "C7", "value": "ocean"}}
    assert client.post("/step", json={"action": action}, headers=session).json()["observation"]["action_error"] == ""
    last = client.post("/step", json={"action": {"text": "done()"}, "request_id": "7", "timeout_s": 5}, headers=session).json()
    assert (last["reward"], last["done"], last["observation"]["success"]) == (1.0, True, True)
    state = client.get("/state", headers=session).json()
    assert state == {"episode_id": None, "step_count": 2, "task": "calc-set-cell", "seed": 5, "done": True}
    assert client.delete("/session", headers=session).status_code == 204
    assert client.get("/state", headers=session).status_code == 410


def test_no_free_desktop_is_429_with_the_time_to_wait(client: TestClient) -> None:
    sessions = [begin(client), begin(client)]
    refused = client.post("/reset", json=TASK)
    assert refused.status_code == 429 and int(refused.headers["Retry-After"]) > 0 and SESSION_HEADER not in refused.headers
    assert refused.json() == {"error": "no_desktop", "message": "no desktop is free: 2 leased"}
    client.delete("/session", headers=sessions[0])
    assert client.post("/reset", json=TASK).status_code == 200


def test_session_whose_desktop_was_taken_back_is_gone(client: TestClient, sessions: Sessions) -> None:
    session = begin(client)
    (own,) = sessions._sessions.values()
    assert own.lease is not None
    own.client.release(own.lease)
    reply = client.post("/step", json={"action": {"text": "wait()"}}, headers=session)
    assert reply.status_code == 410 and "the desktop was taken back" in reply.json()["message"]
    assert client.get("/state", headers=session).status_code == 410 and len(sessions) == 0


def test_reset_that_fails_without_a_session_leaves_none(client: TestClient, sessions: Sessions) -> None:
    assert client.post("/reset", json={"task": "no-such-task"}).status_code == 400
    assert len(sessions) == 0


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"x", 422, "JSON"),
        (b"[]", 422, "dictionary"),
        (b'{"acton": {}}', 422, "action: Field required"),
        (b'{"action": {"text": "wait()"}, "wait": 1}', 422, "wait: Extra inputs"),
        (b'{"action": {"name": "wait", "arguments": 3}}', 400, "an action is"),
        (b'{"action": {"name": "wait", "args": {}}}', 400, "an action is"),
        (b'{"action": ' + b"[" * 100_000 + b"}", 400, "parsing"),
        (b'{"action": {"text": "\\ud800"}}', 200, ""),
        (b'{"action": {"text": "type(\\"\\ud800\\")"}}', 200, ""),
        (b'{"action": {"name": "wait", "arguments": {"x": 1e999}}}', 200, ""),
    ],
)
def test_bad_bodies(client: TestClient, body: bytes, status: int, reason: str) -> None:
    session = begin(client)
    reply = client.post("/step", content=body, headers={**session, "Content-Type": "application/json"})
    assert reply.status_code == status, reply.text
    if status == 200:
        assert reply.json()["observation"]["action_error"]
    else:
        assert reason in reply.json()["message"] and reply.json()["error"] == "bad_request"


def test_description_names_the_tasks_and_every_action(client: TestClient) -> None:
    schema = client.get("/schema").json()
    assert {one["title"] for one in schema["action"]["oneOf"]} == {*ACTIONS, "text"}
    for part in schema.values():
        Draft202012Validator.check_schema(part)
    assert client.get("/metadata").json()["tasks"] == ["calc-set-cell", "web-click-button"]
    assert "port: 8000" in client.get("/openenv.yaml").text


@given(st.integers(0, 2**32 - 1))
def test_schema_takes_exactly_the_actions_that_there_are(seed: int) -> None:
    space = ActionText(width=800, height=600)
    space.seed(seed)
    action = _action_of(space.sample())
    named = {"name": action.name, "arguments": dict(action.args)}
    validator = Draft202012Validator(action_schema())
    for said in (named, {"text": render_action(action)}):
        validator.validate(said)
        assert _action_of(call_of(said)) == action
    assert not validator.is_valid({"name": action.name, "arguments": {**action.args, "more": 1}})


@given(
    st.sampled_from(["reset", "step"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_WORDS) | st.text(max_size=5), inner, max_size=4)
        ),
        max_leaves=12,
    ),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_json_is_answered_and_the_session_goes_on(client: TestClient, path: str, body: Any) -> None:
    session = begin(client)
    reply = client.post(f"/{path}", json=body, headers=session)
    assert reply.status_code in (200, 400, 422), reply.text
    assert client.get("/state", headers=session).status_code == 200
    assert client.delete("/session", headers=session).status_code == 204


# --- WebSocket -------------------------------------------------------------------------------------------------------


def say(socket: Any, kind: str, data: dict[str, Any] | None = None) -> dict[str, Any]:
    socket.send_text(json.dumps({"type": kind, "data": data or {}}))
    reply: dict[str, Any] = socket.receive_json()
    return reply


def test_connection_is_a_session(client: TestClient, sessions: Sessions) -> None:
    with client.websocket_connect(SOCKET) as socket:
        first = say(socket, "reset", {**TASK, "episode_id": "mine"})
        assert first["type"] == "observation" and first["data"]["observation"]["instruction"] == "Set cell C7 to ocean."
        say(socket, "step", {"name": "calc.set_cell", "arguments": {"cell": "C7", "value": "ocean"}, "metadata": {}})
        last = say(socket, "step", {"text": "done()"})["data"]
        assert last["done"] and last["reward"] == 1.0
        assert say(socket, "state") == {
            "type": "state",
            "data": {"episode_id": "mine", "step_count": 2, "task": "calc-set-cell", "seed": 5, "done": True},
        }
        assert len(sessions) == 1
        socket.send_text('{"type": "close"}')
        with pytest.raises(WebSocketDisconnect):
            socket.receive_text()
    assert len(sessions) == 0


def test_connection_that_breaks_ends_its_session(client: TestClient, sessions: Sessions) -> None:
    with client.websocket_connect(SOCKET) as socket:
        say(socket, "reset", TASK)
    assert len(sessions) == 0


def test_connection_beyond_the_desktops_is_told_so(client: TestClient) -> None:
    with client.websocket_connect(SOCKET) as one, client.websocket_connect(SOCKET) as two:
        say(one, "reset", TASK), say(two, "reset", TASK)
        with client.websocket_connect(SOCKET) as three:
            error = three.receive_json()
        assert error["data"]["code"] == "CAPACITY_REACHED" and "no desktop is free" in error["data"]["message"]


@pytest.mark.parametrize(
    "text", ["", "x", "[]", "3", "{}", '{"type": 3}', '{"type": "step", "data": 3}', '{"type": "rest"}', "[" * 100_000]
)
def test_message_that_means_nothing_is_refused_and_the_session_goes_on(client: TestClient, text: str) -> None:
    with client.websocket_connect(SOCKET) as socket:
        say(socket, "reset", TASK)
        socket.send_text(text)
        assert socket.receive_json()["data"]["code"] == "VALIDATION_ERROR"
        assert say(socket, "state")["data"]["step_count"] == 0


def test_message_of_bytes_is_refused_and_the_session_goes_on(client: TestClient) -> None:
    with client.websocket_connect(SOCKET) as socket:
        say(socket, "reset", TASK)
        socket.send_bytes(b"\xff")
        assert socket.receive_json()["data"]["code"] == "VALIDATION_ERROR"
        assert say(socket, "state")["data"]["step_count"] == 0


def test_reset_with_unknown_fields_is_refused_with_their_names(client: TestClient) -> None:
    with client.websocket_connect(SOCKET) as socket:
        error = say(socket, "reset", {"tusk": "calc-set-cell"})["data"]
    assert error["code"] == "VALIDATION_ERROR" and "tusk" in error["message"]


# --- access ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": ""}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"Authorization": f"Bearer {TOKEN}x"}, 401),
        ({"Authorization": f"Basic {TOKEN}"}, 401),
        ({"Authorization": "Basic " + base64.b64encode(f"any:{TOKEN}".encode()).decode()}, 200),
        ({"Host": "elsewhere.example:8000"}, 403),
        ({"Host": "localhost:8000"}, 200),
        ({"Origin": "http://elsewhere.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Content-Length": str(MAX_BODY_BYTES + 1)}, 413),
        ({"Content-Length": "x"}, 400),
        ({}, 200),
    ],
)
def test_only_programs_with_the_token_get_in(client: TestClient, headers: dict[str, str], status: int) -> None:
    assert client.get("/metadata", headers=headers).status_code == status


def test_health_needs_no_token_and_sockets_need_one(client: TestClient) -> None:
    nobody = {"Authorization": ""}
    assert client.get("/health", headers=nobody).json() == {"status": "healthy"}
    with pytest.raises(WebSocketDisconnect), client.websocket_connect(SOCKET, headers=nobody):
        pass


def test_body_without_a_stated_length_is_bounded(client: TestClient) -> None:
    session = begin(client)

    def endless() -> Iterator[bytes]:
        yield b'{"action": {"text": "'
        for _ in range(4):
            yield b"x" * (MAX_BODY_BYTES // 2)
        yield b'"}}'

    assert client.post("/step", content=endless(), headers=session).status_code == 400
    assert client.get("/state", headers=session).json()["step_count"] == 0


def test_bad_request_is_what_programs_did_wrong() -> None:
    with pytest.raises(BadRequest, match="an action is"):
        call_of({"text": 3})
