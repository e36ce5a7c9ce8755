"""The text editor (Mousepad), which stays running between tasks, and the tabs of its window."""

from __future__ import annotations

import configparser
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..files.folder import read_regular, remove
from ..processes import Program
from ..reading.dbus import Bus, Call
from ..screen.windows import left

if TYPE_CHECKING:
    from ..reading.controls import Controls
    from ..screen.windows import Windows

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
"""Groups that count as settings; the editor offers again every text that was looked for."""
_MAX_TABS = 20
"""Number of tabs that are closed for the next task at most."""


class Editor:
    """Mousepad: its process and its settings."""

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
        """Return at once: its window is waited for by `Windows`."""

    def end(self) -> None:
        """End it; it is started anew when it is needed."""
        self.program.kill()
        remove(self._settings)
        remove(self._keys)

    def note(self) -> None:
        """Its first settings are known beforehand."""

    def changes(self, *, timeout_s: float) -> list[str]:
        """Names of the groups of its settings that are not as at its start."""
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
        """Its settings, which it reads all the time."""
        return [self._settings]

    def open(self, path: Path, *, timeout_s: float) -> None:
        """Ask the running editor for this file; it takes the place of an empty tab."""
        call = Call(
            "org.xfce.mousepad", "/org/xfce/mousepad", "org.freedesktop.Application", "Open", "asa{sv}", ([path.as_uri()], {})
        )
        self._bus.call(call, timeout_s=timeout_s)

    def activate(self, action: str) -> None:
        """Activate an action of its first window, such as ``file.new``, without waiting for its effect."""
        place = "/org/xfce/mousepad/window/1"
        self._bus.send(Call("org.xfce.mousepad", place, "org.gtk.Actions", "Activate", "sava{sv}", (action, (), {})))


class EditorTabs:
    """The tabs of the editor's only window. The window stays from task to task: a new one costs ten times as much."""

    def __init__(self, editor: Editor, windows: Windows, controls: Controls) -> None:
        self._editor, self._windows, self._controls = editor, windows, controls
        self._tab_list = ""
        """Object path of the list of tabs; empty: not known."""

    def show(self, place: Path | None, deadline: float) -> None:
        """Show this file and no other, whatever the last agent left open; None: an empty tab."""
        self._ready(deadline)
        editor, windows = self._editor, self._windows
        opens_first = place is not None and self._number() == 1 and gets_new_tab(place.name, windows.of(editor)[0].title)
        if place is not None and opens_first:
            self._open(place, deadline)
        else:
            editor.activate("file.new")
            windows.wait(lambda: self._number() > 1, deadline, "a new tab")
        for _ in range(_MAX_TABS):
            num_tabs = self._number()
            if num_tabs == 1:
                break
            editor.activate("document.previous-tab")
            editor.activate("file.close-tab")
            windows.wait(functools.partial(self._has_closed_tab, num_tabs), deadline, "closing a tab")
        if place is not None and not opens_first:
            self._open(place, deadline)

    def _ready(self, deadline: float) -> None:
        """Make sure that the editor runs with one window, in which nothing is looked for."""
        editor, windows = self._editor, self._windows
        windows.ready_to_read(editor, deadline)
        nodes = self._controls.nodes_of(editor.program.pid)
        has_bar = any(node.role == "tool-bar" for node in nodes)  # the one to search
        if has_bar or len(windows.of(editor)) != 1:
            windows.restart(editor, deadline)
            windows.ready_to_read(editor, deadline)
            nodes = self._controls.nodes_of(editor.program.pid)
        self._tab_list = next((node.path for node in nodes if node.role == "page-tab-list"), "")

    def _open(self, place: Path, deadline: float) -> None:
        self._editor.open(place, timeout_s=left(deadline))
        title = f"{place.name} - Mousepad"
        windows = self._windows
        windows.wait(lambda: any(window.title == title for window in windows.of(self._editor)), deadline, "the editor's file")

    def _number(self) -> int:
        pid = self._editor.program.pid
        found = self._controls.num_children(pid, self._tab_list) if self._tab_list else None
        return sum(node.role == "page-tab" for node in self._controls.nodes_of(pid)) if found is None else found

    def _has_closed_tab(self, num_before: int) -> bool:
        self._windows.discard_changes(self._editor)
        return self._number() < num_before


def gets_new_tab(name: str, title: str) -> bool:
    """Does the editor open the file ``name`` in a tab of its own, beside the only one, which is shown with ``title``?

    A file that is open is only shown again, with all that was typed into it, and one without a name gives its tab away, with
    its steps to undo. Titles hold the name alone, so another folder's file of that name counts as open too.
    """
    return name not in title and "Untitled" not in title


def _remembered(settings: str) -> dict[str, dict[str, str]]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.read_string(settings)
    return {name: dict(parser[name]) for name in parser.sections() if name.startswith(_REMEMBERED)}
