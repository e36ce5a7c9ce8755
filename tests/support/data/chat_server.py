"""A server that answers chats as OpenAI's interface has them: on loopback, with a scripted policy in place of a model."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = str | tuple[int, Any]
"""Text of the reply, or status and body."""


@dataclass
class ChatServer:
    """``answer`` gets the body of a request."""

    answer: Callable[[dict[str, Any]], Answer]
    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    """Of each request, names in small letters."""


def texts_of(body: dict[str, Any]) -> str:
    """All texts of a request, one a line."""
    return "\n".join(part["text"] for part in parts_of(body) if part["type"] == "text")


def images_of(body: dict[str, Any]) -> list[tuple[str, bytes]]:
    """(MIME type, bytes) of the images of a request, in their order."""
    found = []
    for part in parts_of(body):
        if part["type"] == "image_url":
            head, _, data = part["image_url"]["url"].partition(",")
            found.append((head.removeprefix("data:").removesuffix(";base64"), base64.b64decode(data, validate=True)))
    return found


def parts_of(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The parts of all messages of a request."""
    for message in body["messages"]:
        content = message["content"]
        yield from [{"type": "text", "text": content}] if isinstance(content, str) else content


def said(text: Any, *, finish: str = "stop", **more: Any) -> dict[str, Any]:
    """Body of a reply."""
    return {"choices": [{"message": {"role": "assistant", "content": text, **more}, "finish_reason": finish}]}


@contextmanager
def chat_server(answer: Callable[[dict[str, Any]], Answer]) -> Iterator[ChatServer]:
    """A server with one model, `theirs`."""
    server = ChatServer(answer)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, {"data": [{"id": "theirs"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.asked.append(body)
            server.paths.append(self.path)
            server.headers.append({name.lower(): value for name, value in self.headers.items()})
            found = server.answer(body)
            self._send(*((200, said(found)) if isinstance(found, str) else found))

        def _send(self, status: int, tree: Any) -> None:
            data = json.dumps(tree).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_port}/v1"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
