"""The server on loopback that agents of one actor talk to: the run's policy, and the desktop of a program's episode.

An episode has a key, which opens what `Access` holds and nothing after the episode's end:

    POST /v1/chat/completions   a completion of the policy        (`policy_endpoint`)
    GET  /v1/models             its name
    GET  /desktop               the screen                        (`desk`)
    POST /desktop               do an action; gives the next screen
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from computerrl.actor.agents.desk import Desk
from computerrl.actor.agents.policy_endpoint import MODEL, PolicyEndpoint, PolicySession, stream_of
from computerrl.actor.agents.refused import Refused
from computerrl.common.errors import EngineFailed

_MAX_BODY_BYTES = 8 << 20
_START_LIMIT_S, _CLOSE_LIMIT_S = 30.0, 5.0
_MAX_REQUESTS = 512
"""Requests under way; each waits for the engine or a desktop in a thread."""


@dataclass(frozen=True, slots=True)
class Access:
    """What the key of an episode opens."""

    policy: PolicySession | None = None
    """None: the agent has a model of its own."""
    desk: Desk | None = None
    """None: the agent is no program, and acts otherwise."""


class AgentServer:
    """See above; close it. Thread-safe."""

    def __init__(self, policy: PolicyEndpoint | None = None) -> None:
        """Starts the server. ``policy``: of the run; None: agents have models of their own. Raises `EngineFailed`."""
        self.policy = policy
        self._accesses: dict[str, Access] = {}
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._waiting = ThreadPoolExecutor(_MAX_REQUESTS, thread_name_prefix="agent-request")
        routes = [
            Route("/v1/chat/completions", self._complete, methods=["POST"]),
            Route("/v1/models", self._models),
            Route("/desktop", self._look),
            Route("/desktop", self._act, methods=["POST"]),
        ]
        config = uvicorn.Config(Starlette(routes=routes), log_config=None, lifespan="off", access_log=False)
        self._server = uvicorn.Server(config)
        self._socket = socket.create_server(("127.0.0.1", 0))
        place = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.url = f"{place}/v1"
        """Value of OPENAI_BASE_URL."""
        self.desktop_url = f"{place}/desktop"
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="agent-server", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + _START_LIMIT_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise EngineFailed("the server for agents did not start")
            time.sleep(0.01)

    def open(self, access: Access) -> str:
        """The key of a new episode."""
        key = secrets.token_urlsafe(24)
        with self._lock:
            self._accesses[key] = access
        return key

    def end(self, key: str) -> None:
        """The episode has ended; its key opens nothing any more."""
        with self._lock:
            self._accesses.pop(key, None)

    def metrics(self) -> dict[str, float]:
        """See docs/reference/metrics.md."""
        counts = {"calls": 0, "rewritten": 0} if self.policy is None else self.policy.counts()
        with self._lock:
            counts = {**counts, "refused": self._counts["refused"]}
        return {f"actor/agent_{name}_total": float(count) for name, count in counts.items()}

    def close(self) -> None:
        """End the server."""
        self._server.should_exit = True
        self._thread.join(_CLOSE_LIMIT_S)
        self._waiting.shutdown(wait=False, cancel_futures=True)
        with suppress(OSError):
            self._socket.close()

    # --- requests ----------------------------------------------------------------------------------------------------

    async def _complete(self, request: Request) -> Response:
        def complete(access: Access, asked: dict[str, Any]) -> dict[str, Any]:
            if self.policy is None or access.policy is None:
                raise Refused(404, "model_not_found", "the run has no policy for agents: this one plays with a model of its own")
            return self.policy.complete(access.policy, asked)

        return await self._answer(request, complete)

    async def _models(self, request: Request) -> Response:
        def models(access: Access, _: dict[str, Any]) -> dict[str, Any]:
            found = [] if access.policy is None else [{"id": MODEL, "object": "model", "owned_by": "computerrl"}]
            return {"object": "list", "data": found}

        return await self._answer(request, models)

    async def _look(self, request: Request) -> Response:
        return await self._answer(request, lambda access, _: _desk_of(access).look())

    async def _act(self, request: Request) -> Response:
        return await self._answer(request, lambda access, asked: _desk_of(access).act(asked.get("action")))

    async def _answer(self, request: Request, answer: Callable[[Access, dict[str, Any]], dict[str, Any]]) -> Response:
        """What ``answer`` makes of the request, in a thread of its own; as a stream if that was asked for."""
        try:
            key = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
            with self._lock:
                access = self._accesses.get(key)
            if access is None:
                raise Refused(401, "invalid_api_key", "no such key, or its episode has ended")
            asked = await _body(request) if request.method == "POST" else {}
            reply = await asyncio.get_running_loop().run_in_executor(self._waiting, answer, access, asked)
        except Refused as error:
            with self._lock:
                self._counts["refused"] += 1
            told = {"message": str(error), "type": error.kind, "code": error.kind}
            return JSONResponse({"error": told}, status_code=error.status)
        if asked.get("stream") and "choices" in reply:
            return StreamingResponse(stream_of(reply), media_type="text/event-stream")
        return JSONResponse(reply)


def _desk_of(access: Access) -> Desk:
    if access.desk is None:
        raise Refused(404, "no_desktop", "the agent acts by its predict method, not by requests")
    return access.desk


async def _body(request: Request) -> dict[str, Any]:
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > _MAX_BODY_BYTES:
            raise Refused(413, "invalid_request_error", f"a request has at most {_MAX_BODY_BYTES >> 20} MiB")
    try:
        asked = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refused(400, "invalid_request_error", f"the request is no JSON: {str(error)[:200]}") from None
    if not isinstance(asked, dict):
        raise Refused(400, "invalid_request_error", "the request is no JSON object")
    return asked
