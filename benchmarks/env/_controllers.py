"""The calls of OSWorld's controllers: to `computerrl serve-desktops` and, on the same desktop, to OSWorld's own server.

Part of `bench serve`. Each call has a connection of its own, as in OSWorld's controllers. Both servers are asked in turns by the
same client, with Calc on the screen.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

from computerrl.benchmarks.env._osworld_server import Dial, original_server
from computerrl.benchmarks.env._served import START_LIMIT_S, Front, row

_PEER = "OSWorld's server"
_WARM_UP = 2
_PLACE = (321, 123)
_PATHS = (
    "reached by TCP on this host to serve-desktops, which asks the guest; OSWorld's server by TCP within the desktop's network "
    "namespace, with nothing between. Ours waits until tree and screen are quiet and draws no pointer. OSWorld's waits for "
    "nothing, and starts a Python for each click"
)

Call = Callable[[int], object]
"""Makes one request; the number makes it another one than the last."""


class Controllers:
    """Requests to one server, each over a connection of its own that ``dial`` opens."""

    def __init__(self, dial: Dial, headers: Mapping[str, str]) -> None:
        self._dial, self._headers = dial, headers

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        """The answer's content. Raises `RuntimeError` for any status but 200."""
        headers = {**self._headers, "Content-Type": "application/json"} if body is not None else self._headers
        connection = http.client.HTTPConnection("127.0.0.1")
        connection.sock = self._dial()
        with contextlib.closing(connection):
            connection.sock.settimeout(START_LIMIT_S)
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.request(method, path, None if body is None else json.dumps(body), dict(headers))
            reply = connection.getresponse()
            content = reply.read()
        if reply.status != http.client.OK:
            raise RuntimeError(f"{method} {path}: status {reply.status}: {content[:500]!r}")
        return content

    def execute(self, *command: str) -> None:
        """Run a command in the desktop. Raises `RuntimeError` where it fails."""
        answer = json.loads(self.ask("POST", "/execute", {"command": command, "shell": False}))
        if answer["returncode"] != 0:
            raise RuntimeError(f"{command}: {answer}")

    def automate(self, code: str) -> None:
        """Carry out pyautogui code, sent as OSWorld's controllers send it."""
        self.execute("python3", "-c", f"import pyautogui; import time; pyautogui.FAILSAFE = False; {code}")

    def pointer(self) -> tuple[int, int]:
        """Place of the pointer."""
        x, y = json.loads(self.ask("GET", "/cursor_position"))
        return int(x), int(y)

    def screen_size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        found = json.loads(self.ask("POST", "/screen_size", {}))
        return found["width"], found["height"]

    def num_nodes(self) -> int:
        """Elements in the accessibility tree."""
        return sum(1 for _ in ElementTree.fromstring(json.loads(self.ask("GET", "/accessibility"))["AT"]).iter())

    def calls(self) -> dict[str, Call]:
        """Name -> call."""
        return {
            "picture": lambda _: self.ask("GET", "/screenshot"),
            "tree": lambda _: self.ask("GET", "/accessibility"),
            "size of the screen": lambda _: self.screen_size(),
            "place of the pointer": lambda _: self.pointer(),
            "click by pyautogui": lambda number: self.automate(f"pyautogui.click({200 + number % 50}, 300)"),
            "command in the desktop": lambda _: self.execute("true"),
        }


def controller_rows(front: Front, num_rounds: int, original: Path | None, packages: Path | None) -> list[dict[str, Any]]:
    """Medians of each call, and calls a second of one client; ``original``, ``packages``: see `original_server`."""
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(front.client())
        session = front.reset(client)["X-Session-Id"]
        client.auth = (session, front.token)
        del client.headers["Authorization"]
        stack.callback(client.delete, "/session", headers={"X-Session-Id": session})
        place = urlsplit(front.address)
        named = base64.b64encode(f"{session}:{front.token}".encode()).decode()
        ours = Controllers(lambda: socket.create_connection((place.hostname, place.port)), {"Authorization": f"Basic {named}"})
        servers = {"": ours}
        if original is not None:
            dial = stack.enter_context(original_server(client, front.process.pid, original, packages))
            servers[_PEER] = Controllers(dial, {})
            _require_same_desktop(ours, servers[_PEER])
        num_nodes = {name: server.num_nodes() for name, server in servers.items()}
        took = _in_turns({name: server.calls() for name, server in servers.items()}, num_rounds)
    medians = {server: {name: statistics.median(values) for name, values in calls.items()} for server, calls in took.items()}
    return _rows(medians, num_nodes)


def _require_same_desktop(ours: Controllers, other: Controllers) -> None:
    """Raise `RuntimeError` unless ``other`` sees the pointer where ``ours`` has moved it."""
    ours.automate(f"pyautogui.moveTo{_PLACE}")
    if other.pointer() != _PLACE or other.screen_size() != ours.screen_size():
        raise RuntimeError(f"the servers show different desktops: the pointer is at {other.pointer()}, not at {_PLACE}")


def _in_turns(servers: Mapping[str, Mapping[str, Call]], num_rounds: int) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of each call by server and name. Every other round begins with the other server."""
    took: dict[str, dict[str, list[float]]] = {server: {name: [] for name in calls} for server, calls in servers.items()}
    for number in range(-_WARM_UP, num_rounds):
        for name in next(iter(servers.values())):
            for server in sorted(servers, reverse=number % 2 == 1):
                started = time.perf_counter()
                servers[server][name](number)
                if number >= 0:
                    took[server][name].append((time.perf_counter() - started) * 1000)
    return took


def _rows(medians: Mapping[str, Mapping[str, float]], num_nodes: Mapping[str, int]) -> list[dict[str, Any]]:
    figures = {
        server: {
            **calls,
            "nodes in the tree": num_nodes[server],
            "calls a second, one client": _per_s(calls),
            "calls a second, one client, without the tree": _per_s({name: calls[name] for name in calls if name != "tree"}),
        }
        for server, calls in medians.items()
    }
    rows = []
    for name, value in figures[""].items():
        unit = "/s" if name.startswith("calls a second") else "" if name.startswith("nodes") else "ms"
        found = row(f"OSWorld's controllers: {name}", value, unit, better="higher" if unit == "/s" else "lower")
        if _PEER in figures:
            found |= {"peer": _PEER, "peer_value": figures[_PEER][name]}
        rows.append(found)
    if _PEER in figures:
        rows[-1]["reason"] = _PATHS
    return rows


def _per_s(medians: Mapping[str, float]) -> float:
    return 1000 * len(medians) / sum(medians.values())
