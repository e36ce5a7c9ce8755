"""Who may use the server: programs that send its token, as an ASGI middleware in front of everything.

The token comes as `Authorization: Bearer TOKEN`, or as the password of `Authorization: Basic`, for programs that can only put it
into an address (http://any:TOKEN@127.0.0.1:8000). Requests for other host names are refused (a page elsewhere may make its own
name point here), and so is every browser's page of another origin.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from computerrl.common.wire.addresses import EVERYWHERE, in_address

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY_BYTES = 1024 * 1024
"""Longest body of a request, and longest message of a WebSocket."""
MAX_UPLOAD_BYTES = 45 * 1024 * 1024
"""Longest body of a request that brings a file: what fits one frame to a desktop."""
_UPLOADS = frozenset({"/setup/upload"})

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
_OPEN = frozenset({"/health"})
"""Paths that need no token: they tell only that the server is there."""


class Access:
    """``app`` for those who know ``token``. ``host``: the address that the server listens on."""

    def __init__(self, app: App, *, token: str, host: str) -> None:
        self._app = app
        self._token = token
        # Listening everywhere, this machine has names that we do not know.
        self._host_names = None if host in EVERYWHERE else _LOOPBACK | {in_address(host)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        status, reason = self._refusal(scope["path"], headers)
        if not status:
            await self._app(scope, _bounded(receive, _limit_of(scope["path"])) if scope["type"] == "http" else receive, send)
        elif scope["type"] == "websocket":
            # Before it is accepted: the client sees status 403.
            await send({"type": "websocket.close", "code": 1008, "reason": reason})
        else:
            await _refuse(send, status, reason)

    def _refusal(self, path: str, headers: dict[str, str]) -> tuple[int, str]:
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rsplit(":", 1)[0]
        if self._host_names is not None and name not in self._host_names:
            return 403, "unknown host name"
        if headers.get("origin", f"http://{host}") != f"http://{host}":
            return 403, "no page of another origin may use this server"
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            return 400, "Content-Length is no number"
        if int(length[:20]) > _limit_of(path):
            return 413, f"a request has at most {_limit_of(path)} bytes"
        if path in _OPEN or hmac.compare_digest(_given_token(headers).encode(), self._token.encode()):
            return 0, ""
        return 401, "send the token that the server printed: Authorization: Bearer TOKEN"


def basic_user(authorization: str) -> str:
    """The user of Basic authentication; empty where there is none."""
    return _basic(authorization)[0]


def _given_token(headers: dict[str, str]) -> str:
    authorization = headers.get("authorization", "")
    kind, _, value = authorization.partition(" ")
    return value.strip() if kind.lower() == "bearer" else _basic(authorization)[1]


def _basic(authorization: str) -> tuple[str, str]:
    """(user, password) of a header; both empty for another kind."""
    kind, _, value = authorization.partition(" ")
    if kind.lower() != "basic":
        return "", ""
    try:
        user, _, password = base64.b64decode(value, validate=True).decode("utf-8").partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    return user, password


def _limit_of(path: str) -> int:
    return MAX_UPLOAD_BYTES if path in _UPLOADS else MAX_BODY_BYTES


def _bounded(receive: Receive, limit: int) -> Receive:
    """``receive``, which ends a body without a stated length that becomes too long as if the client had gone."""
    num_bytes = 0

    async def bounded() -> Message:
        nonlocal num_bytes
        message = await receive()
        num_bytes += len(message.get("body", b""))
        return {"type": "http.disconnect"} if num_bytes > limit else message

    return bounded


async def _refuse(send: Send, status: int, reason: str) -> None:
    body = json.dumps({"error": "refused", "message": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
