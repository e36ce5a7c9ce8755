"""OSWorld's set-up steps and getters on one desktop: files, commands, windows, input, the tree as XML.

The guest's side of `env_server.tasks.osworld.desktop.CalledDesktop`: JSON values in and out. Everything happens inside the
container, as the agent's user; `HOME` of task files is the agent's folder.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ..apps.browser import Browser
from ..apps.vlc_player import playing
from ..faults import Refused, TaskError
from ..files.folder import make_way, read_regular
from ..office.process import OfficeGone
from ..reading.tree_walk import Node
from ..screen.chords import UnknownKey
from ..screen.connection import DisplayGone
from ..screen.gui import Gui
from ..screen.settle import Settler
from ..screen.windows import APP_FAILURES, left
from ..session import Session
from ..web.devtools import ChromiumGone
from . import programs
from .commands import Commands
from .tree_xml import as_xml
from .window_calls import WindowCalls

if TYPE_CHECKING:
    from ..applications import Applications
    from ..apps.launcher import Launcher
    from ..openers import Openers
    from ..view import View

HOME = Path("/home/user")
_STILL_S, _STILL_LIMIT_S = 0.4, 5.0
"""How long a tree has to stay the same, and is waited for."""


class OsworldCalls:
    """The calls of one desktop."""

    def __init__(
        self,
        session: Session,
        apps: Applications,
        openers: Openers,
        launcher: Launcher,
        settler: Settler,
        view: View,
        gui: Gui,
        *,
        folder: Path,
    ) -> None:
        """``folder``: the agent's."""
        self._screen, self._bus = session.screen, session.bus
        self._folder, self._apps, self._openers, self._launcher, self._view = folder, apps, openers, launcher, view
        browser = apps.on_demand["browser"]
        assert isinstance(browser, Browser)
        self._browser = browser
        self._deadline = 0.0
        """Deadline of the call that is carried out."""
        log = session.log_folder / "osworld.log"
        self._commands = Commands(env=session.env, folder=folder, log=log, close_apps=launcher.close_all)
        windows = WindowCalls(self._screen, settler, gui, open_terminal=lambda: launcher.open_terminal(folder, self._deadline))
        self._calls: Mapping[str, Callable[..., Any]] = {
            "put_file": self._put_file,
            "bring_own_files": self._commands.bring_own_files,
            "read_file": self._read_file,
            "open": self._open,
            "run": self._run,
            "launch": self._launch,
            "serve": lambda command, port: self._commands.serve(command, port, self._deadline),
            "end_programs": lambda: self._commands.end_programs(self._deadline),
            "tabs": self._tabs,
            "open_tabs": self._open_tabs,
            "close_tabs": self._close_tabs,
            "playing": lambda: playing(self._bus),
            "windows": windows.windows,
            "activate_window": windows.activate_window,
            "close_window": windows.close_window,
            "input": windows.input,
            "screen_size": lambda: self._screen.connection.size,
            "pointer": self._screen.input.pointer,
            "tree": lambda: as_xml(self._still_tree()),
        }

    def call(self, name: str, args: Mapping[str, Any], *, deadline: float) -> Any:
        """Carry out one call. Raises `TaskError`, also for an application that does not do what it should by the deadline."""
        if name not in self._calls:
            raise TaskError(f"unknown call {name!r}")
        self._deadline = deadline
        try:
            self._folder.chmod(0o700)  # also where an agent has taken it from itself
            return self._calls[name](**args)
        except DisplayGone:
            raise
        except (OSError, ValueError, UnknownKey, TypeError, *APP_FAILURES) as error:
            raise TaskError(f"{name}: {error}") from error

    def end(self) -> tuple[bool, bool]:
        """End a task's programs; see `Commands.end`."""
        return self._commands.end()

    # --- files ---

    def _put_file(self, path: str, data: str) -> None:
        """Write a file anew and make the folders above it; an agent's files in their place are removed."""
        place = self._place(path)
        if place.is_dir() and not self._commands.brings_own_files:
            raise TaskError(f"{path} is a folder")
        make_way(place, root=self._folder)
        content = base64.b64decode(data)
        with open(place, "xb") as file:
            file.write(content)
        if self._commands.brings_own_files:
            self._commands.note_own_file(place, content)

    def _read_file(self, path: str) -> str | None:
        """A regular file's content, or None."""
        self._flush_office()
        data = read_regular(self._place(path))
        return None if data is None else base64.b64encode(data).decode("ascii")

    def _open(self, path: str) -> bool:
        """Open it with its application and wait for the window."""
        place = self._place(path)
        if not place.exists() or self._folder not in (place, *place.parents):
            return False
        self._openers.show("", [str(place.relative_to(self._folder))], self._deadline)
        return True

    def _place(self, path: str) -> Path:
        """The place of a path in a task file: its home is the agent's folder, by whichever name."""
        asked = Path(path)
        if asked.is_absolute() and HOME in (asked, *asked.parents):
            return self._folder / asked.relative_to(HOME)
        return asked if asked.is_absolute() else self._folder / asked

    def _flush_office(self) -> None:
        """Have the office write its options to its files, also where nobody has saved a document."""
        if self._apps.is_office_open() and self._apps.calc.program.running:
            with suppress(OfficeGone):  # options that an office which hangs, or is just ending, has not written are not kept
                self._apps.documents.flush(timeout_s=left(self._deadline))

    # --- commands ---

    def _run(self, command: str | Sequence[str], timeout_s: float, files: Mapping[str, str] | None = None) -> dict[str, Any]:
        """See `Commands.run`; an application of the desktop is only opened."""
        if self._is_for_an_application(command):
            return {"returncode": 0, "stdout": "", "stderr": ""}
        return self._commands.run(
            command, timeout_s, {self._place(path): base64.b64decode(data) for path, data in (files or {}).items()}
        )

    def _launch(self, command: str | Sequence[str]) -> None:
        """See `Commands.launch`. The desktop's own applications are opened, not started a second time."""
        if not self._is_for_an_application(command):
            self._commands.launch(command)

    def _is_for_an_application(self, command: str | Sequence[str]) -> bool:
        """Open the desktop's application that ``command`` names, or end it; False: it is another command."""
        ended = programs.ends(command)
        if ended is not None:
            self._apps.on_demand[ended].quit()
            return True
        if programs.needs_code(command):
            self._openers.show("code", (), self._deadline)
        opened = programs.opens(command)
        if opened is None:
            return False
        app, arguments = opened
        if app == "terminal":
            self._launcher.open_terminal(self._folder / self._inside(programs.folder_of(command) or str(HOME)), self._deadline)
            return True
        pages = [text for text in arguments if app == "browser" and (":/" in text or text.startswith("about:"))]
        files = [self._inside(text) for text in arguments if text not in pages]
        try:
            self._openers.show(app, files, self._deadline)
        except Refused:
            if not app or not files:
                raise
            self._openers.show(app, (), self._deadline)  # a program that cannot read its file begins all the same
        if pages:
            self._open_tabs(pages)
        return True

    def _inside(self, argument: str) -> str:
        """A command's file or folder as a path within the agent's folder."""
        path = unquote(argument.removeprefix("file://"))
        place = self._place(f"{HOME}{path[1:]}" if path == "~" or path.startswith("~/") else path)
        if self._folder not in (place, *place.parents):
            raise TaskError(f"{argument} lies outside {HOME}")
        return str(place.relative_to(self._folder))

    # --- the browser ---

    def _tabs(self) -> list[dict[str, str]]:
        """The browser's pages, the one in front first; none when it does not run, or not answer."""
        try:
            return self._browser.tabs() if self._browser.program.running else []
        except ChromiumGone:
            return []

    def _open_tabs(self, urls: Sequence[str]) -> None:
        """Open pages in the browser; the last one is in front."""
        self._openers.show("browser", (), self._deadline)
        for url in urls:
            self._browser.open_and_wait(url)

    def _close_tabs(self, urls: Sequence[str]) -> None:
        """Close every page with one of these addresses."""
        if self._browser.program.running:
            self._browser.close_pages(urls)

    # --- the tree ---

    def _still_tree(self) -> Sequence[Node]:
        """The tree once it stays as it is: a shell answers some time after the last key of a task's own steps."""
        deadline = time.monotonic() + _STILL_LIMIT_S
        before, nodes = None, self._view.nodes()
        while nodes != before and time.monotonic() < deadline:
            time.sleep(_STILL_S)
            self._screen.connection.pump()
            before, nodes = nodes, self._view.nodes()
        return nodes
