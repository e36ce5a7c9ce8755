"""The server: the service of this host's desktops, its sessions, and the faces, in one process."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException

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
from computerrl.env_server.front import openenv
from computerrl.env_server.front.access import MAX_BODY_BYTES, Access
from computerrl.env_server.front.sessions import BadRequest, SessionEnded, Sessions
from computerrl.env_server.front.threads import Threads
from computerrl.env_server.serving.fleet import ServiceTimes
from computerrl.env_server.serving.service import DesktopService

LEASE_WAIT_S = 5.0
"""Time for which a new session waits for a free desktop before it is refused."""
RETRY_AFTER_S = 5
_CLOSE_LIMIT_S = 2.0
_SWEEP_S = 1.0
"""Time between two looks for sessions that nobody uses, and for a broken host."""
_STATUS = {
    BadRequest: 400,
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
def running_service(config: RunConfig, screenshots: RecentScreenshots) -> Iterator[DesktopService]:
    """Desktops of ``config``, starting. Raises `ConfigError` where this host does not hold them."""
    problem = memory_problem(config.desktop)
    if problem is not None:
        raise ConfigError([problem])
    desktops = needed_desktop(config)
    folder = Path(tempfile.mkdtemp(prefix="computerrl-serve-"))

    def make(index: int) -> DesktopDriver:
        return make_driver(desktops, index=index, folder=folder / f"desktop-{index}", screenshots=screenshots)

    try:
        service = DesktopService(
            desktops, tasks=config.tasks, make=make, times=ServiceTimes(lease_wait_s=LEASE_WAIT_S), read=screenshots.get
        )
        try:
            yield service
        finally:
            service.close(limit_s=_CLOSE_LIMIT_S)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_app(sessions: Sessions, threads: Threads, *, picture_format: str, port: int) -> FastAPI:
    """All faces on ``sessions``, without access control."""
    app = FastAPI(title="ComputerRL desktops", docs_url=None, redoc_url=None)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether the server is there."""
        return {"status": "healthy"}

    @app.get("/openenv.yaml", response_class=PlainTextResponse)
    async def manifest() -> str:
        """OpenEnv's manifest."""
        return _MANIFEST.format(port=port)

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
    return app


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
    on_ready: Callable[[str], None],
    stop: asyncio.Event,
) -> None:
    """Serve desktops until ``stop``; ``on_ready`` receives the address. Raises `ConfigError`, `SetupError`, `HostBroken`."""
    with _listening(host, port) as listener:
        port = listener.getsockname()[1]
        picture_format = config.desktop.screenshot_format
        # A picture is taken right after the call that made it, but calls of all desktops come in between.
        screenshots = RecentScreenshots(picture_format=picture_format, limit=8 * config.desktop.num_desktops)
        with running_service(config, screenshots) as service:
            sessions = Sessions(service, config, screenshots=screenshots, idle_limit_s=idle_limit_s)
            app = make_app(sessions, Threads(config.desktop.num_desktops), picture_format=picture_format, port=port)
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
            async with _watching(server, sessions, service, stop):
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
        reason = f"cannot listen on {host}, port {port}: {error.strerror}"
        is_taken = error.errno != errno.EADDRNOTAVAIL
        step = "use --port 0 (any free one)" if is_taken else "give --host an address of this machine, see `ip addr`"
        raise SetupError(Problem("computerrl serve-desktops", reason, step)) from error
    with listener:
        yield listener
