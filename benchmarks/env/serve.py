"""Desktops over HTTP: a step through each face beside the same step over ZeroMQ, OSWorld's controllers, and many clients at once.

Parts: `steps` (each way in turns, so that all see the same machine), `controllers`, `sessions` (1 to 16 at once) and `crowd`: 16
clients for ten minutes; a tenth of their sessions end as a killed client's does, a tenth of their actions are no actions. Servers
are processes of their own, as they are in use: `computerrl serve-desktops`, and an env_server's socket. `--quick` takes a few
minutes, with four clients.

`--osworld-server DIR` names desktop_env/server of a checkout of OSWorld: that server is started in the desktop of `controllers`
and asked in turns with ours. `--server-packages DIR` names a folder with what it imports; without it, the error names what is
missing and the commands that fill the folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client as McpClient
from mcp.client.streamable_http import streamable_http_client
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from computerrl.benchmarks.env._controllers import controller_rows
from computerrl.benchmarks.env._osworld_server import require_program
from computerrl.benchmarks.env._served import FAMILY, MANY_STEPS, SEED, START_LIMIT_S, Front, row, serve_desktops, start
from computerrl.common.actions import parse_action
from computerrl.common.config import RunConfig
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.messages import TaskRef
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.wire.transport import Client
from computerrl.env_server.client import DesktopClient
from computerrl.env_server.drivers.memory import processes_below

_IDLE_LIMIT_S = 15.0
_MOST_MORE_MS = 15.0
"""Target: what a step over HTTP may take beyond one over ZeroMQ."""
_NO_ACTIONS = ("", "click(", "click(99999)", "__import__('os')", 'type("\\ud800")', "calc.set_cell(1)", "key('')", "x" * 2000)

Step = Callable[[int], object]
"""Sets a cell to a number."""


def run(
    quick: bool, *, part: Sequence[str] = (), osworld_server: Path | None = None, server_packages: Path | None = None
) -> Iterator[dict[str, Any]]:
    """The rows as they are made; needs Apptainer and the image. ``part``: names of the parts to run; none: all.

    ``osworld_server``, ``server_packages``: the folders of `original_server`. Raises `ConfigError` for a part that there is not,
    and for a server that does not start.
    """
    numbers, duration_s = ((1, 2), 5.0) if quick else ((1, 2, 4, 8, 16), 20.0)
    parts = {
        "steps": lambda folder: _latencies(folder, 10 if quick else 100),
        "controllers": lambda folder: _controllers(folder, 5 if quick else 50, osworld_server, server_packages),
        "sessions": lambda folder: _side_by_side(folder, numbers, duration_s=duration_s),
        "crowd": lambda folder: _crowd(folder, *((4, 30.0) if quick else (16, 600.0))),
    }
    _require_possible(part, parts, osworld_server, server_packages)
    for name, measure in parts.items():
        if not part or name in part:
            with tempfile.TemporaryDirectory() as folder:
                yield from measure(Path(folder))
    left = len(processes_below(os.getpid())) - 1
    yield row("processes left", left, "", 0.0)


def _require_possible(part: Sequence[str], parts: Collection[str], server: Path | None, packages: Path | None) -> None:
    unknown = [name for name in part if name not in parts]
    if unknown:
        problem = Problem("--part", f"there is no part {', '.join(unknown)}", f"use some of {', '.join(parts)}")
        raise ConfigError([problem])
    if server is not None:
        require_program(server)
    elif packages is not None:
        raise ConfigError([Problem("--server-packages", "there is no server to import them", "add --osworld-server DIR")])


def _controllers(folder: Path, num_rounds: int, original: Path | None, packages: Path | None) -> list[dict[str, Any]]:
    with serve_desktops(folder, 1) as front:
        return controller_rows(front, num_rounds, original, packages)


@contextlib.contextmanager
def _zmq_step(folder: Path) -> Iterator[Step]:
    desktop = {"num_desktops": 1, "apps": ("calc",), "observation": "both", "screenshot_format": "webp"}
    tasks = {"families": (FAMILY,), "max_steps": MANY_STEPS}
    config = RunConfig.model_validate({"name": "zmq", "run_dir": str(folder), "desktop": desktop, "tasks": tasks})
    run_folder = RunFolder(config.folder)
    run_folder.create(config)
    command = [sys.executable, "-m", "computerrl.benchmarks.env._zmq_desktops", str(config.folder)]
    with start(command, folder, r"^(tcp://\S+)$") as (_, address):
        channel = Client(address, keys=run_folder.load_keys(), sender="actor-0:bench")
        client = DesktopClient(channel, config=config.desktop)
        task = TaskRef(FAMILY, SEED, "training")
        lease = client.lease("bench", task)
        client.reset(lease, task)

        def step(number: int) -> None:
            seen = client.step(lease, parse_action(_set_cell(number))).observation
            assert seen.screenshot is not None
            client.screenshot(seen.screenshot)

        yield step
        channel.close()


def _set_cell(number: int) -> str:
    return f'calc.set_cell("B2", {number})'


# --- one step --------------------------------------------------------------------------------------------------------


def _latencies(folder: Path, num_steps: int) -> list[dict[str, Any]]:
    with contextlib.ExitStack() as stack:
        over_zmq = stack.enter_context(_zmq_step(folder))
        front = stack.enter_context(serve_desktops(folder, 3))
        ways = {"ZeroMQ": over_zmq, **_faces(front, stack)}
        took: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(-3, num_steps):
            for name, do in ways.items():
                started = time.perf_counter()
                do(number)
                if number >= 0:  # the first ones warm up
                    took[name].append((time.perf_counter() - started) * 1000)
    rows = []
    for name, values in took.items():
        rows += [row(f"step with its picture, {name}", statistics.median(values), "ms")]
        if name != "ZeroMQ":
            more = statistics.median(ours - base for ours, base in zip(values, took["ZeroMQ"], strict=True))
            rows += [row(f"more than over ZeroMQ, {name}", more, "ms", _MOST_MORE_MS)]
        rows += [row(f"steps a second, one client, {name}", 1000 * len(values) / sum(values), "/s", better="higher")]
    return rows


def _faces(front: Front, stack: contextlib.ExitStack) -> dict[str, Step]:
    client = stack.enter_context(front.client())
    session = front.reset(client)

    def over_http(number: int) -> None:
        reply = client.post("/step", json={"action": {"text": _set_cell(number)}}, headers=session)
        assert reply.json()["observation"]["action_error"] == "", reply.text

    socket = stack.enter_context(_open_socket(front))

    def over_socket(number: int) -> None:
        socket.send(json.dumps({"type": "step", "data": {"text": _set_cell(number)}}))
        assert json.loads(socket.recv())["data"]["observation"]["action_error"] == ""

    return {
        "OpenEnv, HTTP": over_http,
        "OpenEnv, WebSocket": over_socket,
        "MCP, streamable HTTP": stack.enter_context(_mcp_step(front)),
    }


@contextlib.contextmanager
def _open_socket(front: Front) -> Iterator[ClientConnection]:
    """A connection with the task on screen, as soon as there is a desktop."""
    while True:
        with front.socket() as socket, contextlib.suppress(ConnectionClosed):
            socket.send(json.dumps({"type": "reset", "data": {"task": FAMILY, "seed": SEED}}))
            if json.loads(socket.recv())["type"] == "observation":
                yield socket
                return


@contextlib.contextmanager
def _mcp_step(front: Front) -> Iterator[Step]:
    """Through the protocol's own client, in a thread with an event loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    calls: asyncio.Queue[Any] = asyncio.Queue()

    async def converse() -> None:
        headers = {**front.headers, "X-Session-Name": "bench"}
        http = httpx2.AsyncClient(headers=headers, timeout=START_LIMIT_S, trust_env=False)
        transport = streamable_http_client(f"{front.address}/mcp", http_client=http)
        async with McpClient(transport) as client:
            while (asked := await calls.get()) is not None:
                name, arguments, answer = asked
                try:
                    answer.set_result(await client.call_tool(name, arguments))
                except Exception as error:  # noqa: BLE001  (goes to the thread that asked)
                    answer.set_exception(error)

    def call(name: str, **arguments: Any) -> Any:
        async def ask() -> Any:
            answer: asyncio.Future[Any] = loop.create_future()
            await calls.put((name, arguments, answer))
            return await answer

        return asyncio.run_coroutine_threadsafe(ask(), loop).result()

    def act(name: str, **arguments: Any) -> None:
        found = call(name, **arguments)
        assert not found.is_error, found.content[0]

    conversation = asyncio.run_coroutine_threadsafe(converse(), loop)
    while (started := call("start_task", task=FAMILY, seed=SEED)).is_error:  # as soon as there is a desktop
        assert "no desktop is free" in started.content[0].text, started.content[0]
    try:
        yield lambda number: act("calc_set_cell", cell="B2", value=str(number))
    finally:
        asyncio.run_coroutine_threadsafe(calls.put(None), loop).result()
        conversation.result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


# --- many sessions ---------------------------------------------------------------------------------------------------


def _side_by_side(folder: Path, numbers: Sequence[int], *, duration_s: float) -> list[dict[str, Any]]:
    rows = []
    with contextlib.ExitStack() as stack:
        front = stack.enter_context(serve_desktops(folder, max(numbers)))
        sockets = [stack.enter_context(_open_socket(front)) for _ in range(max(numbers))]
        for number in numbers:
            took: list[float] = []
            end = time.monotonic() + duration_s
            threads = [threading.Thread(target=_play_until, args=(socket, end, took)) for socket in sockets[:number]]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            how = f"{number} session{'s' if number > 1 else ''} at once"
            rows.append(row(f"steps a second, {how}", len(took) / duration_s, "/s", better="higher"))
            rows.append(row(f"a step, {how}", statistics.median(took) * 1000, "ms"))
    return rows


def _play_until(socket: ClientConnection, end: float, took: list[float]) -> None:
    for number in itertools.count():
        started = time.monotonic()
        if started > end:
            return
        socket.send(json.dumps({"type": "step", "data": {"text": _set_cell(number)}}))
        assert json.loads(socket.recv())["type"] == "observation"
        took.append(time.monotonic() - started)


def _crowd(folder: Path, num_clients: int, duration_s: float) -> list[dict[str, Any]]:
    counts: Counter[str] = Counter()
    problems: list[str] = []
    with serve_desktops(folder, num_clients, idle_limit_s=_IDLE_LIMIT_S) as front:
        for session in [front.reset(front.client()) for _ in range(num_clients)]:  # all are up
            front.client().delete("/session", headers=session)
        end = time.monotonic() + duration_s
        players = [_Player(front, index, end, counts) for index in range(num_clients)]
        threads = [threading.Thread(target=player.run, args=(problems,)) for player in players]
        for thread in threads:
            thread.start()
        time.sleep(duration_s / 4)
        early_mb = _resident_mb(front.process.pid)
        for thread in threads:
            thread.join()
        growth = _resident_mb(front.process.pid) / early_mb
        time.sleep(_IDLE_LIMIT_S + 5.0)
        # Every desktop is free again: also those whose client was gone.
        with front.client() as client:
            again = [client.post("/osworld/session").status_code for _ in range(num_clients)]
    for problem in problems:
        print(f"not expected: {problem}", file=sys.stderr)
    what = f"{num_clients} clients at once, {duration_s / 60:g} minutes"
    return [
        row(f"requests answered, {what}", counts["answered"], "", better="higher"),
        row("of which refused, as they asked for nothing that there is", counts["refused"], ""),
        row("sessions played", counts["sessions"], "", better="higher"),
        row("sessions whose client was gone", counts["gone"], ""),
        row("answers that say that the server is wrong, and broken connections", len(problems), "", 0.0),
        row("desktops that are not free afterwards", sum(status != 200 for status in again), "", 0.0),
        row("memory of the server, last to first quarter", growth, "times", 1.3),
    ]


class _Player:
    """One client, which plays a session after the other through a face drawn at random."""

    def __init__(self, front: Front, index: int, end: float, counts: Counter[str]) -> None:
        self._front, self._end, self._counts = front, end, counts
        self._rng = random.Random(index)

    def run(self, problems: list[str]) -> None:
        while time.monotonic() < self._end:
            play = self._rng.choice((self._over_http, self._over_socket, self._as_osworld))
            try:
                play()
            except Exception as error:  # noqa: BLE001  (whatever a client meets is the finding)
                problems.append(f"{play.__name__}: {error!r:.300}")
            self._counts["sessions"] += 1

    def _action(self) -> str:
        rng = self._rng
        if rng.random() < 0.1:
            return rng.choice(_NO_ACTIONS)
        return rng.choice((_set_cell(rng.randrange(1000)), "click(3)", 'type("word")', 'key("enter")', "scroll(2, 'down')"))

    def _is_gone(self) -> bool:
        """Does the client end here, without a word?"""
        gone = self._rng.random() < 0.1
        self._counts["gone"] += gone
        return gone

    def _count(self, reply: httpx2.Response) -> httpx2.Response:
        self._counts["answered"] += 1
        self._counts["refused"] += 400 <= reply.status_code < 500
        if reply.status_code >= 500:
            raise RuntimeError(f"{reply.status_code} {reply.text[:200]}")
        return reply

    def _num_steps(self) -> int:
        return self._rng.randrange(3, 15)

    def _over_http(self) -> None:
        with self._front.client() as client:
            reply = self._count(client.post("/reset", json={"task": FAMILY}))
            if reply.status_code == 429:
                return
            session = {"X-Session-Id": reply.headers["X-Session-Id"]}
            for _ in range(self._num_steps()):
                # JSON of any text, also of half a character.
                body = json.dumps({"action": {"text": self._action()}})
                self._count(client.post("/step", content=body, headers={**session, "Content-Type": "application/json"}))
            if not self._is_gone():
                self._count(client.delete("/session", headers=session))

    def _over_socket(self) -> None:
        with self._front.socket() as socket:
            socket.send(json.dumps({"type": "reset", "data": {"task": FAMILY}}))
            first = json.loads(socket.recv())
            self._counts["answered"] += 1
            if first["type"] == "error":
                return
            for _ in range(self._num_steps()):
                socket.send(json.dumps({"type": "step", "data": {"text": self._action()}}))
                self._counts["answered"] += 1
                self._counts["refused"] += json.loads(socket.recv())["type"] == "error"
            if self._is_gone():
                socket.socket.close()

    def _as_osworld(self) -> None:
        with self._front.client() as client:
            reply = self._count(client.post("/osworld/session"))
            if reply.status_code == 429:
                return
            client.auth = (reply.json()["session"], self._front.token)
            del client.headers["Authorization"]
            for _ in range(self._num_steps()):
                code = self._rng.choice(("pyautogui.click(300, 200)", "pyautogui.write('word')", "pyautogui.press('x' * 9)"))
                body = {"command": ["python", "-c", f"import pyautogui; {code}"], "shell": False}
                self._count(client.post("/execute", json=body))
                self._count(client.get(self._rng.choice(("/screenshot", "/accessibility", "/terminal", "/nothing"))))
            if not self._is_gone():
                self._count(client.delete("/osworld/session"))


def _resident_mb(pid: int) -> float:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
