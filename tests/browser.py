"""A real browser for tests: the desktop image's own Chromium, headless, in a container, driven over DevTools.

Set-up built that image, so nothing more needs to be installed. The container shares the host's network (the page is served there)
and ends with the life line of the isolation that desktops use.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import re
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from env_server.apptainer_install import find_apptainer
from env_server.drivers.isolation import FILES, as_ordinary_user, isolation
from env_server.image.find import image_path

START_LIMIT_S = 60.0
WAIT_LIMIT_S = 40.0


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, session_id: str) -> None:
        self._socket = socket
        self._session_id = session_id
        self._ids = itertools.count(100)
        self.problems: list[str] = []
        """What the console complained about."""

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": params, "sessionId": self._session_id})
        while True:
            answer = await self._socket.receive_json(timeout=WAIT_LIMIT_S)
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.problems.append(json.dumps(answer["params"])[:500])
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    async def open(self, address: str) -> None:
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=address)
        await self.wait("document.readyState === 'complete'")

    async def show(self, *, width: int, height: int, dark: bool = False, mobile: bool = False) -> None:
        await self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[feature])

    async def run(self, script: str) -> Any:
        answer = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, (script, answer)
        return answer["result"].get("value")

    async def wait(self, script: str, *, limit_s: float = WAIT_LIMIT_S) -> Any:
        deadline = time.monotonic() + limit_s
        while not (value := await self.run(script)):
            assert time.monotonic() < deadline, (script, await self.run("document.body.innerText"), self.problems)
            await asyncio.sleep(0.1)
        return value

    async def centre(self, selector: str) -> tuple[float, float]:
        found = await self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'nearest'}});"
            " const b = e.getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2]; })()"
        )
        return float(found[0]), float(found[1])

    async def click(self, x: float, y: float, *, button: str = "left", count: int = 1) -> None:
        await self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for number in range(1, count + 1):
            for kind in ("mousePressed", "mouseReleased"):
                await self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=number)

    async def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        for kind, (x, y) in (("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end)):
            await self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    async def click_on(self, selector: str) -> None:
        await self.click(*await self.centre(selector))

    async def key(self, key: str, *, code: int = 0, modifiers: int = 0) -> None:
        text = {"text": key} if len(key) == 1 and not modifiers & 6 else {"text": "\r"} if key == "Enter" else {}
        event = {"key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **event, **text)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    async def type(self, text: str) -> None:
        for character in text:
            await self.key(character)

    async def picture(self, path: Path, *, whole: bool = True) -> None:
        answer = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))


def _command() -> list[str]:
    apptainer = find_apptainer()
    flags = [flag for flag in apptainer.extra_flags if flag != "--userns"]
    return [
        *isolation(max_processes=600), *as_ordinary_user(max_processes=600),
        str(apptainer.path), "--quiet", "exec", *flags, "--userns", "--containall", "--no-home", "--cleanenv", "--writable-tmpfs",
        "--bind", f"{FILES}/tmp:/tmp", "--pwd", "/", "--env", "HOME=/tmp",
        str(image_path("core")), "/usr/lib/chromium/chromium", "--headless=new", "--no-sandbox", "--disable-gpu",
        "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--disable-component-update",
        "--user-data-dir=/tmp/profile", "--hide-scrollbars", "--remote-debugging-port=0", "about:blank",
    ]  # fmt: skip


@asynccontextmanager
async def open_browser() -> AsyncIterator[Page]:
    """A page in a browser of its own, closed at the end."""
    process = subprocess.Popen(
        _command(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True, text=True
    )
    try:
        address = await asyncio.wait_for(asyncio.to_thread(_devtools_address, process), START_LIMIT_S)
        async with aiohttp.ClientSession() as http, http.ws_connect(address, max_msg_size=2**26) as socket:
            browser = Page(socket, "")
            target = await _plain(socket, 1, "Target.createTarget", url="about:blank")
            attached = await _plain(socket, 2, "Target.attachToTarget", targetId=target["targetId"], flatten=True)
            browser._session_id = attached["sessionId"]
            yield browser
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(10)


async def _plain(socket: aiohttp.ClientWebSocketResponse, number: int, method: str, **params: Any) -> dict[str, Any]:
    await socket.send_json({"id": number, "method": method, "params": params})
    while True:
        answer = await socket.receive_json(timeout=WAIT_LIMIT_S)
        if answer.get("id") == number:
            return dict(answer["result"])


def _devtools_address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if match := re.search(r"DevTools listening on (ws://\S+)", line):
            return match[1]
    raise AssertionError(f"the browser did not start: {''.join(said)}")
