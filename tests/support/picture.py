"""Pictures of the documentation, from the real pages in a real browser.

python -m tests.support.picture docs/pictures/desktop.webp              # the page of `computerrl desktop`
python -m tests.support.picture docs/pictures/report.webp RUN_FOLDER    # the report of a run
"""

from __future__ import annotations

import asyncio
import io
import signal
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.async_api import expect

from tests.support.browser import open_page

TASK = ("--task", "forge-calc-chart", "--seed", "1")
SIZE = {"width": 1280, "height": 850}
START_LIMIT_MS = 120_000.0


async def shoot(address: str) -> bytes:
    """A PNG of the page at ``address``, with the elements that an agent sees."""
    async with open_page() as (page, _):
        await page.set_viewport_size({"width": SIZE["width"], "height": SIZE["height"]})
        await page.goto(address)
        await expect(page.locator("#pill[data-state=ready]")).to_be_attached(timeout=START_LIMIT_MS)
        await expect(page.locator("#elements li").first).to_be_attached()
        await page.locator("#show-elements").check()
        await expect(page.locator(".box").first).to_be_visible()
        await page.wait_for_timeout(1000)  # The last frame of the live screen.
        return await page.screenshot()


async def shoot_report(report: Path) -> bytes:
    """A PNG of the beginning of the page in file ``report``."""
    async with open_page() as (page, _):
        await page.set_content(report.read_text(encoding="utf-8"))
        return await page.screenshot()


def picture_of_desktop() -> bytes:
    """Start the command, shoot its page, end the command."""
    command = [sys.executable, "-m", "computerrl", "desktop", "--no-open", *TASK]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        address = process.stdout.readline().split()[1]
        return asyncio.run(shoot(address))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def main(out: Path, *runs: str) -> None:
    """Write the picture to ``out``: of the report of the run folder among ``runs``, else of a desktop."""
    encoded = asyncio.run(shoot_report(Path(runs[0]) / "report.html")) if runs else picture_of_desktop()
    picture = Image.open(io.BytesIO(encoded))
    out.parent.mkdir(parents=True, exist_ok=True)
    picture.save(out, quality=85, method=6)
    print(f"{out}: {picture.size[0]} x {picture.size[1]}, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
