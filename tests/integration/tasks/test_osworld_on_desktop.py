"""What OSWorld's set-up steps and getters ask of the browser and of programs, on a real contained desktop."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from computerrl.common.config import TasksConfig
from computerrl.common.errors import TaskFailed
from computerrl.common.messages import TaskRef
from computerrl.env_server.driver import SetupStep
from computerrl.env_server.tasks import task_instance
from computerrl.env_server.tasks.osworld import load_task
from computerrl.env_server.tasks.osworld.desktop import CalledDesktop
from tests.support.desktops import Player, SharedDesktops

PAGES = tuple(
    SetupStep("write_file", {"path": f"{name}.html", "text": f"<title>Page {name}</title><h1>About {name}</h1>"})
    for name in ("apples", "pears", "plums")
)
WRITE_PAGES = "cd /home/user; echo '<title>Pears</title>' | tee pears.html > plums.html"
APPLES, PEARS, PLUMS = (f"file:///home/user/{name}.html" for name in ("apples", "pears", "plums"))


@pytest.fixture(scope="module")
def player(shared_desktops: SharedDesktops) -> Player:
    return Player(shared_desktops.get("core").driver)


@pytest.fixture
def desktop(player: Player) -> CalledDesktop:
    player.start(*PAGES)
    return CalledDesktop(player.desktop.get)


def becomes(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60.0
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_tabs_are_opened_told_and_closed(player: Player, desktop: CalledDesktop) -> None:
    assert list(desktop.tabs()) == []
    desktop.open_tabs([APPLES, PEARS, PLUMS])
    front, *others = desktop.tabs()
    assert (front.url, front.title) == (PLUMS, "Page plums") and "About plums" in front.html
    assert {(tab.url, tab.html) for tab in others} == {(APPLES, ""), (PEARS, "")}
    assert player.do("wait()").app == "browser"
    desktop.close_tabs([PLUMS, APPLES])
    assert becomes(lambda: [tab.url for tab in desktop.tabs()] == [PEARS])


def test_program_of_a_task_file_opens_the_desktop_s_own_application(player: Player, desktop: CalledDesktop) -> None:
    desktop.launch(["google-chrome", "--remote-debugging-port=1337", APPLES])
    assert [tab.url for tab in desktop.tabs()] == [APPLES]
    desktop.launch("gedit ~/pears.html")
    assert player.do("wait()").app == "editor"
    desktop.launch(["nautilus", "/home/user"])
    assert player.do("wait()").app == "files"
    desktop.launch("libreoffice --calc")
    assert player.do("wait()").app == "calc"


def test_browser_ended_and_started_again_keeps_its_settings_until_the_reset(player: Player, desktop: CalledDesktop) -> None:
    desktop.open_tabs([APPLES])
    player.do("chrome.bookmark_page()")
    player.do('key("enter")')
    desktop.launch(["pkill", "chrome"])
    assert list(desktop.tabs()) == []
    bookmarks = desktop.read_file("/home/user/.config/chromium/Default/Bookmarks")
    assert bookmarks is not None and APPLES in bookmarks.decode()
    desktop.launch(["google-chrome"])
    assert desktop.read_file("/home/user/.config/google-chrome/Default/Bookmarks") is not None
    player.start(*PAGES)
    desktop.launch(["google-chrome"])
    assert desktop.read_file("/home/user/.config/chromium/Default/Bookmarks") is None


def test_page_that_does_not_answer_keeps_nobody_from_the_others(desktop: CalledDesktop) -> None:
    desktop.put_file("/home/user/stuck.html", b"<title>Stuck</title><script>setTimeout(() => { for (;;); }, 200)</script>")
    desktop.open_tabs([APPLES, "about:blank", "file:///home/user/stuck.html"])
    assert becomes(lambda: desktop.tabs()[0].html == "")
    assert [tab.url for tab in desktop.tabs()] == ["file:///home/user/stuck.html", APPLES]


def test_file_outside_the_agent_s_folder_is_refused(desktop: CalledDesktop) -> None:
    with pytest.raises(TaskFailed, match="lies outside"):
        desktop.launch(["gedit", "/etc/passwd"])


def test_launch_of_a_program_that_is_not_there_says_so(desktop: CalledDesktop) -> None:
    with pytest.raises(TaskFailed, match="no-such-program"):
        desktop.launch(["no-such-program", "--now"])


def test_task_file_is_set_up_and_judged_in_a_run_s_own_way(player: Player, tmp_path: Path) -> None:
    task = {
        "id": "pear",
        "instruction": "Open plums.html beside the page about pears.",
        "related_apps": ["chrome"],
        "config": [
            {"type": "launch", "parameters": {"command": ["google-chrome", "--remote-debugging-port=1337"]}},
            {"type": "launch", "parameters": {"command": ["socat", "tcp-listen:9222,fork", "tcp:localhost:1337"]}},
            {"type": "execute", "parameters": {"command": WRITE_PAGES, "shell": True}},
            {"type": "chrome_open_tabs", "parameters": {"urls_to_open": [PEARS]}},
        ],
        "evaluator": {
            "func": "is_expected_tabs",
            "result": {"type": "open_tabs_info"},
            "expected": {"type": "rule", "rules": {"type": "url", "urls": [PEARS, PLUMS]}},
        },
    }
    (tmp_path / "pear.json").write_text(json.dumps(task))
    tasks = TasksConfig(osworld=str(tmp_path))
    for does_it in (False, True):
        instance = task_instance(TaskRef("osworld-pear", 100_000, "training"), tasks=tasks)
        _, shown = player.desktop.reset(instance)
        assert shown.app == "browser" and "Pears" in shown.window_title
        if does_it:
            player.do('files.open("plums.html")')
        verdict = instance.evaluate(lambda kind, **args: player.desktop.get(kind, **args) if kind == "osworld" else {})
        assert verdict.success is does_it, verdict.detail


def test_task_that_opens_nothing_begins_with_no_window_of_an_earlier_one(player: Player, tmp_path: Path) -> None:
    task = {"id": "bare", "instruction": "Wait.", "related_apps": ["os"], "config": [], "evaluator": {"func": "infeasible"}}
    (tmp_path / "bare.json").write_text(json.dumps(task))
    player.start(SetupStep("web_page", {"page": "click-button", "seed": 1}))
    _, shown = player.desktop.reset(load_task(tmp_path / "bare.json", None).as_instance())
    assert (shown.app, shown.window_title) == ("files", "Desktop - Thunar")
