"""Reading /proc: who is whose child, who belongs to a run, and ending whole trees.

Nothing here knows roles or policies. Linux only. A process belongs to a run when its environment carries the run's token,
which every process inherits; what runs inside a container has another environment but is a descendant of one that has it.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
from collections.abc import Iterable
from pathlib import Path

RUN_VARIABLE = "COMPUTERRL_RUN_TOKEN"
"""Environment variable that marks all processes of one supervisor."""
PROCESS_VARIABLE = "COMPUTERRL_PROCESS_TOKEN"
"""Environment variable that marks one start of one role, and everything it starts itself."""
SHM_FOLDER = Path("/dev/shm")

NAMED_AFTER_PID = re.compile(r"(?:torch|__KMP_REGISTERED_LIB)_(\d+)_")

STOP_SIGNAL = signal.SIGUSR2
"""From the supervisor to a wrapper on a node: end the role. SIGTERM may come from the scheduler as well; see `node_process
--notice`."""
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def become_subreaper() -> None:
    """Orphaned descendants become our children instead of init's, so that none can escape unseen."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def parents() -> dict[int, int]:
    """pid -> parent's pid of every process that can be seen, zombies left out."""
    return {pid: parent for pid, (state, parent) in _states().items() if state not in "ZX"}


def children_of(pid: int) -> set[int]:
    """Direct children of ``pid``, zombies included. Cheap where the kernel lists them, which Debian's does."""
    try:
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        lists = []
    if lists:
        return {int(child) for text in lists for child in text.split()}
    return {child for child, (_, parent) in _states().items() if parent == pid}


def _states() -> dict[int, tuple[str, int]]:
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                stat = file.read().decode(errors="replace")
        except OSError:
            continue  # ended meanwhile
        # The command name is in brackets and may hold spaces and brackets itself.
        state, parent = stat.rpartition(")")[2].split(None, 2)[:2]
        found[int(name)] = (state, int(parent))
    return found


def ancestors(pid: int) -> list[int]:
    """Parent of ``pid``, its parent, and so on."""
    found: list[int] = []
    while pid > 1:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            break  # ended meanwhile
        pid = int(stat.rpartition(")")[2].split()[1])
        found.append(pid)
    return found


def start_time(pid: int) -> str:
    """When ``pid`` was started, in the kernel's ticks: tells it from a later process of the same number. Empty: it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


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


def marks(pids: Iterable[int], variable: str) -> dict[int, str]:
    """pid -> value of the environment ``variable`` it was started with; processes without it, or unreadable, are left out."""
    needle = f"{variable}=".encode()
    found = {}
    for pid in pids:
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue  # ended meanwhile, or of another user
        for entry in environ.split(b"\0"):
            if entry.startswith(needle):
                found[pid] = entry[len(needle) :].decode(errors="replace")
    return found


def marked(variable: str, value: str) -> set[int]:
    """Processes whose environment says ``variable=value``, and all below them; the caller itself is left out."""
    tree = parents()
    found = {pid for pid, mark in marks(tree, variable).items() if mark == value}
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


def shared_memory_of(pids: Iterable[int]) -> set[Path]:
    """Files in /dev/shm that these processes have mapped, or that carry one of their pids in the name."""
    pids = set(pids)
    found = set()
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            if " /dev/shm/" in line and not line.endswith(" (deleted)"):
                found.add(Path(line[line.index("/dev/shm/") :]))
    return found | named_after(pids)


def named_after(pids: Iterable[int]) -> set[Path]:
    """Files in /dev/shm that torch and OpenMP name after the process that made them."""
    wanted = set(pids)
    files = list(SHM_FOLDER.iterdir()) if SHM_FOLDER.is_dir() else []
    matches = ((file, NAMED_AFTER_PID.match(file.name)) for file in files)
    return {file for file, match in matches if match and int(match[1]) in wanted}


def remove_shared_memory(paths: Iterable[Path]) -> list[Path]:
    """Unlink what is ours and still there; gives what was removed."""
    removed = []
    for path in paths:
        try:
            if path.stat().st_uid == os.getuid():
                path.unlink()
                removed.append(path)
        except OSError:
            continue  # gone already, or a name that was never a file
    return removed
