"""Which command lines of task files mean an application of this desktop. Pure."""

from __future__ import annotations

import os.path
import shlex
from collections.abc import Sequence

_APPS = {
    "google-chrome": "browser", "google-chrome-stable": "browser", "chromium": "browser", "chromium-browser": "browser",
    "gedit": "editor", "mousepad": "editor", "nautilus": "files", "thunar": "files", "vlc": "vlc", "gimp": "gimp",
    "thunderbird": "thunderbird", "gnome-terminal": "terminal", "xfce4-terminal": "terminal", "code": "code",
    "libreoffice": "", "soffice": "", "localc": "calc", "lowriter": "writer", "loimpress": "impress",
}  # fmt: skip
"""Program -> application; empty: its options or files say which."""
_OFFICE_OPTIONS = {"--calc": "calc", "--writer": "writer", "--impress": "impress"}
_CHROME = frozenset({"chrome", "google-chrome", "google-chrome-stable", "chromium", "chromium-browser"})
_SHELL_SIGNS = frozenset("|&;<>()$`\n*?")


def opens(command: str | Sequence[str]) -> tuple[str, list[str]] | None:
    """The application that ``command`` starts and the files and addresses it names; None: it is another command."""
    words = _words(command)
    program = os.path.basename(words[0]) if words else ""
    if program not in _APPS:
        return None
    options = [word for word in words[1:] if word.startswith("-")]
    arguments = [word for word in words[1:] if not word.startswith("-")]
    app = _APPS[program] or next((_OFFICE_OPTIONS[option] for option in options if option in _OFFICE_OPTIONS), "")
    if {"--headless", "--convert-to"} & set(options) or (not app and not arguments):
        return None
    return app, arguments


def ends_browser(command: str | Sequence[str]) -> bool:
    """Is it ``pkill chrome`` or its like? The processes have another name here, and settings must be on disk afterwards."""
    words = _words(command)
    return bool(words) and os.path.basename(words[0]) in ("pkill", "killall") and bool(_CHROME & set(words[1:]))


def _words(command: str | Sequence[str]) -> list[str]:
    """The words of a plain command line, without variables set in front; none where a shell is needed."""
    if not isinstance(command, str):
        return list(command)
    if _SHELL_SIGNS & set(command):
        return []
    try:
        words = shlex.split(command)
    except ValueError:
        return []
    while words and "=" in words[0].split("/")[0]:
        del words[0]
    return words
