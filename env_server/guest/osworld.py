"""What OSWorld's set-up steps and getters ask of a desktop: files, commands, windows, input, the tree as XML.

The guest's side of `env_server.tasks.osworld.desktop.CalledDesktop`: one method per call, JSON values in and out. Everything
happens inside the container, as the agent's user; `HOME` of task files is the agent's folder.
"""

from __future__ import annotations

import base64
import errno
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from . import processes, programs
from .apps import vlc
from .apps.browser import Browser
from .faults import Refused, TaskError
from .files.folder import make_way, read_regular
from .reading.tree_walk import Node
from .reading.tree_xml import as_xml
from .screen.chords import chord_keys, is_terminal_shortcut
from .screen.display import DisplayGone, Screen, Window
from .screen.keyboard import UnknownKey
from .screen.windows import APP_FAILURES
from .session import Session
from .web.devtools import ChromiumGone

HOME = Path("/home/user")
_MAX_OUTPUT = 1_000_000
"""Bytes kept of what a command says; a file that an agent has made may be without end."""
_NO_ROOM = frozenset({errno.EAGAIN, errno.ENOMEM})
"""Why a command cannot be started although it could be run."""
_OWN_FILES_ENV = {"PYTHONSAFEPATH": "1", "GIT_CONFIG_GLOBAL": os.devnull}
"""Beside a program of the judge's in the home lie the agent's files, which must not be taken for its modules; git starts programs
that its settings name."""
_PYTHON = re.compile(r"(?:/usr/bin/)?python3(?:\.\d+)?")
_PYTHON_TEXT = re.compile(r"\b(python3(?:\.\d+)?) +-c\b")
_WINDOW_LIMIT_S = 10.0
_TAKEN_LIMIT_S = 5.0
"""How long applications may take for the events of one call; on a screen that never rests they take all of it."""
_SHOWN_LIMIT_S = 1.0
"""The same for what was asked of them before, as full screen is."""
_STILL_S, _STILL_LIMIT_S = 0.4, 5.0
"""How long a tree has to stay the same, and is waited for."""


class OsworldCalls:
    """The calls.

    ``show(app, paths, deadline)`` opens files of the agent's folder in an application (empty: in that of their kind), or without
    files the application, and brings it to the front. ``open_terminal(folder, deadline)``: a new window. ``quit_app(name)`` ends
    an application on demand, ``end_programs(deadline)`` all of them and what they started; it tells whether programs of the
    agent's own were among it. ``flush(deadline)`` has applications write what they were told to keep. ``settle(limit_s)``
    waits until the one in front has taken all input and the screen is quiet. ``read_tree`` reads it.
    """

    def __init__(
        self,
        session: Session,
        *,
        folder: Path,
        show: Callable[[str, Sequence[str], float], Any],
        open_terminal: Callable[[Path, float], Any],
        quit_app: Callable[[str], Any],
        end_programs: Callable[[float], bool],
        flush: Callable[[float], Any],
        settle: Callable[[float], Any],
        read_tree: Callable[[], Sequence[Node]],
        browser: Browser,
    ) -> None:
        self._screen: Screen = session.screen
        # What an agent has put among its own modules is no part of a judge's Python.
        self._env = {**session.env, "PYTHONNOUSERSITE": "1"}
        self._bus = session.bus
        self._log = session.log_folder / "osworld.log"
        self._folder = folder
        self._show, self._read_tree, self._browser = show, read_tree, browser
        self._open_terminal, self._quit_app, self._end_programs = open_terminal, quit_app, end_programs
        self._flush, self._settle = flush, settle
        self._deadline = 0.0
        """Of the call that is carried out."""
        self._launched: list[subprocess.Popen[bytes]] = []
        self._has_run = False
        self._has_ended_programs = False
        """Of the agent's, which the next reset does not find any more."""
        self._brings_own_files = False
        """Has the judge files of its own to bring and to run?"""

    def call(self, name: str, args: Mapping[str, Any], *, deadline: float) -> Any:
        """Carry out one call. Raises `TaskError`, also for an application that does not do what it should by the deadline."""
        if name.startswith("_") or name == "call" or not hasattr(self, name):
            raise TaskError(f"unknown call {name!r}")
        self._deadline = deadline
        try:
            self._folder.chmod(0o700)  # also where an agent has taken it from itself
            return getattr(self, name)(**args)
        except DisplayGone:
            raise
        except (OSError, UnknownKey, TypeError, *APP_FAILURES) as error:
            raise TaskError(f"{name}: {error}") from error

    def end(self) -> tuple[bool, bool]:
        """End what `launch` started, with all its children; tells whether any command was run since the last time, and whether
        programs of the agent's were ended for a judge."""
        self._end_launched()
        told = self._has_run, self._has_ended_programs
        self._has_run = self._has_ended_programs = self._brings_own_files = False
        return told

    def _end_launched(self) -> None:
        for process in self._launched:
            _end(process)
        self._launched.clear()

    # --- files ---

    def put_file(self, path: str, data: str) -> None:
        """Write a file anew and make the folders above it, whatever of an agent's is in their place."""
        place = self._place(path)
        if place.is_dir() and not self._brings_own_files:
            raise TaskError(f"{path} is a folder")
        make_way(place, root=self._folder)
        with open(place, "xb") as file:
            file.write(base64.b64decode(data))

    def bring_own_files(self) -> None:
        """The judge is about to bring files and to run them: end what the agent has started; they take nothing from its home."""
        self._brings_own_files = True
        self._end_strays()

    def _end_strays(self) -> None:
        self._has_ended_programs |= processes.end_strays()

    def read_file(self, path: str) -> str | None:
        """A regular file's content, or None."""
        self._flush(self._deadline)
        data = read_regular(self._place(path))
        return None if data is None else base64.b64encode(data).decode("ascii")

    def open(self, path: str) -> bool:
        """Open it with its application and wait for the window."""
        place = self._place(path)
        if not place.exists() or self._folder not in (place, *place.parents):
            return False
        self._show("", [str(place.relative_to(self._folder))], self._deadline)
        return True

    def _place(self, path: str) -> Path:
        """Where a path of a task file lies: its home is the agent's folder, by whichever name."""
        asked = Path(path)
        if asked.is_absolute() and HOME in (asked, *asked.parents):
            return self._folder / asked.relative_to(HOME)
        return asked if asked.is_absolute() else self._folder / asked

    # --- commands ---

    def run(self, command: str | Sequence[str], timeout_s: float) -> dict[str, Any]:
        """Run to the end, at most ``timeout_s``; an application of the desktop is only opened."""
        if self._is_for_an_application(command):
            return {"returncode": 0, "stdout": "", "stderr": ""}
        argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
        self._has_run = True
        if processes.are_used_up():
            self._end_strays()
        env = {**self._env, **_OWN_FILES_ENV} if self._brings_own_files else self._env
        try:
            process = subprocess.Popen(
                _without_modules_of_the_home(argv),
                cwd=self._folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise
            return {"returncode": 127, "stdout": "", "stderr": f"{argv[0]}: {error.strerror}"}
        (out, err), code = _outcome(process, timeout_s)
        return {"returncode": code, "stdout": out.decode(errors="replace"), "stderr": err.decode(errors="replace")}

    def launch(self, command: str | Sequence[str]) -> None:
        """Start it; `end` ends it. The desktop's own applications are opened, not started a second time."""
        if self._is_for_an_application(command):
            return
        argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
        self._has_run = True
        with open(self._log, "ab") as log:
            process = subprocess.Popen(
                argv,
                cwd=self._folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._launched.append(process)

    def end_programs(self) -> None:
        """End all that a task or its agent has started."""
        self._end_launched()
        self._has_ended_programs |= self._end_programs(self._deadline)

    def _is_for_an_application(self, command: str | Sequence[str]) -> bool:
        """Open the desktop's application that ``command`` names, or end it; False: it is another command."""
        ended = programs.ends(command)
        if ended is not None:
            self._quit_app(ended)
            return True
        opened = programs.opens(command)
        if opened is None:
            return False
        app, arguments = opened
        if app == "terminal":
            self._open_terminal(self._folder / self._inside(programs.folder_of(command) or str(HOME)), self._deadline)
            return True
        pages = [text for text in arguments if app == "browser" and (":/" in text or text.startswith("about:"))]
        files = [self._inside(text) for text in arguments if text not in pages]
        try:
            self._show(app, files, self._deadline)
        except Refused:
            if not app or not files:
                raise
            self._show(app, (), self._deadline)  # a program that cannot read its file begins all the same
        if pages:
            self.open_tabs(pages)
        return True

    def _inside(self, argument: str) -> str:
        """A command's file or folder as a path within the agent's folder."""
        path = unquote(argument.removeprefix("file://"))
        place = self._place(f"{HOME}{path[1:]}" if path == "~" or path.startswith("~/") else path)
        if self._folder not in (place, *place.parents):
            raise TaskError(f"{argument} lies outside {HOME}")
        return str(place.relative_to(self._folder))

    # --- the browser ---

    def tabs(self) -> list[dict[str, str]]:
        """The browser's pages, the one in front first; none when it does not run, or not answer."""
        try:
            return self._browser.tabs() if self._browser.program.running else []
        except ChromiumGone:
            return []

    def open_tabs(self, urls: Sequence[str]) -> None:
        """Open pages in the browser; the last one is in front."""
        self._show("browser", (), self._deadline)
        for url in urls:
            self._browser.open_and_wait(url)

    def close_tabs(self, urls: Sequence[str]) -> None:
        """Close every page with one of these addresses."""
        if self._browser.program.running:
            self._browser.close_pages(urls)

    # --- the player ---

    def playing(self) -> list[dict[str, str]]:
        """State and address of what each VLC plays, whoever has started it."""
        return vlc.playing(self._bus)

    # --- windows and input ---

    def windows(self) -> list[dict[str, Any]]:
        """Open windows, the focused one first, as they are once it has done what it was asked for."""
        self._settle(_SHOWN_LIMIT_S)
        active = self._screen.active_window()
        ordered = sorted(reversed(self._screen.windows()), key=lambda window: window.xid != active)
        return [self._describe(window) for window in ordered]

    def activate_window(self, title: str, strict: bool, by_class: bool) -> bool:
        """Bring the first match to the front."""
        found = self._matching(title, strict=strict, by_class=by_class)
        if not found:
            return False
        self._screen.activate(found[0].xid)
        return self._wait(lambda: self._screen.active_window() == found[0].xid)

    def close_window(self, title: str, strict: bool, by_class: bool) -> bool:
        """Ask every match to close, and wait for it: many a program writes its settings only when its last window has gone."""
        found = self._matching(title, strict=strict, by_class=by_class)
        for window in found:
            self._screen.close_window(window.xid)
        if found and self._wait(lambda: not self._matching(title, strict=strict, by_class=by_class)):
            ending = {window.pid for window in found} - {window.pid for window in self._screen.windows()}
            self._wait(lambda: not any(processes.is_running(pid) for pid in ending))
        return bool(found)

    def input(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Mouse and keyboard, in order, each once the one before has had its effect.

        It may be meant for a dialog that that one opens. A task's own pauses suit a machine that does nothing else.
        """
        deadline = time.monotonic() + _TAKEN_LIMIT_S
        for event in events:
            self._do(**event)
            self._settle(max(0.0, deadline - time.monotonic()))

    def screen_size(self) -> tuple[int, int]:
        """Pixels."""
        return self._screen.size

    def _do(self, kind: str, text: str = "", x: int | None = None, y: int | None = None, count: int = 1) -> None:
        screen = self._screen
        if kind == "key" and is_terminal_shortcut(chord_keys(text)):
            self._open_terminal(self._folder, self._deadline)
        elif kind == "key":
            screen.press_chord(text)
        elif kind == "type":
            screen.type_text(text)
        elif kind in ("move", "click", "scroll"):
            place = screen.pointer() if x is None or y is None else (x, y)
            if kind == "move":
                screen.move(*place)
            elif kind == "click":
                screen.click(*place, button=text or "left", num_clicks=count)
            else:
                for _ in range(abs(count)):
                    screen.scroll(*place, "up" if count > 0 else "down")
        else:
            raise TaskError(f"input {kind!r} is not known here")

    def _matching(self, title: str, *, strict: bool, by_class: bool) -> list[Window]:
        def fits(window: Window) -> bool:
            shown = (window.window_class, window.kind) if by_class else (window.title,)
            return title in shown if strict else title.lower() in shown[0].lower()

        return [window for window in reversed(self._screen.windows()) if fits(window)]

    def _describe(self, window: Window) -> dict[str, Any]:
        x, y, width, height = self._screen.geometry(window.xid)
        return {
            "title": window.title,
            "window_class": window.window_class,
            "x": x,
            "y": y,
            "width": width,
            "height": height,
            "is_fullscreen": self._screen.is_fullscreen(window.xid),
        }

    def _wait(self, condition: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + _WINDOW_LIMIT_S
        while not condition():
            if time.monotonic() > deadline:
                return False
            self._screen.wait_for_event(0.05)
        return True

    # --- the tree ---

    def _read_still_tree(self) -> Sequence[Node]:
        """The tree once it stays as it is: a shell answers some time after it has got the last key of a task's own steps."""
        deadline = time.monotonic() + _STILL_LIMIT_S
        before, nodes = None, self._read_tree()
        while nodes != before and time.monotonic() < deadline:
            time.sleep(_STILL_S)
            self._screen.pump()
            before, nodes = nodes, self._read_tree()
        return nodes

    def tree(self) -> str:
        """The accessibility tree of the application in front as XML."""
        return as_xml(self._read_still_tree())


def _without_modules_of_the_home(argv: Sequence[str]) -> list[str]:
    """A text for Python would take modules from the current folder, which is the home."""
    program, *rest = argv
    if rest[:1] == ["-c"] and _PYTHON.fullmatch(program):
        return [program, "-P", *rest]
    return [program, *(_PYTHON_TEXT.sub(r"\1 -P -c", word) for word in rest)]


def _outcome(process: subprocess.Popen[bytes], timeout_s: float) -> tuple[list[bytes], int]:
    """What it says, as far as that is kept, and its exit code; 124 where it, or what it has started, does not end in time."""
    assert process.stdout is not None and process.stderr is not None
    deadline = time.monotonic() + timeout_s
    kept = [bytearray(), bytearray()]
    with selectors.DefaultSelector() as selector, process.stdout as out, process.stderr as err:
        for number, stream in enumerate((out, err)):
            selector.register(stream, selectors.EVENT_READ, number)
        while selector.get_map():
            for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                chunk = os.read(key.fd, 1 << 16)
                kept[key.data] += chunk[: _MAX_OUTPUT - len(kept[key.data])]
                if not chunk:
                    selector.unregister(key.fileobj)
            if time.monotonic() > deadline:
                break
        has_ended = not selector.get_map()
    if has_ended:
        with suppress(subprocess.TimeoutExpired):
            return [bytes(text) for text in kept], process.wait(timeout=max(0.0, deadline - time.monotonic()))
    _end(process)
    return [bytes(text) for text in kept], 124


def _end(process: subprocess.Popen[Any]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
