"""The face for MCP (Model Context Protocol): a tool for each action, so that any assistant that takes tools can use a desktop.

`start_task` puts a task on a desktop, `look` shows it again, and every other tool is an action (`click`, `calc_set_cell`: dots of
application calls become underscores). Results are the screen: rows of text and an image.

Whose desktop it is: over stdio there is one. Over HTTP the client names its session in the header `X-Session-Name` (any text of
its own), or the protocol does (`Mcp-Session-Id`, in versions before 2026-07-28).
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Mapping
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server

from computerrl.common.actions import ACTIONS, calls_application
from computerrl.common.actions.json_schema import arguments_schema
from computerrl.common.actions.screen_text import app_line
from computerrl.common.errors import ComputerRLError
from computerrl.env_server.front.schemas import Json, element_rows_of
from computerrl.env_server.front.sessions import BadRequest, SessionEnded, Sessions, View
from computerrl.env_server.front.threads import Threads

_MAX_NAME_CHARS = 200
_INSTRUCTIONS = (
    "Tools act on a real Linux desktop without network. Call start_task first: it says what is to be done. "
    "The last lines of a result are the elements on the screen; a number in a row names the element, as a text alone does "
    "where no number follows. Call done when the task is finished, or fail when it cannot be done."
)


class Desktops:
    """Sessions by the name that an MCP client has for its own. Thread-safe."""

    def __init__(self, sessions: Sessions, *, max_names: int) -> None:
        """``max_names``: clients that are remembered; of those that have no desktop any more, the oldest are forgotten."""
        self._sessions = sessions
        self._max_names = max_names
        self._lock = threading.Lock()
        self._names: dict[str, str] = {}

    def start_task(self, client: str, arguments: Mapping[str, Any]) -> View:
        """Raises as `Sessions.reset`."""
        task, seed = arguments.get("task"), arguments.get("seed")
        if set(arguments) - {"task", "seed"} or not isinstance(task, str | None) or type(seed) not in (int, type(None)):
            raise BadRequest("start_task takes task (text) and seed (a whole number), or nothing")
        try:
            return self._sessions.reset(self._opened(client), task, seed)
        except SessionEnded:
            self._forget(client)
            return self._sessions.reset(self._opened(client), task, seed)

    def step(self, client: str, action: str, arguments: Mapping[str, Any]) -> View:
        """Raises as `Sessions.step`."""
        return self._sessions.step(self._known(client), (action, arguments))

    def look(self, client: str) -> View:
        """Raises as `Sessions.look`."""
        view = self._sessions.look(self._known(client))
        if view is None:
            raise BadRequest("no task is on the screen: call start_task")
        return view

    def _opened(self, client: str) -> str:
        with self._lock:
            name = self._names.get(client)
        if name is None:
            name = self._sessions.open()
            with self._lock:
                self._names[client] = name
                while len(self._names) > self._max_names:
                    # Its session has been closed for being unused, or will be.
                    del self._names[next(iter(self._names))]
        return name

    def _known(self, client: str) -> str:
        with self._lock:
            if client not in self._names:
                raise BadRequest("no desktop yet: call start_task")
            return self._names[client]

    def _forget(self, client: str) -> None:
        with self._lock:
            self._names.pop(client, None)


def make_server(sessions: Sessions, threads: Threads, *, picture_format: str, max_names: int = 64) -> Server:
    """The MCP server, with a tool for each action that `tasks.actions` allows."""
    desktops = Desktops(sessions, max_names=max_names)
    names = {
        spec.name.replace(".", "_"): spec.name
        for spec in ACTIONS.values()
        if sessions.actions == "api_gui" or not calls_application(spec.name)
    }
    tools = _tools(names, sessions)

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=tools)

    async def call_tool(context: ServerRequestContext[Any], params: types.CallToolRequestParams) -> types.CallToolResult:
        client, arguments = _client_of(context), params.arguments or {}
        if not client:
            return _failed("whose desktop? Send a name of your own in the header X-Session-Name, the same with every request")
        call: Callable[[], View]
        if params.name == "start_task":
            call = lambda: desktops.start_task(client, arguments)  # noqa: E731
        elif params.name == "look":
            call = lambda: desktops.look(client)  # noqa: E731
        elif params.name in names:
            call = lambda: desktops.step(client, names[params.name], arguments)  # noqa: E731
        else:
            return _failed(f"no tool {params.name!r:.80}")
        try:
            view = await threads.run(call)
        except ComputerRLError as error:
            return _failed(str(error))
        return _result(view, picture_format=picture_format)

    return Server(
        "computerrl", title="ComputerRL desktop", instructions=_INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool
    )


def _tools(names: Mapping[str, str], sessions: Sessions) -> list[types.Tool]:
    task = {"type": "string", "enum": list(sessions.families), "description": "without it, one of these at random"}
    seed = {"type": "integer", "minimum": 0, "description": "instance of the task; without it, a random one"}
    start: Json = {"type": "object", "properties": {"task": task, "seed": seed}, "additionalProperties": False}
    nothing: Json = {"type": "object", "properties": {}, "additionalProperties": False}
    return [
        types.Tool(
            name="start_task", description="put a task on the screen of a clean desktop; call it first", input_schema=start
        ),
        types.Tool(name="look", description="show the screen again, without doing anything", input_schema=nothing),
        *(
            types.Tool(name=name, description=ACTIONS[action].help, input_schema=arguments_schema(ACTIONS[action]))
            for name, action in names.items()
        ),
    ]


def _client_of(context: ServerRequestContext[Any]) -> str:
    """Name that a client has for its session; empty when it sends none over HTTP."""
    if context.request is None:
        return "stdio"
    headers = context.request.headers
    return str(headers.get("x-session-name") or headers.get("mcp-session-id") or "")[:_MAX_NAME_CHARS]


def _result(view: View, *, picture_format: str) -> types.CallToolResult:
    lines = [f"Task: {view.instruction}"] if view.num_steps == 0 else []
    if view.action_error:
        lines.append(f"Error: {view.action_error}")
    if view.observation.result:
        lines.append(f"Result: {view.observation.result}")
    if view.verdict is not None:
        end = "the task has ended, as it took too many actions" if view.truncated else "the task has ended"
        lines.append(f"Verdict: reward {view.verdict.reward:g}, {view.verdict.detail}; {end}. Call start_task for another one.")
    lines += [app_line(view.observation), *element_rows_of(view)]
    content: list[types.ContentBlock] = [types.TextContent(type="text", text="\n".join(lines))]
    if view.screenshot:
        image = base64.b64encode(view.screenshot).decode()
        content.append(types.ImageContent(type="image", data=image, mime_type=f"image/{picture_format}"))
    return types.CallToolResult(content=content, is_error=bool(view.action_error))


def _failed(reason: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=reason)], is_error=True)
