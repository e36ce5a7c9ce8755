"""Processes below a desktop, their memory and processor time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def processes(root: int) -> Iterator[int]:
    """``root`` and everything below it."""
    pending = [root]
    while pending:
        pid = pending.pop()
        yield pid
        try:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                pending += [int(child) for child in (thread / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue


def pss_mb(root: int) -> float:
    """Proportional memory of all of them, MiB."""
    return sum(map(_pss_mb, processes(root)))


def ticks(root: int) -> int:
    """Processor time of all of them, in clock ticks."""
    return sum(map(_ticks, processes(root)))


def _pss_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(fields[11]) + int(fields[12])
