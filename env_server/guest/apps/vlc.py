"""VLC, spoken to by MPRIS on the session bus; its settings are lines of its file ``vlcrc``, which it reads at its start.

The playlist is read over VLC's command socket: MPRIS tells only of what has been played since (3.0). Paused, that socket refuses:
then the playlist is what it was before, and what was added since.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlparse

from ..faults import DesktopError, Refused
from ..processes import executable
from ..reading.dbus import Bus, Call, DBusError
from .on_demand import OnDemandApp, Surroundings, Tools

BUS_NAME, _OBJECT = "org.mpris.MediaPlayer2.vlc", "/org/mpris/MediaPlayer2"
EXECUTABLE = "/usr/bin/vlc"
_ROOT, _PLAYER = "org.mpris.MediaPlayer2", "org.mpris.MediaPlayer2.Player"
_AT_THE_END = "/org/mpris/MediaPlayer2/TrackList/Append"
_CALL_LIMIT_S = 3.0
_ALL_LIMIT_S = 5.0
"""For all that run: an agent may have started any number of them."""
_EFFECT_LIMIT_S = 2.0
"""VLC answers before it has done what was asked; after this long the state is told as it is."""
_MICROSECONDS = 1_000_000
_EMPTY, _NOTHING = "the playlist is empty: add a file with vlc.add_to_playlist", "nothing is playing"
_OF_A_PLAYER = {
    "play": _EMPTY,
    **dict.fromkeys(("pause", "next", "previous", "get_current_time", "get_media_duration"), _NOTHING),
}
"""Methods that need a playlist or a medium, and why they are refused while VLC does not run."""
_ENTRY = re.compile(r"^\|  +- (.*)$")
"""A title in what the command ``playlist`` says; headings have one blank less."""
MEDIA_ENDINGS = (
    ".mp3", ".ogg", ".oga", ".flac", ".wav", ".m4a", ".opus", ".mp4", ".mkv", ".avi", ".webm", ".mov", ".mpg", ".mpeg", ".m3u",
    ".xspf",
)  # fmt: skip

_SETTINGS_FILE = ".config/vlc/vlcrc"
_FIXED_SETTINGS = {
    "qt-privacy-ask": "0",
    "metadata-network-access": "0",
    "qt-updates-notif": "0",
    "video-title-show": "0",
    "aout": "adummy",
    "qt-continue": "0",
    "qt-system-tray": "0",
    "qt-notification": "0",
    "one-instance": "0",
    "qt-error-dialogs": "1",
    "qt-recentplay": "0",
    "playlist-autostart": "1",
}
SETTINGS: Mapping[str, type] = {
    "input-record-path": str,
    "qt-bgcone": bool,
    "qt-max-volume": int,
    "qt-minimal-view": bool,
    "global-key-play-pause": str,
}
"""What the agent may set."""
_DEFAULTS = {
    "input-record-path": "",
    "qt-bgcone": "1",
    "qt-max-volume": "125",
    "qt-minimal-view": "0",
    "global-key-play-pause": "",
}
_VOLUME_RANGE = (60, 300)
"""VLC's own bounds of qt-max-volume, in percent."""


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


class Vlc(OnDemandApp):
    """The media player."""

    name = "vlc"
    label = "VLC"
    program_file = "vlc"

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._bus: Bus | None = None

    @cached_property
    def tools(self) -> VlcTools:
        """See `VlcTools`."""
        return VlcTools(self)

    def arguments(self) -> Sequence[str]:
        """The command socket; without pretending a terminal there is none."""
        return ["--extraintf=oldrc", "--rc-fake-tty", f"--rc-unix={self._socket}"]

    def environment(self) -> Mapping[str, str]:
        """Qt shows itself to the accessibility bus only when asked."""
        return {"QT_ACCESSIBILITY": "1", "QT_LINUX_ACCESSIBILITY_ALWAYS_ON": "1", "QT_QPA_PLATFORM": "xcb"}

    def settings(self) -> Mapping[str, str]:
        """Its settings file."""
        return {_SETTINGS_FILE: changed_settings("", _FIXED_SETTINGS)}

    def keep(self, field: str, value: str) -> None:
        """Change a setting in the file."""
        folder = self.around.folder
        folder.make_parents(_SETTINGS_FILE)
        folder.write(_SETTINGS_FILE, changed_settings(self._settings_text(), {field: value}))

    def setting(self, field: str) -> str:
        """A setting's value as the file has it."""
        return read_setting(self._settings_text(), field) or _DEFAULTS[field]

    def _settings_text(self) -> str:
        """What the file holds, or will hold at the start."""
        text = self.around.folder.text_or_none(_SETTINGS_FILE)
        return self.settings()[_SETTINGS_FILE] if text is None else text

    def launch(self) -> None:
        """See `OnDemandApp`."""
        self.tools.begin()
        super().launch()

    def connect(self, *, timeout_s: float) -> None:
        """Wait for its name on the session bus."""
        if self._bus is None:
            self._bus = Bus(self.around.env["DBUS_SESSION_BUS_ADDRESS"])
        self.around.wait(self._answers, time.monotonic() + timeout_s, "VLC on the session bus")

    def open(self, place: Path, *, timeout_s: float) -> None:
        """Play a file."""
        self.tools.play_file(place)

    def close(self) -> None:
        """See `OnDemandApp`."""
        super().close()
        if self._bus is not None:
            self._bus.close()
            self._bus = None

    def call(self, interface: str, member: str, signature: str = "", args: tuple[Any, ...] = ()) -> list[Any]:
        """One call; its result. Raises `DBusError`."""
        if self._bus is None:
            raise DesktopError("VLC is not connected")
        return self._bus.call(Call(BUS_NAME, _OBJECT, interface, member, signature, args), timeout_s=_CALL_LIMIT_S)

    def command(self, line: str) -> list[str]:
        """One command over VLC's command socket; the lines it says. Raises `DesktopError`."""
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

    def get(self, interface: str, name: str) -> Any:
        """One property."""
        return self.call("org.freedesktop.DBus.Properties", "Get", "ss", (interface, name))[0]

    def set(self, interface: str, name: str, value: tuple[str, Any]) -> None:
        """Change a property; ``value``: its D-Bus type and itself."""
        self.call("org.freedesktop.DBus.Properties", "Set", "ssv", (interface, name, value))

    @property
    def _socket(self) -> Path:
        return self.private / "commands"

    def _answers(self) -> bool:
        try:
            self.get(_PLAYER, "PlaybackStatus")
        except DBusError:
            return False
        return True


class VlcTools(Tools):
    """One method per action."""

    needs_no_start: ClassVar[frozenset[str]] = frozenset({"get_settings", "set_settings", "get_media_files"})

    def __init__(self, vlc: Vlc) -> None:
        super().__init__(vlc.around.folder)
        self._vlc = vlc
        self._known: list[str] = []
        """The playlist as it was read last."""

    def check(self, method: str, args: Mapping[str, Any]) -> None:
        """The file to add; without VLC nothing is playing."""
        if method == "add_to_playlist":
            self.existing_file(args["uri"])
        elif method in _OF_A_PLAYER and not self._vlc.program.running:
            raise Refused(_OF_A_PLAYER[method])

    def begin(self) -> None:
        """A new process; no action."""
        self._known = []

    def env_info(self) -> str:
        """What is playing, where, how loud."""
        title = self._title(self._metadata()) or "nothing"
        volume = round(100 * self._vlc.get(_PLAYER, "Volume"))
        screen = ", full screen" if self._vlc.get(_ROOT, "Fullscreen") else ""
        return f"{self._status()}: {title}, {self._seconds():.1f} of {self._length():.1f} s, volume {volume} %{screen}"

    def get_playlist(self) -> str:
        """Numbered titles with their lengths, and what is on."""
        titles = self._playlist()
        if not titles:
            return "the playlist is empty"
        now = self._title(self._metadata())
        rows = [f"{number}. {title}" for number, title in enumerate(titles, start=1)]
        return "\n".join([*rows, *([f"now: {now}"] if now else [])])

    def play(self) -> str:
        """Play, from the first in the playlist where nothing is."""
        if not self._playlist():
            raise Refused(_EMPTY)
        self._vlc.call(_PLAYER, "Play")
        return self._told(lambda: self._status() == "playing")

    def pause(self) -> str:
        """Pause."""
        if self._status() == "stopped":
            raise Refused(_NOTHING)
        self._playlist()
        self._vlc.call(_PLAYER, "Pause")
        return self._told(lambda: self._status() == "paused")

    def next(self) -> str:
        """The next in the playlist."""
        return self._go("Next")

    def previous(self) -> str:
        """The one before."""
        return self._go("Previous")

    def add_to_playlist(self, uri: str) -> str:
        """Add a file of the agent's folder at the end."""
        place = self.existing_file(uri)
        before = len(self._playlist())
        self._vlc.call("org.mpris.MediaPlayer2.TrackList", "AddTrack", "sob", (place.as_uri(), _AT_THE_END, False))
        if self._status() == "paused":
            self._known.append(place.name)
        elif not self._wait(lambda: len(self._playlist()) > before):
            raise Refused(f"VLC did not take {uri}")
        return f"{self.shown(place)} is number {before + 1} of the playlist"

    def get_current_time(self) -> str:
        """Seconds from the medium's beginning."""
        self._require_medium()
        return f"{self._seconds():.1f}"

    def get_media_duration(self) -> str:
        """Seconds of the medium."""
        self._require_medium()
        self._wait(lambda: self._length() > 0)
        return f"{self._length():.1f}"

    def toggle_fullscreen(self, enable: bool | None) -> str:
        """Full screen on, off, or the other way round."""
        wanted = not self._vlc.get(_ROOT, "Fullscreen") if enable is None else enable
        self._vlc.set(_ROOT, "Fullscreen", ("b", wanted))
        if not self._wait(lambda: bool(self._vlc.get(_ROOT, "Fullscreen")) == wanted):
            raise Refused("VLC did not change it: full screen needs a video that is playing")
        return f"full screen {'on' if wanted else 'off'}"

    def get_settings(self) -> str:
        """The settings that `set_settings` changes."""
        return "\n".join(f"{field} = {self._vlc.setting(field)}" for field in SETTINGS)

    def set_settings(self, field: str, value: str | int | bool) -> str:
        """Change a setting in VLC's file; a running VLC follows at its next start."""
        text = self.setting_text(field, value)
        self._vlc.keep(field, text)
        return f"{field} = {text}{' from the next start of VLC on' if self._vlc.program.running else ''}"

    def get_media_files(self, path: str, suffix: str | None) -> str:
        """Media files in a folder, one a line."""
        endings = (f".{suffix.strip().lstrip('.*').lower()}",) if suffix else MEDIA_ENDINGS
        found = [name for name in self.folder.list(path) if name.lower().endswith(endings)]
        return "\n".join(found) or f"no media files in {path}"

    def play_file(self, place: Path) -> None:
        """Open and play; no action, but how files are opened with VLC."""
        self._vlc.call(_PLAYER, "OpenUri", "s", (place.as_uri(),))
        self._wait(lambda: self._is_current(place))

    def setting_text(self, field: str, value: str | int | bool) -> str:
        """The value as the file has it. Raises `Refused`."""
        kind = SETTINGS[field]
        if kind is bool:
            if value in (True, 1, "1", "true", "True", "on"):
                return "1"
            if value in (False, 0, "0", "false", "False", "off"):
                return "0"
            raise Refused(f"{field} is True or False")
        if kind is int:
            low, high = _VOLUME_RANGE
            if isinstance(value, bool) or not re.fullmatch(r"\d+", str(value)) or not low <= int(value) <= high:
                raise Refused(f"{field} is a whole number from {low} to {high}")
            return str(int(value))
        if field == "input-record-path":
            place = self.folder.existing(str(value))
            if not place.is_dir():
                raise Refused(f"{value} is not a folder")
            return str(place)
        if not isinstance(value, str) or "\n" in value:
            raise Refused(f"{field} is the name of a key")
        return value.strip()

    # --- what VLC says ---

    def _go(self, member: str) -> str:
        before = self._metadata().get("mpris:trackid")
        if before is None:
            raise Refused(_NOTHING)
        self._vlc.call(_PLAYER, member)

        def arrived() -> bool:
            # The other medium is named first and starts then; between the two VLC calls itself stopped.
            return self._metadata().get("mpris:trackid") not in (None, before) and self._status() != "stopped"

        self._wait(arrived)
        return self.env_info()

    def _told(self, done: Callable[[], bool]) -> str:
        self._wait(done)
        return self.env_info()

    def _wait(self, done: Callable[[], bool]) -> bool:
        try:
            self._vlc.around.wait(done, time.monotonic() + _EFFECT_LIMIT_S, "VLC")
        except DesktopError:
            return False
        return True

    def _require_medium(self) -> None:
        if not self._metadata():
            raise Refused(_NOTHING)

    def _playlist(self) -> list[str]:
        if self._status() == "paused":
            return list(self._known) or [self._title(self._metadata())]
        titles = []
        for line in self._vlc.command("playlist"):
            entry = _ENTRY.match(line)
            if entry:
                titles.append(entry[1])
            elif titles:  # what follows the playlist is the media library
                break
        self._known = titles
        return list(titles)

    def _metadata(self) -> dict[str, Any]:
        return dict(self._vlc.get(_PLAYER, "Metadata"))

    def _status(self) -> str:
        return str(self._vlc.get(_PLAYER, "PlaybackStatus")).lower()

    def _seconds(self) -> float:
        return float(self._vlc.get(_PLAYER, "Position")) / _MICROSECONDS

    def _length(self) -> float:
        return float(self._metadata().get("mpris:length", 0)) / _MICROSECONDS

    def _is_current(self, place: Path) -> bool:
        return _path(self._metadata()) == str(place)

    def _title(self, row: Mapping[str, Any]) -> str:
        path = _path(row)
        return self.shown(Path(path)) if path else str(row.get("xesam:title", ""))


def _path(row: Mapping[str, Any]) -> str:
    return unquote(urlparse(str(row.get("xesam:url", ""))).path)


def read_setting(text: str, field: str) -> str:
    """A field's value in a settings file's text, empty when it is not set."""
    found = re.findall(rf"^{re.escape(field)}=(.*)$", text, flags=re.MULTILINE)
    return str(found[-1]) if found else ""


def changed_settings(text: str, changes: Mapping[str, str]) -> str:
    """A settings file's text with each field set once; everything else, comments included, stays."""
    for field, value in changes.items():
        pattern = re.compile(rf"^#?{re.escape(field)}=.*$", flags=re.MULTILINE)
        line = f"{field}={value}"
        if pattern.search(text):
            text = pattern.sub(line.replace("\\", r"\\"), text, count=1)
        else:
            text = f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{line}\n"
    return text
