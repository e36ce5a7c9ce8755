"""The desktop page over HTTP: its files and its WebSocket. Access is decided by `common.pages`."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from pathlib import Path

from aiohttp import WSMsgType, web

from computerrl.common import pages
from computerrl.env_server.live.hub import Hub
from computerrl.env_server.live.session import LiveSession

_PAGE = Path(__file__).parent / "page"
_MAX_MESSAGE_BYTES = 64 * 1024


def make_app(hub: Hub, *, token: str, host: str) -> web.Application:
    """The page of ``hub`` for clients that know ``token``; ``host``: address on which the server listens."""

    async def socket(request: web.Request) -> web.StreamResponse:
        pages.require_same_origin(request, what="WebSocket")
        connection = web.WebSocketResponse(heartbeat=20.0, compress=False, max_msg_size=_MAX_MESSAGE_BYTES)
        await connection.prepare(request)
        leave = await hub.welcome(connection)
        try:
            async for message in connection:
                problem = hub.submit(message.data) if message.type == WSMsgType.TEXT else "text messages only"
                if problem:
                    await connection.send_str(json.dumps({"kind": "refused", "reason": problem}))
        finally:
            leave()
        return connection

    routes = [web.get("/{token}/socket", socket)]
    return pages.make_app(pages.page_files(_PAGE), token=token, host=host, routes=routes)


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
    """Serve ``session`` until ``stop``; ``on_ready`` receives the address. Ends the desktop in any case. Raises `SetupError`."""
    token = secrets.token_urlsafe(24)
    hub = Hub(session, recordings=recordings)

    def ready(address: str) -> None:
        on_ready(address)
        hub.begin(family, seed)

    try:
        app = make_app(hub, token=token, host=host)
        await pages.serve(app, token=token, host=host, port=port, command="computerrl desktop", on_ready=ready, stop=stop)
    finally:
        await hub.close()
