"""Opening things: the set-up steps of tasks, files with their application, applications by name.

`FileActionError`, `PageError`, `DocumentError`, `Refused` and `KeyError` are raised when the task or the agent asks for something
that is not there; anything else means that an application does not do what it should.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .applications import OFFICE
from .apps import catalog
from .faults import Refused
from .files.folder import MAX_FILE_BYTES, AgentFolder, FileActionError
from .office.documents import app_for
from .screen.windows import APP_FAILURES, App, Windows, left

if TYPE_CHECKING:
    from .applications import Applications
    from .apps.editor import EditorTabs
    from .apps.file_manager import FileWindow
    from .apps.launcher import Launcher

_OPEN_LIMIT_S = 4.0
"""An application that has not opened its part of a task after this long is started anew."""
_DOCUMENT_LIMIT_S = 12.0
"""The same for an office document: the first one loads all of Writer or Impress from the disk."""


class Openers:
    """How more comes to be open on the desktop."""

    def __init__(
        self,
        apps: Applications,
        launcher: Launcher,
        windows: Windows,
        folder: AgentFolder,
        *,
        editor_tabs: EditorTabs,
        file_window: FileWindow,
    ) -> None:
        self._apps, self._launcher, self._windows, self._folder = apps, launcher, windows, folder
        self._editor_tabs, self._file_window = editor_tabs, file_window
        self._steps: dict[str, tuple[App, Callable[[dict[str, Any], float], None]]] = {
            "web_page": (apps.chromium, self._open_page),
            "web_file": (apps.chromium, self._open_web_file),
            "calc_open": (apps.calc, self._open_sheet),
            "editor_open": (apps.editor, self._open_editor),
            "files_open": (apps.files, self._open_files),
        }

    def knows(self, kind: str) -> bool:
        """Is this set-up step one that opens something?"""
        return kind in self._steps or kind in ("open", "open_app")

    def step(self, kind: str, args: dict[str, Any], deadline: float) -> None:
        """Carry out a set-up step."""
        if kind == "open":
            self.open_path(args["path"], deadline)
        elif kind == "open_app":
            self.open_app(args["app"], deadline)
        else:
            self._open_warm(*self._steps[kind], args, deadline)

    def open_path(self, path: str, deadline: float) -> str:
        """Open a file or folder with its application; returns that one's name."""
        place = self._folder.existing(path)
        _require_openable(place, path)
        office = app_for(path)
        if place.is_dir():
            self._open_warm(*self._steps["files_open"], {"folder": path}, deadline)
            return "files"
        if office is not None:
            self._open_warm(self._apps.office[office], self._open_document, {"path": path}, deadline)
            return office
        other = catalog.app_for(path)
        if other is not None:
            return self.open_with(other, path, deadline)
        self._open_warm(*self._steps["editor_open"], {"path": path}, deadline)
        return "editor"

    def open_with(self, name: str, path: str, deadline: float) -> str:
        """Open a file in an application that may not be the one of its kind; returns the name of the one that shows it."""
        if name == "editor":
            self._open_warm(*self._steps["editor_open"], {"path": path}, deadline)
            return name
        if name not in self._apps.on_demand:
            return self.open_path(path, deadline)
        place = self._folder.existing(path)
        _require_openable(place, path)
        self._launcher.open_file(name, place, deadline)
        return name

    def open_app(self, name: str, deadline: float) -> str:
        """Open an application by any of its names, or leave it as it is when it has a window; returns its name."""
        known = self._apps.name_of(name)
        if known in self._apps.open and self._windows.of(self._apps.by_name[known]):
            return known
        if known in self._apps.on_demand:
            self._launcher.ensure(known, deadline)
        elif known == "calc":
            self._open_warm(*self._steps["calc_open"], {"cells": {}}, deadline)
        elif known in self._apps.office:
            self._open_warm(self._apps.office[known], self._open_new_document, {"app": known}, deadline)
        elif known == "editor":
            self._open_warm(*self._steps["editor_open"], {}, deadline)
        elif known == "files":
            self._open_warm(*self._steps["files_open"], {"folder": "."}, deadline)
        else:
            raise Refused("the browser of web tasks shows only the task's page")
        return known

    def show(self, app: str, paths: Sequence[str], deadline: float) -> None:
        """Open files in an application (empty: each in that of its kind), or without files the application, and bring the last
        one to the front."""
        names = [self.open_with(app, path, deadline) for path in paths] or [self.open_app(app, deadline)]
        self._windows.bring_to_front(self._apps.by_name[names[-1]], deadline)

    def _open_warm(
        self, app: App, open_it: Callable[[dict[str, Any], float], None], args: dict[str, Any], deadline: float
    ) -> None:
        """Open something in a warm application, in whatever state the last agent left it: one that does not obey soon is started
        anew. One that does not run is started first, which takes as long as it takes."""
        if not app.program.running:
            self._windows.ready_though_it_dies(self._apps.calc if app.name in OFFICE else app, deadline)
        try:
            limit_s = _DOCUMENT_LIMIT_S if open_it in (self._open_document, self._open_new_document) else _OPEN_LIMIT_S
            open_it(args, min(deadline, time.monotonic() + limit_s))
        except APP_FAILURES:
            self._windows.restart(app, deadline)
            open_it(args, deadline)
        self._apps.note_open(app.name)

    # --- the office ---

    def _open_document(self, args: dict[str, Any], deadline: float) -> None:
        self._apps.calc.connect(timeout_s=left(deadline))
        app = self._apps.documents.open(args["path"], timeout_s=left(deadline))
        self._windows.wait_for_window(self._apps.office[app], deadline)

    def _open_new_document(self, args: dict[str, Any], deadline: float) -> None:
        self._apps.calc.connect(timeout_s=left(deadline))
        self._apps.documents.new(args["app"], timeout_s=left(deadline))
        self._windows.wait_for_window(self._apps.office[args["app"]], deadline)

    def _open_sheet(self, args: dict[str, Any], deadline: float) -> None:
        self._windows.ready(self._apps.calc, deadline)
        self._apps.calc.open(args["cells"], args.get("active_cell") or "A1", timeout_s=left(deadline))

    # --- the others ---

    def _open_page(self, args: dict[str, Any], deadline: float) -> None:
        self._windows.ready(self._apps.chromium, deadline)
        self._apps.chromium.page.open(args["page"], int(args["seed"]), timeout_s=left(deadline))

    def _open_web_file(self, args: dict[str, Any], deadline: float) -> None:
        self._windows.ready(self._apps.chromium, deadline)
        self._apps.chromium.page.open_file(self._folder.resolve(args["path"]), timeout_s=left(deadline))

    def _open_editor(self, args: dict[str, Any], deadline: float) -> None:
        """Show a file (``path``, written first where ``text`` is given), or nothing."""
        if "text" in args:
            self._folder.make_parents(args["path"])
            self._folder.write(args["path"], args["text"])
        self._editor_tabs.show(self._folder.resolve(args["path"]) if "path" in args else None, deadline)

    def _open_files(self, args: dict[str, Any], deadline: float) -> None:
        self._file_window.show(args.get("folder") or ".", deadline)


def _require_openable(place: Path, path: str) -> None:
    """Raise `FileActionError` for pipes, which an application would wait for without end, and for files that no memory holds."""
    if not place.is_file() and not place.is_dir():
        raise FileActionError(f"{path} is neither a file nor a folder")
    if place.is_file() and place.stat().st_size > MAX_FILE_BYTES:
        raise FileActionError(f"{path} is longer than {MAX_FILE_BYTES} bytes")
