"""Reading /proc: who is whose child, who belongs to a run, and ending whole trees.

Nothing here knows roles or policies. Linux only. A process belongs to a run when its environment carries the run's token,
which every process inherits; what runs inside a container has another environment but is a descendant of one that has it.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable
from pathlib import Path

TOKEN_VARIABLE = "COMPUTERRL_RUN_TOKEN"
"""Environment variable that marks the processes of one supervisor."""

SHM_FOLDER = "/dev/shm/"

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def become_subreaper() -> None:
    """Orphaned descendants become our children instead of init's, so that none can escape unseen."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def parents() -> dict[int, int]:
    """pid -> parent's pid of every process that can be seen, zombies left out."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = Path("/proc", entry, "stat").read_text(errors="replace")
        except OSError:
            continue  # ended meanwhile
        # The command name is in brackets and may hold spaces and brackets itself.
        state, parent = stat.rpartition(")")[2].split()[:2]
        if state not in "ZX":
            found[int(entry)] = int(parent)
    return found


def descendants(roots: Iterable[int], *, tree: dict[int, int] | None = None) -> set[int]:
    """All processes below ``roots``, the roots themselves left out."""
    tree = parents() if tree is None else tree
    children: dict[int, list[int]] = {}
    for pid, parent in tree.items():
        children.setdefault(parent, []).append(pid)
    roots = set(roots)
    found: set[int] = set()
    pending = list(roots)
    while pending:
        for child in children.get(pending.pop(), ()):
            if child not in found:
                found.add(child)
                pending.append(child)
    return found - roots


def marked(token: str) -> set[int]:
    """Processes whose environment carries ``token``, and all below them; the caller itself is left out."""
    needle = f"{TOKEN_VARIABLE}={token}".encode()
    tree = parents()
    found = set()
    for pid in tree:
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue  # ended meanwhile, or somebody else's
        if needle in environ.split(b"\0"):
            found.add(pid)
    found |= descendants(found, tree=tree)
    found.discard(os.getpid())
    return found


def kill_all(pids: Iterable[int]) -> None:
    """SIGKILL to each; the dead and the foreign are passed over."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def shared_memory_of(pids: Iterable[int]) -> set[str]:
    """Files in /dev/shm that these processes have mapped."""
    found = set()
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            path = line[line.find("/") :] if SHM_FOLDER in line else ""
            if path.startswith(SHM_FOLDER) and not path.endswith(" (deleted)"):
                found.add(path)
    return found
