"""A real browser for tests: the desktop image's own Chromium, headless, in a container, driven by Playwright over DevTools.

Set-up built that image, so no browser needs to be installed. The container shares the host's network (the page is served there)
and ends with the life line of the isolation that desktops use.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import ConsoleMessage, Error, Page, async_playwright, expect

from computerrl.env_server.drivers.isolation import as_ordinary_user, isolation
from computerrl.env_server.drivers.memory import FILES
from computerrl.env_server.image.apptainer_install import ISOLATION, clean_environment, find_apptainer
from computerrl.env_server.image.find import image_path

START_LIMIT_S = 120.0
WAIT_LIMIT_MS = 120_000.0
DESK = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 900}

expect.set_options(timeout=WAIT_LIMIT_MS)


def _command() -> list[str]:
    apptainer, image = find_apptainer(), image_path("core")
    flags = [flag for flag in apptainer.extra_flags if flag != "--userns"]
    return [
        *isolation(max_processes=600, needs=(apptainer.folder, image)),
        *as_ordinary_user(max_processes=600),
        str(apptainer.path),
        "--quiet",
        "exec",
        *flags,
        "--userns",
        *ISOLATION,
        "--bind",
        f"{FILES}/tmp:/tmp",
        "--pwd",
        "/",
        "--env",
        "HOME=/tmp",
        str(image),
        "/usr/lib/chromium/chromium",
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--user-data-dir=/tmp/profile",
        "--hide-scrollbars",
        "--remote-debugging-port=0",
        "about:blank",
    ]


@asynccontextmanager
async def open_page() -> AsyncIterator[tuple[Page, list[str]]]:
    """A page in a browser of its own, closed at the end; and what its console and its scripts complained about meanwhile."""
    process = subprocess.Popen(
        _command(),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
        cwd="/",
        env=clean_environment(),
    )
    problems: list[str] = []

    def heed(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            problems.append(f"{message.text} {message.location}")

    def heed_error(error: Error) -> None:
        problems.append(str(error))

    try:
        address = await asyncio.wait_for(asyncio.to_thread(_devtools_address, process), START_LIMIT_S)
        async with async_playwright() as playwright:
            browser = await playwright.chromium.connect_over_cdp(address)
            context = await browser.new_context(viewport=DESK, has_touch=True)
            page = await context.new_page()
            page.set_default_timeout(WAIT_LIMIT_MS)
            page.on("console", heed)
            page.on("pageerror", heed_error)
            yield page, problems
            await browser.close()
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)


def _devtools_address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if match := re.search(r"DevTools listening on (ws://\S+)", line):
            return match[1]
    raise AssertionError(f"the browser did not start: {''.join(said)}")
