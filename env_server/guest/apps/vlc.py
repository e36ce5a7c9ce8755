"""VLC: its process and the agent's API. `vlc_player` speaks to the running player, `vlc_settings` keeps the settings file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from ..faults import DesktopError, Refused
from .on_demand import OnDemandApp, Surroundings, Tools
from .vlc_player import Player, path_of
from .vlc_settings import SETTINGS, SETTINGS_FILE, VlcSettings

_EFFECT_LIMIT_S = 2.0
"""VLC answers before it has carried out a request; after this long its state is taken as it is."""
_SOCKET = "commands"
_EMPTY, _NOTHING = "the playlist is empty: add a file with vlc.add_to_playlist", "nothing is playing"
_OF_A_PLAYER = {
    "play": _EMPTY,
    **dict.fromkeys(("pause", "next", "previous", "get_current_time", "get_media_duration"), _NOTHING),
}
"""Methods that need a playlist or a medium, and why they are refused while VLC does not run."""
MEDIA_ENDINGS = (
    ".mp3", ".ogg", ".oga", ".flac", ".wav", ".m4a", ".opus", ".mp4", ".mkv", ".avi", ".webm", ".mov", ".mpg", ".mpeg", ".m3u",
    ".xspf",
)  # fmt: skip


class Vlc(OnDemandApp):
    """The media player."""

    name = "vlc"
    label = "VLC"
    program_file = "vlc"

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        bus_address = around.env.get("DBUS_SESSION_BUS_ADDRESS", "")
        self.player = Player(bus_address=bus_address, socket_path=self.private / _SOCKET)
        self.preferences = VlcSettings(around.folder)

    @cached_property
    def tools(self) -> VlcTools:
        """See `VlcTools`."""
        return VlcTools(self)

    def arguments(self) -> Sequence[str]:
        """The command socket; without pretending a terminal there is none."""
        return ["--extraintf=oldrc", "--rc-fake-tty", f"--rc-unix={self.private / _SOCKET}"]

    def environment(self) -> Mapping[str, str]:
        """Qt shows itself to the accessibility bus only when asked."""
        return {"QT_ACCESSIBILITY": "1", "QT_LINUX_ACCESSIBILITY_ALWAYS_ON": "1", "QT_QPA_PLATFORM": "xcb"}

    def settings(self) -> Mapping[str, str]:
        """Its settings file."""
        return {SETTINGS_FILE: self.preferences.first()}

    def connect(self, *, timeout_s: float) -> None:
        """Wait for its name on the session bus."""
        self.player.connect()
        self.around.wait(self.player.answers, time.monotonic() + timeout_s, "VLC on the session bus")

    def open(self, place: Path, *, timeout_s: float) -> None:
        """Play a file."""
        self.player.open(place)
        self.wait_for(lambda: path_of(self.player.metadata()) == str(place))

    def close(self) -> None:
        """See `OnDemandApp`."""
        super().close()
        self.player.close()

    def wait_for(self, done: Callable[[], bool]) -> bool:
        """Wait for an effect, which VLC shows after it has answered; False when there was none in time."""
        try:
            self.around.wait(done, time.monotonic() + _EFFECT_LIMIT_S, "VLC")
        except DesktopError:
            return False
        return True


class VlcTools(Tools):
    """One method per action."""

    needs_no_start: ClassVar[frozenset[str]] = frozenset({"get_settings", "set_settings", "get_media_files"})

    def __init__(self, vlc: Vlc) -> None:
        super().__init__(vlc.around.folder)
        self._vlc, self._player = vlc, vlc.player

    def check(self, method: str, args: Mapping[str, Any]) -> None:
        """Refuse a file that is missing, and methods that need a medium while VLC does not run."""
        if method == "add_to_playlist":
            self.existing_file(args["uri"])
        elif method in _OF_A_PLAYER and not self._vlc.program.running:
            raise Refused(_OF_A_PLAYER[method])

    def env_info(self) -> str:
        """State, medium, position and volume of the player."""
        player = self._player
        title = self._title() or "nothing"
        volume = round(100 * player.volume())
        screen = ", full screen" if player.is_fullscreen() else ""
        return f"{player.status()}: {title}, {player.seconds():.1f} of {player.length_s():.1f} s, volume {volume} %{screen}"

    def get_playlist(self) -> str:
        """Numbered titles with their lengths, and what is on."""
        titles = self._playlist()
        if not titles:
            return "the playlist is empty"
        now = self._title()
        rows = [f"{number}. {title}" for number, title in enumerate(titles, start=1)]
        return "\n".join([*rows, *([f"now: {now}"] if now else [])])

    def play(self) -> str:
        """Play, from the first in the playlist where nothing is."""
        if not self._playlist():
            raise Refused(_EMPTY)
        self._player.do("Play")
        self._vlc.wait_for(lambda: self._player.status() == "playing")
        return self.env_info()

    def pause(self) -> str:
        """Pause."""
        if self._player.status() == "stopped":
            raise Refused(_NOTHING)
        self._player.playlist()  # it cannot be read while VLC is paused
        self._player.do("Pause")
        self._vlc.wait_for(lambda: self._player.status() == "paused")
        return self.env_info()

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
        self._player.add(place)
        is_shown = self._player.status() != "paused"
        if is_shown and not self._vlc.wait_for(lambda: len(self._playlist()) > before):
            raise Refused(f"VLC did not take {uri}")
        return f"{self.shown(place)} is number {before + 1} of the playlist"

    def get_current_time(self) -> str:
        """Seconds from the medium's beginning."""
        self._require_medium()
        return f"{self._player.seconds():.1f}"

    def get_media_duration(self) -> str:
        """Seconds of the medium."""
        self._require_medium()
        self._vlc.wait_for(lambda: self._player.length_s() > 0)
        return f"{self._player.length_s():.1f}"

    def toggle_fullscreen(self, enable: bool | None) -> str:
        """Full screen on, off, or the other way round."""
        wanted = not self._player.is_fullscreen() if enable is None else enable
        self._player.set_fullscreen(wanted)
        if not self._vlc.wait_for(lambda: self._player.is_fullscreen() == wanted):
            raise Refused("VLC did not change it: full screen needs a video that is playing")
        return f"full screen {'on' if wanted else 'off'}"

    def get_settings(self) -> str:
        """The settings that `set_settings` changes."""
        return "\n".join(f"{field} = {self._vlc.preferences.value(field)}" for field in SETTINGS)

    def set_settings(self, field: str, value: str | int | bool) -> str:
        """Change a setting in VLC's file; a running VLC follows at its next start."""
        text = self._vlc.preferences.text_of(field, value)
        self._vlc.preferences.change(field, text)
        return f"{field} = {text}{' from the next start of VLC on' if self._vlc.program.running else ''}"

    def get_media_files(self, path: str, suffix: str | None) -> str:
        """Media files in a folder, one a line."""
        endings = (f".{suffix.strip().lstrip('.*').lower()}",) if suffix else MEDIA_ENDINGS
        found = [name for name in self.folder.list(path) if name.lower().endswith(endings)]
        return "\n".join(found) or f"no media files in {path}"

    def _go(self, method: str) -> str:
        before = self._player.metadata().get("mpris:trackid")
        if before is None:
            raise Refused(_NOTHING)
        self._player.do(method)

        def arrived() -> bool:
            # The other medium is named first and starts then; between the two VLC calls itself stopped.
            return self._player.metadata().get("mpris:trackid") not in (None, before) and self._player.status() != "stopped"

        self._vlc.wait_for(arrived)
        return self.env_info()

    def _require_medium(self) -> None:
        if not self._player.metadata():
            raise Refused(_NOTHING)

    def _playlist(self) -> list[str]:
        """Titles; of a VLC that was paused before its playlist could be read, the one that is on."""
        return self._player.playlist() or ([self._title()] if self._player.status() == "paused" else [])

    def _title(self) -> str:
        medium = self._player.metadata()
        path = path_of(medium)
        return self.shown(Path(path)) if path else str(medium.get("xesam:title", ""))
