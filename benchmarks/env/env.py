"""Desktops: observation, action, reset, start, memory, determinism and leftovers, beside an OSWorld-style baseline.

Real contained desktops; the baseline (`benchmarks/env/_osworld_style.py`) runs on the same desktop in the same run, in turn with
ours.
"""

from __future__ import annotations

import io
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import openpyxl

from computerrl.benchmarks.env import _osworld_style, playing
from computerrl.common.actions import parse_action
from computerrl.common.config import DesktopConfig, TasksConfig
from computerrl.common.errors import EnvError
from computerrl.common.messages import Action, Evaluation, TaskRef
from computerrl.common.wire.transport import LocalChannel
from computerrl.env_server.client import DesktopClient
from computerrl.env_server.driver import SetupStep, TaskInstance
from computerrl.env_server.drivers import make_driver
from computerrl.env_server.drivers.guest_driver import GuestDriver
from computerrl.env_server.drivers.memory import processes_below, pss_mb
from computerrl.env_server.drivers.screenshots import ScreenshotStore
from computerrl.env_server.judging.judge import ForkedJudge
from computerrl.env_server.serving.service import DesktopService
from computerrl.env_server.tasks import FAMILIES, task_instance
from computerrl.env_server.tasks.osworld.desktop import CalledDesktop, InputEvent

_SIZE = {"screen_width": 1280, "screen_height": 720}
_NUM_ROWS = 1000
_TYPED_S = 0.3
"""By then a number that was typed into a cell is on screen."""
_GONE_WITHIN_S = 5.0
"""The kernel ends a killed desktop's processes by itself, but not at once."""
_DETERMINISM_FAMILIES = ("calc-set-cell", "web-click-option", "editor-type-save", "files-move")


def run(quick: bool) -> list[dict[str, Any]]:
    """The rows; needs Apptainer and the image."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = ScreenshotStore(folder, incarnation="bench")
        try:
            return [
                *_one_desktop(folder, store, quick=quick),
                *_spares(folder, store, num_times=5 if quick else 40),
                *_many(folder, store, num_desktops=4 if quick else 32),
                *_judgements(folder, store, num_times=5 if quick else 40),
                *_kills(folder, store, num_kills=5 if quick else 200),
            ]
        finally:
            store.close()


# --- one desktop with a sheet of 1,000 rows --------------------------------------------------------------------------


def _one_desktop(folder: Path, store: ScreenshotStore, *, quick: bool) -> list[dict[str, Any]]:
    num_ours, num_baseline = (5, 1) if quick else (40, 5)
    started = time.perf_counter()
    driver = _make(DesktopConfig(**_SIZE), 0, folder, store)
    start_s = time.perf_counter() - started
    try:
        driver.reset(_sheet_task())
        typing = CalledDesktop(driver.get)
        changed, unchanged, actions, trees, pictures = [], [], [], [], []
        for index in range(num_ours):
            actions.append(_timed(lambda index=index: driver.step(parse_action(f'calc.set_cell("B{index + 2}", {index})')))[1])  # type: ignore[misc]
            typing.input([InputEvent("type", text=str(index)), InputEvent("key", text="enter")])
            time.sleep(_TYPED_S)
            changed.append(_timed(driver.observe)[1])
            unchanged.append(_timed(driver.observe)[1])
            if index % (num_ours // num_baseline) == 0:
                trees.append(_timed(lambda: _osworld_style.tree(driver, "soffice"))[1])
                pictures.append(_timed(lambda: _osworld_style.screenshot(driver))[1])
        raw = [_timed(driver.frame)[1] for _ in range(num_ours * 5)]
        resets = [_timed(lambda seed=seed: driver.reset(FAMILIES["calc-set-cell"].make(seed)))[1] for seed in range(num_ours)]  # type: ignore[misc]
        files = [_timed(lambda: driver.reset(_sheet_task()))[1] for _ in range(max(3, num_ours // 4))]
        return [
            _row("observe Calc, 1,000 rows, after a change", changed, "s", 0.06, peer="OSWorld-style walk", peer_values=trees),
            _row("observe Calc, 1,000 rows, nothing changed", unchanged, "s", 0.01, peer="OSWorld-style walk", peer_values=trees),
            _row("screenshot, 1280x720, raw", raw, "s", 0.003, peer="XGetImage and PNG", peer_values=pictures),
            _row(
                "action and settling, Calc, observation included",
                actions,
                "s",
                0.15,
                peer="fixed pause",
                peer_values=[_osworld_style.PAUSE_S],
            ),
            _row("reset to a new Calc task", resets, "s", 0.5),
            _row("reset to a workbook of 1,000 rows", files, "s", None),
            _row("start to all applications usable", [start_s], "s", None),
            *_determinism(driver, num_times=5 if quick else 100),
        ]
    finally:
        driver.close()


def _determinism(driver: GuestDriver, *, num_times: int) -> list[dict[str, Any]]:
    rows = []
    for name in _DETERMINISM_FAMILIES:
        seen = []
        for time_ in range(num_times):
            driver.reset(FAMILIES["web-click-button" if FAMILIES[name].app != "chromium" else "files-move"].make(time_))
            task = FAMILIES[name].make(7)
            _, observation = driver.reset(task)
            assert observation.screenshot is not None
            playing.solve(driver, task, _, observation)
            seen.append((observation.screenshot.content_hash, task.evaluate(driver.get).reward))
        same = max(map(seen.count, seen))
        rows.append(
            {
                "name": f"same seed, same first screen and reward, {name}, of {num_times}",
                "value": same,
                "unit": "times",
                "target": num_times,
                "better": "higher",
            }
        )
    return rows


def _spares(folder: Path, store: ScreenshotStore, *, num_times: int) -> list[dict[str, Any]]:
    """Two desktops: one plays a Calc task, the other shows the next one meanwhile."""
    config = DesktopConfig(**_SIZE, num_desktops=2)
    tasks = TasksConfig()
    service = DesktopService(config, tasks=tasks, make=lambda index: _make(config, index, folder, store))
    client = DesktopClient(LocalChannel(service.handle, sender="actor-0:bench"), config=config)
    times = []
    try:
        assert service.wait_ready(2, timeout_s=300.0)
        for number in range(num_times + 1):
            task, following = (TaskRef("calc-set-cell", 100_000 + number + step, "training") for step in (0, 1))
            started = time.perf_counter()
            lease = client.lease("bench", task, next_task=following)
            client.reset(lease, task)
            if number:
                times.append(time.perf_counter() - started)
            while "preparing" in service.note():
                time.sleep(0.01)
            client.release(lease)
        used = service.metrics()["env_server/spares_used"]
    finally:
        service.close(limit_s=10.0)
    assert used == num_times, f"{used:.0f} of {num_times} resets found a spare"
    return [_row("reset to a new Calc task, lease included, with a warm spare", times, "s", 0.05)]


def _judgements(folder: Path, store: ScreenshotStore, *, num_times: int) -> list[dict[str, Any]]:
    """The same state of a workbook judged in a process of its own and in place."""
    tasks = TasksConfig()
    task = TaskRef("forge-calc-column-total", tasks.training_seeds[0], "training")
    driver = _make(DesktopConfig(**_SIZE, apps=("calc",)), 0, folder, store)
    judge = ForkedJudge(tasks)
    try:
        instance = task_instance(task, tasks=tasks)
        driver.reset(instance)
        judge.prepare(task)
        judge.judge(task, instance, driver.get)
        own, in_place = [], []
        for _ in range(num_times):  # in turn: the office's part of both drifts
            own.append(_timed(lambda: judge.judge(task, instance, driver.get))[1])
            in_place.append(_timed(lambda: instance.evaluate(driver.get))[1])
    finally:
        judge.close()
        driver.close()
    added = statistics.median(own) - statistics.median(in_place)
    return [
        _row("judgement of a workbook in a process of its own", own, "s", None, peer="in place", peer_values=in_place),
        {"name": "of which the process", "value": added, "unit": "s", "target": 0.02, "better": "lower"},
    ]


# --- many desktops ---------------------------------------------------------------------------------------------------


def _many(folder: Path, store: ScreenshotStore, *, num_desktops: int) -> list[dict[str, Any]]:
    config = DesktopConfig(**_SIZE, apps=("calc",))
    starts: list[float] = []
    drivers: list[GuestDriver] = []
    try:
        for index in range(num_desktops):
            driver, seconds = _timed(lambda index=index: _make(config, index, folder, store))  # type: ignore[misc]
            drivers.append(driver)
            starts.append(seconds)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda driver: driver.reset(_sheet_task()), drivers))
        memories = [pss_mb(processes_below(driver.pid or 0)) for driver in drivers]
        return [
            _row("cold start to a usable Calc", starts, "s", 2.5),
            _row(f"memory (PSS) with Calc and a file, each of {num_desktops}", memories, "MiB", 260.0),
        ]
    finally:
        for driver in drivers:
            driver.close()


def _kills(folder: Path, store: ScreenshotStore, *, num_kills: int) -> list[dict[str, Any]]:
    """Kill -9 a random process of a desktop, again and again, two at a time, and count its remains afterwards."""
    rng = random.Random(0)
    choices = [rng.random() for _ in range(num_kills)]
    config = DesktopConfig(apps=("calc",))
    before = _mounts(), _files()

    def kill_one(index: int) -> int:
        driver = _make(config, index, folder, store)
        pids = processes_below(driver.pid or 0)
        with suppress(ProcessLookupError):
            os.kill(pids[int(choices[index] * len(pids))], signal.SIGKILL)
        with suppress(EnvError):
            driver.observe()
        driver.close()
        deadline = time.monotonic() + _GONE_WITHIN_S
        while any(map(_alive, pids)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return sum(map(_alive, pids))

    with ThreadPoolExecutor(2) as pool:
        left = sum(pool.map(kill_one, range(num_kills)))
    left += max(0, _mounts() - before[0]) + max(0, _files() - before[1])
    return [
        {
            "name": f"processes (after {_GONE_WITHIN_S:g} s), mounts and files left after {num_kills} random kill -9",
            "value": left,
            "unit": "",
            "target": 0,
            "better": "lower",
        }
    ]


def _alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _mounts() -> int:
    return len(Path("/proc/self/mounts").read_text().splitlines())


def _files() -> int:
    """X servers' sockets and locks, and shared memory; a desktop's other files lie in a tmpfs of its own (see `_mounts`)."""
    temporary = Path(tempfile.gettempdir())
    return len(os.listdir("/dev/shm")) + len(list(temporary.glob(".X*"))) + len(list(temporary.glob(".X11-unix/*")))


# --- parts -----------------------------------------------------------------------------------------------------------


def _make(config: DesktopConfig, index: int, folder: Path, store: ScreenshotStore) -> GuestDriver:
    driver = make_driver(config, index=index, folder=folder / "logs", screenshots=store)
    assert isinstance(driver, GuestDriver)
    return driver


def _sheet_task() -> TaskInstance:
    book = openpyxl.Workbook()
    for row in range(_NUM_ROWS):
        book.active.append([row * column for column in range(5)])
    data = io.BytesIO()
    book.save(data)
    steps = (SetupStep("put_file", {"path": "data.xlsx", "data": data.getvalue()}), SetupStep("open", {"path": "data.xlsx"}))
    return TaskInstance("look at the sheet", steps, lambda get: Evaluation(0.0, False, ""), lambda *_: Action("done", {}))


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    result = work()
    return result, time.perf_counter() - started


def _row(
    name: str, values: Sequence[float], unit: str, target: float | None, *, peer: str = "", peer_values: Sequence[float] = ()
) -> dict[str, Any]:
    ordered = sorted(values)
    spread = f"{ordered[len(ordered) // 10]:.3g}..{ordered[len(ordered) * 9 // 10]:.3g}" if len(ordered) >= 4 else None
    row: dict[str, Any] = {"name": name, "value": round(statistics.median(values), 5), "unit": unit, "spread": spread}
    row |= {"target": target, "better": "lower"}
    if peer_values:
        row |= {"peer": peer, "peer_value": round(statistics.median(peer_values), 4)}
    return row
