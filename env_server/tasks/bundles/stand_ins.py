"""Stand-ins for applications while a set-up script runs: what the script starts, the desktop opens when the script has ended.

Set-up scripts end with ``subprocess.Popen(["libreoffice", "--writer", path])`` on a display of their own machine. The desktop has
its applications already, so a second one of them would be nobody's.
"""

from __future__ import annotations

from collections.abc import Iterator

PROGRAMS = (
    "google-chrome", "google-chrome-stable", "chromium", "chromium-browser", "gedit", "mousepad", "nautilus", "thunar", "vlc",
    "gimp", "thunderbird", "gnome-terminal", "xfce4-terminal", "x-terminal-emulator", "xdg-open", "libreoffice", "soffice",
    "localc", "lowriter", "loimpress", "code",
)  # fmt: skip
"""Programs that `OsworldDesktop.launch` knows as applications."""
FOLDER = ".stand-ins"
"""Folder beside the script; it comes first in the script's PATH."""
_STARTED = "started"
_MAX_STARTED = 20

_PROGRAM = r"""#!/bin/sh
for word in "$@"; do
    case $word in
        --headless | --convert-to | --version | --help | -h | --*-extension | --list-extensions)
            PATH=${PATH#*:} exec "${0##*/}" "$@" ;;
    esac
done
printf '%s\0' $(($# + 1)) "${0##*/}" "$@" >> "${0%/*}/started"
"""
"""Notes how often, and with which words, it is called: their number, then each, all ended by NUL. What needs no window is done by
the program itself."""


def files() -> dict[str, bytes]:
    """Path beside the script -> content, for each stand-in."""
    return {f"{FOLDER}/{name}": _PROGRAM.encode() for name in PROGRAMS}


def with_stand_ins(command: list[str], folder: str) -> list[str]:
    """``command`` with the stand-ins in ``folder`` first in its PATH."""
    return ["sh", "-c", 'PATH=$0:$PATH exec "$@"', f"{folder}/{FOLDER}", *command]


def notes(folder: str) -> str:
    """Path of the file with what was started."""
    return f"{folder}/{FOLDER}/{_STARTED}"


def started(noted: bytes) -> Iterator[list[str]]:
    """The command lines that the file at `notes` holds, in the order of their starts, at most a few. Raises `ValueError`."""
    words = noted.decode().split("\0")[:-1]
    for _ in range(_MAX_STARTED):
        if not words:
            return
        number = int(words[0])
        yield words[1 : number + 1]
        del words[: number + 1]
