"""Serves the static pages of a bundle, inside the container: ``python3 -I -c <this text> FOLDER PORT``.

All files are read before the first request, so that the folder can be removed: no program of an agent changes a page.
Standard library only; the container's Python runs it.
"""

from __future__ import annotations

import http.server
import mimetypes
import os
import sys
from urllib.parse import unquote, urlsplit


def read_pages(folder: str) -> dict[str, bytes]:
    """Path of an address -> content. A folder's address has the content of its ``index.html``."""
    pages = {}
    for top, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(top, name)
            with open(path, "rb") as file:
                pages[f"/{os.path.relpath(path, folder)}"] = file.read()
    indexes = [path for path in pages if os.path.basename(path) == "index.html"]
    return pages | {path.removesuffix("index.html"): pages[path] for path in indexes}


def make_handler(pages: dict[str, bytes]) -> type[http.server.BaseHTTPRequestHandler]:
    """A handler that answers GET and HEAD from ``pages``."""

    class Handler(http.server.BaseHTTPRequestHandler):
        """Answers one connection."""

        timeout = 30.0

        def do_GET(self) -> None:
            """Answer with the page, or with 404."""
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            """Answer without the content."""
            self._answer(with_body=False)

        def _answer(self, *, with_body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            page = pages.get(path)
            self.send_response(404 if page is None else 200)
            kind = mimetypes.guess_type("index.html" if path.endswith("/") else path)[0] or "application/octet-stream"
            self.send_header("Content-Type", "text/plain" if page is None else kind)
            content = b"not found" if page is None else page
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if with_body:
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not logged."""

    return Handler


def main() -> None:
    """Serve on loopback until the process is ended."""
    folder, port = sys.argv[1], int(sys.argv[2])
    http.server.ThreadingHTTPServer(("127.0.0.1", port), make_handler(read_pages(folder))).serve_forever()
