"""A desktop's use of the host: memory, processes, sessions, open files. No cgroups are needed: batch jobs rarely have them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from computerrl.common import host, lifecycle
from computerrl.common.config import DesktopConfig

PERIOD_S = 1.0
"""Between two looks at all desktops. A look costs about 1 ms a desktop as long as it is far below its limit."""

FILES = "/dev/shm"
"""Where a desktop's tmpfs is mounted in its namespace: a folder that every Linux has and that nothing below needs."""

_PROCESSES_FACTOR = 3
"""A desktop whose processes the kernel limits stays below this many times its limit, also while they come and go as we look."""

_FEW_SESSIONS = 8
"""A desktop is one session, and each terminal or daemon on it one more. Sessions share the processors evenly where the kernel
groups processes by session, so beyond this number all but the first give way."""
_MAX_SESSIONS = 64
"""A desktop with more is ended."""
_HELD_BACK_NICE = 19

MAX_OPEN_FILES = 8192
"""Of all processes of a desktop, and of each, about 500 in use: the 400 KiB that the kernel may hold for a socket count to none
of them."""

_FEW_CONNECTIONS = 16
"""Ends of connections; together they may hold some 100 MiB."""

_MIB = 1024 * 1024


def available_mb() -> int:
    """What this host, or the job's share of it, can still give away, MiB."""
    return host.total_and_available_mb()[1]


def num_fitting(config: DesktopConfig, *, available_mb: Callable[[], int] = available_mb) -> int | None:
    """How many more desktops the memory holds; None: any number, as they take none."""
    return None if config.driver == "scripted" else available_mb() // config.memory_per_desktop_mb


def processes_below(root: int) -> list[int]:
    """``root`` and all processes below it."""
    found, pending = [], [root]
    while pending:
        pid = pending.pop()
        found.append(pid)
        try:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                pending += map(int, (thread / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
    return found


def sessions_of(pids: list[int]) -> dict[int, int]:
    """One of these processes by session."""
    found: dict[int, int] = {}
    for pid in pids:
        try:
            found.setdefault(os.getsid(pid), pid)
        except ProcessLookupError:
            continue  # it ended while we looked
    return found


def rss_mb(pids: list[int]) -> float:
    """Resident memory of all of them with their page tables, MiB; shared pages count once for each."""
    return sum(_status_kb(pid, "VmRSS", "VmPTE") for pid in pids) / 1024


def pss_mb(pids: list[int]) -> float:
    """Proportional memory of all of them with their page tables, MiB: a page shared by n processes counts 1/n for each. Some 2 ms
    a process."""
    return sum(_pss_kb(pid) + _status_kb(pid, "VmPTE") for pid in pids) / 1024


def num_open_files(pids: list[int]) -> int:
    """Open files, pipes and sockets of all of them; 0 where the kernel does not count them (before Linux 6.2)."""
    found = 0
    for pid in pids:
        try:
            found += os.stat(f"/proc/{pid}/fd").st_size
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
    return found


def files_mb(root: int) -> float:
    """Memory that a desktop's files take, MiB: all of them lie in one tmpfs, which its outermost process sees."""
    try:
        system = os.statvfs(f"/proc/{root}/root{FILES}")
        if os.stat(f"/proc/{root}/root{FILES}").st_dev == os.stat(FILES).st_dev:
            return 0.0  # not mounted yet, or no desktop with files of its own
    except OSError:
        return 0.0  # it ended while we looked
    return (system.f_blocks - system.f_bfree) * system.f_frsize / _MIB


def network_mb(pids: list[int]) -> float:
    """Bytes on their way through the connections of a desktop's own network, MiB; 0 where it has none of its own.

    The kernel holds up to `net.ipv4.tcp_rmem` and `tcp_wmem` for each end, which count to no process, and refuses memory to all
    connections of the host beyond `net.ipv4.tcp_mem`.
    """
    ours = os.stat("/proc/self/ns/net").st_ino
    for pid in pids:
        try:
            if os.stat(f"/proc/{pid}/ns/net").st_ino != ours:
                return _queued_bytes(Path(f"/proc/{pid}/net")) / _MIB
        except OSError:
            continue  # it ended while we looked, or hides itself
    return 0.0


def _queued_bytes(network: Path) -> int:
    counts = [line.split() for line in (network / "sockstat").read_text().splitlines()]
    if sum(int(row[2]) for row in counts if row[0] in ("TCP:", "UDP:")) <= _FEW_CONNECTIONS:
        return 0  # the lists cost some ms to read
    rows = [row.split() for kind in ("tcp", "tcp6", "udp", "udp6") for row in _rows(network / kind)]
    return sum(int(number, 16) for row in rows for number in row[4].split(":"))


def _rows(place: Path) -> list[str]:
    return place.read_text().splitlines()[1:] if place.exists() else []


def excess(pids: list[int], *, limit_mb: float) -> float | None:
    """Memory (MiB) of these processes (PSS), of the desktop's files and of its connections where it exceeds the limit, else None.
    ``pids``: the desktop's outermost process first."""
    others = files_mb(pids[0]) + network_mb(pids)
    if rss_mb(pids) + others <= limit_mb:
        return None  # PSS is never more than RSS, and costs far more to read
    taken = pss_mb(pids) + others
    return taken if taken > limit_mb else None


def _status_kb(pid: int, *names: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) for line in lines if line.partition(":")[0] in names)


def _pss_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    except PermissionError:
        # Root without the capability to trace, as in many containers, may not look at another user's processes so closely.
        return _status_kb(pid, "RssAnon", "RssShmem")
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


class ResourceWatcher:
    """A thread that checks all desktops and reports those that exceed their limits of memory, processes or files."""

    def __init__(
        self,
        desktops: Callable[[], Mapping[int, int]],
        report: Callable[[int, int, float, str], None],
        *,
        limit_mb: float,
        max_processes: int,
        period_s: float = PERIOD_S,
    ) -> None:
        """``desktops()``: outermost process id by desktop; ``report(desktop, pid, since, reason)``: it is above the
        limit; the look began at ``since`` (monotonic), and takes seconds when there are many processes."""
        self._desktops, self._report = desktops, report
        self._limit_mb, self._max_processes, self._period_s = limit_mb, max_processes, period_s
        self._held_back: dict[int, set[int]] = {}
        """Sessions that give way, by their desktop's outermost process."""
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="desktop-memory", daemon=True).start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._period_s):
            for desktop, pid in self._desktops().items():
                since = time.monotonic()
                reason = self._reason_against(processes_below(pid))
                if reason:
                    self._report(desktop, pid, since, reason)

    def _reason_against(self, pids: list[int]) -> str:
        """The limit that these processes exceed; empty: none."""
        taken = excess(pids, limit_mb=self._limit_mb)
        if taken is not None:
            return f"takes {taken:.0f} MiB of memory, more than desktop.memory_limit_mb {self._limit_mb:.0f}"
        if (num_sessions := self._hold_back(pids)) > _MAX_SESSIONS:
            return f"runs {num_sessions} sessions, more than {_MAX_SESSIONS}"
        if (num_open := num_open_files(pids)) > MAX_OPEN_FILES:
            return f"has {num_open} files open, more than {MAX_OPEN_FILES}"
        if len(pids) > _PROCESSES_FACTOR * self._max_processes:
            return f"runs {len(pids)} processes, more than desktop.max_processes {self._max_processes}"
        return ""

    def _hold_back(self, pids: list[int]) -> int:
        """Make the sessions of a desktop that has many of them give way; the number of its sessions."""
        found = sessions_of(pids)
        before = self._held_back.pop(pids[0], set())
        if len(found) > _FEW_SESSIONS:
            further = {session: pid for session, pid in found.items() if found.get(session) != pids[0]}
            for session in further.keys() - before:
                lifecycle.set_session_nice(further[session], _HELD_BACK_NICE)
            self._held_back[pids[0]] = set(further)
        return len(found)
