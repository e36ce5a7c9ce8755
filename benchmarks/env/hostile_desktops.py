"""Hostile neighbours: 24 desktops, 8 of them attack at random for ten minutes; the others play on and lose nothing.

Through the env_server's own service (pool, leases, judgements, restarts), without sockets. Honest players follow the
demonstrators, so each of their episodes ends with reward 1. `--quick` is one minute with four desktops.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from computerrl.common.actions import parse_action
from computerrl.common.config import DesktopConfig, TasksConfig
from computerrl.common.errors import ComputerRLError, LeaseRefused, NoDesktop
from computerrl.common.messages import Lease, TaskRef
from computerrl.common.wire.transport import LocalChannel
from computerrl.env_server.client import DesktopClient
from computerrl.env_server.drivers import make_driver
from computerrl.env_server.drivers.guest_driver import GuestDriver
from computerrl.env_server.drivers.memory import processes_below
from computerrl.env_server.drivers.screenshots import ScreenshotStore
from computerrl.env_server.serving.service import DesktopService
from computerrl.env_server.tasks.osworld.desktop import CalledDesktop

FAMILIES = ("calc-set-cell", "calc-type-cell", "editor-type-save", "files-move", "forge-calc-column-total")
_MAX_ACTIONS = 12
_FRAME = "/tmp/agent/frame/Xvfb_screen0"

ATTACKS = {
    "processes": "python3 -c 'import os\nwhile True:\n try: os.fork()\n except OSError: pass'",
    "sessions": "python3 -c 'import os\nfor _ in range(300):\n if os.fork() == 0:\n  os.setsid()\n  while True: pass'",
    "memory": "python3 -c 'kept = []\nwhile True: kept.append(bytearray(1 << 24))'",
    "shared memory": "head -c 3000000000 /dev/zero > /dev/shm/full",
    "disk": "head -c 3000000000 /dev/zero > /tmp/full; head -c 3000000000 /dev/zero > /home/user/full",
    "files": 'python3 -c \'for n in range(1000000): open(f"/tmp/many-{n}", "w").close()\'',
    "output": "yes evil >&2",
    "frame buffer": f"truncate -s 100 {_FRAME}",
    "frame buffer grows": f"truncate -s 900G {_FRAME}",
    "everything ends": "kill -9 -1",
    "everything stops": "kill -STOP -1",
    "display ends": "pkill -9 Xvfb",
    "guest ends": "pkill -9 -f guest.main",
    "office stops": "pkill -STOP soffice",
    "permissions": "chmod -R 000 /home/user /tmp/agent",
    "deep folders": 'python3 -c \'import os\nfor _ in range(3000):\n os.mkdir("d"); os.chdir("d")\'',
    "odd names": "cd /home/user; touch -- -rf \"$(printf 'a\\nb')\" \"$(printf '\\377')\"; ln -s loop loop; mkfifo pipe",
    "windows": "for n in $(seq 40); do mousepad & done",
    "keyboard": "setxkbmap de; xdotool key Caps_Lock",
    "broken workbooks": "python3 - <<'PY'\nimport glob, os\nfor name in glob.glob('/home/user/**/*.xlsx', recursive=True):\n"
    " open(name, 'wb').write(b'PK' + os.urandom(1 << 20))\nPY",
}
"""Target -> command that runs as the agent's user."""


def run(quick: bool) -> list[dict[str, Any]]:
    """The rows; needs Apptainer and the image."""
    num_desktops, num_attackers, duration_s = (4, 1, 60.0) if quick else (24, 8, 600.0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = ScreenshotStore(folder, incarnation="hostile")
        # Two cores under 24 desktops are busy many times over: a slow desktop is not a broken one.
        config = DesktopConfig(
            num_desktops=num_desktops,
            apps=("calc", "editor", "files"),
            memory_limit_mb=1000,
            lease_time_limit_s=600.0,
            step_deadline_s=120.0,
            reset_deadline_s=30.0 if quick else 240.0,
        )
        tasks = TasksConfig(families=FAMILIES)
        drivers: dict[int, GuestDriver] = {}

        def make(index: int) -> GuestDriver:
            driver = make_driver(config, index=index, folder=folder / "logs", screenshots=store)
            assert isinstance(driver, GuestDriver)
            drivers[index] = driver
            return driver

        service = DesktopService(config, tasks=tasks, make=make)
        play = _Play(service, config, drivers, first_seed=tasks.training_seeds[0])
        try:
            assert service.wait_ready(num_desktops, timeout_s=600.0)
            play.run(duration_s, num_attackers=num_attackers, num_honest=num_desktops - num_attackers)
        finally:
            service.close(limit_s=60.0)
            store.close()
        left = len(processes_below(os.getpid())) - 1
    what = f"{num_attackers} of {num_desktops} desktops attack, {duration_s / 60:g} minutes"
    counts = play.counts
    rows = [
        (f"honest episodes lost, {what}", counts["lost"], 0.0),
        ("honest episodes that failed", counts["failed"], 0.0),
        ("honest resets on what an attacker had left, refused", counts["not begun"], None),
        ("honest episodes that succeeded", counts["succeeded"], None),
        ("attacks", counts["attacks"], None),
        ("desktops replaced", service.metrics()["env_server/restarts"], None),
        ("processes left", left, 0.0),
    ]
    return [{"name": name, "value": value, "unit": "", "target": target, "better": "lower"} for name, value, target in rows]


class _Play:
    def __init__(
        self, service: DesktopService, config: DesktopConfig, drivers: dict[int, GuestDriver], *, first_seed: int
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._service, self._config, self._drivers, self._first_seed = service, config, drivers, first_seed
        self._lock = threading.Lock()
        self._end = 0.0

    def run(self, duration_s: float, *, num_attackers: int, num_honest: int) -> None:
        """Play in as many threads as there are desktops."""
        self._end = time.monotonic() + duration_s
        players = [threading.Thread(target=self._attack, args=(index,)) for index in range(num_attackers)]
        players += [threading.Thread(target=self._play, args=(100 + index,)) for index in range(num_honest)]
        for player in players:
            player.start()
        for player in players:
            player.join()

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def _client(self, index: int) -> DesktopClient:
        return DesktopClient(LocalChannel(self._service.handle, sender=f"actor-{index}:hostile"), config=self._config)

    def _task(self, rng: random.Random) -> TaskRef:
        return TaskRef(rng.choice(FAMILIES), self._first_seed + rng.randrange(100_000), "training")

    def _play(self, index: int) -> None:
        rng, client = random.Random(index), self._client(index)
        while time.monotonic() < self._end:
            task = self._task(rng)
            try:
                lease = client.lease("hostile", task)
            except NoDesktop:
                continue  # attackers' desktops are being started anew
            has_begun = False
            try:
                client.reset(lease, task)
                has_begun = True
                for _ in range(_MAX_ACTIONS):
                    action = parse_action(client.demonstrate(lease).action_text)
                    if action.name == "done" or client.step(lease, action).finished:
                        break
                verdict = client.evaluate(lease, "done")
                self._count("succeeded" if verdict.success else "failed")
                if not verdict.success:
                    print(f"{task.task_id} failed: {verdict.detail}", file=sys.stderr)
            except ComputerRLError as error:
                # A desktop that an attacker has just given back may have to be replaced: the task is played on another one.
                what = "lost" if has_begun else "not begun"
                self._count(what)
                print(f"{what}: {task.task_id} on desktop {lease.desktop}: {error}", file=sys.stderr)
            _release(client, lease)

    def _attack(self, index: int) -> None:
        rng, client = random.Random(index), self._client(index)
        while time.monotonic() < self._end:
            task = self._task(rng)
            try:
                lease = client.lease("hostile", task)
            except NoDesktop:
                continue  # all are being started anew
            try:
                client.reset(lease, task)
                for aim in rng.sample(sorted(ATTACKS), 2):
                    self._count("attacks")
                    CalledDesktop(self._drivers[lease.desktop].get).launch(ATTACKS[aim])
                    for _ in range(rng.randrange(4)):
                        client.step(lease, parse_action(client.demonstrate(lease).action_text))
                client.evaluate(lease, "done")
            except ComputerRLError:
                # The attackers' own desktops may break as they like.
                self._count("attackers' desktops broken")
            _release(client, lease)


def _release(client: DesktopClient, lease: Lease) -> None:
    """Give a desktop back in any case: otherwise it is unused until its lease expires."""
    with contextlib.suppress(LeaseRefused):  # it has broken, and the lease with it
        client.release(lease)
