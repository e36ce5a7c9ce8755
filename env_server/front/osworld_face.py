"""The face for agents and evaluators of OSWorld: what `desktop_env`'s controllers ask of the server inside a virtual machine.

A session is named by the user of Basic authentication (http://SESSION:TOKEN@127.0.0.1:8000), because controllers can only put
it into their address. `POST /osworld/session` opens one with an empty desktop, `POST /osworld/reset` empties it, and
`DELETE /osworld/session` ends it. Agents' `pyautogui` code is read, never run, and becomes mouse and keyboard events. Other
commands run in the desktop's container where the server allows it, as the agent's user.

Source: the package desktop_env 1.0.2 (`controllers/python.py`, `controllers/setup.py`, `server/main.py`).
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypeVar
from xml.etree import ElementTree

from fastapi import APIRouter, Depends, File, Form, Header, Response, UploadFile
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field

from computerrl.common.errors import ComputerRLError, TaskFailed
from computerrl.env_server.driver import DesktopDriver
from computerrl.env_server.drivers.screenshots import encode
from computerrl.env_server.front.access import basic_user
from computerrl.env_server.front.film import Film, encoder
from computerrl.env_server.front.sessions import BadRequest, Sessions
from computerrl.env_server.front.threads import Threads
from computerrl.env_server.tasks.osworld.commands import (
    Script,
    Untranslatable,
    carry_out,
    input_script,
    normalise,
    seconds_of,
    sets_up_automation,
)
from computerrl.env_server.tasks.osworld.desktop import HOME, TREE_NAMESPACES, CalledDesktop, Command, RunResult

T = TypeVar("T")
Json = dict[str, Any]

_SPACE = "https://accessibility.ubuntu.example.org/ns/{}"
"""OSWorld's names of the tree's namespaces."""
_SPACES = {
    TREE_NAMESPACES[prefix]: _SPACE.format(name)
    for prefix, name in {
        "st": "state", "attr": "attributes", "cp": "component", "docattr": "document/attributes", "txt": "text", "val": "value",
        "act": "action",
    }.items()
}  # fmt: skip
_COMMAND_LIMIT_S = 120.0
"""Time for a command, as in OSWorld's server."""
_SCRIPT_LIMIT_S = 90.0
_INPUT_LIMIT_S = 10.0
"""Time for one event of mouse or keyboard, on a busy machine."""
_MOST_PAUSES_S = 100.0
_LISTING = """
import json, os, sys
def tree(folder):
    found = {"type": "directory", "name": os.path.basename(folder), "children": []}
    try:
        for name in os.listdir(folder):
            place = os.path.join(folder, name)
            is_folder = os.path.isdir(place) and not os.path.islink(place)
            found["children"].append(tree(place) if is_folder else {"type": "file", "name": name})
    except OSError as error:
        return {"error": str(error)}
    return found
print(json.dumps(tree(sys.argv[1]) if os.path.isdir(sys.argv[1]) else None))
"""


_TEXT: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}, "description": "done"}}
_PICTURE: dict[int | str, dict[str, Any]] = {200: {"content": {"image/png": {}}, "description": "the screen"}}
_FILM: dict[int | str, dict[str, Any]] = {200: {"content": {"video/mp4": {}}, "description": "the film"}}
_BYTES: dict[int | str, dict[str, Any]] = {200: {"content": {"application/octet-stream": {}}, "description": "the content"}}


class NotAllowed(ComputerRLError):
    """The server does not do this for anyone; the text says with which option it would."""

    code = "not_allowed"


class _Body(BaseModel):
    # Controllers of other versions send more.
    model_config = ConfigDict(extra="ignore")


class CommandBody(_Body):
    """A command, with a shell or without."""

    command: str | list[str] = Field("", max_length=100_000)
    shell: bool = False


class CodeBody(_Body):
    """Python code."""

    code: str = Field(max_length=500_000)


class BashBody(_Body):
    """A script for bash."""

    script: str = Field(max_length=500_000)
    timeout: float = Field(30.0, gt=0, le=600)
    working_dir: str | None = Field(None, max_length=4096)


class PathBody(_Body):
    """A file or folder of the desktop."""

    path: str = Field(max_length=4096)


class WindowBody(_Body):
    """Windows by title, or by class."""

    window_name: str = Field(max_length=1000)
    strict: bool = False
    by_class: bool = False


class OsworldFace:
    """The requests of controllers on ``sessions``. ``allow_execute``: commands may run in the container."""

    def __init__(self, sessions: Sessions, threads: Threads, *, allow_execute: bool) -> None:
        self.sessions = sessions
        self._threads = threads
        self._allow_execute = allow_execute
        self._films: dict[str, Film] = {}

    async def on_driver(self, session: str, work: Callable[[DesktopDriver], T], *, extra_s: float = 0.0) -> T:
        """See `Sessions.use`."""
        return await self._threads.run(lambda: self.sessions.use(session, work, extra_s=extra_s))

    async def on_desktop(self, session: str, work: Callable[[CalledDesktop], T], *, extra_s: float = 0.0) -> T:
        """`on_driver` with the calls of set-up steps and getters; keys that are held down stay down."""

        def on_calls(driver: DesktopDriver) -> T:
            return work(CalledDesktop(partial(driver.get, by_agent=True)))

        return await self.on_driver(session, on_calls, extra_s=extra_s)

    async def begin(self) -> str:
        """A new session with an empty desktop."""
        name = await self._threads.run(self.sessions.open)
        try:
            await self.reset(name)
        except ComputerRLError:
            await self._threads.run(self.sessions.close, name)
            raise
        return name

    async def reset(self, session: str) -> None:
        """Remove all that was done on the desktop."""
        await self._threads.run(self.sessions.clear, session)

    async def end(self, session: str) -> None:
        """The desktop is free."""
        self._films.pop(session, None)
        await self._threads.run(self.sessions.close, session)

    async def screenshot(self, session: str) -> bytes:
        """The screen as PNG, which is kept where the session is recorded."""
        picture = await self.on_driver(session, _picture)
        if (film := self._films.get(session)) is not None:
            film.add(picture)
        return picture

    async def begin_film(self, session: str) -> None:
        """Keep the screenshots that the client takes from now on. Raises `NotAllowed`, `BadRequest`."""
        if session in self._films:
            raise BadRequest("this session is recorded already: POST /end_recording")
        try:
            encoder()
        except ImportError:
            raise NotAllowed("films need the package av: run `make setup WITH=osworld`") from None
        film = Film()
        film.add(await self.screenshot(session))
        self._films = {name: other for name, other in self._films.items() if name in self.sessions} | {session: film}

    async def end_film(self, session: str) -> bytes:
        """The film. Raises `BadRequest`."""
        if session not in self._films:
            raise BadRequest("this session is not recorded: POST /start_recording first")
        await self.screenshot(session)
        return await self._threads.run(self._films.pop(session).mp4)

    async def execute(self, session: str, body: CommandBody) -> Json:
        """Carry out a command: mouse and keyboard, or a program of the container. Raises `NotAllowed`."""
        try:
            command = normalise(body.command, shell=body.shell)
            script = input_script(command, None)
        except Untranslatable as error:
            plain = _without_automation(body.command)
            if plain is None:
                return _failed(f"only a list of calls of pyautogui is carried out here: {error}")
            command, script = plain, None
        if script is not None:
            return await self._input(session, script)
        return _result(await self.run(session, command, limit_s=_COMMAND_LIMIT_S))

    async def _input(self, session: str, script: Script) -> Json:
        pauses_s = seconds_of(script)
        if pauses_s > _MOST_PAUSES_S:
            return _failed(f"pauses of {pauses_s:g} s, more than {_MOST_PAUSES_S:g}")
        try:
            await self.on_desktop(
                session, lambda desktop: carry_out(script, desktop), extra_s=_INPUT_LIMIT_S * len(script) + pauses_s
            )
        except TaskFailed as error:
            return _failed(str(error))
        return {"status": "success", "output": "", "error": "", "returncode": 0}

    async def run(self, session: str, command: Command, *, limit_s: float) -> RunResult:
        """Run a command of the client's in the container. Raises `NotAllowed`."""
        self.require_execution()
        return await self.on_desktop(session, lambda desktop: desktop.run(command, timeout_s=limit_s), extra_s=limit_s)

    def require_execution(self) -> None:
        """Raise `NotAllowed` where no commands may run."""
        if not self._allow_execute:
            raise NotAllowed("this server runs no commands on its desktops; start it with --allow-execute")


def make_router(face: OsworldFace) -> APIRouter:
    """The routes of this face."""
    router = APIRouter(tags=["OSWorld"])
    _add_life(router, face)
    _add_looks(router, face)
    _add_files(router, face)
    _add_commands(router, face)
    _add_windows(router, face)
    _add_absent(router)
    return router


def _session(authorization: Annotated[str, Header(include_in_schema=False)] = "") -> str:
    name = basic_user(authorization)
    if not name:
        raise BadRequest("name the session in the address: http://SESSION:TOKEN@HOST:PORT; POST /osworld/session opens one")
    return name


Session = Annotated[str, Depends(_session)]
Path = Annotated[str, Form(max_length=4096)]


def _add_life(router: APIRouter, face: OsworldFace) -> None:
    @router.post("/osworld/session")
    async def begin() -> Json:
        """Open a session with an empty desktop."""
        return {"session": await face.begin()}

    @router.post("/osworld/reset")
    async def reset(session: Session) -> Json:
        """Remove all that was done on the desktop."""
        await face.reset(session)
        return {"session": session}

    @router.delete("/osworld/session", status_code=204)
    async def end(session: Session) -> None:
        """End the session; its desktop is free."""
        await face.end(session)


def _add_looks(router: APIRouter, face: OsworldFace) -> None:
    @router.get("/screenshot", responses=_PICTURE)
    async def screenshot(session: Session) -> Response:
        """The screen as PNG, without the pointer."""
        return Response(await face.screenshot(session), media_type="image/png")

    @router.post("/start_recording")
    async def start_recording(session: Session) -> Json:
        """Begin a film of the screenshots that are taken."""
        await face.begin_film(session)
        return {"status": "success", "message": "Started recording successfully"}

    @router.post("/end_recording", responses=_FILM)
    async def end_recording(session: Session) -> Response:
        """The film as MP4."""
        return Response(await face.end_film(session), media_type="video/mp4")

    @router.get("/accessibility")
    async def accessibility(session: Session) -> Json:
        """The accessibility tree as XML."""
        return {"AT": await face.on_desktop(session, lambda desktop: _published(desktop.tree()))}

    @router.get("/terminal")
    async def terminal(session: Session) -> Json:
        """The text of the terminal that has the keyboard."""
        output = await face.on_desktop(session, lambda desktop: _terminal_text(desktop.tree()))
        return {"output": output, "status": "success"}

    @router.post("/screen_size")
    async def screen_size(session: Session) -> Json:
        """Pixels of the screen."""
        width, height = await face.on_desktop(session, lambda desktop: desktop.screen_size())
        return {"width": width, "height": height}

    @router.get("/cursor_position")
    async def cursor_position(session: Session) -> list[int]:
        """Place of the pointer."""
        return list(await face.on_desktop(session, lambda desktop: desktop.pointer()))

    @router.get("/platform", responses=_TEXT)
    async def platform(session: Session) -> PlainTextResponse:
        """The desktop's system."""
        return PlainTextResponse("Linux")

    @router.post("/desktop_path")
    async def desktop_path(session: Session) -> Json:
        """The folder of the desktop."""
        return {"desktop_path": f"{HOME}/Desktop"}


def _add_files(router: APIRouter, face: OsworldFace) -> None:
    @router.post("/list_directory")
    async def list_directory(session: Session, body: PathBody) -> Json:
        """A folder and everything below."""
        command = ["python3", "-I", "-c", _LISTING, body.path]
        found = await face.on_desktop(session, lambda desktop: desktop.run(command))
        try:
            tree = json.loads(found.stdout)
        except (ValueError, RecursionError) as error:
            raise TaskFailed(f"{body.path:.200} cannot be listed: it holds too much") from error
        if tree is None:
            raise BadRequest(f"{body.path:.200} is no folder")
        return {"directory_tree": tree}

    @router.post("/file", responses=_BYTES)
    async def file(session: Session, file_path: Path) -> Response:
        """Content of a file."""
        data = await face.on_desktop(session, lambda desktop: desktop.read_file(_place(file_path)))
        if data is None:
            return JSONResponse({"error": "File not found", "message": f"there is no file {file_path:.200}"}, 404)
        return Response(data, media_type="application/octet-stream")

    @router.post("/setup/upload", responses=_TEXT)
    async def upload(session: Session, file_path: Path, file_data: Annotated[UploadFile, File()]) -> PlainTextResponse:
        """Write a file."""
        data = await file_data.read()
        await face.on_desktop(session, lambda desktop: desktop.put_file(_place(file_path), data))
        return PlainTextResponse(f"File Uploaded: {len(data)} bytes")

    @router.post("/setup/open_file", responses=_TEXT)
    async def open_file(session: Session, body: PathBody) -> PlainTextResponse:
        """Open a file with its application."""
        if not await face.on_desktop(session, lambda desktop: desktop.open(_place(body.path))):
            raise TaskFailed(f"{body.path:.200} did not open: it is not there, or no window came")
        return PlainTextResponse("File opened successfully")


def _add_commands(router: APIRouter, face: OsworldFace) -> None:
    @router.post("/execute")
    @router.post("/setup/execute")
    async def execute(session: Session, body: CommandBody) -> Json:
        """Mouse and keyboard by pyautogui, or a command."""
        return await face.execute(session, body)

    @router.post("/setup/launch", responses=_TEXT)
    async def launch(session: Session, body: CommandBody) -> PlainTextResponse:
        """Start a program that goes on."""
        face.require_execution()
        command = normalise(body.command, shell=body.shell)
        await face.on_desktop(session, lambda desktop: desktop.launch(command))
        return PlainTextResponse("launched successfully")

    @router.post("/run_python")
    async def run_python(session: Session, body: CodeBody) -> Json:
        """Run Python code."""
        result = await face.run(session, ["python3", "-c", body.code], limit_s=_SCRIPT_LIMIT_S)
        said = "\n".join(text for text in (result.stdout, result.stderr) if text)
        status = "error" if result.returncode else "success"
        answer = {"status": status, "message": said, "need_more": False, "output": result.stdout, "error": result.stderr}
        return answer | {"return_code": result.returncode}

    @router.post("/run_bash_script")
    async def run_bash_script(session: Session, body: BashBody) -> Json:
        """Run a script; both its outputs come as one."""
        # The folder is an argument: its name is no code.
        begin = 'cd -- "$1" || exit 1; exec 2>&1 bash -c "$2"'
        command = ["bash", "-c", begin, "bash", body.working_dir or HOME, body.script]
        result = await face.run(session, command, limit_s=body.timeout)
        status = "error" if result.returncode else "success"
        return {"status": status, "output": result.stdout + result.stderr, "error": "", "returncode": result.returncode}


def _add_windows(router: APIRouter, face: OsworldFace) -> None:
    @router.post("/window_size")
    async def window_size(session: Session, app_class_name: Annotated[str, Form(max_length=1000)]) -> Json | None:
        """Pixels of the first window of this class."""
        windows = await face.on_desktop(session, lambda desktop: desktop.windows())
        wanted = app_class_name.lower()
        found = next((one for one in windows if wanted in one.window_class.lower()), None)
        return None if found is None else {"width": found.width, "height": found.height}

    @router.post("/setup/activate_window", responses=_TEXT)
    async def activate_window(session: Session, body: WindowBody) -> PlainTextResponse:
        """Bring a window to the front."""
        name, how = body.window_name, {"strict": body.strict, "by_class": body.by_class}
        if not await face.on_desktop(session, lambda desktop: desktop.activate_window(name, **how)):
            raise BadRequest(f"there is no window {name!r:.200}")
        return PlainTextResponse("Window activated successfully")

    @router.post("/setup/close_window", responses=_TEXT)
    async def close_window(session: Session, body: WindowBody) -> PlainTextResponse:
        """Close windows."""
        name, how = body.window_name, {"strict": body.strict, "by_class": body.by_class}
        if not await face.on_desktop(session, lambda desktop: desktop.close_window(name, **how)):
            raise BadRequest(f"there is no window {name!r:.200}")
        return PlainTextResponse("Window closed successfully")


def _add_absent(router: APIRouter) -> None:
    def refuse(path: str, reason: str) -> None:
        @router.post(path, name=f"absent {path}")
        async def absent(session: Session) -> Json:
            """Not served."""
            raise NotAllowed(f"{path}: {reason}")

    for path in ("/wallpaper", "/setup/change_wallpaper"):
        refuse(path, "these desktops have no wallpaper")
    refuse("/setup/download_file", "these desktops have no network; POST /setup/upload")
    for path in ("/execute_with_verification", "/setup/execute_with_verification"):
        refuse(path, "POST /setup/execute, and check with another request")


def _picture(driver: DesktopDriver) -> bytes:
    frame = getattr(driver, "frame", None)
    if frame is None:
        raise TaskFailed("this desktop has no screen")
    return encode(frame(), "png")


def _place(path: str) -> str:
    """``path`` with the home written out."""
    for home in ("~", "$HOME"):
        if path == home or path.startswith(f"{home}/"):
            return HOME + path[len(home) :]
    return path


def _without_automation(command: Command) -> Command | None:
    """The Python code that controllers wrap, without their first words about pyautogui; None: the rest needs it, too."""
    if isinstance(command, str) or len(command) != 3 or command[1] != "-c":
        return None
    try:
        module = ast.parse(command[2])
        module.body = [statement for statement in module.body if not sets_up_automation(statement)]
        code = ast.unparse(module)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return None if "pyautogui" in code else ["python3", "-c", code]


def _published(tree: str) -> str:
    """The tree with the namespaces that OSWorld's agents look for."""
    for ours, theirs in _SPACES.items():
        tree = tree.replace(f'"{ours}"', f'"{theirs}"')
    return tree


def _terminal_text(tree: str) -> str | None:
    focused = f"{{{TREE_NAMESPACES['st']}}}focused"
    found = [node for node in ElementTree.fromstring(tree).iter("terminal") if node.get(focused) == "true"]
    return (found[0].text or "").rstrip() if found else None


def _result(result: RunResult) -> Json:
    return {"status": "success", "output": result.stdout, "error": result.stderr, "returncode": result.returncode}


def _failed(reason: str) -> Json:
    """As a program that ended with an error."""
    return {"status": "success", "output": "", "error": reason, "returncode": 1}
