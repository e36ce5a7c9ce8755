"""The face for OpenEnv: `reset`, `step`, `state` over HTTP and over one WebSocket a session, as its clients speak them.

Over the WebSocket `/ws` a session is the connection. Over HTTP it is named by the header `X-Session-Id`: `POST /reset` without
one opens a session and returns its name there, `DELETE /session` ends it. `reset` takes `task` (a family), `seed` (an instance)
and `episode_id`.

Source: the package openenv 0.10 (`core/env_server/types.py`, `core/env_client.py`).
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from anyio import CancelScope
from fastapi import APIRouter, Header, Response, WebSocket, WebSocketDisconnect
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from computerrl.common.errors import ComputerRLError, NoDesktop
from computerrl.env_server.front.schemas import OBSERVATION_SCHEMA, Json, action_schema, call_of, observation_json
from computerrl.env_server.front.sessions import BadRequest, Sessions, View
from computerrl.env_server.front.threads import Threads

SESSION_HEADER = "X-Session-Id"
_STATE_SCHEMA = {
    "title": "State",
    "type": "object",
    "properties": {
        "episode_id": {"type": ["string", "null"]},
        "step_count": {"type": "integer", "minimum": 0},
        "task": {"type": ["string", "null"]},
        "seed": {"type": ["integer", "null"]},
        "done": {"type": "boolean"},
    },
}
_CODES = {NoDesktop: "CAPACITY_REACHED", BadRequest: "VALIDATION_ERROR"}

SessionName = Annotated[str | None, Header(alias=SESSION_HEADER, max_length=64)]


class ResetBody(BaseModel):
    """What `reset` takes."""

    model_config = ConfigDict(extra="forbid", strict=True)

    task: str | None = Field(None, max_length=200, description="family of the task; without it, one of those that are served")
    seed: int | None = Field(None, ge=0, le=2**53, description="instance of the task; without it, one for training, at random")
    episode_id: str | None = Field(None, max_length=255, description="name of the episode, for the client itself")


class StepBody(BaseModel):
    """What `step` takes."""

    model_config = ConfigDict(extra="forbid", strict=True)

    action: dict[str, Any] = Field(description="see /schema")
    timeout_s: float | None = Field(None, gt=0, description="ignored: a step has a deadline of the server's")
    request_id: str | None = Field(None, max_length=255)


class Result(BaseModel):
    """A view, as `reset` and `step` return it."""

    observation: dict[str, Any]
    reward: float | None = None
    done: bool = False


class State(BaseModel):
    """What `state` returns."""

    episode_id: str | None = None
    step_count: int = 0
    task: str | None = None
    seed: int | None = None
    done: bool = False


class Episode:
    """A session as OpenEnv sees it."""

    def __init__(self, sessions: Sessions, name: str, *, picture_format: str) -> None:
        self.name = name
        self._sessions = sessions
        self._format = picture_format

    def reset(self, body: ResetBody) -> Result:
        """Raises as `Sessions.reset`."""
        return self._result(self._sessions.reset(self.name, body.task, body.seed))

    def step(self, action: Json) -> Result:
        """Raises as `Sessions.step`."""
        return self._result(self._sessions.step(self.name, call_of(action)))

    def state(self, episode_id: str | None = None) -> State:
        """Raises as `Sessions.look`."""
        view = self._sessions.look(self.name)
        if view is None:
            return State(episode_id=episode_id)
        done = view.verdict is not None
        return State(episode_id=episode_id, step_count=view.num_steps, task=view.task.family, seed=view.task.seed, done=done)

    def _result(self, view: View) -> Result:
        observation = observation_json(view, picture_format=self._format)
        return Result(observation=observation, reward=view.verdict.reward if view.verdict else 0.0, done=view.verdict is not None)


def make_router(sessions: Sessions, threads: Threads, *, picture_format: str) -> APIRouter:
    """The routes of this face."""
    router = APIRouter(tags=["OpenEnv"])

    def episode(name: str | None) -> Episode:
        if name is None:
            raise BadRequest(f"name the session in the header {SESSION_HEADER}; POST /reset without it opens one")
        return Episode(sessions, name, picture_format=picture_format)

    @router.post("/reset")
    async def reset(response: Response, body: ResetBody | None = None, session: SessionName = None) -> Result:
        """Put a task on the screen. Without a session: open one, whose name is in the reply's header."""
        name = session if session is not None else await threads.run(sessions.open)
        response.headers[SESSION_HEADER] = name
        try:
            return await threads.run(episode(name).reset, body or ResetBody())
        except ComputerRLError:
            if session is None:
                # Nobody has learned its name.
                await threads.run(sessions.close, name)
            raise

    @router.post("/step")
    async def step(body: StepBody, session: SessionName = None) -> Result:
        """Carry out an action."""
        return await threads.run(episode(session).step, body.action)

    @router.get("/state")
    async def state(session: SessionName = None) -> State:
        """The episode so far."""
        return await threads.run(episode(session).state)

    @router.delete("/session", status_code=204)
    async def close(session: SessionName = None) -> None:
        """End the session; its desktop is free."""
        await threads.run(sessions.close, episode(session).name)

    @router.websocket("/ws")
    async def socket(connection: WebSocket) -> None:
        await _serve(connection, sessions, threads, picture_format=picture_format)

    _describe(router, sessions)
    return router


def _describe(router: APIRouter, sessions: Sessions) -> None:
    @router.get("/schema")
    async def schema() -> Json:
        """JSON Schemas of action, observation and state."""
        return {"action": action_schema(), "observation": OBSERVATION_SCHEMA, "state": _STATE_SCHEMA}

    @router.get("/metadata")
    async def metadata() -> Json:
        """Name, description, and the families of tasks that are served."""
        description = f"contained Linux desktops with {len(sessions.families)} task families"
        return {"name": "computerrl", "description": description, "tasks": list(sessions.families)}


async def _serve(connection: WebSocket, sessions: Sessions, threads: Threads, *, picture_format: str) -> None:
    """A session that lives as long as ``connection``."""
    await connection.accept()
    try:
        name = await threads.run(sessions.open)
    except ComputerRLError as error:
        await connection.send_text(_error(error))
        await connection.close(code=1013)
        return
    try:
        await _converse(connection, Episode(sessions, name, picture_format=picture_format), threads)
        await connection.close()
    except WebSocketDisconnect:
        pass  # The client has gone, which ends its session.
    finally:
        with CancelScope(shield=True):
            await threads.run(sessions.close, name)


async def _converse(connection: WebSocket, episode: Episode, threads: Threads) -> None:
    """Answer the messages of a client until it says `close`. Raises `WebSocketDisconnect` when it goes without that."""
    episode_id: str | None = None
    while True:
        try:
            kind, data = _message_of(await _received(connection))
            match kind:
                case "reset":
                    body = ResetBody.model_validate(data)
                    result = await threads.run(episode.reset, body)
                    episode_id = body.episode_id
                    reply = {"type": "observation", "data": result.model_dump()}
                case "step":
                    result = await threads.run(episode.step, data)
                    reply = {"type": "observation", "data": result.model_dump()}
                case "state":
                    state = await threads.run(episode.state, episode_id)
                    reply = {"type": "state", "data": state.model_dump()}
                case "close":
                    return
                case _:
                    raise BadRequest(f"unknown message {kind!r:.80}; there are reset, step, state and close")
        except ComputerRLError as error:
            await connection.send_text(_error(error))
        except ValidationError as error:
            await connection.send_text(_error(BadRequest(_problems(error))))
        else:
            await connection.send_text(json.dumps(reply))


async def _received(connection: WebSocket) -> str:
    """The next message; empty for one of bytes. Raises `WebSocketDisconnect`."""
    message = await connection.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1000))
    return message.get("text") or ""


def _message_of(text: str) -> tuple[str, Json]:
    """(type, data) of a message. Raises `BadRequest`."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"no JSON: {error}") from error
    data = message.get("data", {}) if isinstance(message, dict) else None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str) or not isinstance(data, dict):
        raise BadRequest('a message is {"type": "reset", "data": {}}')
    return message["type"], data


def _problems(error: ValidationError) -> str:
    """What is wrong with a request, each field once."""
    return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'body'}: {one['msg']}" for one in error.errors()[:5])


def _error(error: ComputerRLError) -> str:
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), "EXECUTION_ERROR")
    return json.dumps({"type": "error", "data": {"message": str(error), "code": code, "error": error.code}})
