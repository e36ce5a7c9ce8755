"""Cost of watching a run: the run, with the dashboard and a page on and off by turns; the server, with 1,000 desktops.

    computerrl bench watch

The page is played by this program (the real one is in a browser, as a rule on another machine): the state once a second, curves
when there are new ones, pictures of the desktops in sight.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from computerrl import PACKAGE, SOURCE_ROOT
from computerrl.benchmarks.launch._watched_desktops import NUM_DESKTOPS
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.launch.watch.follow import RunWatch

_SETTINGS = ("learner.recipe.max_updates=100000", "learner.checkpoint_every_updates=1000")
_WINDOW_S, _SETTLE_S = 15.0, 3.0
_PAIRS, _QUICK_PAIRS = 10, 1
_SERVER_S, _QUICK_SERVER_S = 30.0, 6.0
_IN_SIGHT = 40
_PICTURE_EVERY_S, _CURVES_EVERY_S = 2.0, 5.0
"""As page/dashboard.js does."""
_START_LIMIT_S = 120.0


def run(quick: bool) -> list[dict[str, Any]]:
    """Rows of design section 6."""
    return [*_cost_of_watching(_QUICK_PAIRS if quick else _PAIRS), *_cost_of_serving(_QUICK_SERVER_S if quick else _SERVER_S)]


def _cost_of_watching(num_pairs: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="computerrl-bench-") as name, _training(Path(name)) as folder:
        watch = RunWatch(RunFolder(folder))
        try:
            _wait_for_updates(watch)
            ratios = []
            for number in range(num_pairs):
                rates = {}
                for is_on in (True, False) if number % 2 else (False, True):
                    with _dashboard(folder, is_on=is_on):
                        time.sleep(_SETTLE_S)
                        rates[is_on] = _steps_per_s(watch)
                ratios.append(rates[True] / rates[False])
        finally:
            watch.close()
    error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else None
    return [
        _row("env steps/s, dashboard on over off", statistics.mean(ratios), "ratio", spread=error, target=0.98, better="higher"),
        _row("... median of pairs", statistics.median(ratios), "ratio"),
    ]


def _cost_of_serving(seconds: float) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="computerrl-bench-") as name:
        argv = [sys.executable, "-m", "computerrl.benchmarks.launch._watched_desktops", name]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE_ROOT)})
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            server = psutil.Process(process.pid)
            page = asyncio.run(_look_measured(address, server, seconds))
        finally:
            process.terminate()
            process.wait()
    return [
        _row(f"server's core, {NUM_DESKTOPS} desktops once a second", page["core"], "share", target=0.30, better="lower"),
        _row("... states a second", page["states_per_s"], "1/s"),
        _row("... pictures a second", page["pictures_per_s"], "1/s"),
        _row("... a state", page["state_kb"], "kB"),
    ]


def _row(name: str, value: float, unit: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "better": "lower", **more}


# --- a run -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _training(folder: Path) -> Iterator[Path]:
    settings = [part for setting in _SETTINGS for part in ("--set", setting)]
    argv = [sys.executable, "-m", "computerrl", "train", str(PACKAGE / "configs" / "smoke.yaml"), *settings]
    env = {**os.environ, "PYTHONPATH": str(SOURCE_ROOT)}
    process = subprocess.Popen(argv, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        run, deadline = folder / "runs" / "smoke", time.monotonic() + _START_LIMIT_S
        while not (run / "metrics.jsonl").exists():
            assert process.poll() is None and time.monotonic() < deadline, "the run did not start"
            time.sleep(0.2)
        yield run
    finally:
        process.terminate()
        process.wait()


def _wait_for_updates(watch: RunWatch) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while len(watch.refresh().updates) < 5:
        assert time.monotonic() < deadline, "no update came"
        time.sleep(0.5)


def _steps_per_s(watch: RunWatch) -> float:
    before, began = _steps(watch)
    time.sleep(_WINDOW_S)
    after, ended = _steps(watch)
    return (after - before) / (ended - began)


def _steps(watch: RunWatch) -> tuple[float, float]:
    """Environment steps so far, when the broker was told a new number."""
    first = watch.refresh().metric("actor/env_steps_total")
    while (steps := watch.refresh().metric("actor/env_steps_total")) == first or steps is None:
        time.sleep(0.02)
    return steps, time.monotonic()


@contextlib.contextmanager
def _dashboard(folder: Path, *, is_on: bool) -> Iterator[None]:
    if not is_on:
        yield
        return
    env = {**os.environ, "PYTHONPATH": str(SOURCE_ROOT)}
    server = subprocess.Popen(
        [sys.executable, "-m", "computerrl", "dashboard", str(folder)], stdout=subprocess.PIPE, text=True, env=env
    )
    assert server.stdout is not None
    found = re.search(r"http://\S+", server.stdout.readline())
    assert found is not None
    page = subprocess.Popen([sys.executable, "-m", "computerrl.benchmarks.launch.watch", found[0]], env=env)
    try:
        yield
    finally:
        for process in (page, server):
            process.terminate()
            process.wait()


# --- the page --------------------------------------------------------------------------------------------------------


async def _look(address: str, counts: dict[str, float], *, until: float) -> None:
    shown: dict[str, tuple[str, float]] = {}
    records, curves_at = -1, 0.0
    async with aiohttp.ClientSession() as http:
        while time.monotonic() < until:
            began = time.monotonic()
            async with http.get(f"{address}state.json") as answer:
                body = await answer.read()
                state = await answer.json()
            counts["states"] += 1
            counts["bytes"] += len(body)
            if state["num_records"] != records and began - curves_at >= _CURVES_EVERY_S:
                curves_at = began
                async with http.get(f"{address}curves.json?have={records}") as answer:
                    await answer.read()
                records = state["num_records"]
            for row in state["desktops"][:_IN_SIGHT]:
                picture, at = shown.get(row["id"], ("", 0.0))
                due = len(state["desktops"]) < _IN_SIGHT or began - at >= _PICTURE_EVERY_S
                if row["picture"] and row["picture"] != picture and due:
                    async with http.get(f"{address}thumb/{row['picture']}") as answer:
                        await answer.read()
                    shown[row["id"]] = (row["picture"], began)
                    counts["pictures"] += 1
            await asyncio.sleep(max(0.0, began + 1.0 - time.monotonic()))


async def _look_measured(address: str, server: psutil.Process, seconds: float) -> dict[str, float]:
    counts = {"states": 0.0, "bytes": 0.0, "pictures": 0.0}
    await _look(address, dict(counts), until=time.monotonic() + 2.0)
    before, began = server.cpu_times(), time.monotonic()
    await _look(address, counts, until=began + seconds)
    after, took = server.cpu_times(), time.monotonic() - began
    core = (after.user + after.system - before.user - before.system) / took
    return {
        "core": core,
        "states_per_s": counts["states"] / took,
        "pictures_per_s": counts["pictures"] / took,
        "state_kb": counts["bytes"] / counts["states"] / 1000,
    }


if __name__ == "__main__":
    asyncio.run(_look(sys.argv[1], {"states": 0.0, "bytes": 0.0, "pictures": 0.0}, until=float("inf")))
