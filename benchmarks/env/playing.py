"""Playing the demonstrators' tasks on real desktops: step and reset times alone, side by side, and with all cores busy."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from computerrl.common.actions import parse_action, render_action
from computerrl.common.config import DesktopConfig
from computerrl.common.messages import Action, Observation
from computerrl.env_server.drivers import make_driver
from computerrl.env_server.drivers.guest_driver import GuestDriver
from computerrl.env_server.drivers.memory import processes_below, pss_mb
from computerrl.env_server.drivers.screenshots import ScreenshotStore
from computerrl.env_server.tasks import FAMILIES

NUM_DESKTOPS = 4
_MAX_ACTIONS = 8
_IDLE_S = 5.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Timings:
    """Seconds, of one way of running."""

    resets: dict[str, list[float]] = field(default_factory=dict)
    """By application."""
    steps: list[float] = field(default_factory=list)
    settles: list[float] = field(default_factory=list)


def run(quick: bool) -> list[dict[str, Any]]:
    """The rows; needs Apptainer and the image."""
    with tempfile.TemporaryDirectory() as name:
        store = ScreenshotStore(Path(name), incarnation="bench")
        try:
            return _rows(Path(name), store, quick=quick)
        finally:
            store.close()


def _rows(folder: Path, store: ScreenshotStore, *, quick: bool) -> list[dict[str, Any]]:
    config = DesktopConfig()
    num_seeds = 1 if quick else 4
    started = time.perf_counter()
    with ThreadPoolExecutor(NUM_DESKTOPS) as pool:
        drivers = list(pool.map(lambda index: _make(config, index, folder, store), range(NUM_DESKTOPS)))
        start_s = time.perf_counter() - started
        try:
            return [
                _row("start, 4 at once, all applications usable", start_s, "s", 12.0),
                *_memory_and_idle(drivers),
                *_playing("alone", [drivers[0]], pool, num_seeds),
                *_playing("4 side by side", drivers, pool, num_seeds),
                *_loaded(drivers, pool, num_seeds),
            ]
        finally:
            list(pool.map(lambda driver: driver.close(), drivers))


def _make(config: DesktopConfig, index: int, folder: Path, store: ScreenshotStore) -> GuestDriver:
    driver = make_driver(config, index=index, folder=folder / "logs", screenshots=store)
    assert isinstance(driver, GuestDriver)
    return driver


def _loaded(drivers: Sequence[GuestDriver], pool: ThreadPoolExecutor, num_seeds: int) -> list[dict[str, Any]]:
    with _busy_cores():
        return _playing("4, all cores busy", drivers, pool, num_seeds)


def _playing(how: str, drivers: Sequence[GuestDriver], pool: ThreadPoolExecutor, num_seeds: int) -> list[dict[str, Any]]:
    parts = list(pool.map(lambda pair: _play(pair[1], first_seed=100 * pair[0], num_seeds=num_seeds), enumerate(drivers)))
    steps = [value for part in parts for value in part.steps]
    resets = [value for part in parts for values in part.resets.values() for value in values]
    rows = [
        _row(f"step, {how}", statistics.median(steps), "s", 0.25, steps),
        _row(f"of which settling, {how}", statistics.median([v for part in parts for v in part.settles]), "s", 0.15),
        _row(f"reset, {how}", statistics.median(resets), "s", 0.5, resets),
    ]
    for app in sorted({app for part in parts for app in part.resets}):
        values = [value for part in parts for value in part.resets.get(app, ())]
        rows.append(_row(f"reset {app}, {how}", statistics.median(values), "s", 0.5, values))
    return rows


def _play(driver: GuestDriver, *, first_seed: int, num_seeds: int) -> Timings:
    timings = Timings()
    for seed in range(first_seed, first_seed + num_seeds):
        for family in (family for family in FAMILIES.values() if family.is_default):
            task = family.make(seed)
            started = time.perf_counter()
            instruction, observation = driver.reset(task)
            timings.resets.setdefault(family.app, []).append(time.perf_counter() - started)
            solve(driver, task, instruction, observation, timings)
    return timings


def solve(driver: GuestDriver, task: Any, instruction: str, observation: Observation, timings: Timings | None = None) -> None:
    """Have the demonstrator play ``task``."""
    timings = timings or Timings()
    actions: list[Action] = []
    while len(actions) < _MAX_ACTIONS:
        action = parse_action(render_action(task.demonstrate(instruction, observation, actions, driver.get)))
        if action.name == "done":
            return
        started = time.perf_counter()
        result = driver.step(action)
        timings.steps.append(time.perf_counter() - started)
        timings.settles.append(result.observation.settle_s)
        actions.append(action)
        observation = result.observation
        if result.finished:
            return


def _memory_and_idle(drivers: Sequence[GuestDriver]) -> list[dict[str, Any]]:
    time.sleep(2.0)  # Work left by the start is not idling.
    memories = [pss_mb(processes_below(driver.pid or 0)) for driver in drivers]
    before = [_ticks(driver) for driver in drivers]
    time.sleep(_IDLE_S)
    after = [_ticks(driver) for driver in drivers]
    idle = [(late - early) / _TICKS_PER_S / _IDLE_S * 100 for early, late in zip(before, after, strict=True)]
    limit = float(DesktopConfig().memory_per_desktop_mb)
    return [
        _row("memory (PSS), each of 4", statistics.mean(memories), "MiB", limit, memories),
        _row("idle processor time, each of 4", statistics.mean(idle), "% of a core", 2.0, idle),
    ]


def _ticks(driver: GuestDriver) -> int:
    """Processor time of all of a desktop's processes, in clock ticks."""
    total = 0
    for pid in processes_below(driver.pid or 0):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += int(fields[11]) + int(fields[12])
    return total


@contextmanager
def _busy_cores() -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def _row(name: str, value: float, unit: str, target: float, values: Sequence[float] = ()) -> dict[str, Any]:
    spread = None
    if len(values) >= 4:
        ordered = sorted(values)
        spread = f"{ordered[len(ordered) // 10]:.3g}..{ordered[len(ordered) * 9 // 10]:.3g}"
    return {"name": name, "value": round(value, 4), "unit": unit, "spread": spread, "target": target, "better": "lower"}
