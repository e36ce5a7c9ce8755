"""What runs wild on a desktop harms that desktop only: processes without end, memory without end."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from computerrl.common.actions import parse_action
from computerrl.common.config import DesktopConfig, TasksConfig
from computerrl.common.errors import DesktopBroken, EnvError, LeaseRefused
from computerrl.common.messages import Action, TaskRef
from computerrl.common.wire.transport import LocalChannel
from computerrl.env_server.client import DesktopClient
from computerrl.env_server.driver import SetupStep
from computerrl.env_server.drivers import make_driver
from computerrl.env_server.drivers.memory import excess, network_mb, processes_below, pss_mb
from computerrl.env_server.drivers.screenshots import ScreenshotStore
from computerrl.env_server.serving.service import DesktopService
from computerrl.env_server.tasks import FAMILIES
from computerrl.env_server.tasks.osworld.desktop import CalledDesktop
from tests.support.desktops import Player, open_desktop

FORK_BOMB = ":() { : | : & }; :"
SLEEPERS = """
import os, time
try:
    while os.fork():
        pass
except OSError:
    pass
time.sleep(600)
"""
"""As many processes as may be, which do nothing."""
HOG = ["python3", "-c", "import time; data = bytearray(3_000_000_000); time.sleep(60)"]
PAGE = SetupStep("web_page", {"page": "click-button", "seed": 1})
TASK = TaskRef("web-click-button", 100_000, "training")


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_fork_bomb_stays_below_its_limit_beside_a_desktop_that_works_and_is_gone_with_its_own(tmp_path: Path) -> None:
    config = DesktopConfig(max_processes=300, apps=("files",))
    with open_desktop(tmp_path / "bomb", config) as victim, open_desktop(tmp_path / "other", config) as other:
        CalledDesktop(victim.get).launch(FORK_BOMB)
        deadline = time.monotonic() + 3.0
        seen: set[int] = set()
        while time.monotonic() < deadline:
            now = processes_below(victim.pid or 0)
            seen.update(now)
            # A look is no moment: processes end and begin meanwhile. Without a limit there would be ten thousand.
            assert len(now) < 3 * 300
        assert len(seen) >= 250, "no bomb"
        assert Player(other).start(SetupStep("files_open", {"folder": "."})).app == "files"
        victim.close()
        deadline = time.monotonic() + 60.0
        while any(map(alive, seen)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(alive, seen))


def test_fork_bomb_is_ended_by_the_next_reset(tmp_path: Path) -> None:
    with open_desktop(tmp_path, DesktopConfig(max_processes=300, apps=("chromium",))) as driver:
        CalledDesktop(driver.get).launch(FORK_BOMB)
        time.sleep(1.0)
        assert Player(driver).start(PAGE).app == "chromium"
        assert len(processes_below(driver.pid or 0)) < 100


@pytest.mark.parametrize(("app", "warm"), [("writer", "files"), ("writer", "calc"), ("terminal", "files"), ("browser", "files")])
@pytest.mark.release
def test_action_while_no_process_can_be_started_costs_no_desktop(tmp_path: Path, app: str, warm: str) -> None:
    config = DesktopConfig(max_processes=300, apps=("files", warm), image="full", observation="tree")
    with open_desktop(tmp_path, config) as driver:
        Player(driver).start(SetupStep("files_open", {"folder": "."}))
        CalledDesktop(driver.get).launch(["python3", "-c", SLEEPERS])
        before, deadline = 0, time.monotonic() + 60.0
        while (now := len(processes_below(driver.pid or 0))) > before and time.monotonic() < deadline:
            before = now
            time.sleep(1.0)
        driver.step(Action("apps.open", {"app": app}))  # whatever comes of it: no `DesktopBroken`
        assert driver.healthy()
        assert Player(driver).start(SetupStep("files_open", {"folder": "."})).app == "files"
        assert Player(driver).start(SetupStep("open_app", {"app": app})).app == app


CONNECTIONS = """
import socket, time
server, kept = socket.create_server(("127.0.0.1", 0)), []
for _ in range(100):
    sender = socket.create_connection(server.getsockname())
    receiver, _ = server.accept()
    kept += [sender, receiver]
    sender.setblocking(False)
    try:
        while True:
            sender.send(bytes(1 << 18))
    except BlockingIOError:
        pass
time.sleep(600)
"""


def test_what_connections_hold_counts_to_the_desktop_s_memory(tmp_path: Path) -> None:
    with open_desktop(tmp_path, DesktopConfig(apps=("files",))) as driver:
        pid = driver.pid or 0
        assert network_mb(processes_below(pid)) == 0.0
        CalledDesktop(driver.get).launch(["python3", "-c", CONNECTIONS])
        deadline = time.monotonic() + 60.0
        while network_mb(processes_below(pid)) < 50.0 and time.monotonic() < deadline:
            time.sleep(0.1)
        pids = processes_below(pid)
        taken = excess(pids, limit_mb=1.0)
        assert network_mb(pids) > 50.0 and taken is not None and taken > pss_mb(pids) + 40.0
        Player(driver).start(SetupStep("files_open", {"folder": "."}))
        assert network_mb(processes_below(pid)) == 0.0


def test_memory_hog_costs_its_desktop_and_the_next_one_works(tmp_path: Path) -> None:
    config = DesktopConfig(num_desktops=1, memory_limit_mb=1500, apps=("chromium",), observation="tree")
    store = ScreenshotStore(tmp_path, incarnation="test")
    made = []

    def make(index: int):  # type: ignore[no-untyped-def]
        made.append(make_driver(config, index=index, folder=tmp_path / "logs", screenshots=store))
        return made[-1]

    service = DesktopService(config, tasks=TasksConfig(), make=make)
    client = DesktopClient(LocalChannel(service.handle, sender="actor-0:a"), config=config)
    try:
        assert service.wait_ready(1, timeout_s=600.0)
        lease = client.lease("a", TASK)
        client.reset(lease, TASK)
        pid = made[0].pid
        CalledDesktop(made[0].get).launch(HOG)
        deadline = time.monotonic() + 30.0
        while service.metrics()["env_server/restarts"] < 1.0 and time.monotonic() < deadline:
            time.sleep(0.05)
        with pytest.raises((LeaseRefused, DesktopBroken), match=r"more than desktop\.memory_limit_mb 1500"):
            client.evaluate(lease)
        assert service.wait_ready(1, timeout_s=600.0)
        again = client.lease("a", TASK)
        assert client.reset(again, TASK).observation.app == "chromium"
        assert pid is not None and not alive(pid)
    finally:
        service.close(limit_s=10.0)
        store.close()
    with pytest.raises(EnvError):
        made[-1].observe()
    assert os.listdir(tmp_path / "logs")


FAR = 'calc.set_cell("XFD1048576", 1)'
"""The office writes all rows up to the last filled one: some ten seconds of processor time."""
LONG_LINE = "head -c 40000000 /dev/zero | tr '\\0' a > long.txt"


@pytest.mark.parametrize("save", ["calc.save()", pytest.param('key("ctrl+s")', marks=pytest.mark.release)])
def test_office_that_an_agent_keeps_busy_is_the_agent_s_affair(tmp_path: Path, save: str) -> None:
    task = FAMILIES["forge-calc-column-total"].make(1)
    with open_desktop(tmp_path, DesktopConfig(apps=("calc",), step_deadline_s=8.0)) as desktop:
        desktop.reset(task)
        for action in (FAR, save):
            step = desktop.step(parse_action(action))
        assert step.observation.app == "calc" and ("still busy" in step.action_error) == (save == "calc.save()")
        # An episode that ends meanwhile is judged by what is there.
        assert not task.evaluate(desktop.get).success
        _, seen = desktop.reset(task)
        assert seen.app == "calc" and not desktop.step(parse_action("calc.save()")).action_error


@pytest.mark.release
def test_editor_that_an_agent_keeps_busy_is_the_agent_s_affair(tmp_path: Path) -> None:
    with open_desktop(tmp_path, DesktopConfig(apps=("editor",), step_deadline_s=5.0)) as desktop:
        player = Player(desktop)
        player.start(SetupStep("editor_open", {"path": "note.txt", "text": "word"}))
        CalledDesktop(desktop.get).run(LONG_LINE, timeout_s=60.0)
        assert "still busy" in desktop.step(parse_action('files.open("long.txt")')).action_error
        assert desktop.get("editor_text") == ""
        player.start(SetupStep("editor_open", {"path": "note.txt", "text": "word"}))
        assert desktop.get("editor_text") == "word"
