"""Which command lines of task files mean an application of this desktop. Pure."""

from __future__ import annotations

import os.path
import re
import shlex
from collections.abc import Sequence

_APPS = {
    "google-chrome": "browser", "google-chrome-stable": "browser", "chromium": "browser", "chromium-browser": "browser",
    "gedit": "editor", "mousepad": "editor", "nautilus": "files", "thunar": "files", "vlc": "vlc", "gimp": "gimp",
    "thunderbird": "thunderbird", "gnome-terminal": "terminal", "xfce4-terminal": "terminal", "x-terminal-emulator": "terminal",
    "code": "code", "xdg-open": "",
    "libreoffice": "", "soffice": "", "localc": "calc", "lowriter": "writer", "loimpress": "impress",
}  # fmt: skip
"""Program -> application; empty: its options or files say which."""
_OFFICE_OPTIONS = {"--calc": "calc", "--writer": "writer", "--impress": "impress"}
_CODE_SHOWS = frozenset({"-n", "--new-window", "-r", "--reuse-window"})
"""Options with which `code` only opens what it names."""
_CODE_OPENS = frozenset({"-a", "--add", "-d", "--diff", "-g", "--goto", "-m", "--merge", "--remove"})
"""Options with which it opens that otherwise."""
_PROCESSES = {
    **{program: app for program, app in _APPS.items() if app in ("browser", "vlc", "gimp", "thunderbird", "terminal", "code")},
    "chrome": "browser",
    "gimp-2.10": "gimp",
    "gnome-terminal-server": "terminal",
}
"""Process that a command ends -> application that is started on demand."""
_SHELL_SIGNS = frozenset("|&;<>()$`\n*?")
_EXPORT = re.compile(r"export +\w+=[^;&|]*$")


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
    if app == "code" and not _CODE_SHOWS.issuperset(options):
        return None
    return app, arguments


def needs_code(command: str | Sequence[str]) -> bool:
    """Does `code` open something otherwise than as a file or a folder, in the window that is there?"""
    words = _words(command)
    return words[:1] != [] and os.path.basename(words[0]) == "code" and not _CODE_OPENS.isdisjoint(words)


def ends(command: str | Sequence[str]) -> str | None:
    """The application that ``pkill chrome`` or its like ends. The processes have other names here than in task files, and what
    the application knows must be on disk afterwards."""
    words = _words(command)
    if not words or os.path.basename(words[0]) not in ("pkill", "killall"):
        return None
    return next((_PROCESSES[word] for word in words[1:] if word in _PROCESSES), None)


def folder_of(command: str | Sequence[str]) -> str:
    """The folder in which a command line wants its terminal; empty where it does not say."""
    found = [word.partition("=")[2] for word in _words(command) if word.startswith("--working-directory=")]
    return found[0] if found else ""


def _words(command: str | Sequence[str]) -> list[str]:
    """The words of a plain command line, without variables set in front; none where a shell is needed."""
    if not isinstance(command, str):
        words = list(command)
        is_shell = len(words) == 3 and os.path.basename(words[0]) in ("bash", "sh") and words[1] == "-c"
        return _words(words[2]) if is_shell else words
    *settings, line = command.strip().split("\n")
    if any(not _EXPORT.match(setting) for setting in settings) or _SHELL_SIGNS & set(line):
        return []
    try:
        words = shlex.split(line)
    except ValueError:
        return []
    while words and "=" in words[0].split("/")[0]:
        del words[0]
    return words
