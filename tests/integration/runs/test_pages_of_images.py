"""What people see of images and of the places at which actions pointed, in a real browser: replay, recordings, dashboard."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.async_api import Locator, Page, Route, expect

from computerrl.common.metrics import read_json_lines
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.launch.web.serve import write_episode
from computerrl.launch.web.server import serve_run
from tests.support.browser import open_page
from tests.support.data.synthetic_run import write_run

SIZES = (1280, 420)
"""Widths of the window."""
SCREEN = (200, 150)
"""Size of the screenshots of `synthetic_run`."""
MARKUP = "<b id='markup'>x</b>"


def run_with_images(folder: Path) -> tuple[Path, str]:
    """(run folder, episode): its first step clicked at (150, 40), its second dragged; its prompt shows two images."""
    run = RunFolder(write_run(folder))
    records = read_json_lines(run.episodes_path)
    episode = next(record for record in records if len(record["steps"]) == 4)
    episode["steps"][0] |= {"places": [150, 40], "action_text": MARKUP}
    episode["steps"][1] |= {"places": [20, 15, 100, 125]}
    run.episodes_path.write_text("".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records))
    images = [{**image_of(step), "num_tokens": 300} for step in episode["steps"][:2]]
    prompt = base64.b64encode(zlib.compress(np.array([40, -1, 41, -2, 42], "<i4").tobytes())).decode()
    plain = {"prompt": prompt, "tokens": [43], "logprobs": [-0.5], "versions": [1]}
    samples = [plain | {"images": images} for _ in episode["steps"]]
    line = {"trajectory_id": episode["trajectory_id"], "steps": samples, "advantages": []}
    run.samples_path.write_text(json.dumps(line, separators=(",", ":")) + "\n")
    return run.folder, episode["trajectory_id"]


def image_of(step: dict[str, Any]) -> dict[str, Any]:
    return {name: step["screenshot"][name] for name in ("content_hash", "width", "height")}


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[Page, str]]:
    """A page in a browser, and the address of the run's pages."""
    stop, addresses = asyncio.Event(), asyncio.Queue[str]()
    serving = asyncio.create_task(
        serve_run(folder, host="127.0.0.1", port=0, command="computerrl replay", on_ready=addresses.put_nowait, stop=stop)
    )
    try:
        address = await addresses.get()
        async with open_page() as (page, problems):
            yield page, address
            assert problems == []
    finally:
        stop.set()
        await serving


def visit(folder: Path, work: Callable[[Page, str], Awaitable[None]]) -> None:
    async def main() -> None:
        async with served(folder) as (page, address):
            await work(page, address)

    asyncio.run(main())


async def assert_marked(shot: Locator, x: int, y: int) -> None:
    """The ring lies at pixel (x, y) of the screen that the picture of ``shot`` shows, however large it is drawn."""
    await expect(shot.locator("circle.mark")).to_be_visible()
    # Both boxes in one call: pictures above that finish loading may move the page between two.
    boxes = "shot => ['circle.mark', 'img'].map(name => shot.querySelector(name).getBoundingClientRect().toJSON())"
    ring, picture = await shot.evaluate(boxes)
    centre = (ring["x"] + ring["width"] / 2 - picture["x"], ring["y"] + ring["height"] / 2 - picture["y"])
    # Thumbnails of the wall are cut to 4 : 3, which these screens have.
    assert centre == pytest.approx((x * picture["width"] / SCREEN[0], y * picture["height"] / SCREEN[1]), abs=2)


async def at_each_size(page: Page, check: Callable[[], Awaitable[None]]) -> None:
    for width in SIZES:
        await page.set_viewport_size({"width": width, "height": 900})
        await check()
        assert await page.evaluate("document.documentElement.scrollWidth") <= width


async def check_episode(page: Page) -> None:
    steps = page.locator(".step")
    await assert_marked(steps.nth(0).locator(".shot"), 150, 40)
    await assert_marked(steps.nth(1).locator(".shot"), 100, 125)
    await expect(steps.nth(1).locator("polyline.mark")).to_have_attribute("points", "20,15 100,125")
    await expect(steps.nth(1)).to_contain_text("20, 15 → 100, 125")
    await assert_marked(page.locator(".strip .shot").first, 150, 40)
    await expect(steps.nth(2).locator("svg")).to_have_count(0)
    prompt = steps.nth(0).locator("details pre")
    shown = "nodes => nodes.map(node => node.nodeType === 3 ? 'text' : node.tagName)"
    assert await prompt.evaluate(f"pre => ({shown})([...pre.childNodes])") == ["text", "IMG", "text", "IMG", "text"]
    for thumbnail in await prompt.locator("img").all():
        assert await thumbnail.evaluate("async image => { await image.decode(); return image.naturalWidth; }") > 0
    assert await prompt.locator("img").first.get_attribute("alt") == "image of 200 x 150 pixels, 300 tokens"
    await expect(page.locator("#markup")).to_have_count(0)


def test_replay_shows_images_in_prompts_and_where_actions_pointed(tmp_path: Path) -> None:
    folder, name = run_with_images(tmp_path / "run")

    async def work(page: Page, address: str) -> None:
        await page.goto(f"{address}replay.html#id={name}")
        for summary in await page.locator(".step summary").all():
            await summary.click()
        await at_each_size(page, lambda: check_episode(page))

    visit(folder, work)


def test_pictures_keep_their_room_before_they_load(tmp_path: Path) -> None:
    folder, name = run_with_images(tmp_path / "run")

    async def work(page: Page, address: str) -> None:
        may_load, held = asyncio.Event(), asyncio.Event()

        async def late(route: Route) -> None:
            held.set()
            await may_load.wait()
            await route.continue_()

        await page.route("**/frame?*", late)
        await page.goto(f"{address}replay.html#id={name}")
        await held.wait()
        height = "document.documentElement.scrollHeight"
        before = await page.evaluate(height)
        may_load.set()
        for image in await page.locator(".strip img, .screen img").all():
            await image.scroll_into_view_if_needed()
            await expect(image).not_to_have_js_property("naturalWidth", 0)
        assert await page.evaluate(height) == before

    visit(folder, work)


def test_shared_file_shows_the_same_without_a_server(tmp_path: Path) -> None:
    folder, name = run_with_images(tmp_path / "run")
    write_episode(folder, [name], out=tmp_path / "one.html")

    async def work(page: Page, _: str) -> None:
        await page.set_content((tmp_path / "one.html").read_text())
        for summary in await page.locator(".step summary").all():
            await summary.click()
        await at_each_size(page, lambda: check_episode(page))

    visit(folder, work)


def test_dashboard_shows_where_the_last_action_pointed(tmp_path: Path) -> None:
    row = {
        "id": "0/0", "state": "leased", "why": "", "holder": "actor-0", "task": "web-click #1", "steps": 1, "error": "",
        "action": MARKUP, "reward": None, "picture": "c0ffee", "size": list(SCREEN), "places": [150, 40],
    }  # fmt: skip
    buffer = io.BytesIO()
    Image.new("RGB", SCREEN, "teal").save(buffer, format="PNG")

    async def with_a_desktop(route: Route) -> None:
        state = await (await route.fetch()).json()
        await route.fulfill(json={**state, "desktops": [row]})

    async def work(page: Page, address: str) -> None:
        await page.route("**/state.json", with_a_desktop)
        detail = {"instruction": "", "completion": "", "elements": []}
        await page.route("**/desktop/0/0", lambda route: route.fulfill(json={**row, **detail}))
        png = {"body": buffer.getvalue(), "content_type": "image/png"}
        await page.route("**/thumb/c0ffee", lambda route: route.fulfill(**png))
        await page.route("**/shot/c0ffee", lambda route: route.fulfill(**png))
        await page.goto(address)
        tile = page.locator(".desktop")
        await at_each_size(page, lambda: assert_marked(tile, 150, 40))
        await tile.click()
        await at_each_size(page, lambda: assert_marked(page.locator("#one .screen"), 150, 40))
        row["places"] = []
        await page.locator("#detail button").click()
        await expect(tile.locator("svg")).to_have_count(0)
        await expect(page.locator("#markup")).to_have_count(0)

    visit(write_run(tmp_path / "run", until="rl"), work)
