"""The server: the service of this host's desktops, its sessions, and the faces, in one process."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import Route

from computerrl.common.config import RunConfig
from computerrl.common.errors import (
    ComputerRLError,
    ConfigError,
    DesktopBroken,
    HostBroken,
    NoDesktop,
    PeerTimeout,
    Problem,
    SetupError,
    TaskFailed,
)
from computerrl.common.wire.addresses import EVERYWHERE, in_address
from computerrl.env_server.client import memory_problem, needed_desktop
from computerrl.env_server.driver import DesktopDriver
from computerrl.env_server.drivers import make_driver
from computerrl.env_server.drivers.screenshots import RecentScreenshots
from computerrl.env_server.front import mcp_face, openenv, osworld_face
from computerrl.env_server.front.access import MAX_BODY_BYTES, Access
from computerrl.env_server.front.sessions import BadRequest, SessionEnded, Sessions
from computerrl.env_server.front.threads import Threads
from computerrl.env_server.serving.fleet import START_LIMIT_S, ServiceTimes
from computerrl.env_server.serving.service import DesktopService

LEASE_WAIT_S = 5.0
"""Time for which a new session waits for a free desktop before it is refused."""
RETRY_AFTER_S = 5
MAX_MCP_SESSIONS = 256
"""Connections of the protocol; desktops are leased by `Sessions`."""
_CLOSE_LIMIT_S = 2.0
_SWEEP_S = 1.0
"""Time between two looks for sessions that nobody uses, and for a broken host."""
_STATUS = {
    BadRequest: 400,
    osworld_face.NotAllowed: 403,
    SessionEnded: 410,
    NoDesktop: 429,
    TaskFailed: 422,
    DesktopBroken: 503,
    HostBroken: 503,
    PeerTimeout: 504,
}
_MANIFEST = """spec_version: 1
name: computerrl
type: space
runtime: fastapi
app: computerrl.env_server.front.app:make_app
port: {port}
"""


@contextlib.contextmanager
def running_service(config: RunConfig, screenshots: RecentScreenshots, *, lease_wait_s: float) -> Iterator[DesktopService]:
    """Desktops of ``config``, starting. ``lease_wait_s``: time for which a session waits for a free one.

    Raises `ConfigError` where this host does not hold them."""
    problem = memory_problem(config.desktop)
    if problem is not None:
        raise ConfigError([problem])
    desktops = needed_desktop(config)
    folder = Path(tempfile.mkdtemp(prefix="computerrl-serve-"))

    def make(index: int) -> DesktopDriver:
        return make_driver(desktops, index=index, folder=folder / f"desktop-{index}", screenshots=screenshots)

    try:
        service = DesktopService(
            desktops, tasks=config.tasks, make=make, times=ServiceTimes(lease_wait_s=lease_wait_s), read=screenshots.get
        )
        try:
            yield service
        finally:
            service.close(limit_s=_CLOSE_LIMIT_S)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Refusal(BaseModel):
    """Why a request was not carried out."""

    error: str = Field(description="kind of the reason, for programs")
    message: str = Field(description="the reason, for people, with what to do instead")


_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "the request asks for something that there is not, or not now"},
    401: {"description": "no token, or a wrong one"},
    403: {"description": "the server does not do this for anyone"},
    404: {"description": "there is no such thing"},
    405: {"description": "no such method"},
    410: {"description": "the session has ended"},
    413: {"description": "too long"},
    422: {"description": "the request is malformed, or the desktop cannot do this"},
    429: {"description": "every desktop is taken; come back after Retry-After seconds"},
    503: {"description": "the desktop broke; the next reset gets another one"},
    504: {"description": "the desktop did not answer in time"},
}


def make_app(sessions: Sessions, threads: Threads, *, picture_format: str, port: int, allow_execute: bool = False) -> FastAPI:
    """All faces on ``sessions``, without access control. ``allow_execute``: see `OsworldFace`."""
    refusals = {status: {**refusal, "model": Refusal} for status, refusal in _REFUSALS.items()}
    app = FastAPI(title="ComputerRL desktops", docs_url=None, redoc_url=None, responses=refusals)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether the server is there."""
        return {"status": "healthy"}

    @app.get("/openenv.yaml", responses={200: {"content": {"text/plain": {}}}})
    async def manifest() -> PlainTextResponse:
        """OpenEnv's manifest."""
        return PlainTextResponse(_MANIFEST.format(port=port))

    @app.exception_handler(ComputerRLError)
    async def refused(_: Request, error: ComputerRLError) -> JSONResponse:
        status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500)
        headers = {"Retry-After": str(RETRY_AFTER_S)} if status in (429, 503) else None
        return JSONResponse({"error": error.code, "message": str(error)}, status, headers)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        # What was sent is not repeated: it may be long, or no valid text.
        problems = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:5]]
        return JSONResponse({"error": BadRequest.code, "message": "; ".join(problems)}, 422)

    @app.exception_handler(HTTPException)
    async def without_route(_: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": BadRequest.code, "message": error.detail}, error.status_code, error.headers)

    app.include_router(openenv.make_router(sessions, threads, picture_format=picture_format))
    app.include_router(osworld_face.make_router(osworld_face.OsworldFace(sessions, threads, allow_execute=allow_execute)))
    return app


def mcp_manager(app: FastAPI, server: Server) -> StreamableHTTPSessionManager:
    """MCP over streamable HTTP at `/mcp` of ``app``, while the manager's `run` is entered."""
    # Host names and origins are checked in front of everything (`access`).
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    manager = StreamableHTTPSessionManager(
        server,
        json_response=True,
        security_settings=unchecked,
        max_request_body_size=MAX_BODY_BYTES,
        max_sessions=MAX_MCP_SESSIONS,
    )
    app.router.routes.append(Route("/mcp", endpoint=StreamableHTTPASGIApp(manager)))
    return manager


async def serve_stdio(config: RunConfig, *, stop: asyncio.Event) -> None:
    """MCP over stdin and stdout, for one client with one desktop, until it closes stdin or ``stop``. Raises `ConfigError`,
    `HostBroken`."""
    picture_format = config.desktop.screenshot_format
    screenshots = RecentScreenshots(picture_format=picture_format, limit=8)
    with running_service(config, screenshots, lease_wait_s=START_LIMIT_S) as service:
        sessions = Sessions(service, config, screenshots=screenshots, idle_limit_s=config.desktop.lease_time_limit_s)
        server = mcp_face.make_server(sessions, Threads(1), picture_format=picture_format)

        async def converse() -> None:
            async with stdio_server() as (requests, replies):
                await server.run(requests, replies, server.create_initialization_options())

        tasks = [asyncio.create_task(converse()), asyncio.create_task(stop.wait())]
        ended, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for task in ended:
            task.result()
        if service.fatal is not None:
            raise service.fatal


class _Server(uvicorn.Server):
    """uvicorn, whose signals are handled by the command."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    config: RunConfig,
    *,
    token: str,
    host: str,
    port: int,
    idle_limit_s: float,
    allow_execute: bool = False,
    on_ready: Callable[[str], None],
    stop: asyncio.Event,
) -> None:
    """Serve desktops until ``stop``; ``on_ready`` receives the address. Raises `ConfigError`, `SetupError`, `HostBroken`."""
    with _listening(host, port) as listener:
        port = listener.getsockname()[1]
        picture_format = config.desktop.screenshot_format
        # A picture is taken right after the call that made it, but calls of all desktops come in between.
        screenshots = RecentScreenshots(picture_format=picture_format, limit=8 * config.desktop.num_desktops)
        with running_service(config, screenshots, lease_wait_s=LEASE_WAIT_S) as service:
            sessions = Sessions(service, config, screenshots=screenshots, idle_limit_s=idle_limit_s)
            threads = Threads(config.desktop.num_desktops)
            app = make_app(sessions, threads, picture_format=picture_format, port=port, allow_execute=allow_execute)
            mcp = mcp_manager(app, mcp_face.make_server(sessions, threads, picture_format=picture_format))
            settings = uvicorn.Config(
                Access(app, token=token, host=host),
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                proxy_headers=False,
                ws_max_size=MAX_BODY_BYTES,
                timeout_graceful_shutdown=1,
            )
            server = _Server(settings)
            shown_host = socket.gethostname() if host in EVERYWHERE else in_address(host)
            async with _watching(server, sessions, service, stop), mcp.run():
                on_ready(f"http://{shown_host}:{port}")
                await server.serve(sockets=[listener])
            await asyncio.to_thread(sessions.close_all)
            if service.fatal is not None:
                raise service.fatal


@contextlib.asynccontextmanager
async def _watching(
    server: uvicorn.Server, sessions: Sessions, service: DesktopService, stop: asyncio.Event
) -> AsyncIterator[None]:
    """While it runs: end unused sessions, and the server after ``stop`` or when the host is broken."""

    async def watch() -> None:
        while not stop.is_set() and service.fatal is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _SWEEP_S)
            await asyncio.to_thread(sessions.end_unused)
        server.should_exit = True

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        task.cancel()


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """Raises `SetupError`."""
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = f"cannot listen on {host}, port {port}: {os.strerror(error.errno or 0)}"
        is_taken = error.errno != errno.EADDRNOTAVAIL
        step = "use --port 0 (any free one)" if is_taken else "give --host an address of this machine, see `ip addr`"
        raise SetupError(Problem("computerrl serve-desktops", reason, step)) from error
    with listener:
        yield listener
