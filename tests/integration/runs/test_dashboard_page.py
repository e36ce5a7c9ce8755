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

from playwright.async_api import Page, expect

from computerrl.common.metrics import read_json_lines
from tests.integration.desktops.test_desktop_life import assert_gone, processes_below
from tests.support.browser import DESK, PHONE, open_page
from tests.support.desktops import LIGHT_FAMILIES

ROOT = Path(__file__).resolve().parents[3]
SETTINGS = ("learner.recipe.max_updates=1000", "metrics.prometheus=true", LIGHT_FAMILIES)
LOADED = "async image => { await image.decode(); return image.naturalWidth; }"
START_LIMIT_S = 120.0
START_LIMIT_MS = 1000 * START_LIMIT_S
END_LIMIT_S = 120.0


@asynccontextmanager
async def live_run(folder: Path) -> AsyncIterator[tuple[Page, list[str], subprocess.Popen[str], str]]:
    """`computerrl train --dashboard` as people run it, the page in a browser; afterwards nothing is left."""
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    command = [sys.executable, "-m", "computerrl", "train", str(ROOT / "configs" / "smoke.yaml"), "--dashboard", *settings]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with open(folder / "train.log", "w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True)
    try:
        address = await said(folder / "train.log", r"dashboard: (http://127\.0\.0\.1:\S+)", process)
        async with open_page() as (page, problems):
            await page.goto(address)
            yield page, problems, process, address
            assert problems == []
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
    answer = page.locator("#answer")
    await answer.evaluate("answer => { answer.textContent = ''; }")
    await page.locator(f"#do-{name}").click()
    await page.locator("#yes").click()
    await expect(answer).not_to_be_empty()
    return await answer.inner_text()


def checkpoints(run: Path) -> set[tuple[str, int]]:
    return {(path.name, path.stat().st_mtime_ns) for path in (run / "checkpoints").glob("checkpoint-*")}


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(int(END_LIMIT_S * 10)):
        if condition():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("waited in vain")


async def assert_fits(page: Page) -> None:
    for size, scheme in ((DESK, "light"), (PHONE, "dark")):
        await page.set_viewport_size(size)
        await page.emulate_media(color_scheme=scheme)
        await asyncio.sleep(0.3)
        assert await page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    await page.set_viewport_size(DESK)


async def has_curves(page: Page) -> None:
    await expect(page.locator("#charts svg.chart").nth(3)).to_be_attached(timeout=START_LIMIT_MS)


def test_dashboard_shows_a_live_run_and_its_buttons_reach_it(tmp_path: Path) -> None:
    asyncio.run(_dashboard(tmp_path))


async def _dashboard(folder: Path) -> None:
    run = folder / "runs" / "smoke"
    async with live_run(folder) as (page, problems, process, address):
        desktops, live = page.locator(".desktop"), page.locator("#live")
        await expect(desktops.locator("img:not([hidden])")).to_have_count(2, timeout=START_LIMIT_MS)
        await has_curves(page)
        await expect(page.locator("#counts")).to_contain_text("2 desktops")
        await expect(live).to_have_text("live")
        await _one_desktop(page)

        # Every process can be asked by Prometheus.
        targets = {path.stem for path in (run / "metrics").glob("*.json")}
        assert targets == {"actor-0", "broker-0", "env_server-0", "learner-0"}

        # A process that dies is shown with its restart.
        pid = json.loads((run / "logs" / "latest" / "processes.json").read_text())["actor-0"]["pid"]
        os.kill(pid, signal.SIGKILL)
        await expect(page.locator("#peers tr").filter(has_text="actor-0").locator("td").nth(4)).to_have_text("1")

        # Nothing happens unless it is confirmed.
        await page.locator("#do-stop").click()
        await page.locator("#cancel").click()
        assert not (run / "controls.jsonl").exists()

        assert "No new episode starts" in await press(page, "pause")
        await expect(live).to_have_text("paused")
        await expect(page.locator("#queues tr").first.locator("td").nth(1)).to_have_text("0")

        # What can be looked at while nothing goes on, which leaves the processor to the browser.
        await assert_fits(page)
        await page.locator("#which").select_option("unwell")
        await expect(desktops.filter(visible=True)).to_have_count(0)
        await page.locator("#which").select_option("")
        await expect(desktops.filter(visible=True)).to_have_count(2)
        await _episodes(page, address)
        await page.goto(address)
        await has_curves(page)
        await expect(live).to_have_text("paused")

        await press(page, "resume")
        await expect(live).to_have_text("live")
        before = checkpoints(run)
        await press(page, "checkpoint")
        await until(lambda: checkpoints(run) != before and not (run / "checkpoint.request").exists())
        await expect(page.locator("#to-report")).to_be_hidden()
        assert (run / "dashboard.url").read_text().strip() == address
        await press(page, "drain")
        await asyncio.to_thread(process.wait, END_LIMIT_S)
        assert "stopped by a person's request" in (folder / "train.log").read_text()
        assert not (run / "dashboard.url").exists()
        # The page stays open and explains itself instead of looking broken.
        await expect(page.locator("#lost")).to_contain_text("Open its report:")
        await expect(live).to_have_text("ended")
        await expect(page.locator("#do-stop")).not_to_be_visible()
        pressed = [line["control"] for line in read_json_lines(run / "controls.jsonl")]
        assert pressed == ["pause", "resume", "checkpoint", "drain"]
        # The page had its address from the run's own server, which has ended with it.
        problems.clear()


async def _one_desktop(page: Page) -> None:
    """At full size, by keyboard alone; the tree lies over the picture; Escape leads back to it."""
    tile, dialog = page.locator(".desktop").first, page.locator("#one")
    await tile.focus()
    await page.keyboard.press("Enter")
    await expect(dialog.locator(".screen .box").nth(2)).to_be_attached()
    await expect(dialog.locator("dl")).to_contain_text("instruction")
    await page.locator("#overlay").click()
    await expect(dialog.locator(".screen")).to_have_class(re.compile(r"\bplain\b"))
    await page.keyboard.press("Escape")
    await expect(dialog).not_to_be_visible()
    await expect(tile).to_be_focused()


async def _episodes(page: Page, address: str) -> None:
    """The list with its filters, one episode, two of a group side by side, and the file to share."""
    await page.goto(f"{address}replay.html")
    await expect(page.locator("#list tr").nth(3)).to_be_visible()
    everything = await page.locator("#total").inner_text()
    await page.locator("#filter [name=kind]").select_option("training")
    await expect(page.locator("#total")).not_to_have_text(everything)
    await page.locator("#list a").first.click()
    steps = page.locator(".step")
    await expect(steps.nth(1)).to_be_visible()
    assert await steps.locator("img").first.evaluate(LOADED) > 0
    await expect(page.locator(".token").first).to_be_attached()
    await expect(steps.locator("details pre").first).to_contain_text("Task:")
    await expect(steps.first).to_contain_text("policy version")
    await page.locator("article select").select_option(index=1)
    await expect(page.locator("article")).to_have_count(2)
    await assert_fits(page)
    name = await page.locator("article h2").first.inner_text()
    link = await page.locator("article a").first.get_attribute("href")
    answer = await page.request.get(f"{address}{link}")
    await page.goto("about:blank")
    await page.set_content(await answer.text())
    await expect(page.locator("article")).to_have_count(2)
    assert await page.locator(".step img").first.evaluate(LOADED) > 0
    # By its address or a click, an episode is what the page begins with.
    heading = page.locator("article h2")
    await page.goto(f"{address}replay.html#id={name}")
    await expect(heading).to_be_in_viewport()
    await page.locator("article a", has_text="close").click()
    await expect(heading).to_have_count(0)
    await page.locator("#list a").last.click()
    await expect(heading).to_be_in_viewport()
