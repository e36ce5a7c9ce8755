"""`computerrl desktop` with a real desktop and a real browser: a task solved by mouse and keys, scored, recorded, replayed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from actor.episode import EpisodeSetting, play_episode
from common.config import DesktopConfig, TasksConfig
from common.messages import Assignment, TaskRef, Trajectory
from common.recordings import read_recording
from common.transport import LocalChannel
from env_server.client import DesktopClient
from env_server.drivers import make_driver
from env_server.service import DesktopService
from tests.browser import Page, open_browser
from tests.integration.test_desktop_life import assert_gone, processes_below
from tests.unit.actor_data import make_prompt

pytestmark = pytest.mark.timeout(240)

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 90.0
END_LIMIT_S = 10.0
READY = "document.querySelector('#pill').dataset.state === 'ready'"


@asynccontextmanager
async def desktop_page(folder: Path, *options: str) -> AsyncIterator[tuple[Page, subprocess.Popen[str], str]]:
    """The command as people run it, its page in a browser; afterwards Ctrl-C, and nothing is left."""
    command = [sys.executable, "-m", "launch.cli", "desktop", "--no-open", "--recordings", str(folder / "demos"), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with open(folder / "desktop.log", "w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        line = await asyncio.to_thread(process.stdout.readline)
        assert line.startswith("desktop: http://127.0.0.1:"), ((folder / "desktop.log").read_text(), line)
        address = line.split()[1]
        async with open_browser() as page:
            await page.show(width=1280, height=900)
            await page.open(address)
            await page.wait(READY, limit_s=START_LIMIT_S)
            await page.wait("document.querySelectorAll('#elements li').length > 0")
            yield page, process, address
            assert page.problems == []
    finally:
        below = processes_below(process.pid)
        process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(process.wait, END_LIMIT_S) == 0
        assert_gone(below)


def visit(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


async def point_at(page: Page, text: str) -> tuple[float, float]:
    """Where on the page the live picture shows the element of that text."""
    row = await page.run(
        "[...document.querySelectorAll('#elements li')].map(li => ({number: li.querySelector('b').textContent, "
        "text: li.querySelector('span').childNodes[1].textContent.trim()}))"
        f".find(row => row.text === {json.dumps(text)} || row.text.endsWith(' ' + {json.dumps(text)}))?.number"
    )
    assert row, (text, await page.run("document.querySelector('#elements').innerText"))
    place = await page.run(
        f"(() => {{ const box = [...document.querySelectorAll('.box')].find(b => b.textContent === {json.dumps(row)});"
        " const overlay = document.querySelector('#overlay'), hidden = overlay.hidden;"
        " overlay.hidden = false; const r = box.getBoundingClientRect(); overlay.hidden = hidden;"
        " return [r.left + r.width / 2, r.top + r.height / 2]; })()"
    )
    return float(place[0]), float(place[1])


def replay(folder: Path, task: TaskRef) -> Trajectory:
    """The recorded demonstration as an actor plays it for cloning, on a fresh desktop."""
    config = DesktopConfig(num_desktops=1)
    tasks = TasksConfig(recordings=str(folder / "demos"))
    service = DesktopService(
        config, tasks=tasks, make=lambda index: make_driver(config, index=index, folder=folder / "replay", screenshots=None)
    )
    try:
        assert service.wait_ready(1, timeout_s=START_LIMIT_S)
        assignment = Assignment("o/0/0", "o/0", 0, "o", "demonstration", task, 0.0, tasks.max_steps, 120.0)
        setting = EpisodeSetting(actor="actor-0:x", incarnation="x", max_new_tokens=32)
        return play_episode(assignment, DesktopClient(LocalChannel(service.handle)), None, make_prompt(), setting=setting)
    finally:
        service.close()


def test_page_task_solved_by_mouse_and_keys_is_scored_saved_and_replayed(tmp_path: Path) -> None:
    async def work() -> None:
        async with desktop_page(tmp_path, "--task", "calc-type-cell", "--seed", "11") as (page, _, _):
            instruction = await page.wait("document.querySelector('#instruction').textContent")
            old, new = instruction.removeprefix("Click the cell ").removesuffix(".").split(" and type ")
            await page.click_on("#score")
            await page.wait("document.querySelector('#verdict').dataset.success === 'false'")
            await page.click(*await point_at(page, old))
            await page.wait("document.querySelectorAll('#log li').length === 1")
            await page.type(new)
            await page.key("Enter", code=13)
            await page.wait("document.querySelectorAll('#log li').length === 2")
            await page.click_on("#score")
            await page.wait("document.querySelector('#verdict').dataset.success === 'true'")
            assert "Score 1" in await page.run("document.querySelector('#verdict').textContent")
            await page.click_on("#save")
            await page.wait("document.querySelector('#notice').textContent.startsWith('Saved')")

    visit(work)
    task = TaskRef("calc-type-cell", 11, "demonstration")
    recording = read_recording(tmp_path / "demos" / "calc-type-cell-11.json")
    assert [step.action_text.split("(")[0] for step in recording.steps] == ["click", "type", "done"]
    assert recording.steps[0].targets and recording.steps[0].picture and recording.steps[0].observation.elements
    trajectory = replay(tmp_path, task)
    assert trajectory.success and trajectory.end_reason == "done_action", trajectory
    assert [step.action_text for step in trajectory.steps] == [step.action_text for step in recording.steps]
    prompt = bytes(int(token) for token in trajectory.steps[0].prompt_tokens).decode()
    assert prompt.startswith(f"Task: {recording.instruction}\nApp: calc") and prompt.endswith("Action:")


def test_page_live_picture_shows_what_the_action_line_does(tmp_path: Path) -> None:
    async def work() -> None:
        async with desktop_page(tmp_path, "--task", "calc-set-cell", "--seed", "2") as (page, _, _):
            pixels = "document.querySelector('#canvas').toDataURL().length + document.querySelector('#canvas').toDataURL()"
            before = await page.run(pixels)
            await page.click_on("#line")
            await page.type("calc.set")
            assert "calc.set_cell(cell, value)" in await page.run("document.querySelector('#choices').innerText")
            await page.key("Enter", code=13)
            await page.type('"B9", 12345)')
            await page.key("Enter", code=13)
            await page.wait("document.querySelectorAll('#log li').length === 1")
            await page.wait(f"({pixels}) !== {json.dumps(before)}")
            await page.click_on("#line")
            await page.type('calc.get_cell("B9")')
            await page.key("Enter", code=13)
            await page.wait("document.querySelector('#log .result')?.textContent === '12345'")
            await page.click_on("#show-elements")
            assert await page.run("!document.querySelector('#overlay').hidden && document.querySelectorAll('.box').length > 10")
            await page.click(*await point_at(page, "12345"))
            await page.wait("document.querySelector('#tip').checkVisibility()")
            assert "table-cell 12345" in await page.run("document.querySelector('#tip').innerText")
            await page.wait("document.querySelectorAll('#log li').length === 3")
            await page.key("F8", code=119)
            assert await page.run("document.activeElement.id") == "line"

    visit(work)


def test_page_gestures_become_the_actions_of_an_agent(tmp_path: Path) -> None:
    """On an imitated desktop: what matters is what mouse, wheel and keys are turned into."""

    async def work() -> None:
        async with desktop_page(tmp_path, "--driver", "scripted", "--task", "calc-type-cell", "--seed", "11") as (page, _, _):
            galaxy, breeze = await point_at(page, "galaxy"), await point_at(page, "breeze")
            expected: list[str] = []

            async def logged(*texts: str) -> None:
                expected.extend(texts)
                await page.wait(f"document.querySelectorAll('#log li').length >= {len(expected)}")
                assert await page.run("[...document.querySelectorAll('#log button')].map(b => b.textContent)") == expected

            await page.click(*galaxy, count=2)
            await logged('double_click("galaxy")')
            await page.click(*breeze, button="right")
            await logged('click("breeze", button="right")')
            await page.drag(galaxy, breeze)
            await logged('drag("galaxy", "breeze")')
            await page.call("Input.dispatchMouseEvent", type="mouseWheel", x=galaxy[0], y=galaxy[1], deltaX=0, deltaY=-120)
            await logged('scroll("galaxy", direction="up")')
            # Several things at once keep their order: a click that might still become double, then text, then a chord.
            await page.click(*galaxy)
            await page.type("a b")
            await page.key("a", code=65, modifiers=2)
            await logged('click("galaxy")', 'type("a b")', 'key("ctrl+a")')
            await page.key("Tab", code=9, modifiers=8)
            await logged('key("shift+tab")')
            await page.click_on("#exact")
            await page.click(*galaxy)
            await page.wait("document.querySelectorAll('#log li').length === 9")
            last = await page.run("[...document.querySelectorAll('#log button')].at(-1).textContent")
            assert last.startswith("click(") and '"' not in last and ", " in last
            touch = {"x": breeze[0], "y": breeze[1]}
            await page.click_on("#exact")
            await page.call("Emulation.setTouchEmulationEnabled", enabled=True)
            await page.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[touch])
            await page.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
            await page.wait("document.querySelectorAll('#log li').length === 10")
            assert await page.run("[...document.querySelectorAll('#log button')].at(-1).textContent") == 'click("breeze")'

    visit(work)


def test_page_broken_desktop_is_shown_and_restarted(tmp_path: Path) -> None:
    async def work() -> None:
        async with desktop_page(tmp_path, "--task", "files-move", "--seed", "1") as (page, process, _):
            keepers = [pid for pid, name in processes_below(process.pid).items() if name == "unshare"]
            os.kill(min(keepers), signal.SIGKILL)
            await page.wait("document.querySelector('#pill').dataset.state === 'broken'")
            await page.wait("document.activeElement.id === 'restart'")
            await page.click_on("#restart")
            await page.wait(READY, limit_s=START_LIMIT_S)
            await page.wait("document.querySelectorAll('#elements li').length > 0")
            assert await page.run("document.querySelector('#scrim').hidden")

    visit(work)


def test_page_of_another_site_can_neither_connect_nor_guess(tmp_path: Path) -> None:
    """The token is in the attacker's hands here, to see that the origin alone is enough to be refused."""

    async def work() -> None:
        async with desktop_page(tmp_path, "--driver", "scripted") as (page, _, address):
            await page.call("Page.navigate", url="data:text/html,<p>another site</p>")
            await page.wait("location.protocol === 'data:'")
            socket = address.replace("http:", "ws:") + "socket"
            for target in (socket, socket.replace("127.0.0.1", "localhost")):
                outcome = await page.run(
                    f"new Promise(done => {{ const s = new WebSocket({json.dumps(target)});"
                    " s.onopen = () => done('open'); s.onerror = () => done('refused'); })"
                )
                assert outcome == "refused"
            page.problems.clear()

    visit(work)


def test_desktop_command_interrupted_while_starting_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "launch.cli", "desktop", "--no-open"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None and process.stdout.readline().startswith("desktop: ")
    deadline = time.monotonic() + START_LIMIT_S
    while "unshare" not in processes_below(process.pid).values():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    below = processes_below(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.wait(END_LIMIT_S) == 0
    assert_gone(below)
    assert list(tmp_path.iterdir()) == []
