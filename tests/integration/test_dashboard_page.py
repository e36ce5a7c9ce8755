"""The dashboard and the replay of a live run in a real browser: every view and every kind of control."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from common.metrics import read_json_lines
from tests.browser import Page, open_browser
from tests.integration.test_desktop_life import assert_gone, processes_below

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = (
    "learner.recipe.max_updates=1000", "desktop.num_desktops=3", "actor.num_episodes=3", "metrics.prometheus=true",
)  # fmt: skip
DRAWN = "document.querySelectorAll('#charts .js-plotly-plot .scatterlayer').length >= 4"
SIZES = ((1280, False), (390, True))
START_LIMIT_S = 120.0
END_LIMIT_S = 30.0


@asynccontextmanager
async def live_run(folder: Path) -> AsyncIterator[tuple[Page, subprocess.Popen[str], str]]:
    """`computerrl train --dashboard` as people run it, the page in a browser; afterwards nothing is left."""
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    command = [sys.executable, "-m", "launch.cli", "train", str(ROOT / "configs" / "smoke.yaml"), "--dashboard", *settings]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with open(folder / "train.log", "w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True)
    try:
        address = await said(folder / "train.log", r"dashboard: (http://127\.0\.0\.1:\S+)", process)
        async with open_browser() as page:
            await page.show(width=1280, height=900)
            await page.open(address)
            yield page, process, address
            assert page.problems == []
    finally:
        below = processes_below(process.pid)
        process.send_signal(signal.SIGINT)
        await asyncio.to_thread(process.wait, END_LIMIT_S)
        assert_gone(below)


async def said(path: Path, pattern: str, process: subprocess.Popen[str]) -> str:
    for _ in range(int(START_LIMIT_S * 10)):
        found = re.search(pattern, path.read_text())
        if found:
            return found[1]
        assert process.poll() is None, path.read_text()
        await asyncio.sleep(0.1)
    raise AssertionError(path.read_text())


async def press(page: Page, name: str) -> str:
    """Press a control, confirm it, and give what the page says."""
    await page.wait(f"document.querySelector('#do-{name}') && !document.querySelector('#do-{name}').disabled")
    await page.run("document.querySelector('#answer').textContent = ''")
    await page.click_on(f"#do-{name}")
    await page.wait("document.querySelector('#sure').open")
    await page.click_on("#yes")
    return str(await page.wait("document.querySelector('#answer').textContent"))


def checkpoints(run: Path) -> set[tuple[str, int]]:
    return {(path.name, path.stat().st_mtime_ns) for path in (run / "checkpoints").glob("checkpoint-*")}


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(int(END_LIMIT_S * 10)):
        if condition():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("waited in vain")


async def choose(page: Page, which: str) -> None:
    place = "const s = document.querySelector('#which')"
    await page.run(f"(() => {{ {place}; s.value = '{which}'; s.dispatchEvent(new Event('change')); }})()")


async def assert_fits(page: Page) -> None:
    for width, is_dark in SIZES:
        await page.show(width=width, height=900, dark=is_dark, mobile=width < 600)
        await asyncio.sleep(0.3)
        assert await page.run("document.documentElement.scrollWidth") <= width
    await page.show(width=1280, height=900)


def test_dashboard_shows_a_live_run_and_its_buttons_reach_it(tmp_path: Path) -> None:
    asyncio.run(_dashboard(tmp_path))


async def _dashboard(folder: Path) -> None:
    run = folder / "runs" / "smoke"
    async with live_run(folder) as (page, process, address):
        await page.wait("document.querySelectorAll('.desktop img:not([hidden])').length === 3", limit_s=START_LIMIT_S)
        await page.wait(DRAWN, limit_s=START_LIMIT_S)
        assert "3 desktops" in await page.run("document.querySelector('#counts').textContent")
        assert await page.run("document.querySelector('#live').textContent") == "live"
        await assert_fits(page)

        # A desktop at full size, by keyboard alone; the tree lies over the picture; Escape leads back to it.
        await page.run("document.querySelector('.desktop').focus()")
        await page.key("Enter", code=13)
        await page.wait("document.querySelectorAll('#one .screen .box').length > 2")
        assert await page.run("document.querySelector('#one dl').textContent.includes('instruction')")
        await page.click_on("#overlay")
        assert await page.run("document.querySelector('#one .screen').classList.contains('plain')")
        await page.key("Escape", code=27)
        await page.wait("!document.querySelector('#one').open && document.activeElement.className === 'desktop'")

        await choose(page, "unwell")
        assert await page.run("[...document.querySelectorAll('.desktop')].every(tile => tile.hidden)")
        await choose(page, "")

        # What the broker says of it, as Prometheus is told.
        targets = {path.stem for path in (run / "metrics").glob("*.json")}
        assert targets == {"actor-0", "broker-0", "env_server-0", "learner-0"}

        # A process that dies is shown with its restart.
        pid = json.loads((run / "logs" / "latest" / "processes.json").read_text())["actor-0"]["pid"]
        os.kill(pid, signal.SIGKILL)
        await page.wait(
            "[...document.querySelectorAll('#peers tr')].some(row => row.children[0].textContent === 'actor-0' "
            "&& row.children[4].textContent === '1')"
        )

        # Nothing happens unless it is confirmed.
        await page.click_on("#do-stop")
        await page.wait("document.querySelector('#sure').open")
        await page.click_on("#cancel")
        assert not (run / "controls.jsonl").exists()

        assert "No new episode starts" in await press(page, "pause")
        await page.wait("document.querySelector('#live').textContent === 'paused'")
        await page.wait("document.querySelector('#queues tr').children[1].textContent === '0'")
        await press(page, "resume")
        await page.wait("document.querySelector('#live').textContent === 'live'")
        before = checkpoints(run)
        await press(page, "checkpoint")
        await until(lambda: checkpoints(run) != before and not (run / "checkpoint.request").exists())
        await _episodes(page, address)
        await page.open(address)
        await page.wait(DRAWN)
        await press(page, "drain")
        await asyncio.to_thread(process.wait, END_LIMIT_S)
        assert "stopped by a person's request" in (folder / "train.log").read_text()
        pressed = [line["control"] for line in read_json_lines(run / "controls.jsonl")]
        assert pressed == ["pause", "resume", "checkpoint", "drain"]
        # The page had its address from the run's own server, which has ended with it.
        page.problems.clear()


async def _episodes(page: Page, address: str) -> None:
    """The list with its filters, one episode, two of a group side by side, and the file to share."""
    await page.open(f"{address}replay.html")
    await page.wait("document.querySelectorAll('#list tr').length > 3")
    everything = await page.run("document.querySelector('#total').textContent")
    await page.run(
        "(() => { const f = document.querySelector('#filter'); f.elements.kind.value = 'training';"
        " f.dispatchEvent(new Event('input')); })()"
    )
    await page.wait(f"document.querySelector('#total').textContent !== {json.dumps(everything)}")
    await page.click_on("#list a")
    await page.wait("document.querySelectorAll('.step').length > 1")
    await page.wait("[...document.querySelectorAll('.step img')].some(image => image.naturalWidth > 0)")
    assert await page.run("document.querySelectorAll('.token').length") > 0
    assert "Task:" in await page.run("document.querySelector('.step details pre').textContent")
    assert "policy version" in await page.run("document.querySelector('.step').textContent")
    await page.run("(() => { const s = document.querySelector('article select'); s.selectedIndex = 1; s.onchange(); })()")
    await page.wait("document.querySelectorAll('article').length === 2")
    await assert_fits(page)
    fetched = "fetch(document.querySelector('article a').href).then(answer => answer.text())"
    size = await page.run(f"{fetched}.then(text => text.length)")
    assert size > 20_000
