"""VLC's settings, which are lines of its file ``vlcrc``; VLC reads it at its start."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..faults import Refused
from ..files.folder import AgentFolder

SETTINGS_FILE = ".config/vlc/vlcrc"
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
"""Type of each setting that the agent may change."""
_DEFAULTS = {
    "input-record-path": "",
    "qt-bgcone": "1",
    "qt-max-volume": "125",
    "qt-minimal-view": "0",
    "global-key-play-pause": "",
}
_VOLUME_RANGE = (60, 300)
"""VLC's own bounds of qt-max-volume, in percent."""


class VlcSettings:
    """The file in the home of one user."""

    def __init__(self, folder: AgentFolder) -> None:
        self._folder = folder

    def first(self) -> str:
        """The file's text at VLC's first start in a task."""
        return changed_settings("", _FIXED_SETTINGS)

    def value(self, field: str) -> str:
        """A setting as the file has it, or will have it at the first start."""
        return read_setting(self._text(), field) or _DEFAULTS[field]

    def change(self, field: str, value: str) -> None:
        """Change a setting in the file."""
        self._folder.make_parents(SETTINGS_FILE)
        self._folder.write(SETTINGS_FILE, changed_settings(self._text(), {field: value}))

    def text_of(self, field: str, value: str | int | bool) -> str:
        """``value`` as the file has it. Raises `Refused`, `FileActionError`."""
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
            place = self._folder.existing(str(value))
            if not place.is_dir():
                raise Refused(f"{value} is not a folder")
            return str(place)
        if not isinstance(value, str) or "\n" in value:
            raise Refused(f"{field} is the name of a key")
        return value.strip()

    def _text(self) -> str:
        text = self._folder.text_or_none(SETTINGS_FILE)
        return self.first() if text is None else text


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
