"""The two GTK applications: the text editor (Mousepad) and the file manager (Thunar). Both stay running between tasks."""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .files.folder import read_regular, remove
from .processes import Program
from .reading.dbus import Bus, Call

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
"""Of its menus: an agent may add programs to them. Thunar's own, with the number that Thunar would give it."""

_MOUSEPAD_SETTINGS = """[org/xfce/mousepad/preferences/window]
opening-mode='tab'
path-in-title=false
recent-menu-items=uint32 0
remember-size=false

[org/xfce/mousepad/preferences/file]
session-restore='never'
monitor-changes=false
add-last-end-of-line=false
autosave-timer=0

[org/xfce/mousepad/preferences/view]
auto-indent=false
word-wrap=true
"""
_REMEMBERED = ("org/xfce/mousepad/preferences/", "org/xfce/mousepad/state/search")
"""Groups that count as settings; what was looked for is offered again."""

XFCONF, CHANNEL = "org.xfce.Xfconf", "thunar"
"""The settings service, and where it keeps the file manager's."""
_XFCONF_LIMIT_S = 5.0
"""Its daemon starts when it is first called."""


class Editor:
    """Mousepad."""

    name = "editor"
    window_kind = ""

    def __init__(self, *, env: Mapping[str, str], log_folder: Path, bus: Bus) -> None:
        self.program = Program(self.name, ["mousepad"], env=env, log_folder=log_folder)
        self._bus = bus
        self._settings = Path(env["HOME"]) / ".config/glib-2.0/settings/keyfile"
        self._keys = Path(env["HOME"]) / ".config/Mousepad"
        """It writes its shortcuts there, when it ends."""

    def start(self) -> None:
        """Start it with an empty window and its first settings."""
        self.end()
        self._settings.parent.mkdir(parents=True, exist_ok=True)
        self._settings.write_text(_MOUSEPAD_SETTINGS, encoding="utf-8")
        self.program.start()

    def connect(self, *, timeout_s: float) -> None:
        """Its window is all there is to wait for."""

    def end(self) -> None:
        """End it; it is started anew when it is needed."""
        self.program.kill()
        remove(self._settings)
        remove(self._keys)

    def note(self) -> None:
        """Its first settings are known beforehand."""

    def changes(self, *, timeout_s: float) -> list[str]:
        """Which groups of its settings are not those that it was started with."""
        try:
            now = _remembered((read_regular(self._settings) or b"").decode())
        except (UnicodeDecodeError, configparser.Error):
            return ["no settings file"]
        first = _remembered(_MOUSEPAD_SETTINGS)
        return sorted(name for name in first.keys() | now.keys() if first.get(name) != now.get(name))

    def profile(self) -> list[Path]:
        """Where all its files lie."""
        return [self._settings, self._keys]

    def kept(self) -> list[Path]:
        """Its settings, which it looks at all the time."""
        return [self._settings]

    def open(self, path: Path, *, timeout_s: float) -> None:
        """Ask the running editor for this file; it takes the place of an empty tab."""
        call = Call(
            "org.xfce.mousepad", "/org/xfce/mousepad", "org.freedesktop.Application", "Open", "asa{sv}", ([path.as_uri()], {})
        )
        self._bus.call(call, timeout_s=timeout_s)

    def activate(self, action: str) -> None:
        """Activate an action of its first window, such as ``file.new``; does not wait for it to be done."""
        place = "/org/xfce/mousepad/window/1"
        self._bus.send(Call("org.xfce.mousepad", place, "org.gtk.Actions", "Activate", "sava{sv}", (action, (), {})))


class Files:
    """Thunar."""

    name = "files"
    window_kind = ""

    def __init__(self, *, env: Mapping[str, str], log_folder: Path, folder: Path, bus: Bus) -> None:
        self.program = Program(self.name, ["thunar", str(folder)], env=env, log_folder=log_folder)
        self._bus = bus
        self._own = Path(env["HOME"]) / ".config/Thunar"
        """Actions of its menus, and shortcuts."""

    def start(self) -> None:
        """Start it showing the agent's folder, with its first settings."""
        self.end()
        self._own.mkdir(parents=True)
        (self._own / _ACTIONS_FILE).write_text(_THUNAR_ACTIONS, encoding="utf-8")
        for name, value in (*_THUNAR_SETTINGS.items(), _COLUMN_WIDTHS):
            kind = "b" if isinstance(value, bool) else "s"
            self._ask_xfconf("SetProperty", "ssv", (CHANNEL, f"/{name}", (kind, value)))
        for name in self._settings().keys() - _THUNAR_SETTINGS.keys():
            self._ask_xfconf("ResetProperty", "ssb", (CHANNEL, f"/{name}", False))
        self.program.start()

    def connect(self, *, timeout_s: float) -> None:
        """Its window is all there is to wait for."""

    def end(self) -> None:
        """End it; it is started anew when it is needed."""
        self.program.kill()
        remove(self._own)

    def note(self) -> None:
        """Its first settings are known beforehand."""

    def changes(self, *, timeout_s: float) -> list[str]:
        """Which of its settings and files are not those that it was started with."""
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
        # It writes all shortcuts at some time, those that nobody has set as comments.
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


def gets_new_tab(name: str, title: str) -> bool:
    """Does the editor open the file ``name`` in a tab of its own, beside the only one, which is shown with ``title``?

    A file that is open is only shown again, with whatever was typed into it, and one without a name gives its tab away, with
    what there is to undo. Titles hold the name alone, so another folder's file of that name counts as open too.
    """
    return name not in title and "Untitled" not in title


def _remembered(settings: str) -> dict[str, dict[str, str]]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.read_string(settings)
    return {name: dict(parser[name]) for name in parser.sections() if name.startswith(_REMEMBERED)}
