"""The two GTK applications: the text editor (Mousepad) and the file manager (Thunar). Both stay running between tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .dbus import Bus, Call
from .processes import Program

THUNAR_SETTINGS = """<?xml version="1.0" encoding="UTF-8"?>
<channel name="thunar" version="1.0">
  <property name="default-view" type="string" value="ThunarDetailsView"/>
  <property name="last-view" type="string" value="ThunarDetailsView"/>
  <property name="last-side-pane" type="string" value="void"/>
  <property name="last-statusbar-visible" type="bool" value="false"/>
  <property name="misc-thumbnail-mode" type="string" value="THUNAR_THUMBNAIL_MODE_NEVER"/>
  <property name="misc-single-click" type="bool" value="false"/>
  <property name="last-details-view-fixed-columns" type="bool" value="true"/>
  <property name="last-details-view-column-widths" type="string"
    value="100,100,130,100,100,100,100,100,400,100,100,80,100,180,100"/>
  <property name="misc-remember-geometry" type="bool" value="false"/>
</channel>
"""

MOUSEPAD_SETTINGS = """[org/xfce/mousepad/preferences/window]
opening-mode='tab'
path-in-title=false
recent-menu-items=uint32 0
remember-size=false

[org/xfce/mousepad/preferences/file]
session-restore='never'
monitor-changes=false
add-last-end-of-line=false

[org/xfce/mousepad/preferences/view]
auto-indent=false
word-wrap=true
"""

GTK_SETTINGS = """[Settings]
gtk-cursor-blink=0
gtk-enable-animations=0
gtk-recent-files-enabled=0
gtk-im-module=gtk-im-context-simple
gtk-overlay-scrolling=0
"""


GTK_STYLE = "* { outline-style: none; outline-width: 0; }\n"
"""No focus rings: they show only after a key was pressed, so the same screen would look different by how it was reached."""


class Editor:
    """Mousepad."""

    name = "editor"
    window_kind = ""

    def __init__(self, *, env: Mapping[str, str], log_folder: Path) -> None:
        self.program = Program(self.name, ["mousepad"], env=env, log_folder=log_folder)

    def start(self) -> None:
        """Start it with an empty window."""
        self.program.kill()
        self.program.start()

    def connect(self, *, timeout_s: float) -> None:
        """Its window is all there is to wait for."""

    def open(self, session: Bus, path: Path, *, timeout_s: float) -> None:
        """Ask the running editor for this file; it takes the place of an empty tab."""
        call = Call(
            "org.xfce.mousepad", "/org/xfce/mousepad", "org.freedesktop.Application", "Open", "asa{sv}", ([path.as_uri()], {})
        )
        session.call(call, timeout_s=timeout_s)

    def activate(self, session: Bus, action: str) -> None:
        """Activate an action of its first window, such as ``file.new``; does not wait for it to be done."""
        place = "/org/xfce/mousepad/window/1"
        session.send(Call("org.xfce.mousepad", place, "org.gtk.Actions", "Activate", "sava{sv}", (action, (), {})))


class Files:
    """Thunar."""

    name = "files"
    window_kind = ""

    def __init__(self, *, env: Mapping[str, str], log_folder: Path, folder: Path) -> None:
        self.program = Program(self.name, ["thunar", str(folder)], env=env, log_folder=log_folder)

    def start(self) -> None:
        """Start it showing the agent's folder."""
        self.program.kill()
        self.program.start()

    def connect(self, *, timeout_s: float) -> None:
        """Its window is all there is to wait for."""

    def open(self, session: Bus, folder: Path, *, timeout_s: float) -> None:
        """Ask the running file manager for a new window on this folder."""
        call = Call(
            "org.xfce.FileManager", "/org/xfce/FileManager", "org.xfce.FileManager", "DisplayFolder", "sss",
            (folder.as_uri(), "", ""),
        )  # fmt: skip
        session.call(call, timeout_s=timeout_s)
