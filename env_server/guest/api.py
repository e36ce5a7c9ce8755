"""The agent's API actions, those with a dot in their names: files, the office's documents, other applications, windows.

`screen.gui` carries out the actions with mouse and keyboard.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import processes
from .applications import OFFICE, Applications
from .apps import catalog
from .faults import Refused
from .files.file_tools import FileTools
from .files.folder import AgentFolder
from .screen.connection import DisplayGone
from .screen.windows import SHOW_LIMIT_S, App, Windows, left

if TYPE_CHECKING:
    from .apps.launcher import Launcher
    from .openers import Openers
    from .screen.input import Input


class Api:
    """Carries out API actions. The agent's mistakes raise `Refused`, `FileActionError`, `DocumentError` or `NotInFront`."""

    def __init__(
        self, apps: Applications, openers: Openers, launcher: Launcher, windows: Windows, keys: Input, folder: AgentFolder
    ) -> None:
        self._apps, self._openers, self._launcher, self._windows, self._keys = apps, openers, launcher, windows, keys
        self._file_tools = FileTools(folder)

    def call(self, name: str, args: Mapping[str, Any], deadline: float) -> str:
        """Carry out the action ``name``, such as ``files.read``; returns its result text."""
        area, _, method = name.partition(".")
        # Without room for a thread, applications end in the middle of a call, and the office's library ends this process.
        if (area != "files" or method == "open") and processes.are_used_up():
            raise Refused("your programs use up the processes that this desktop may have: end some of them")
        if name == "files.open":
            return self._show(self._openers.open_path(args["path"], deadline), deadline)
        if area == "files":
            return self._use_files(method, args)
        if area in OFFICE:
            self._apps.require_open(area)
            return self._apps.documents.use_tool(area, method, args, timeout_s=left(deadline))
        if area in catalog.AREAS:
            return self._use_on_demand(area, method, args, deadline)
        if name == "editor.save":
            self._apps.require_open("editor")
            self._raise(self._apps.editor, deadline)
            self._keys.press_chord("ctrl+s")
            return ""
        if name == "apps.switch":
            return self._switch(str(args["app"]), deadline)
        if name == "apps.list":
            return self._list_windows()
        if name == "apps.open":
            return self._show(self._openers.open_app(args["app"], deadline), deadline)
        raise Refused(f"unknown action {name!r}")

    def _use_files(self, method: str, args: Mapping[str, Any]) -> str:
        try:
            return str(getattr(self._file_tools, method)(**args) or "")
        except DisplayGone:
            raise
        except OSError as error:  # no permission, name too long, disk full
            raise Refused(f"{error.strerror or error}") from error

    def _use_on_demand(self, area: str, method: str, args: Mapping[str, Any], deadline: float) -> str:
        before = list(self._apps.open)
        result = self._launcher.use_tool(area, method, args, deadline)
        name = catalog.AREAS[area]
        if name in self._apps.open and (name not in before or area == "chrome"):
            self._raise(self._apps.on_demand[name], deadline)
        return result

    def _show(self, name: str, deadline: float) -> str:
        self._raise(self._apps.by_name[name], deadline)
        return f"opened with {name}"

    def _raise(self, app: App, deadline: float) -> None:
        """Bring an application to the front for the agent, or the dialog that holds its focus. Raises `NotInFront`."""
        self._windows.bring_to_front(app, deadline, patience_s=SHOW_LIMIT_S, dialog_counts=True)

    def _switch(self, wanted: str, deadline: float) -> str:
        try:
            name = self._apps.name_of(wanted)
        except Refused:
            name = wanted
        if name not in self._apps.open:
            raise Refused(f"{wanted!r} is not open; open: {', '.join(self._apps.open)}")
        app = self._apps.by_name[name]
        if not self._windows.of(app):
            raise Refused(f"{name} has no window any more: apps.open opens one")
        self._raise(app, deadline)
        return ""

    def _list_windows(self) -> str:
        front = self._windows.front()[0]
        shown = [(name, window) for name in self._apps.open for window in self._windows.of(self._apps.by_name[name])]
        return "\n".join(
            f"{name}: {window.title}{' (in front)' if front and window.xid == front.xid else ''}" for name, window in shown
        )
