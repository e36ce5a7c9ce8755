"""What episodes leave outside of the applications and of the home: files in every writable folder.

A reset removes all of it by what may stay, not by what is known to be left: profiles and logs of programs that run, and sockets
that a program listens at. No process of an agent lives by then.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from ..faults import DesktopError
from .folder import below, empty

WRITABLE = ("/tmp", "/var/tmp", "/dev/shm")
"""All that can be written to but the home. Both drivers mount these for one desktop alone."""

_QUEUES = ("/dev/mqueue",)
"""Where a site's configuration of Apptainer shows POSIX message queues as files."""
_IN_MEMORY = ("tmpfs", "mqueue")
"""File systems that go with their namespace."""


class WritableFolders:
    """The folders as the desktop began with them."""

    def __init__(self, roots: Iterable[str] = WRITABLE, *, mounts: Path = Path("/proc/self/mountinfo")) -> None:
        """Raises `DesktopError` for a folder that may be anybody else's too."""
        lines = [line.split(" - ") for line in mounts.read_text(encoding="utf-8").splitlines()]
        kinds = {head.split()[4]: tail.split()[0] for head, tail in lines}
        shared = [root for root in roots if kinds[_mount_of(root, kinds)] not in _IN_MEMORY]
        if shared:
            raise DesktopError(f"not of this desktop alone: {', '.join(shared)}")
        queues = [root for root in _QUEUES if kinds.get(root) in _IN_MEMORY]
        self._modes = {root: stat.S_IMODE(os.stat(root).st_mode) for root in (*roots, *queues)}
        self._began_ns = time.time_ns()
        self._first_modes = {
            entry.path: stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
            for root in self._modes
            for entry in below(Path(root))
            if not entry.is_symlink()
        }
        self._mounts = {Path(place) for place in kinds if any(place.startswith(f"{root}/") for root in self._modes)}
        """What is shown inside of them and lies elsewhere."""

    def open_up(self, paths: Iterable[Path], *, home: Path) -> None:
        """Give the folders above ``paths``, in these folders and in the home, the permissions back without which nothing in them
        can be removed."""
        above = {str(parent) for path in paths for parent in path.parents}
        for place in sorted(above, key=len):
            is_ours = any(place == root or place.startswith(f"{root}/") for root in (*self._modes, str(home)))
            is_folder = is_ours and os.path.isdir(place) and not os.path.islink(place)
            if is_folder and not os.access(place, os.R_OK | os.W_OK | os.X_OK):
                os.chmod(place, self._modes.get(place, 0o700))

    def wipe(self, *, folders: Collection[Path], files: Collection[Path]) -> None:
        """Remove everything but ``folders`` with all below them, ``files``, and sockets in use; see `folder.empty`."""
        sockets = _sockets()
        for root, mode in self._modes.items():
            empty(Path(root), folders=[*folders, *self._mounts], files=files, sockets=sockets)
            if stat.S_IMODE(os.stat(root).st_mode) != mode:
                os.chmod(root, mode)
        self._put_back_marks(folders)

    def _put_back_marks(self, folders: Collection[Path]) -> None:
        """What stays and is no application's has no time and no mode that an agent has given it."""
        times = (self._began_ns, self._began_ns)
        for root in self._modes:
            for entry in below(Path(root), leave_out=[*folders, *self._mounts]):
                with contextlib.suppress(FileNotFoundError):  # the session's programs go on
                    mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
                    if (first := self._first_modes.get(entry.path, mode)) != mode:
                        os.chmod(entry.path, first)
                    os.utime(entry.path, ns=times, follow_symlinks=False)
            os.utime(root, ns=times)


def _mount_of(place: str, mounts: Collection[str]) -> str:
    """The mount point at or above ``place``."""
    return max((mount for mount in mounts if f"{place}/".startswith(f"{mount.rstrip('/')}/")), key=len)


def _sockets() -> set[Path]:
    """Paths at which a living process has a socket."""
    with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as file:
        rows = [line.split(maxsplit=7) for line in file]
    return {Path(row[7].rstrip("\n")) for row in rows if len(row) == 8 and row[7].startswith("/")}
