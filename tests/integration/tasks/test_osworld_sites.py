"""Tasks of web sites on a real desktop, which has no network: untouched they pay nothing, solved as an agent would all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from computerrl.common.messages import Action, Evaluation
from computerrl.env_server.driver import SetupStep, TaskInstance
from computerrl.env_server.tasks.osworld.desktop import CalledDesktop
from computerrl.env_server.tasks.osworld.network.mirror import Mirror
from tests.support.desktops import Player, SharedDesktops
from tests.support.tasks.osworld import Case, require_right_verdicts, rule, shell

NEWS, SHOP = "https://www.news.invalid/today.html", "https://example.com/"
_BROWSER_ENDS = {"type": "launch", "parameters": {"command": ["pkill", "chrome"]}}
_MENU = ('key("alt+f")', *['key("up")'] * 5, 'key("right")')
"""The last submenu but one of the browser's menu: "Save and share"."""
_STARTER = "/opt/google/chrome/google-chrome --profile-directory=Default --app-id=poahllcmmahlafplfhgjomkjmeblpapf"


def opens(*urls: str) -> dict[str, Any]:
    return {"type": "chrome_open_tabs", "parameters": {"urls_to_open": list(urls)}}


def tabs(*urls: str) -> dict[str, Any]:
    return {"func": "is_expected_tabs", "result": {"type": "open_tabs_info"}, "expected": rule(type="url", urls=list(urls))}


def goes_to(address: str) -> tuple[str, ...]:
    return ('key("ctrl+t")', f'type("{address}", enter=True)', "wait()")


STAND_INS = {
    "tab that is brought back": Case(
        tabs(NEWS, SHOP),
        ('key("ctrl+shift+t")', "wait()"),
        (opens(NEWS, SHOP), {"type": "chrome_close_tabs", "parameters": {"urls_to_close": [SHOP]}}),
    ),
    "first page of a site and a file": Case(
        tabs(NEWS, SHOP, "file:///home/user/a.html"),
        (*goes_to(SHOP), *goes_to("file:///home/user/a.html")),
        (shell("echo a > ~/a.html"), opens(NEWS)),
    ),
    "bookmark": Case(
        {
            "postconfig": [_BROWSER_ENDS],
            "func": "is_expected_bookmarks",
            "result": {"type": "bookmarks"},
            "expected": rule(type="bookmark_bar_websites_urls", urls=[NEWS]),
        },
        ('key("ctrl+d")', 'key("tab")', 'key("down")', 'click("Bookmarks bar")', 'click("Save")', "wait()"),
        (opens(SHOP, NEWS),),
    ),
    "cookies of a site": Case(
        {
            "postconfig": [_BROWSER_ENDS],
            "func": "is_cookie_deleted",
            "result": {"type": "cookie_data", "dest": "Cookies"},
            "expected": rule(type="domains", domains=[".news.invalid"]),
        },
        ('key("ctrl+shift+delete")', *["wait()"] * 8, 'click("Delete from this device")', *["wait()"] * 5),
        (opens(NEWS),),
    ),
    "history of a site, in a browser that has not run yet": Case(
        {
            "postconfig": [_BROWSER_ENDS],
            "func": "check_history_deleted",
            "result": {"type": "history", "dest": "history.sqlite"},
            "expected": rule(type="keywords", keywords=["news"]),
        },
        ('key("ctrl+h")', "wait()", 'key("tab")', 'key("ctrl+a")', 'key("delete")', "wait()", 'click("Delete")', "wait()"),
        (
            {
                "type": "update_browse_history",
                "parameters": {"history": [{"url": NEWS, "title": "News", "visit_time_from_now_in_seconds": 60}]},
            },
            opens(SHOP),
        ),
    ),
    "starter that the browser makes": Case(
        {
            "func": "is_shortcut_on_desktop",
            "result": {"type": "shortcuts_on_desktop"},
            "expected": rule(type="exec", exec=_STARTER),
        },
        (*_MENU, 'click("Create shortcut…")', 'click("Create")', *["wait()"] * 6),
        (opens("https://www.mathsisfun.com/games/2048.html"),),
    ),
    "search": Case(
        {
            "func": "is_expected_search_query",
            "result": {"type": "active_tab_info"},
            "expected": rule(expect={"pattern": r"(?i)/\S*[?&]q=red\+bag(?:&|$)"}),
        },
        goes_to("red bag"),
        (opens(NEWS),),
    ),
    "link in another program": Case(
        tabs(NEWS, SHOP),
        ('apps.open("terminal")', f'type("xdg-open {SHOP}", enter=True)', *["wait()"] * 8),
        (opens(NEWS),),
    ),
}

_FRONT = {"type": "active_url_from_accessTree", "goto_prefix": "https://"}
MIRRORED = {
    "page behind a link": Case(
        {
            "func": ["is_expected_active_tab", "is_expected_url_pattern_match"],
            "result": [_FRONT, _FRONT],
            "expected": [rule(type="url", url=f"{SHOP}bags/red?size=2"), rule(expected=["size=2"])],
        },
        ('click("Bags")', "wait()", 'click("Red bag")', "wait()"),
        (opens("https://www.example.com"),),
    ),
    "file that is downloaded": Case(
        {
            "func": "check_include_exclude",
            "result": {"type": "vm_command_line", "command": "cat ~/Downloads/manual.txt", "shell": True},
            "expected": rule(include=["how to sew"], exclude=[]),
        },
        ('click("Manual")', *["wait()"] * 4),
        (opens(SHOP),),
    ),
}
_HOME = """<!DOCTYPE html><title>Shop</title><link rel="stylesheet" href="/look.css">
<h1>Shop</h1><p><a href="bags">Bags</a> <a href="manual.txt" download>Manual</a></p>
<script src="/parts/news.js?v=3"></script>"""


@pytest.fixture(scope="module")
def player(shared_desktops: SharedDesktops) -> Player:
    return Player(shared_desktops.get("full").driver)


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    files = {
        "index.html": _HOME,
        "look.css": "h1 { color: red }",
        "parts/news.js": "document.body.append(Object.assign(document.createElement('p'), {textContent: 'Sale!'}))",
        "bags/index.html": '<!DOCTYPE html><h1>Bags</h1><p><a href="red?size=2">Red bag</a></p>',
        "bags/red?size=2": "<!DOCTYPE html><h1>Red bag</h1>",
        "manual.txt": "how to sew",
    }
    for name, text in files.items():
        place = tmp_path / "mirror/example.com" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return tmp_path / "mirror"


@pytest.mark.parametrize("name", STAND_INS)
def test_task_that_addresses_decide_pays_untouched_nothing_and_solved_all(player: Player, tmp_path: Path, name: str) -> None:
    require_right_verdicts(player, STAND_INS[name], tmp_path, image="full")


@pytest.mark.parametrize("name", MIRRORED)
def test_task_of_mirrored_pages_pays_untouched_nothing_and_solved_all(
    player: Player, tmp_path: Path, mirror: Path, name: str
) -> None:
    require_right_verdicts(player, MIRRORED[name], tmp_path, image="full", mirror=mirror)


def test_script_of_a_mirrored_page_runs_in_the_browser(player: Player, mirror: Path) -> None:
    instance = TaskInstance(
        "x",
        (SetupStep("web_sites", {"of_copy": True}),),
        lambda get: Evaluation(0.0, False, ""),
        lambda *_: Action("done", {}),
        sites=Mirror(mirror).find,
    )
    player.desktop.reset(instance)
    CalledDesktop(player.desktop.get).open_tabs([SHOP])
    player.wait_for(lambda shown: any(element.text == "Sale!" for element in shown.elements))


def test_reset_takes_web_sites_away(player: Player) -> None:
    player.start(SetupStep("web_sites", {"of_copy": False}))
    desktop = CalledDesktop(player.desktop.get)
    desktop.open_tabs([NEWS])
    assert desktop.tabs()[0].html.count("No network") == 1
    player.start()
    desktop.open_tabs([NEWS])
    shown = desktop.tabs()[0].html
    assert "No network" not in shown and "ERR_" in shown
