"""The free browser: pages of the API, its own shortcuts, tabs and address bar; the locked one stays locked beside it."""

from __future__ import annotations

import pytest

from computerrl.env_server.driver import SetupStep
from tests.support.desktops import Player, SharedDesktops

PAGE = SetupStep(
    "write_file", {"path": "p.html", "text": "<title>First page</title><h1>Hello there</h1><a href='q.html'>next</a>"}
)
LONG = SetupStep(
    "write_file",
    {
        "path": "long.html",
        "text": "<title>Long page</title><style>html, body, main { height: 100%; margin: 0 }</style>"
        "<main><div style='height: 3000px'>Top</div><button>Far below</button></main>",
    },
)
NEXT = SetupStep("write_file", {"path": "q.html", "text": "<title>Second page</title><button>Press me</button>"})
OPEN = SetupStep("open", {"path": "p.html"})
FILES = SetupStep("files_open", {"folder": "."})


@pytest.fixture(scope="module")
def player(shared_desktops: SharedDesktops) -> Player:
    return Player(shared_desktops.get("core").driver)


@pytest.fixture(scope="module")
def begun(player: Player) -> Player:
    player.start(PAGE, NEXT, OPEN)
    return player


@pytest.fixture
def browser(begun: Player) -> Player:
    """The browser with the first page, in the same task: only its tabs differ from test to test."""
    begun.do('files.open("p.html")')
    assert shows(begun, "next")
    return begun


def shows(player: Player, words: str) -> bool:
    """Does the window show these words within some steps?"""
    player.wait_for(lambda shown: words in shown.window_title or any(words in e.text for e in shown.elements))
    return True


def test_page_opened_for_a_task_is_in_an_ordinary_window(player: Player) -> None:
    shown = player.start(PAGE, NEXT, OPEN)
    assert shown.app == "browser" and shows(player, "Hello there")
    seen = {(element.role, element.text) for element in player.do("wait()").elements}
    assert {("entry", "/home/user/p.html"), ("page-tab", "First page"), ("link", "next")} <= seen
    assert ("button", "Minimize") not in seen


def test_content_longer_than_its_box_is_seen_when_the_box_has_been_scrolled_away(player: Player) -> None:
    player.start(LONG, SetupStep("open", {"path": "long.html"}))
    assert shows(player, "Top")
    player.do('scroll(400, 400, direction="down", clicks=30)')
    assert shows(player, "Far below")
    seen = {element.text for element in player.do("wait()").elements}
    assert "Top" not in seen


def test_link_and_address_bar_work(browser: Player) -> None:
    browser.do('click("next")')
    assert shows(browser, "Second page")
    browser.do('key("ctrl+l")')
    browser.do('type("file:///home/user/p.html", enter=True)')
    assert shows(browser, "First page")


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("open_profile_settings", "Settings"),
        ("open_password_settings", "Password Manager"),
        ("open_privacy_settings", "Settings"),
        ("open_appearance_settings", "Appearance"),
        ("open_search_engine_settings", "Search engine"),
        ("open_extensions", "Extensions"),
        ("open_bookmarks", "Bookmarks"),
    ],
)
def test_settings_pages_open_in_a_tab(browser: Player, action: str, words: str) -> None:
    assert browser.ask(f"chrome.{action}()").startswith("opened chrome://")
    assert shows(browser, words)
    browser.do('key("ctrl+w")')


def test_closed_tab_comes_back(browser: Player) -> None:
    browser.do('files.open("q.html")')
    assert shows(browser, "Second page")
    browser.do('key("ctrl+w")')
    browser.wait_for(lambda shown: "Second page" not in shown.window_title)
    browser.do("chrome.bring_back_last_tab()")
    assert browser.wait_for(lambda shown: "Second page" in shown.window_title)


def test_bookmark_print_and_delete_dialogs(browser: Player) -> None:
    browser.do("chrome.bookmark_page()")
    assert shows(browser, "Bookmark added") or shows(browser, "Edit bookmark")
    browser.do('key("escape")')
    browser.do("chrome.delete_browsing_data()")
    assert shows(browser, "Delete")
    browser.do('key("escape")')
    browser.do('files.open("p.html")')
    browser.do("chrome.print()")
    assert shows(browser, "Print")
    browser.do('key("escape")')


def test_nothing_is_left_for_the_next_task(player: Player) -> None:
    player.start(PAGE, NEXT, OPEN)
    player.do('files.open("q.html")')
    player.do("chrome.bookmark_page()")
    assert player.start(FILES).app == "files"
    player.do('apps.open("chrome")')
    player.do("chrome.open_bookmarks()")
    shows(player, "Bookmarks")
    assert not any("Second page" in element.text for element in player.do("wait()").elements)


def test_beside_a_web_task_s_page_it_is_refused_and_the_page_stays_locked(player: Player) -> None:
    player.start(SetupStep("web_page", {"page": "enter-text", "seed": 3}))
    for text in ("chrome.open_bookmarks()", 'apps.open("chrome")'):
        assert "web task" in player.refusal(text)
    assert "locked" in player.refusal('key("ctrl+t")')
