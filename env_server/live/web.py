"""The desktop page over HTTP: its files, its WebSocket, and who may have them.

Whoever has the address may act on the desktop and nobody else: a random token is the first part of every path, compared in
constant time. Host names other than ours are refused (a page elsewhere may make its own name point here), and so are WebSockets
whose origin is not this very page. The page loads nothing from anywhere else, and says so to the browser.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from socket import gethostname

from aiohttp import WSMsgType, web

from common.errors import Problem, SetupError
from env_server.live.hub import Hub
from env_server.live.session import LiveSession

_PAGE = Path(__file__).parent / "page"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
_EVERYWHERE = frozenset({"0.0.0.0", "::"})
_MAX_MESSAGE_BYTES = 64 * 1024
_SHUTDOWN_S = 0.2
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(hub: Hub, *, token: str, host: str) -> web.Application:
    """The page of ``hub`` for whoever knows ``token``; ``host`` is what the server listens on."""
    files = {path.name: path.read_bytes() for path in _PAGE.iterdir() if path.suffix in _TYPES}
    # Listening everywhere, this machine has names that we do not know.
    host_names = None if host in _EVERYWHERE else _LOOPBACK | {_in_address(host)}

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            _check(request, token=token, host_names=host_names)
            response = await handler(request)
        except web.HTTPException as refused:
            response = web.Response(status=refused.status, text=f"{refused.status} {refused.text or refused.reason}\n")
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    async def file(request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"] or "index.html"
        if name not in files:
            raise web.HTTPNotFound
        return web.Response(body=files[name], content_type=_TYPES[Path(name).suffix], charset="utf-8")

    async def socket(request: web.Request) -> web.StreamResponse:
        # Browsers always say where a WebSocket comes from; a program that has the token can say it as well.
        if request.headers.get("Origin") != f"http://{request.host}":
            raise web.HTTPForbidden(text="this page's own WebSocket only")
        connection = web.WebSocketResponse(heartbeat=20.0, compress=False, max_msg_size=_MAX_MESSAGE_BYTES)
        await connection.prepare(request)
        leave = await hub.welcome(connection)
        try:
            async for message in connection:
                problem = hub.take(message.data) if message.type == WSMsgType.TEXT else "text messages only"
                if problem:
                    await connection.send_str(json.dumps({"kind": "refused", "reason": problem}))
        finally:
            leave()
        return connection

    app = web.Application(middlewares=[guard])
    app.router.add_get("/{token}/socket", socket)
    app.router.add_get("/{token}/{name:[^/]*}", file)
    return app


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _check(request: web.Request, *, token: str, host_names: frozenset[str] | None) -> None:
    host_name = request.host.rsplit(":", 1)[0] if not request.host.endswith("]") else request.host
    if host_names is not None and host_name not in host_names:
        raise web.HTTPForbidden(text="unknown host name")
    given = request.path.split("/")[1]
    if not hmac.compare_digest(given.encode("utf-8", "replace"), token.encode()):
        raise web.HTTPForbidden(text="use the whole address that `computerrl desktop` printed")


async def serve(
    session: LiveSession,
    *,
    family: str,
    seed: int,
    host: str,
    port: int,
    recordings: str,
    on_ready: Callable[[str], None],
    stop: asyncio.Event,
) -> None:
    """Serve ``session`` until ``stop``; ``on_ready`` gets the address. Ends the desktop in any case. Raises `SetupError`."""
    token = secrets.token_urlsafe(24)
    hub = Hub(session, recordings=recordings)
    runner = web.AppRunner(make_app(hub, token=token, host=host), access_log=None, shutdown_timeout=_SHUTDOWN_S)
    try:
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            reason = f"cannot listen on {host}, port {port}: {error.strerror}"
            raise SetupError(Problem("computerrl desktop", reason, "use --port 0 (any free one)")) from error
        bound_port = runner.addresses[0][1]
        shown_host = gethostname() if host in _EVERYWHERE else _in_address(host)
        on_ready(f"http://{shown_host}:{bound_port}/{token}/")
        hub.begin(family, seed)
        await stop.wait()
    finally:
        await asyncio.gather(hub.close(), runner.cleanup())
