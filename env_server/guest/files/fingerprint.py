"""What could carry something from one episode to the next, in plain values: to be taken after two resets and compared.

Taken from inside, when no program of an agent lives. A reset does not need it: tests and soaks find with it what a reset missed.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .. import processes
from .folder import read_regular
from .leftovers import WRITABLE

if TYPE_CHECKING:
    from ..session import Session

Fingerprint = Mapping[str, Mapping[str, str]]
"""Area -> name -> value."""

_MAX_PATH_BYTES = 4095 - 256
"""Of a folder whose files have paths that every call takes."""
_IPC = Path("/proc/sysvipc")
_MADE_AGAIN = re.compile(
    r"\.cache|\.cache/fontconfig(/.*)?|\.local|\.local/share|\.local/share/recently-used\.xbel|sheet\.ods|lu\w+\.tmp|"
    r"\.config/(Mousepad|Thunar|xfce4|glib-2\.0|libreoffice)(/.*)?"
)
"""In the home: what applications write again by themselves. A reset takes it away or compares it otherwise."""
_OF_THE_SESSION = re.compile(
    r".*/run/(at-spi|dconf)(/user|/bus_0)?|.*/run/at-spi2-\w+(/socket)?|/tmp/agent/\.(cache|config|local)(/.*)?"
)
"""The same of the session's own programs."""
_OF_APPLICATIONS = ("org.xfce.", "org.freedesktop.FileManager1", ":")
"""Names on the bus that come and go with applications, and connections without a name."""


def take(*, session: Session, home: Path, own: Collection[Path]) -> dict[str, dict[str, str]]:
    """All of it. ``own``: folders and files of applications that run, which they change all the time."""
    return {
        "files": _files((*WRITABLE, str(home)), home, frozenset(map(str, own))),
        "programs": {file: "runs" for file in processes.foreign_files()},
        "bus": {name: "owned" for name in session.bus.names() if not name.startswith(_OF_APPLICATIONS)},
        "ipc": _ipc(),
        "mounts": _mounts(),
        "sockets": _listening(),
        "accessibility": {name: str(value) for name, value in session.accessibility_settings().items()},
        "screen": session.screen.describe(),
    }


def differences(first: Fingerprint, now: Fingerprint) -> list[str]:
    """One phrase for each difference. Pure."""
    found = []
    for area in sorted(first.keys() | now.keys()):
        before, after = first.get(area, {}), now.get(area, {})
        for name in sorted(before.keys() | after.keys()):
            if name not in before:
                found.append(f"{area}: {name} is new: {after[name]}")
            elif name not in after:
                found.append(f"{area}: {name} is gone")
            elif before[name] != after[name]:
                found.append(f"{area}: {name} was {before[name]} and is {after[name]}")
    return found


def _files(roots: Sequence[str], home: Path, own: Collection[str]) -> dict[str, str]:
    above = {str(parent) for path in own for parent in Path(path).parents}
    found = {place: f"{stat.S_IMODE(os.stat(place).st_mode):o}" for place in roots}
    pending = list(roots)
    while pending:
        place = pending.pop()
        if len(os.fsencode(place)) > _MAX_PATH_BYTES or not os.access(place, os.R_OK | os.X_OK):
            found[place] = "cannot be looked into"
            continue
        with os.scandir(place) as entries:
            listed = [entry for entry in entries if entry.path not in own]
        for entry in listed:
            is_made_again = _MADE_AGAIN.fullmatch(os.path.relpath(entry.path, home)) or _OF_THE_SESSION.fullmatch(entry.path)
            if entry.path not in above and not is_made_again:
                found[entry.path] = _describe(entry)
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
    return found


def _describe(entry: os.DirEntry[str]) -> str:
    status = entry.stat(follow_symlinks=False)
    kind = stat.filemode(status.st_mode)
    if entry.is_symlink():
        return f"{kind} {os.readlink(entry.path)}"
    data = read_regular(Path(entry.path)) if stat.S_ISREG(status.st_mode) else None
    return kind if data is None else f"{kind} {hashlib.sha256(data).hexdigest()[:16]}"


def _ipc() -> dict[str, str]:
    return {
        f"{kind} {row.split()[1]}": row.split()[2]
        for kind in ("shm", "msg", "sem")
        if (_IPC / kind).exists()
        for row in (_IPC / kind).read_text(encoding="utf-8").splitlines()[1:]
        if not (kind == "shm" and int(row.split()[2], 8) & 0o1000)  # it goes with its program
    }


def _mounts() -> dict[str, str]:
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        rows = [line.split() for line in file]
    return {row[4]: row[5] for row in rows}


def _listening() -> dict[str, str]:
    found: dict[str, str] = {}
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        place = Path("/proc/net") / kind
        rows = place.read_text(encoding="utf-8").splitlines()[1:] if place.exists() else []
        found |= {f"{kind} {row.split()[1]}": "open" for row in rows if row.split()[3] in ("0A", "07")}
    return found
