"""MCP's protocol, spoken by its own SDK's client: in this process, and over HTTP to a server of its own thread."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import mcp_types as types
import pytest
import uvicorn
from jsonschema import Draft202012Validator
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from computerrl.common.actions import ACTIONS
from computerrl.env_server.front import mcp_face
from computerrl.env_server.front.access import Access
from computerrl.env_server.front.app import make_app, mcp_manager
from computerrl.env_server.front.sessions import Sessions
from computerrl.env_server.front.threads import Threads

TOKEN = "a-token-of-a-test-that-is-long"
TASK = {"task": "calc-set-cell", "seed": 5}
MODES = ("2026-07-28", "legacy")
"""The protocol without sessions, and with them."""


def text_of(result: types.CallToolResult) -> str:
    block = result.content[0]
    assert isinstance(block, types.TextContent)
    return block.text


@pytest.mark.parametrize("mode", MODES)
def test_task_is_solved_by_tools(sessions: Sessions, mode: str) -> None:
    async def play() -> None:
        server = mcp_face.make_server(sessions, Threads(2), picture_format="webp")
        async with Client(server, mode=mode) as client:
            early = await client.call_tool("click", {"target": 3})
            assert early.is_error and "call start_task" in text_of(early)
            first = await client.call_tool("start_task", TASK)
            assert text_of(first).startswith("Task: Set cell C7 to ocean.\nApp: calc, Untitled - Calc\ncell ")
            image = first.content[1]
            assert isinstance(image, types.ImageContent) and image.mime_type == "image/webp" and image.data
            wrong = await client.call_tool("calc_set_cell", {"cell": 7})
            assert wrong.is_error and "'cell' must be str" in text_of(wrong)
            await client.call_tool("calc_set_cell", {"cell": "C7", "value": "ocean"})
            seen = await client.call_tool("look", {})
            assert "cell ocean" in text_of(seen)
            last = await client.call_tool("done", {})
            assert "Verdict: reward 1, " in text_of(last) and not last.is_error
            after = await client.call_tool("wait", {})
            assert after.is_error and "reset first" in text_of(after)
            assert (await client.call_tool("nothing", {})).is_error
            assert (await client.call_tool("start_task", {"seed": "5"})).is_error

    asyncio.run(play())


def test_there_is_a_tool_for_each_action_and_its_schema_is_whole(sessions: Sessions) -> None:
    async def tools() -> list[types.Tool]:
        async with Client(mcp_face.make_server(sessions, Threads(2), picture_format="webp")) as client:
            return list((await client.list_tools()).tools)

    every = asyncio.run(tools())
    assert {tool.name for tool in every} == {name.replace(".", "_") for name in ACTIONS} | {"start_task", "look"}
    for tool in every:
        # What assistants take for names of tools.
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", tool.name) and tool.description
        Draft202012Validator.check_schema(tool.input_schema)
    sessions.actions = "gui"
    assert {tool.name for tool in asyncio.run(tools())} == {name for name in ACTIONS if "." not in name} | {
        "start_task",
        "look",
    }


def test_client_whose_session_was_unused_gets_another_desktop_with_its_next_task(sessions: Sessions) -> None:
    async def play() -> None:
        async with Client(mcp_face.make_server(sessions, Threads(2), picture_format="webp")) as client:
            await client.call_tool("start_task", TASK)
            sessions.close_all()
            gone = await client.call_tool("look", {})
            assert gone.is_error and "no such session" in text_of(gone)
            assert "Set cell C7" in text_of(await client.call_tool("start_task", TASK))

    asyncio.run(play())


# --- over HTTP -------------------------------------------------------------------------------------------------------


@pytest.fixture
def address(sessions: Sessions) -> Iterator[str]:
    """Of a server with everything in front of the face."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    stop: list[Callable[[], object]] = []
    up = threading.Event()

    async def serve() -> None:
        threads = Threads(2)
        app = make_app(sessions, threads, picture_format="webp", port=port)
        manager = mcp_manager(app, mcp_face.make_server(sessions, threads, picture_format="webp"))
        server = uvicorn.Server(uvicorn.Config(Access(app, token=TOKEN, host="127.0.0.1"), log_config=None, lifespan="off"))
        stop.append(lambda: setattr(server, "should_exit", True))
        async with manager.run():
            up.set()
            await server.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert up.wait(60)
    yield f"http://127.0.0.1:{port}/mcp"
    stop[0]()
    thread.join(60)
    listener.close()
    assert not thread.is_alive()


async def play_over_http(address: str, headers: dict[str, str], *, mode: str) -> list[str]:
    """Texts of the results of one task."""
    http = httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False)
    async with http, Client(streamable_http_client(address, http_client=http), mode=mode) as client:
        calls: list[tuple[str, dict[str, Any]]] = [
            ("start_task", TASK),
            ("calc_set_cell", {"cell": "C7", "value": "ocean"}),
            ("done", {}),
        ]
        return [text_of(await client.call_tool(name, arguments)) for name, arguments in calls]


@pytest.mark.parametrize("mode", MODES)
def test_two_clients_have_a_desktop_each(address: str, mode: str) -> None:
    async def both() -> list[list[str]]:
        players = [
            play_over_http(address, {"Authorization": f"Bearer {TOKEN}", "X-Session-Name": name}, mode=mode)
            for name in ("one", "two")
        ]
        return await asyncio.gather(*players)

    for texts in asyncio.run(both()):
        assert "Set cell C7 to ocean." in texts[0] and "Verdict: reward 1" in texts[2]


def test_client_without_a_name_has_its_connection_s_desktop_or_is_told_to_send_one(address: str) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert "Verdict: reward 1" in asyncio.run(play_over_http(address, headers, mode="legacy"))[2]
    assert all("X-Session-Name" in text for text in asyncio.run(play_over_http(address, headers, mode="2026-07-28")))


def test_client_without_the_token_gets_nothing(address: str) -> None:
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    reply = httpx2.post(address, content=json.dumps(request), trust_env=False)
    assert reply.status_code == 401 and "Bearer" in reply.json()["message"]
