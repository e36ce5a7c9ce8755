"""Nothing is left of a desktop, whatever part of it is killed: no process, and files are never on the host at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from computerrl.common.config import DesktopConfig
from computerrl.common.errors import DesktopBroken, EnvError
from computerrl.env_server.driver import SetupStep
from computerrl.env_server.drivers.guest_driver import GuestDriver
from computerrl.env_server.drivers.guest_process import START_LIMIT_S
from tests.support.desktops import Player, open_desktop
from tests.support.tiers import one_in

REPOSITORY = Path(__file__).resolve().parents[3]
GONE_WITHIN_S = 5.0


@pytest.fixture
def desktop(tmp_path: Path) -> Iterator[GuestDriver]:
    """One on which the browser starts alone: what dies below the applications takes a desktop of any size with it, and the
    browser's helpers are the ones that leave their parents."""
    with open_desktop(tmp_path, DesktopConfig(apps=("chromium",))) as driver:
        yield driver


def processes_below(pid: int) -> dict[int, str]:
    """Process id -> name, of a process and all below it."""
    found: dict[int, str] = {}
    pending = [pid]
    while pending:
        current = pending.pop()
        try:
            found[current] = Path(f"/proc/{current}/comm").read_text().strip()
            for thread in Path(f"/proc/{current}/task").iterdir():
                pending += [int(child) for child in (thread / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def alive(pids: dict[int, str]) -> dict[int, str]:
    found = {}
    for pid, name in pids.items():
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if f"Name:\t{name}" in status and "State:\tZ" not in status:
            found[pid] = name
    return found


def x_files() -> set[str]:
    """Locks and sockets of X servers on the host: one of a desktop would keep others from its display's number."""
    places = (Path("/tmp"), Path("/tmp/.X11-unix"))
    return {str(entry) for place in places if place.is_dir() for entry in place.iterdir() if entry.name.startswith(("X", ".X"))}


def assert_gone(pids: dict[int, str]) -> None:
    deadline = time.monotonic() + GONE_WITHIN_S
    while alive(pids):
        assert time.monotonic() < deadline, f"left: {alive(pids)}"
        time.sleep(0.05)


def pid_of(processes: dict[int, str], name: str) -> int:
    return next(pid for pid, found in processes.items() if found == name)


def test_desktop_is_one_session_without_files_on_the_host_and_its_close_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tests beside this one make files in the common folder; one that is this desktop's alone says what comes from it.
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    before = x_files()
    with open_desktop(tmp_path) as desktop:
        assert x_files() <= before
        assert not list(temporary.iterdir())
        processes = processes_below(desktop.pid or 0)
        assert {"unshare", "sh", "Xvfb", "soffice.bin", "chromium", "mousepad", "thunar"} <= set(processes.values())
        own = {os.getsid(pid) for pid, name in processes.items() if not name.startswith("chrome_crashpad")}
        assert own == {desktop.pid}
        # It gives way to others only while it starts.
        if (group := Path(f"/proc/{desktop.pid}/autogroup")).exists():
            assert group.read_text().strip().endswith("nice 0")
        desktop.close()
        assert_gone(processes)
        desktop.close()


def test_kill_of_the_host_process_leaves_nothing(tmp_path: Path) -> None:
    host = subprocess.Popen(
        [sys.executable, "-m", "tests.support.desktop_host", str(tmp_path)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert host.stdout is not None
    processes = processes_below(int(host.stdout.readline()))
    assert len(processes) > 10
    host.kill()
    host.wait()
    assert_gone(processes)


@pytest.mark.parametrize("victim", one_in(3, ["unshare", "sh", "starter", "appinit", "python3"]))
def test_kill_of_a_layer_breaks_the_desktop_and_leaves_nothing(desktop: GuestDriver, victim: str) -> None:
    processes = processes_below(desktop.pid or 0)
    names = {"starter": ("starter", "Apptainer runtim", "apptainer")}.get(victim, (victim,))
    wanted = [pid for pid, name in processes.items() if name.startswith(names)]
    assert wanted, processes
    os.kill(wanted[0], signal.SIGKILL)
    assert_gone(processes)
    assert not desktop.healthy()
    with pytest.raises(DesktopBroken):
        desktop.observe()
    desktop.close()


@pytest.mark.parametrize("victim", one_in(3, ["Xvfb", "openbox", "dbus-daemon"]))
def test_kill_of_the_ground_breaks_the_desktop(desktop: GuestDriver, victim: str) -> None:
    processes = processes_below(desktop.pid or 0)
    os.kill(pid_of(processes, victim), signal.SIGKILL)
    deadline = time.monotonic() + GONE_WITHIN_S
    while desktop.healthy():
        assert time.monotonic() < deadline
    with pytest.raises(EnvError):
        desktop.observe()
    desktop.close()
    assert_gone(processes)


@pytest.mark.parametrize(
    ("victim", "after_s"),
    one_in(3, [("soffice.bin", 3.0), ("chromium", 0.0), ("soffice.bin", 0.0)]),
)
def test_application_that_dies_while_it_starts_is_started_again(tmp_path: Path, victim: str, after_s: float) -> None:
    killed: list[int] = []

    def kill_first() -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while not killed and time.monotonic() < deadline:
            found = [pid for pid, name in processes_below(os.getpid()).items() if name == victim]
            if found:
                time.sleep(after_s)
                os.kill(found[0], signal.SIGKILL)
                killed.append(found[0])

    killer = threading.Thread(target=kill_first)
    killer.start()
    with open_desktop(tmp_path) as driver:
        killer.join()
        assert Player(driver).start(SetupStep("web_page", {"page": "click-button", "seed": 1})).app == "chromium"
        # The office's late death may come once all have started: it is noticed at its next use.
        assert Player(driver).start(SetupStep("calc_open", {"cells": {}, "active_cell": "A1"})).app == "calc"
        running = processes_below(driver.pid or 0)
        assert killed and killed[0] not in running
        assert victim in running.values()


def test_stopped_guest_is_unhealthy_and_breaks_a_step_at_its_deadline(tmp_path: Path) -> None:
    config = DesktopConfig(step_deadline_s=1.5, apps=("chromium",))
    with open_desktop(tmp_path, config) as driver:
        processes = processes_below(driver.pid or 0)
        os.kill(pid_of(processes, "python3"), signal.SIGSTOP)
        started = time.monotonic()
        with pytest.raises(DesktopBroken):
            driver.observe()
        assert time.monotonic() - started < DesktopConfig().step_deadline_s
        assert not driver.healthy()
    assert_gone(processes)


def test_task_begins_only_once_the_window_manager_has_dealt_with_everything_before(tmp_path: Path) -> None:
    with open_desktop(tmp_path, DesktopConfig(reset_deadline_s=3.0, apps=("chromium",))) as driver:
        page = SetupStep("web_page", {"page": "click-button", "seed": 1})
        assert Player(driver).start(page).app == "chromium"
        window_manager = pid_of(processes_below(driver.pid or 0), "openbox")
        os.kill(window_manager, signal.SIGSTOP)
        with pytest.raises(DesktopBroken, match="window manager"):
            Player(driver).start(page)
        os.kill(window_manager, signal.SIGCONT)
