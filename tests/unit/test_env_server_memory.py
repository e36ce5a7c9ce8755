"""What a desktop's processes take, and the thread that watches it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from env_server.memory import ResourceWatcher, excess, processes_below, pss_mb, rss_mb

HOLD = "import sys; block = bytearray(int(sys.argv[1]) << 20); print(flush=True); sys.stdin.read()"


@pytest.fixture
def holding_100_mb() -> Iterator[subprocess.Popen[bytes]]:
    command = ["sh", "-c", f"{sys.executable} -c '{HOLD}' 100; true"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    assert process.stdin is not None
    process.stdin.close()
    process.wait()


def test_processes_below_finds_children_and_survives_a_dead_root(holding_100_mb: subprocess.Popen[bytes]) -> None:
    found = processes_below(holding_100_mb.pid)
    assert found[0] == holding_100_mb.pid and len(found) == 2
    assert processes_below(2**22 + 1) == [2**22 + 1] and rss_mb([2**22 + 1]) == 0.0 == pss_mb([2**22 + 1])


def test_pss_is_at_least_what_a_process_holds_and_at_most_its_rss(holding_100_mb: subprocess.Popen[bytes]) -> None:
    pids = processes_below(holding_100_mb.pid)
    assert 100.0 < pss_mb(pids) <= rss_mb(pids) < 300.0


def test_excess_names_the_memory_only_above_the_limit(holding_100_mb: subprocess.Popen[bytes]) -> None:
    assert excess(processes_below(holding_100_mb.pid), limit_mb=1000.0) is None
    taken = excess(processes_below(holding_100_mb.pid), limit_mb=90.0)
    assert taken is not None and 100.0 < taken < 300.0


def test_watcher_reports_the_desktop_above_the_limit_and_stops(holding_100_mb: subprocess.Popen[bytes]) -> None:
    reported: list[tuple[int, int, str]] = []
    told = threading.Event()

    def report(desktop: int, pid: int, reason: str) -> None:
        reported.append((desktop, pid, reason))
        told.set()

    desktops = {3: holding_100_mb.pid, 4: os.getpid()}
    watcher = ResourceWatcher(lambda: desktops, report, limit_mb=90.0, max_processes=600, period_s=0.01)
    assert told.wait(10.0)
    watcher.stop()
    desktop, pid, reason = reported[0]
    assert (desktop, pid) == (3, holding_100_mb.pid) and "memory_limit_mb 90" in reason
