"""Memory of this host, of the part of it that a batch job may use, and what this process keeps of it."""

from __future__ import annotations

import ctypes
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Of glibc's `mallopt`."""
_KEPT_BYTES, _MAPPED_BYTES = 256 << 20, 32 << 20


def keep_freed_memory() -> None:
    """Do not give back what was freed, where the C library is glibc: this process keeps about as much as it ever had.

    For processes through which large messages go: to give pages back and have new ones cleared for the next message takes as
    long as decrypting it. Only what lies at the end of a heap, beyond 256 MiB, and blocks from 32 MiB on go back.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)


def total_and_available_mb() -> tuple[int, int]:
    """MiB in all, and what can still be had without swapping (the kernel's estimate), both within the cgroup's limit."""
    memory = _meminfo()
    total_mb, available_mb = memory.get("MemTotal", 0), memory.get("MemAvailable", 0)
    limit_mb, used_mb = _cgroup_memory()
    if limit_mb is not None:
        total_mb = min(total_mb, limit_mb)
        available_mb = min(available_mb, max(0, limit_mb - used_mb))
    return total_mb, available_mb


def read_fact(path: str) -> str:
    """A file of /proc or /sys; empty where there is none."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _meminfo() -> dict[str, int]:
    """MiB by name."""
    pairs = (line.split(":") for line in read_fact("/proc/meminfo").splitlines() if ":" in line)
    return {name: int(value.split()[0]) // 1024 for name, value in pairs}


def cgroup_folder() -> Path | None:
    """This process's cgroup (version 2)."""
    for line in read_fact("/proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            return Path("/sys/fs/cgroup") / line[3:].lstrip("/")
    return None


def _cgroup_memory() -> tuple[int | None, int]:
    """(limit, used without cache that can be dropped) in MiB; the tightest limit of this cgroup and those above it."""
    folder, limit, used = cgroup_folder(), None, 0
    while folder is not None and folder.is_relative_to("/sys/fs/cgroup"):
        text = read_fact(f"{folder}/memory.max").strip()
        if text.isdigit() and (limit is None or int(text) < limit):
            limit = int(text)
            stat = dict(line.split() for line in read_fact(f"{folder}/memory.stat").splitlines() if line)
            used = int(read_fact(f"{folder}/memory.current").strip() or 0) - int(stat.get("inactive_file", 0))
        folder = folder.parent
    return (None, 0) if limit is None else (limit >> 20, max(0, used) >> 20)
