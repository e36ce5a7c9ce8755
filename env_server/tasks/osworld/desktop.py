"""What a desktop must be able to do for an OSWorld task: one small protocol, and its form as calls through a driver's getter.

Paths are those of the task files. ``/home/user`` is the agent's home there: inside the container it must BE that path (a bind
mount or a link to the agent's folder), because shell commands name it too. Set-up steps and getters know nothing of how it is
done.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from computerrl.common.errors import DesktopBroken, TaskFailed

HOME = "/home/user"
"""The agent's home as task files write it."""
CALL = "osworld"
"""Name of the one getter kind that carries all of the protocol's calls."""

Command = str | Sequence[str]
"""Text: run by ``bash -c``; a list: run as it is."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a command ended."""

    returncode: int
    """124 when it was ended at its time limit."""
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class Window:
    """One window on the screen."""

    title: str
    window_class: str
    x: int
    y: int
    width: int
    height: int
    is_fullscreen: bool = False
    """Not only as large as the screen, as every window is that has been maximised: there are no title bars."""


@dataclass(frozen=True, slots=True)
class Tab:
    """One page of the browser."""

    url: str
    title: str
    html: str = ""
    """The page's content; only for the page in front."""


BACKGROUND = ("org.gnome.desktop.background", "picture-uri")
"""Schema and key of the setting that holds the address of the picture behind the windows."""


@dataclass(frozen=True, slots=True)
class InputEvent:
    """One thing done with mouse or keyboard."""

    kind: Literal["key", "key_down", "key_up", "type", "move", "click", "drag", "button_down", "button_up", "scroll"]
    """`drag`: with the left button, from where the pointer is; `button_down`, `button_up`: a mouse button, there."""
    text: str = ""
    """Of keys a chord such as ``ctrl+s`` (names of the action space); `type`: the text; `click`, `button_...`: the button;
    `scroll`: ``sideways`` or nothing."""
    x: int | None = None
    """Pixel on this desktop's screen; None: where the pointer is."""
    y: int | None = None
    count: int = 1
    """Clicks; wheel steps, negative down, or left."""


@dataclass(frozen=True, slots=True)
class Playing:
    """What one VLC plays."""

    state: str
    """``playing``, ``paused`` or ``stopped``."""
    url: str
    """Address of the medium; empty: none."""


class Obstructed(Exception):
    """What the agent has left keeps the judge from bringing its own files: the score is 0."""


class OsworldDesktop(Protocol):
    """One desktop, as set-up steps and getters see it. Every call has a deadline of its own in the guest.

    Raises only `common.errors.TaskFailed` (this cannot be done) and `common.errors.DesktopBroken`.
    """

    def put_file(self, path: str, data: bytes) -> None:
        """Write ``data`` to ``path``, a new file in place of what is there, and make the folders above it; the agent must be able
        to change it."""

    def bring_own_files(self) -> None:
        """Before files of the judge's own are brought and run: end programs that the agent has started, but no application of the
        desktop. Until the next reset, programs that `run` starts take no modules and no settings of git from the home."""

    def read_file(self, path: str) -> bytes | None:
        """The content of a regular file; None when there is none. Links are followed inside the container only."""

    def run(self, command: Command, *, timeout_s: float = 30.0, files: Mapping[str, bytes] | None = None) -> RunResult:
        """Run to the end as the agent's user, in `HOME`, with the session's environment (DISPLAY, buses), no terminal.

        At ``timeout_s`` the command and its children are ended and the code is 124. A program that is missing, or is none, gives
        code 127. Outputs are cut at a million bytes. ``python3 -c`` finds no modules in `HOME`.

        ``files`` (path -> content) are the judge's. They are written before the command and removed after it, and no application
        runs meanwhile: no program of the agent's ever sees them.
        """

    def launch(self, command: Command) -> None:
        """Start and do not wait; it lives until the desktop is reset. Its output goes to a log."""

    def serve(self, command: Command, port: int) -> bool:
        """Start a server of the task's and wait until it accepts connections at ``port`` of 127.0.0.1; it lives until the desktop
        is reset. `bring_own_files` does not end it, and it answers while a judge's command runs.

        Returns whether it runs. A server that was started for ``port`` since the last reset is not started again: False means
        that it has ended since.
        """

    def end_programs(self) -> None:
        """End what the agent has started, whoever its parent is; applications that stay running between tasks go on."""

    def open(self, path: str) -> bool:
        """Open a file with its application (by its kind, as a double click would) and wait for the window; False: none came."""

    def activate_window(self, title: str, *, strict: bool, by_class: bool) -> bool:
        """Bring the first match to the front and give it the keyboard; False: there is none.

        Not ``strict``: ``title`` is a part of the window's title, capitals do not matter; ``by_class``: of its class.
        """

    def close_window(self, title: str, *, strict: bool, by_class: bool) -> bool:
        """Ask every match to close, as a click on its cross would; False: there is none."""

    def playing(self) -> Sequence[Playing]:
        """What each VLC plays, whoever has started it."""

    def windows(self) -> Sequence[Window]:
        """The open windows, the one with the keyboard first."""

    def input(self, events: Sequence[InputEvent]) -> None:
        """Do them in order, with whatever pause applications need between key strokes."""

    def tree(self) -> str:
        """The accessibility tree as XML; tags are roles with ``-`` (``push-button``, ``terminal``, ``entry``), attribute
        ``name``, the text of a node as its text, states as attributes ``st:NAME="true"`` (see `TREE_NAMESPACES`)."""

    def screen_size(self) -> tuple[int, int]:
        """Width and height in pixels."""

    def pointer(self) -> tuple[int, int]:
        """Pixel (x, y) of the pointer."""

    def tabs(self) -> Sequence[Tab]:
        """The browser's pages, the one in front first; empty when no browser runs."""

    def open_tabs(self, urls: Sequence[str]) -> None:
        """Open pages in the browser in this order and wait until they have loaded; the last one is in front."""

    def close_tabs(self, urls: Sequence[str]) -> None:
        """Close every page with one of these addresses."""


def bring(desktop: OsworldDesktop, path: str, data: bytes) -> None:
    """Write a file of the judge's after the episode.

    Raises `Obstructed` where that fails: the agent's file of that name must not be taken for it.
    """
    try:
        desktop.put_file(path, data)
    except TaskFailed as error:
        raise Obstructed(f"{path} cannot be written: {error}") from error


TREE_NAMESPACES = {
    "st": "urn:accessibility:state",
    "attr": "urn:accessibility:attributes",
    "cp": "urn:accessibility:component",
    "docattr": "urn:accessibility:document-attributes",
    "txt": "urn:accessibility:text",
    "val": "urn:accessibility:value",
    "act": "urn:accessibility:action",
}
"""Prefixes that task files use in paths over the tree. The guest declares them with these names."""


class CalledDesktop:
    """`OsworldDesktop` over ``call(name, **args)``; arguments and answers are JSON values, bytes travel as base64 text.

    Call names are the method names. Answers: ``read_file`` base64 text or None; ``run`` ``{returncode, stdout, stderr}``;
    ``windows`` rows of `Window`'s fields, ``tabs`` of `Tab`'s, ``playing`` of `Playing`'s; ``screen_size`` and
    ``pointer`` two numbers; the others as the protocol says.
    """

    def __init__(self, get: Callable[..., Any]) -> None:
        self._call: Callable[..., Any] = lambda name, **args: get(CALL, call=name, **args)

    def put_file(self, path: str, data: bytes) -> None:
        """See `OsworldDesktop`."""
        self._call("put_file", path=path, data=base64.b64encode(data).decode("ascii"))

    def bring_own_files(self) -> None:
        """See `OsworldDesktop`."""
        self._call("bring_own_files")

    def read_file(self, path: str) -> bytes | None:
        """See `OsworldDesktop`."""
        answer = self._call("read_file", path=path)
        if answer is None:
            return None
        try:
            return base64.b64decode(answer, validate=True)
        except (TypeError, ValueError) as error:
            raise DesktopBroken(f"read_file of {path} gave no base64 text") from error

    def run(self, command: Command, *, timeout_s: float = 30.0, files: Mapping[str, bytes] | None = None) -> RunResult:
        """See `OsworldDesktop`."""
        args: dict[str, Any] = {"command": command if isinstance(command, str) else list(command), "timeout_s": timeout_s}
        if files:
            args["files"] = {path: base64.b64encode(data).decode("ascii") for path, data in files.items()}
        return _row(RunResult, self._call("run", **args))

    def launch(self, command: Command) -> None:
        """See `OsworldDesktop`."""
        self._call("launch", command=command if isinstance(command, str) else list(command))

    def serve(self, command: Command, port: int) -> bool:
        """See `OsworldDesktop`."""
        return bool(self._call("serve", command=command if isinstance(command, str) else list(command), port=port))

    def end_programs(self) -> None:
        """See `OsworldDesktop`."""
        self._call("end_programs")

    def open(self, path: str) -> bool:
        """See `OsworldDesktop`."""
        return bool(self._call("open", path=path))

    def activate_window(self, title: str, *, strict: bool, by_class: bool) -> bool:
        """See `OsworldDesktop`."""
        return bool(self._call("activate_window", title=title, strict=strict, by_class=by_class))

    def close_window(self, title: str, *, strict: bool, by_class: bool) -> bool:
        """See `OsworldDesktop`."""
        return bool(self._call("close_window", title=title, strict=strict, by_class=by_class))

    def playing(self) -> Sequence[Playing]:
        """See `OsworldDesktop`."""
        return [_row(Playing, row) for row in self._call("playing")]

    def windows(self) -> Sequence[Window]:
        """See `OsworldDesktop`."""
        return [_row(Window, row) for row in self._call("windows")]

    def input(self, events: Sequence[InputEvent]) -> None:
        """See `OsworldDesktop`."""
        self._call("input", events=[asdict(event) for event in events])

    def tree(self) -> str:
        """See `OsworldDesktop`."""
        return str(self._call("tree"))

    def screen_size(self) -> tuple[int, int]:
        """See `OsworldDesktop`."""
        width, height = self._call("screen_size")
        return int(width), int(height)

    def pointer(self) -> tuple[int, int]:
        """See `OsworldDesktop`."""
        x, y = self._call("pointer")
        return int(x), int(y)

    def tabs(self) -> Sequence[Tab]:
        """See `OsworldDesktop`."""
        return [_row(Tab, row) for row in self._call("tabs")]

    def open_tabs(self, urls: Sequence[str]) -> None:
        """See `OsworldDesktop`."""
        self._call("open_tabs", urls=list(urls))

    def close_tabs(self, urls: Sequence[str]) -> None:
        """See `OsworldDesktop`."""
        self._call("close_tabs", urls=list(urls))


def _row(kind: type[Any], answer: Any) -> Any:
    if not isinstance(answer, Mapping):
        raise DesktopBroken(f"the guest sent {answer!r:.80} for a {kind.__name__}")
    try:
        return kind(**answer)
    except TypeError as error:
        raise DesktopBroken(f"the guest sent no {kind.__name__}: {error}") from error
