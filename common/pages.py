"""Access to the web pages that this program serves to one person, and limits of what they may load. Contains no page.

Only a browser with the full address may use a page: a random token is the first part of every path, compared in constant time.
Requests for other host names are refused (a page elsewhere may make its own name point here), and so are changing requests that
do not come from the page itself. A page loads nothing from other addresses, and its headers tell the browser so.
"""

from __future__ import annotations

import asyncio
import errno
import gzip
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname

from aiohttp import web

from computerrl.common.errors import Problem, SetupError
from computerrl.common.wire.addresses import EVERYWHERE, in_address

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_SHUTDOWN_S = 0.2
MIN_COMPRESSED_BYTES = 1024
"""Replies below this size are not compressed: a packet holds them."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One of a page's own files, ready to be sent."""

    content_type: str
    plain: bytes
    packed: bytes
    """``plain`` as gzip."""
    tag: str
    """ETag: the hash of the content."""

    @classmethod
    def of(cls, name: str, data: bytes) -> StoredFile:
        """The file ``name`` with content ``data``."""
        tag = f'"{hashlib.sha256(data).hexdigest()[:24]}"'
        return cls(_TYPES[Path(name).suffix], data, gzip.compress(data, mtime=0), tag)

    def answer(self, request: web.Request) -> web.Response:
        """304 for a browser that holds this content already; else the content, as gzip where the browser takes that."""
        headers = {"ETag": self.tag, "Cache-Control": "private, no-cache", "Vary": "Accept-Encoding"}
        if self.tag in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers=headers)
        body = self.plain
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            body = self.packed
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=body, content_type=self.content_type, charset="utf-8", headers=headers)


def page_files(folder: Path) -> dict[str, bytes]:
    """The page's own files by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in _TYPES}


def make_app(files: Mapping[str, bytes], *, token: str, host: str, routes: Sequence[web.AbstractRouteDef]) -> web.Application:
    """An application that serves ``files`` below the token, and ``routes``, whose paths begin with `/{token}/`.

    ``host`` is what the server listens on.
    """
    headers = {
        "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-store",
    }
    # Listening everywhere, this machine has names that we do not know.
    host_names = None if host in EVERYWHERE else _LOOPBACK | {in_address(host)}
    stored = {name: StoredFile.of(name, data) for name, data in files.items()}

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            _check(request, token=token, host_names=host_names)
            response = await handler(request)
        except web.HTTPException as refused:
            response = web.Response(status=refused.status, text=f"{refused.status} {refused.text or refused.reason}\n")
        if not response.prepared:
            response.headers.update({name: value for name, value in headers.items() if name not in response.headers})
            if _is_worth_packing(response):
                response.enable_compression()
        return response

    async def file(request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"] or "index.html"
        if name not in stored:
            raise web.HTTPNotFound
        return stored[name].answer(request)

    app = web.Application(middlewares=[guard])
    # The files come last: their route takes every name that is left.
    app.add_routes([*routes, web.get("/{token}/{name:[^/]*}", file)])
    return app


def _is_worth_packing(response: web.StreamResponse) -> bool:
    """Long text that is not packed yet; pictures are small in themselves. aiohttp asks what the browser takes."""
    if not isinstance(response, web.Response) or "Content-Encoding" in response.headers:
        return False
    is_text = response.content_type.startswith("text/") or response.content_type == "application/json"
    return is_text and isinstance(response.body, bytes) and len(response.body) >= MIN_COMPRESSED_BYTES


def require_same_origin(request: web.Request, *, what: str) -> None:
    """Browsers always say where such a request comes from; a program that has the token can say it as well."""
    if request.headers.get("Origin") != f"http://{request.host}":
        raise web.HTTPForbidden(text=f"this page's own {what} only")


def _check(request: web.Request, *, token: str, host_names: frozenset[str] | None) -> None:
    host_name = request.host.rsplit(":", 1)[0] if not request.host.endswith("]") else request.host
    if host_names is not None and host_name not in host_names:
        raise web.HTTPForbidden(text="unknown host name")
    given = request.path.split("/")[1]
    if not hmac.compare_digest(given.encode("utf-8", "replace"), token.encode()):
        raise web.HTTPForbidden(text="use the whole address that was printed")


async def serve(
    app: web.Application,
    *,
    token: str,
    host: str,
    port: int,
    command: str,
    on_ready: Callable[[str], None],
    stop: asyncio.Event,
) -> None:
    """Serve ``app`` until ``stop``; ``on_ready`` gets the address. Raises `SetupError`, in the name of ``command``."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_S)
    try:
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            reason = f"cannot listen on {host}, port {port}: {error.strerror}"
            is_taken = error.errno != errno.EADDRNOTAVAIL
            step = "use --port 0 (any free one)" if is_taken else "give --host an address of this machine, see `ip addr`"
            raise SetupError(Problem(command, reason, step)) from error
        bound_port = runner.addresses[0][1]
        shown_host = gethostname() if host in EVERYWHERE else in_address(host)
        on_ready(f"http://{shown_host}:{bound_port}/{token}/")
        await stop.wait()
    finally:
        await runner.cleanup()
