"""What a desktop's processes take, and the thread that watches it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from computerrl.common import lifecycle
from computerrl.env_server.drivers.memory import ResourceWatcher, excess, num_open_files, processes_below, pss_mb, rss_mb

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


@contextmanager
def program(text: str) -> Iterator[int]:
    """The process id of a Python program that has run these lines and waits."""
    command = [sys.executable, "-c", f"{text}\nprint(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


TABLES = """
import mmap
area = mmap.mmap(-1, 60 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, mmap.PROT_READ)
area.madvise(mmap.MADV_NOHUGEPAGE)
sum(area[place] for place in range(0, len(area), 2 << 20))
"""
"""Reads what was never written: the memory is that of the page tables alone."""


def test_page_tables_count() -> None:
    with program("") as plain, program(TABLES) as pid:
        assert rss_mb([pid]) - rss_mb([plain]) > 100.0 and pss_mb([pid]) - pss_mb([plain]) > 100.0


def test_memory_that_may_not_be_looked_at_counts_as_if_it_were_shared_with_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_text

    def refusing(self: Path, *args: Any, **kwargs: Any) -> str:
        if self.name == "smaps_rollup":
            raise PermissionError
        return read(self, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", refusing)
    with program("block = bytearray(100 << 20)") as pid:
        assert 100.0 < pss_mb([pid]) < 200.0


def test_open_files_are_counted_and_too_many_are_reported() -> None:
    reported: list[str] = []
    told = threading.Event()

    def report(desktop: int, pid: int, since: float, reason: str) -> None:
        reported.append(reason)
        told.set()

    many = "import os, resource\nresource.setrlimit(7, (9000, resource.getrlimit(7)[1]))\nends = [os.dup(0) for _ in range(8500)]"
    with program(many) as pid:
        assert num_open_files([pid]) > 8500
        watcher = ResourceWatcher(lambda: {0: pid}, report, limit_mb=1e6, max_processes=600, period_s=0.01)
        assert told.wait(10.0)
        watcher.stop()
    assert "files open, more than 8192" in reported[0]


def test_watcher_reports_the_desktop_above_the_limit_and_stops(holding_100_mb: subprocess.Popen[bytes]) -> None:
    reported: list[tuple[int, int, str]] = []
    told = threading.Event()

    def report(desktop: int, pid: int, since: float, reason: str) -> None:
        reported.append((desktop, pid, reason))
        told.set()

    desktops = {3: holding_100_mb.pid, 4: os.getpid()}
    watcher = ResourceWatcher(lambda: desktops, report, limit_mb=90.0, max_processes=600, period_s=0.01)
    assert told.wait(10.0)
    watcher.stop()
    desktop, pid, reason = reported[0]
    assert (desktop, pid) == (3, holding_100_mb.pid) and "memory_limit_mb 90" in reason


MANY_SESSIONS = """
import os, sys, time
done, tell = os.pipe()
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        os.setsid()
        os.write(tell, b".")
        time.sleep(600)
for _ in range(int(sys.argv[1])):
    os.read(done, 1)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(("num_sessions", "num_held_back", "is_reported"), [(7, 0, False), (20, 20, False), (70, 70, True)])
def test_desktop_of_many_sessions_gets_no_more_of_the_processors(
    num_sessions: int, num_held_back: int, *, is_reported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the kernel groups processes by session, each session would take as much as a whole other desktop."""
    held_back: list[tuple[int, int]] = []
    monkeypatch.setattr(lifecycle, "set_session_nice", lambda pid, nice: held_back.append((os.getsid(pid), nice)))
    reported: list[str] = []
    looks = threading.Semaphore(0)
    command = [sys.executable, "-c", MANY_SESSIONS, str(num_sessions)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        pids = processes_below(process.pid)

        def desktops() -> dict[int, int]:
            looks.release()
            return {0: process.pid}

        watcher = ResourceWatcher(
            desktops, lambda desktop, pid, since, reason: reported.append(reason), limit_mb=1e9, max_processes=600, period_s=0.01
        )
        for _ in range(4):
            assert looks.acquire(timeout=60.0)
        watcher.stop()
        # A fourth look may be under way, and would count what is killed now.
        held, reasons = list(held_back), list(reported)
        for pid in reversed(pids):
            os.kill(pid, signal.SIGKILL)
    assert len(held) == num_held_back == len(set(held))
    assert all(session != process.pid and nice == 19 for session, nice in held)
    assert bool(reasons) is is_reported and all(f"{num_sessions + 1} sessions" in reason for reason in reasons)
