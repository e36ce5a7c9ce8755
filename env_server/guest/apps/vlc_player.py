"""The player of a running VLC, spoken to by MPRIS on the session bus and over VLC's command socket.

The playlist is read over the command socket: MPRIS tells only of what has been played since (VLC 3.0). While VLC is paused, that
socket refuses: then the playlist is as it was before, with all that was added since.
"""

from __future__ import annotations

import re
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from ..faults import DesktopError
from ..processes import executable
from ..reading.dbus import Bus, Call, DBusError

BUS_NAME, _OBJECT = "org.mpris.MediaPlayer2.vlc", "/org/mpris/MediaPlayer2"
EXECUTABLE = "/usr/bin/vlc"
_ROOT, _PLAYER = "org.mpris.MediaPlayer2", "org.mpris.MediaPlayer2.Player"
_AT_THE_END = "/org/mpris/MediaPlayer2/TrackList/Append"
_CALL_LIMIT_S = 3.0
_ALL_LIMIT_S = 5.0
"""Time for all that run: an agent may have started any number of them."""
_MICROSECONDS = 1_000_000
_ENTRY = re.compile(r"^\|  +- (.*)$")
"""A title in the answer to the command ``playlist``; headings have one blank less."""


def playing(bus: Bus) -> list[dict[str, str]]:
    """``state`` and ``url`` of what each VLC plays, of as many as answer within `_ALL_LIMIT_S`.

    A name on the bus could be any program's: its process has to run VLC's own file.
    """
    found = []
    deadline = time.monotonic() + _ALL_LIMIT_S
    for name in bus.names():
        if name.startswith(BUS_NAME) and time.monotonic() < deadline:
            with suppress(DBusError, TypeError, ValueError):  # it has ended meanwhile, or answers nothing that VLC would
                if executable(bus.pid_of(name)) == EXECUTABLE:
                    state, about = (_property(bus, name, field) for field in ("PlaybackStatus", "Metadata"))
                    found.append({"state": str(state).lower(), "url": str(dict(about).get("xesam:url", ""))})
    return found


def _property(bus: Bus, name: str, field: str) -> Any:
    call = Call(name, _OBJECT, "org.freedesktop.DBus.Properties", "Get", "ss", (_PLAYER, field), returns="v")
    return bus.call(call, timeout_s=_CALL_LIMIT_S)[0]


class Player:
    """One VLC's player. Raises `DBusError` and `DesktopError` when VLC does not answer."""

    def __init__(self, *, bus_address: str, socket_path: Path) -> None:
        """``bus_address``: the session bus; ``socket_path``: VLC's command socket."""
        self._bus_address, self._socket = bus_address, socket_path
        self._bus: Bus | None = None
        self._known: list[str] = []
        """The playlist as it was read last."""

    def connect(self) -> None:
        """Connect to the session bus, where VLC may still be missing."""
        if self._bus is None:
            self._bus = Bus(self._bus_address)

    def answers(self) -> bool:
        """Is VLC on the session bus?"""
        try:
            self.status()
        except DBusError:
            return False
        return True

    def close(self) -> None:
        """Forget a VLC that has ended."""
        self._known = []
        if self._bus is not None:
            self._bus.close()
            self._bus = None

    # --- state ---

    def status(self) -> str:
        """``playing``, ``paused`` or ``stopped``."""
        return str(self._get(_PLAYER, "PlaybackStatus")).lower()

    def metadata(self) -> dict[str, Any]:
        """The medium as MPRIS describes it; empty: there is none."""
        return dict(self._get(_PLAYER, "Metadata"))

    def seconds(self) -> float:
        """Time from the medium's beginning."""
        return float(self._get(_PLAYER, "Position")) / _MICROSECONDS

    def length_s(self) -> float:
        """Length of the medium; 0: not known yet."""
        return float(self.metadata().get("mpris:length", 0)) / _MICROSECONDS

    def volume(self) -> float:
        """1 for the full volume."""
        return float(self._get(_PLAYER, "Volume"))

    def is_fullscreen(self) -> bool:
        """Does a video fill the screen?"""
        return bool(self._get(_ROOT, "Fullscreen"))

    def playlist(self) -> list[str]:
        """Titles in order; of a paused VLC as they were read last, empty where that was never."""
        if self.status() == "paused":
            return list(self._known)
        titles = []
        for line in self._command("playlist"):
            entry = _ENTRY.match(line)
            if entry:
                titles.append(entry[1])
            elif titles:  # the media library comes after the playlist
                break
        self._known = titles
        return list(titles)

    # --- changes, which VLC makes after it has answered ---

    def do(self, method: str) -> None:
        """A method without parameters: ``Play``, ``Pause``, ``Next``, ``Previous``."""
        self._call(_PLAYER, method)

    def open(self, place: Path) -> None:
        """Open a file and play it."""
        self._call(_PLAYER, "OpenUri", "s", (place.as_uri(),))

    def add(self, place: Path) -> None:
        """Add a file at the end of the playlist."""
        self._call("org.mpris.MediaPlayer2.TrackList", "AddTrack", "sob", (place.as_uri(), _AT_THE_END, False))
        if self.status() == "paused":
            self._known.append(place.name)

    def set_fullscreen(self, wanted: bool) -> None:
        """Full screen on or off."""
        args = (_ROOT, "Fullscreen", ("b", wanted))
        self._call("org.freedesktop.DBus.Properties", "Set", "ssv", args)

    # --- calls ---

    def _get(self, interface: str, name: str) -> Any:
        return self._call("org.freedesktop.DBus.Properties", "Get", "ss", (interface, name))[0]

    def _call(self, interface: str, member: str, signature: str = "", args: tuple[Any, ...] = ()) -> list[Any]:
        if self._bus is None:
            raise DesktopError("VLC is not connected")
        return self._bus.call(Call(BUS_NAME, _OBJECT, interface, member, signature, args), timeout_s=_CALL_LIMIT_S)

    def _command(self, line: str) -> list[str]:
        """The lines that VLC answers to a command."""
        said = b""
        end = f"{line.split()[0]}: returned".encode()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_CALL_LIMIT_S)
                connection.connect(str(self._socket))
                connection.sendall(f"{line}\n".encode())
                while end not in said:
                    chunk = connection.recv(1 << 16)
                    if not chunk:
                        break
                    said += chunk
        except OSError as error:
            raise DesktopError(f"VLC's command socket: {error}") from error
        return said.decode("utf-8", "replace").splitlines()


def path_of(medium: dict[str, Any]) -> str:
    """Path of the medium's file; empty: it is none."""
    return unquote(urlparse(str(medium.get("xesam:url", ""))).path)
