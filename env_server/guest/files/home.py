"""The user's home at the beginning of a task: the files that applications find in it, and those that the warm ones keep.

All applications, the terminal's shell and the commands of task files have this one home, and each keeps its settings where it
keeps them everywhere. So an evaluator finds what an agent has set, and an application that is started again knows it.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from .folder import AgentFolder, read_regular

_GTK_SETTINGS = """[Settings]
gtk-cursor-blink=0
gtk-enable-animations=0
gtk-recent-files-enabled=0
gtk-im-module=gtk-im-context-simple
gtk-overlay-scrolling=0
"""
_GTK_STYLE = "* { outline-style: none; outline-width: 0; }\n"
"""No focus rings: they show only after a key was pressed, so the same screen would look different by how it was reached."""
_SHELL_SETTINGS = """# ~/.bashrc: read by interactive shells
case $- in
    *i*) ;;
    *) return ;;
esac
HISTCONTROL=ignoreboth
HISTSIZE=1000
HISTFILESIZE=2000
shopt -s histappend checkwinsize
PS1='\\w\\$ '
PROMPT_COMMAND='history -a'
"""
"""Debian's own, without colours and names of host and user; and what was typed is in the history at once, for evaluators."""

SKELETON: Mapping[str, str] = {
    ".bashrc": _SHELL_SETTINGS,
    ".config/gtk-3.0/settings.ini": _GTK_SETTINGS,
    ".config/gtk-3.0/gtk.css": _GTK_STYLE,
    ".gtkrc-2.0": "gtk-cursor-blink = 0\n",
}
"""File -> text."""
_MODE, _FOLDER_MODE = 0o600, 0o700
_BEGAN_NS = time.time_ns()
"""Time of the last change that all these files have."""
LINKS: Mapping[str, str] = {".config/google-chrome": "chromium"}
"""The browser's settings have two names in task files."""


def renew(folder: AgentFolder, *, keep: Collection[Path] = ()) -> None:
    """Make the home what it is when a task begins, but for files and folders of the applications that run.

    A file that is as it should be is left alone: a file manager takes notice of each change.
    """
    same = {path for path, text in SKELETON.items() if _holds(folder.root / path, text)}
    folder.wipe(keep={*keep, *(folder.root / path for path in same)})
    for path, text in SKELETON.items():
        if path not in same:
            folder.make_parents(path)
            folder.write(path, text)
            (folder.root / path).chmod(_MODE)
            os.utime(folder.root / path, ns=(_BEGAN_NS, _BEGAN_NS))
        for parent in (folder.root / path).relative_to(folder.root).parents:
            place = folder.root / parent
            if stat.S_IMODE(place.stat().st_mode) != _FOLDER_MODE:
                place.chmod(_FOLDER_MODE)
    for path, target in LINKS.items():
        place = folder.root / path
        # With its folder: through a link that leads nowhere no command can make one.
        (place.parent / target).mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)


def _holds(place: Path, text: str) -> bool:
    """Is it the file that was written, to its mode and its time? Both could carry something to the next task."""
    if any(part.is_symlink() for part in (place, place.parent, place.parent.parent)) or read_regular(place) != text.encode():
        return False
    facts = place.stat()
    return stat.S_IMODE(facts.st_mode) == _MODE and facts.st_mtime_ns == _BEGAN_NS
