"""`computerrl desktop` with a real desktop and a real browser: a task solved by mouse and keys, scored, recorded, replayed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from computerrl.actor.choosing import EpisodeSetting
from computerrl.actor.episode import play_episode
from computerrl.common.config import DesktopConfig, TasksConfig
from computerrl.common.messages import Assignment, TaskRef, Trajectory
from computerrl.common.run_files.recordings import read_recording
from computerrl.common.wire.transport import LocalChannel
from computerrl.env_server.client import DesktopClient
from computerrl.env_server.drivers import make_driver
from computerrl.env_server.serving.service import DesktopService
from tests.integration.desktops.test_desktop_life import assert_gone, processes_below
from tests.support.browser import open_page
from tests.support.data.actor_data import make_prompt

ROOT = Path(__file__).resolve().parents[3]
START_LIMIT_S = 120.0
END_LIMIT_S = 120.0


@asynccontextmanager
async def desktop_page(folder: Path, *options: str) -> AsyncIterator[tuple[Page, subprocess.Popen[str], str]]:
    """The command as people run it, its page in a browser; afterwards Ctrl-C, and nothing is left."""
    command = [sys.executable, "-m", "computerrl", "desktop", "--no-open", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with open(folder / "desktop.log", "w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        line = await asyncio.to_thread(process.stdout.readline)
        assert line.startswith("desktop: http://127.0.0.1:"), ((folder / "desktop.log").read_text(), line)
        address = line.split()[1]
        async with open_page() as (page, problems):
            await page.goto(address)
            await ready(page)
            yield page, process, address
            assert problems == []
    finally:
        below = processes_below(process.pid)
        process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(process.wait, END_LIMIT_S) == 0
        assert_gone(below)


async def ready(page: Page) -> None:
    await expect(page.locator("#pill[data-state=ready]")).to_be_attached(timeout=1000 * START_LIMIT_S)
    await expect(page.locator("#elements li").first).to_be_attached()


def visit(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


async def point_at(page: Page, text: str) -> tuple[float, float]:
    """Where on the page the live picture shows the element of that text."""
    place = await page.evaluate(
        """text => {
            const row = [...document.querySelectorAll('#elements li')].find(
                li => (' ' + li.querySelector('span').childNodes[1].textContent.trim()).endsWith(' ' + text));
            const number = row.querySelector('b').textContent;
            const box = [...document.querySelectorAll('.box')].find(b => b.textContent === number);
            const overlay = document.querySelector('#overlay'), hidden = overlay.hidden;
            overlay.hidden = false; const r = box.getBoundingClientRect(); overlay.hidden = hidden;
            return [r.left + r.width / 2, r.top + r.height / 2];
        }""",
        text,
    )
    return float(place[0]), float(place[1])


def replay(folder: Path, task: TaskRef) -> Trajectory:
    """The recorded demonstration as an actor plays it for cloning, on a fresh desktop."""
    config = DesktopConfig(num_desktops=1, apps=("calc",))
    tasks = TasksConfig(recordings=str(folder / "demonstrations"))
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


def printed(command: str) -> list[str]:
    """The arguments of ``command`` as the tutorial prints them."""
    text = (ROOT / "docs" / "tutorials" / "desktop.md").read_text(encoding="utf-8")
    (line,) = re.findall(rf"^computerrl {command} (.*)$", text, re.MULTILINE)
    return str(line).split()


@pytest.mark.release
def test_page_task_of_the_tutorial_is_solved_by_mouse_and_keys_scored_saved_and_replayed(tmp_path: Path) -> None:
    async def work() -> None:
        async with desktop_page(tmp_path, *printed("desktop")) as (page, _, _):
            instruction = await page.locator("#instruction").inner_text()
            old, new = instruction.removeprefix("Click the cell ").removesuffix(".").split(" and type ")
            await page.locator("#score").click()
            await expect(page.locator("#verdict[data-success=false]")).to_be_visible()
            await page.mouse.click(*await point_at(page, old))
            await expect(page.locator("#log li")).to_have_count(1)
            await page.keyboard.type(new)
            await page.keyboard.press("Enter")
            await expect(page.locator("#log li")).to_have_count(2)
            await page.locator("#score").click()
            await expect(page.locator("#verdict[data-success=true]")).to_be_visible()
            await expect(page.locator("#verdict")).to_contain_text("Score 1")
            await page.locator("#save").click()
            await expect(page.locator("#notice")).to_have_text(re.compile("^Saved"))

    visit(work)
    task = TaskRef("calc-type-cell", 3, "demonstration")
    recording = read_recording(tmp_path / "demonstrations" / "calc-type-cell-3.json")
    assert [step.action_text.split("(")[0] for step in recording.steps] == ["click", "type", "done"]
    assert recording.steps[0].targets and recording.steps[0].picture and recording.steps[0].observation.elements
    clicked = recording.steps[0].targets["target"]
    assert recording.steps[0].pointed == pytest.approx((clicked.x, clicked.y), abs=2)
    trajectory = replay(tmp_path, task)
    assert trajectory.success and trajectory.end_reason == "done_action", trajectory
    assert [step.action_text for step in trajectory.steps] == [step.action_text for step in recording.steps]
    prompt = bytes(int(token) for token in trajectory.steps[0].prompt_tokens).decode()
    assert prompt.startswith(f"Task: {recording.instruction}\nApp: calc") and prompt.endswith("Action:")
    dry_run = [sys.executable, "-m", "computerrl", "train", *printed("train"), "--dry-run"]
    done = subprocess.run(dry_run, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0 and "all passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.release
def test_page_live_picture_shows_what_the_action_line_does(tmp_path: Path) -> None:
    async def work() -> None:
        async with desktop_page(tmp_path, "--task", "calc-set-cell", "--seed", "2") as (page, _, _):
            pixels = "document.querySelector('#canvas').toDataURL()"
            before = await page.evaluate(pixels)
            await page.locator("#line").click()
            await page.keyboard.type("calc.set")
            await expect(page.locator("#choices")).to_contain_text("calc.set_cell(cell, value)")
            await page.keyboard.press("Enter")
            await page.keyboard.type('"B9", 12345)')
            await page.keyboard.press("Enter")
            await expect(page.locator("#log li")).to_have_count(1)
            await page.wait_for_function(f"before => {pixels} !== before", arg=before)
            await page.locator("#line").click()
            await page.keyboard.type('calc.get_cell("B9")')
            await page.keyboard.press("Enter")
            await expect(page.locator("#log .result").last).to_have_text("12345")
            await page.locator("#show-elements").click()
            await expect(page.locator("#overlay .box").nth(10)).to_be_visible()
            await page.mouse.click(*await point_at(page, "12345"))
            await expect(page.locator("#tip")).to_be_visible()
            await expect(page.locator("#tip")).to_contain_text("table-cell 12345")
            await expect(page.locator("#log li")).to_have_count(3)
            await page.keyboard.press("F8")
            await expect(page.locator("#line")).to_be_focused()

    visit(work)


def test_page_gestures_become_the_actions_of_an_agent(tmp_path: Path) -> None:
    """On an imitated desktop: what matters is what mouse, wheel and keys are turned into."""

    async def work() -> None:
        async with desktop_page(tmp_path, "--driver", "scripted", "--task", "calc-type-cell", "--seed", "11") as (page, _, _):
            galaxy, breeze = await point_at(page, "galaxy"), await point_at(page, "breeze")
            expected: list[str] = []

            async def logged(*texts: str) -> None:
                expected.extend(texts)
                await expect(page.locator("#log button")).to_have_text(expected)

            await page.mouse.dblclick(*galaxy)
            await logged('double_click("galaxy")')
            await page.mouse.click(*breeze, button="right")
            await logged('click("breeze", button="right")')
            await page.mouse.move(*galaxy)
            await page.mouse.down()
            await page.mouse.move(*breeze)
            await page.mouse.up()
            await logged('drag("galaxy", "breeze")')
            await page.mouse.move(*galaxy)
            await page.mouse.wheel(0, -120)
            await logged('scroll("galaxy", direction="up")')
            # Several things at once keep their order: a click that might still become double, then text, then a chord.
            await page.mouse.click(*galaxy)
            await page.keyboard.type("a b")
            await page.keyboard.press("Control+a")
            await logged('click("galaxy")', 'type("a b")', 'key("ctrl+a")')
            await page.keyboard.press("Shift+Tab")
            await logged('key("shift+tab")')
            await page.locator("#exact").click()
            await page.mouse.click(*galaxy)
            await expect(page.locator("#log button")).to_have_count(9)
            last = await page.locator("#log button").last.inner_text()
            assert last.startswith("click(") and '"' not in last and ", " in last
            await page.locator("#exact").click()
            await page.touchscreen.tap(*breeze)
            await expect(page.locator("#log button")).to_have_count(10)
            await expect(page.locator("#log button").last).to_have_text('click("breeze")')

    visit(work)


@pytest.mark.release
def test_page_broken_desktop_is_shown_and_restarted(tmp_path: Path) -> None:
    async def work() -> None:
        async with desktop_page(tmp_path, "--task", "files-move", "--seed", "1") as (page, process, _):
            keepers = [pid for pid, name in processes_below(process.pid).items() if name == "unshare"]
            os.kill(min(keepers), signal.SIGKILL)
            await expect(page.locator("#pill[data-state=broken]")).to_be_attached()
            await expect(page.locator("#restart")).to_be_focused()
            await page.locator("#restart").click()
            await ready(page)
            await expect(page.locator("#scrim")).to_be_hidden()

    visit(work)


def test_page_of_another_site_can_neither_connect_nor_guess(tmp_path: Path) -> None:
    """The token is in the attacker's hands here, to see that the origin alone is enough to be refused."""

    async def work() -> None:
        async with desktop_page(tmp_path, "--driver", "scripted") as (page, _, address):
            other = await page.context.new_page()
            await other.goto("data:text/html,<p>another site</p>")
            socket = address.replace("http:", "ws:") + "socket"
            for target in (socket, socket.replace("127.0.0.1", "localhost")):
                outcome = await other.evaluate(
                    "target => new Promise(done => { const s = new WebSocket(target);"
                    " s.onopen = () => done('open'); s.onerror = () => done('refused'); })",
                    target,
                )
                assert outcome == "refused"

    visit(work)


def test_desktop_command_interrupted_while_starting_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "computerrl", "desktop", "--no-open"]
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
