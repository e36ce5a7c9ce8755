"""The file manager (Thunar), which stays running between tasks, and the folder that its window shows."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files.folder import AgentFolder, FileActionError, read_regular, remove
from ..processes import Program
from ..reading.dbus import XFCONF, Bus, Call
from ..screen.windows import left

if TYPE_CHECKING:
    from ..reading.controls import Controls
    from ..screen.windows import Windows

_ACTIONS_FILE, _SHORTCUTS = "uca.xml", "accels.scm"
_THUNAR_SETTINGS: Mapping[str, str | bool] = {
    "default-view": "ThunarDetailsView",
    "last-view": "ThunarDetailsView",
    "last-details-view-zoom-level": "THUNAR_ZOOM_LEVEL_38_PERCENT",
    "last-side-pane": "void",
    "last-statusbar-visible": False,
    "misc-thumbnail-mode": "THUNAR_THUMBNAIL_MODE_NEVER",
    "misc-single-click": False,
    "last-details-view-fixed-columns": True,
    "misc-remember-geometry": False,
}
_COLUMN_WIDTHS = "last-details-view-column-widths", "100,100,130,100,100,100,100,100,400,100,100,80,100,180,100"
"""Thunar changes them by itself: they are not compared."""

_THUNAR_ACTIONS = """<?xml version="1.0" encoding="UTF-8"?>
<actions>
<action>
  <icon>utilities-terminal</icon>
  <name>Open Terminal Here</name>
  <unique-id>1700000000000000-1</unique-id>
  <command>exo-open --working-directory %f --launch TerminalEmulator</command>
  <description>Opens a terminal in the folder</description>
  <patterns>*</patterns>
  <startup-notify/>
  <directories/>
</action>
</actions>
"""
"""Actions of its menus, to which an agent may add programs: Thunar's own, with the number that Thunar would give it."""
CHANNEL = "thunar"
"""Channel of the settings service that holds the settings of the file manager."""
_XFCONF_LIMIT_S = 5.0
"""Time for one call of the settings service, whose daemon starts when it is first called."""
_FILE_LIST = frozenset({"table"})
"""Role of the list of files, each of which has several objects."""


class Files:
    """Thunar: its process, its settings and its files."""

    name = "files"
    window_kind = ""

    def __init__(self, *, env: Mapping[str, str], log_folder: Path, folder: Path, bus: Bus) -> None:
        self.program = Program(self.name, ["thunar", str(folder)], env=env, log_folder=log_folder)
        self.shown = folder
        """The folder that a task has opened."""
        self._root = folder
        self._bus = bus
        self._own = Path(env["HOME"]) / ".config/Thunar"
        """Folder of its menus' actions and of its shortcuts."""

    def start(self) -> None:
        """Start it showing the agent's folder, with its first settings."""
        self.end()
        self.shown = self._root
        self._own.mkdir(parents=True)
        (self._own / _ACTIONS_FILE).write_text(_THUNAR_ACTIONS, encoding="utf-8")
        for name, value in (*_THUNAR_SETTINGS.items(), _COLUMN_WIDTHS):
            kind = "b" if isinstance(value, bool) else "s"
            self._ask_xfconf("SetProperty", "ssv", (CHANNEL, f"/{name}", (kind, value)))
        for name in self._settings().keys() - _THUNAR_SETTINGS.keys():
            self._ask_xfconf("ResetProperty", "ssb", (CHANNEL, f"/{name}", False))
        self.program.start()

    def connect(self, *, timeout_s: float) -> None:
        """Return at once: its window is waited for by `Windows`."""

    def end(self) -> None:
        """End it; it is started anew when it is needed."""
        self.program.kill()
        remove(self._own)

    def note(self) -> None:
        """Its first settings are known beforehand."""

    def changes(self, *, timeout_s: float) -> list[str]:
        """Names of its settings and files that are not as at its start.

        A folder below the agent's is one of them: made anew under its name, it may be taken for the one that was removed."""
        if self.shown != self._root:
            return ["the folder that it shows"]
        settings, files = self._settings(), self._files()
        first = {_ACTIONS_FILE: _THUNAR_ACTIONS.encode(), _SHORTCUTS: b""}
        changed = [name for name, value in settings.items() if value != _THUNAR_SETTINGS.get(name)]
        changed += sorted(_THUNAR_SETTINGS.keys() - settings.keys())
        return changed + [name for name in files.keys() | first.keys() if files.get(name) != first.get(name)]

    def profile(self) -> list[Path]:
        """Where all its files lie."""
        return [self._own]

    def kept(self) -> list[Path]:
        """All of them."""
        return self.profile()

    def _files(self) -> dict[str, bytes | None]:
        found = {path.name: read_regular(path) for path in self._own.glob("*")}
        # It writes all shortcuts at some time, unset ones as comments.
        shortcuts = (found.pop(_SHORTCUTS, None) or b"").splitlines()
        return {**found, _SHORTCUTS: b"\n".join(line for line in shortcuts if not line.startswith(b";"))}

    def open(self, folder: Path, *, timeout_s: float) -> None:
        """Ask the running file manager for a new window on this folder."""
        call = Call(
            "org.xfce.FileManager",
            "/org/xfce/FileManager",
            "org.xfce.FileManager",
            "DisplayFolder",
            "sss",
            (folder.as_uri(), "", ""),
        )
        self._bus.call(call, timeout_s=timeout_s)

    def _settings(self) -> dict[str, str | bool]:
        found = self._ask_xfconf("GetAllProperties", "ss", (CHANNEL, "/"))[0]
        return {name.removeprefix("/"): value for name, value in found if name != f"/{_COLUMN_WIDTHS[0]}"}

    def _ask_xfconf(self, method: str, signature: str, args: tuple[Any, ...]) -> list[Any]:
        return self._bus.call(Call(XFCONF, "/org/xfce/Xfconf", XFCONF, method, signature, args), timeout_s=_XFCONF_LIMIT_S)


class FileWindow:
    """The file manager's window: its folder, and the list of files in it."""

    def __init__(self, files: Files, windows: Windows, controls: Controls, folder: AgentFolder) -> None:
        self._files, self._windows, self._controls, self._folder = files, windows, controls, folder
        self._list = ""
        """Object path of the list of files; empty: not known."""

    def show(self, folder: str, deadline: float) -> None:
        """Show a folder of the agent's in one window, whatever the last agent left open. Raises `FileActionError`."""
        place = self._folder.resolve(folder)
        if not place.is_dir():
            raise FileActionError(f"there is no folder {folder}")
        files, windows = self._files, self._windows
        windows.ready_to_read(files, deadline)
        nodes = self._controls.nodes_of(files.program.pid, without=_FILE_LIST)
        num_tabs = sum(node.role == "page-tab" for node in nodes)
        if num_tabs > 1:  # two panes have a tab each
            windows.restart(files, deadline)
            windows.ready_to_read(files, deadline)
            nodes = self._controls.nodes_of(files.program.pid, without=_FILE_LIST)
        shown = windows.of(files)
        is_there = [window.title for window in shown] == [f"{place.name} - Thunar"]
        self._list = next((node.path for node in nodes if node.role in _FILE_LIST), "")
        if is_there and self._list and self._controls.has_plain_entry(files.program.pid, nodes, f"{place}/"):
            self._controls.focus(files.program.pid, self._list)
        else:
            old = {window.xid for window in shown}
            files.open(place, timeout_s=left(deadline))
            windows.wait(lambda: any(w.xid not in old for w in windows.of(files)), deadline, "the file manager's window")
            windows.close(files, old, deadline)
            windows.wait(self._has_list, deadline, "the file manager's list of files")
        files.shown = place

    def _has_list(self) -> bool:
        nodes = self._controls.nodes_of(self._files.program.pid, without=_FILE_LIST)
        self._list = next((node.path for node in nodes if node.role in _FILE_LIST), "")
        return bool(self._list)

    def select_first_file(self, deadline: float) -> bool:
        """Have the file manager list its task's folder again, and select the first file. Returns whether it lists all files."""
        place = self._files.shown
        if not place.is_dir():  # a later step of the set-up has removed it
            return True
        # The file manager takes notice of this change of the folder. Changes while it lists a folder it may miss for ever.
        os.chmod(place, stat.S_IMODE(place.stat().st_mode))
        names = [name.rstrip("/") for name in self._folder.list(str(place.relative_to(self._folder.root)))]
        shown = [name for name in names if not name.startswith(".") and not name.endswith("~")]
        return self._controls.select_first_file(self._files.program.pid, self._list, shown, deadline=deadline)
