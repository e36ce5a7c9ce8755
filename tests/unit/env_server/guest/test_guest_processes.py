"""Which processes of a desktop an agent had started, whoever their parent is."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from computerrl.env_server.guest import processes
from computerrl.env_server.guest.processes import Program, Seen, strays

ROOT = Path(__file__).parents[4]
GUEST = 10
THUNAR, CHROMIUM, BUS = "/usr/bin/thunar", "/usr/lib/chromium/chromium", "/usr/bin/dbus-daemon"
DESKTOP = {
    1: Seen(0, "1", "/init"),
    GUEST: Seen(1, "2", ""),
    20: Seen(GUEST, "3", THUNAR),
    21: Seen(GUEST, "4", CHROMIUM),
    22: Seen(21, "5", CHROMIUM),
    23: Seen(22, "6", CHROMIUM),
    24: Seen(GUEST, "7", BUS),
    25: Seen(GUEST, "8", "/usr/libexec/at-spi2-registryd"),
}
"""Started: 20, 21, 24. A service of the desktop: 25."""
ADDED = {
    "left behind": {30: Seen(GUEST, "9", "/usr/bin/sleep")},
    "of an application": {30: Seen(20, "9", "/usr/bin/bash")},
    "of a helper": {30: Seen(23, "9", "/usr/bin/bash")},
    "activated by the bus": {30: Seen(24, "9", "/home/user/evil")},
    "of a service": {30: Seen(25, "9", "/usr/bin/bash")},
    "with a service's executable": {30: Seen(GUEST, "9", "/usr/libexec/at-spi2-registryd")},
    "with an application's executable": {30: Seen(GUEST, "9", THUNAR)},
    "hidden": {30: Seen(20, "9", "")},
    "below one of its own": {30: Seen(GUEST, "9", "/usr/bin/sh"), 31: Seen(30, "9", "/usr/bin/sh"), 32: Seen(31, "9", CHROMIUM)},
}


def found(table: dict[int, Seen]) -> set[int]:
    return strays(table, guest=GUEST, started={20, 21, 24}, services={(25, "8")})


def test_desktop_without_an_agent_has_no_strays() -> None:
    assert found(DESKTOP) == set()


@pytest.mark.parametrize("name", ADDED)
def test_stray_is_found(name: str) -> None:
    assert found(DESKTOP | ADDED[name]) == set(ADDED[name])


def test_later_process_with_the_number_of_a_service_is_a_stray() -> None:
    assert found(DESKTOP | {25: Seen(GUEST, "99", "/usr/libexec/at-spi2-registryd")}) == {25}


def test_dead_process_is_no_stray_and_its_children_are() -> None:
    dead = {30: Seen(GUEST, "9", "", is_dead=True), 31: Seen(30, "9", "/usr/bin/sleep")}
    assert found(DESKTOP | dead) == {31}


def test_chain_of_any_length_is_found() -> None:
    chain = {number: Seen(number - 1, "9", "/usr/bin/sh") for number in range(31, 5000)} | {30: Seen(20, "9", "/usr/bin/sh")}
    assert found(DESKTOP | chain) == set(range(30, 5000))


def test_program_whose_end_was_noticed_has_no_process_id_any_more(tmp_path: Path) -> None:
    """An agent's program may get the number: there are some hundred of them on a desktop."""
    program = Program("true", ["true"], env={"PATH": "/usr/bin:/bin"}, log_folder=tmp_path)
    program.start()
    assert program.is_held
    while program.running:
        pass
    assert not program.is_held and program.pid


def test_change_of_a_lasting_process_is_noticed(tmp_path: Path) -> None:
    for change in (
        lambda pid: resource.prlimit(pid, resource.RLIMIT_NOFILE, (64, 64)),
        lambda pid: os.setpriority(os.PRIO_PROCESS, pid, 5),
        lambda pid: os.kill(pid, signal.SIGSTOP),
        lambda pid: os.kill(pid, signal.SIGKILL),
    ):
        program = Program("sleep", ["sleep", "60"], env={"PATH": "/usr/bin:/bin"}, log_folder=tmp_path)
        program.start()
        try:
            processes.keep_services([program])
            assert processes.changed_services() == []
            change(program.pid)
            while not (changes := processes.changed_services()):
                pass
            assert "/sleep (" in changes[0] and len(changes) == 1
        finally:
            processes._SERVICES.clear()
            program.kill()


_KEPT = """
import ctypes, pathlib
if {by_call}:
    from computerrl.env_server.guest.processes import give_memory_back
    give_memory_back()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def taken():
    ctypes.memset(block := libc.malloc(4 << 20), 1, 4 << 20)
    return block
libc.free(taken())
first, small = taken(), [libc.malloc(100 << 10) for _ in range(8)]
libc.free(first)
rows = pathlib.Path("/proc/self/smaps").read_text().split("[heap]")[1:]
print(sum(int(row.split("Rss:")[1].split()[0]) for row in rows))
"""
"""Prints the KiB of its heap once a large block was freed below small ones that are in use."""


@pytest.mark.parametrize(
    ("by_call", "environment", "is_given_back"),
    [(False, {}, False), (True, {}, True), (False, processes.GIVES_MEMORY_BACK, True)],
    ids=["as usual", "by call", "by environment"],
)
def test_large_blocks_are_given_back_when_freed(by_call: bool, environment: dict[str, str], is_given_back: bool) -> None:
    command = [sys.executable, "-c", _KEPT.format(by_call=by_call)]
    # Python's own objects stay out of the C library's heap.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    said = subprocess.run(command, env=inherited | environment, capture_output=True, text=True, check=True, cwd=ROOT)
    print(said.stdout)
    assert (int(said.stdout) < 4096) is is_given_back


def test_shells_of_a_terminal_are_waited_for_when_it_ends(tmp_path: Path) -> None:
    """They write what was typed once their terminal is gone."""
    shell = "trap 'sleep 1; echo typed > history; exit' HUP; echo > ready; while :; do sleep 0.05; done"
    terminal = Program("terminal", ["sh", "-c", shell], env={"PATH": "/usr/bin:/bin"}, log_folder=tmp_path, folder=tmp_path)
    own_process = processes.children_of(os.getppid())
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which `nohup` ignores, and a container does not
    terminal.start()
    signal.signal(signal.SIGHUP, before)
    shells = {found for found in processes.children_of(os.getpid()) if found[0] == terminal.pid}
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    processes.wait_for_end(frozenset(shells), limit_s=0.0)  # one that lives on is not waited for beyond the limit
    assert terminal.running and not (tmp_path / "history").exists()
    os.kill(terminal.pid, signal.SIGHUP)
    processes.wait_for_end(frozenset(shells), limit_s=600.0)
    assert (tmp_path / "history").read_text() == "typed\n"
    assert any(pid == os.getpid() for pid, _ in own_process)
    terminal.kill()


def test_busy_time_of_a_program_goes_on_over_a_new_start(tmp_path: Path) -> None:
    program = Program("busy", ["sh", "-c", "while :; do :; done"], env={"PATH": "/usr/bin:/bin"}, log_folder=tmp_path)
    assert program.busy_s == 0.0
    for _ in range(3):
        before = program.busy_s
        program.start()
        while program.busy_s < before + 0.05:
            time.sleep(0.01)
        reached = program.busy_s
        program.kill()
        assert program.busy_s >= reached - 0.011  # the kernel's ticks
        program.kill()
        assert program.busy_s < reached + 60.0
    program.kill()


def test_program_that_waits_for_a_processor_is_busy_and_one_that_sleeps_is_not(tmp_path: Path) -> None:
    place = {"env": {"PATH": "/usr/bin:/bin"}, "log_folder": tmp_path}
    compute = ["taskset", "-c", str(min(os.sched_getaffinity(0))), "sh", "-c", "while :; do :; done"]
    crowd = [Program(f"{number}", compute, **place) for number in range(5)]
    asleep = Program("asleep", ["sleep", "600"], **place)
    try:
        for program in (asleep, *crowd):
            program.start()
        started = time.monotonic()
        while any(program.busy_s < 1.0 for program in crowd):
            assert time.monotonic() < started + 120.0
            time.sleep(0.05)
        computed_s = time.monotonic() - started
        # Five on one processor have computed for a fifth of the time each, and waited for the rest.
        assert sum(program.busy_s for program in crowd) > 2.0 * computed_s
        assert asleep.busy_s < 0.5
    finally:
        for program in (asleep, *crowd):
            program.kill()
