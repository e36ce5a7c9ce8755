"""Elements are those that can be clicked: dialogs, popups, menus, several windows of one program, windows that say nothing."""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterator

import pytest

from computerrl.common.messages import Observation
from computerrl.env_server.driver import SetupKind, SetupStep
from tests.support.desktops import Player, SharedDesktops

PAGE = """<title>Page</title><button>Order now</button><input type=file aria-label=Upload>
<button onclick="open('about:blank', '_blank', 'width=300,height=200')">Popup</button>
<select aria-label=Fruit><option>Apple<option>Pear</select><input type=date aria-label=Day><input type=color aria-label=Colour>
<button onclick="Notification.requestPermission()">Notify</button><button title="A helpful tip">Tip</button>
<input list=names aria-label=Combo><datalist id=names><option>One<option>Two</datalist>
<button onclick="document.title = 'Answer ' + confirm('Sure?')">Ask</button>
<button onclick="document.title = 'Answer ' + prompt('Name?', 'Ann')">Say</button>
<button onclick="alert('Hello'); document.title = 'Answer none'">Tell</button>
<p><button style="margin: 40px 0 0 400px; width: 300px; height: 60px">Under</button>"""
BROWSER = (SetupStep("write_file", {"path": "p.html", "text": PAGE}), SetupStep("open", {"path": "p.html"}))
EDITOR = (SetupStep("write_file", {"path": "notes.txt", "text": "hello"}), SetupStep("editor_open", {"path": "notes.txt"}))
FOLDER = (SetupStep("write_file", {"path": "a.txt", "text": "x"}), SetupStep("files_open", {"folder": "."}))
SHEET = (SetupStep("calc_open", {"cells": {"A1": "name", "B1": "age", "A2": "Ann", "A3": "Bob", "B2": 31, "B3": 47}}),)
OTHER_PROGRAM = """
import json, sys
from Xlib import X, display
from Xlib.ext import shape
screen = display.Display()
root = screen.screen().root
for title, box, kind, is_popup, takes_clicks in json.loads(sys.argv[1]):
    window = root.create_window(*box, 1, screen.screen().root_depth, override_redirect=is_popup, background_pixel=0x808080)
    window.set_wm_name(title)
    window.change_property(screen.intern_atom('_NET_WM_NAME'), screen.intern_atom('UTF8_STRING'), 8, title.encode())
    window.change_property(screen.intern_atom('_NET_WM_WINDOW_TYPE'), 4, 32, [screen.intern_atom('_NET_WM_WINDOW_TYPE_' + kind)])
    if not takes_clicks:
        window.shape_rectangles(shape.SO.Set, shape.SK.Input, 0, 0, 0, [])
    window.map()
screen.sync()
while True:
    screen.next_event()
"""
"""Shows windows without accessible objects: (title, box, kind, is it a popup?, does it take clicks?)."""


@pytest.fixture(scope="module")
def player(shared_desktops: SharedDesktops) -> Player:
    return Player(shared_desktops.get("core").driver)


@pytest.fixture(scope="module")
def begun(player: Player) -> Player:
    player.start(*BROWSER)
    return player


@pytest.fixture
def page(begun: Player) -> Iterator[Player]:
    """A browser whose page is in front, alone; a test that leaves more open than one menu begins a task of its own."""
    begun.wait_for(functools.partial(shows, names=["Order now", "Tip"]))
    yield begun
    begun.do('key("esc")')


def shows(shown: Observation, names: Collection[str], without: Collection[str] = ()) -> bool:
    """Are there elements of all these names, and none of the others?"""
    found = {element.text for element in shown.elements}
    return set(names) <= found and not found & set(without)


def wait_for(player: Player, *names: str, without: Collection[str] = ()) -> Observation:
    return player.wait_for(functools.partial(shows, names=names, without=without))


def place_of(shown: Observation, name: str) -> tuple[int, int]:
    return next((element.x, element.y) for element in shown.elements if element.text == name)


def show_windows(player: Player, *windows: tuple[str, tuple[int, int, int, int], str, bool, bool]) -> None:
    player.desktop.get("osworld", call="launch", command=["python3", "-c", OTHER_PROGRAM, json.dumps(windows)])


# --- the browser ---


@pytest.mark.parametrize(
    ("keys", "names"), [("", ["Open", "Home"]), ("ctrl+s", ["Save", "Name:"]), ("ctrl+shift+p", ["Printer"])]
)
def test_dialog_of_the_browser_shows_its_elements_and_not_the_page_below(page: Player, keys: str, names: list[str]) -> None:
    page.do(f'key("{keys}")' if keys else 'click("Upload: No file chosen")')
    wait_for(page, "Cancel", *names, without=["Upload: No file chosen", "Fruit"])
    page.do('click("Cancel")')
    wait_for(page, "Upload: No file chosen", without=["Cancel"])


@pytest.mark.parametrize(
    ("name", "inside", "covered"),
    [
        ("Fruit", ["Apple", "Pear"], []),
        ("Show date picker", ["Show next month", "Today"], ["Under"]),
        ("Colour", ["Hue slider"], ["Under"]),
        ("Notify", ["Allow", "Block"], ["Upload: No file chosen", "Popup"]),
        ("Chromium", ["Downloads Ctrl+J"], ["Colour", "Notify"]),
    ],
)
def test_what_the_browser_opens_over_a_page_covers_it(page: Player, name: str, inside: list[str], covered: list[str]) -> None:
    page.do(f'click("{name}")')
    wait_for(page, "Order now", *inside, without=covered)
    page.do('key("esc")')
    wait_for(page, "Order now", *covered, without=inside)


def test_list_of_suggestions_comes_first(page: Player) -> None:
    page.do('click("Combo")')
    found = [element.text for element in wait_for(page, "One", "Two").elements]
    assert found.index("Two") < found.index("Order now")


def test_suggestion_is_chosen_at_once(page: Player) -> None:
    page.do('click("Combo")')
    wait_for(page, "One")
    page.do('click("One")')
    wait_for(page, "Combo", without=["One"])


def test_context_menu_covers_what_is_below(page: Player) -> None:
    x, y = place_of(page.do("wait()"), "Order now")
    page.do(f'click({x}, {y}, button="right")')
    wait_for(page, "Reload Ctrl+R", "Inspect", without=["Combo"])


def test_tool_tip_hides_nothing(page: Player) -> None:
    before = {element.text for element in page.do("wait()").elements}
    page.do('hover("Tip")')
    for _ in range(20):
        assert before <= {element.text for element in page.do("wait()").elements}


@pytest.mark.parametrize(
    ("ask", "answer", "title"),
    [("Ask", "OK", "Answer true"), ("Ask", "Cancel", "Answer false"), ("Say", "OK", "Answer Ann"), ("Tell", "OK", "Answer none")],
)
def test_button_of_a_dialog_works_at_once(page: Player, ask: str, answer: str, title: str) -> None:
    page.do(f'click("{ask}")')
    wait_for(page, answer)
    page.do(f'click("{answer}")')
    page.wait_for(lambda shown: title in shown.window_title)


def test_menu_of_a_page_of_the_browser_shows_its_items(page: Player) -> None:
    page.do("chrome.open_bookmarks()")
    wait_for(page, "Organize")
    page.do('click("Organize")')
    wait_for(page, "Sort by name", "Export bookmarks")
    page.do('key("esc")')
    page.do('key("ctrl+w")')


def test_popup_window_shows_nothing_of_the_page_below(player: Player) -> None:
    player.start(*BROWSER)
    wait_for(player, "Popup")
    player.do('click("Popup")')
    player.wait_for(lambda shown: "about:blank" in shown.window_title and not shows(shown, ["Order now"]))
    assert "no element" in player.refusal('click("Order now")')


@pytest.mark.parametrize("keys", ["ctrl+n", "ctrl+shift+n"])
def test_second_windows_of_the_browser_show_only_the_one_in_front(player: Player, keys: str) -> None:
    player.start(*BROWSER)
    wait_for(player, "Order now")
    for _ in range(2):  # the second one looks as the first does
        player.do(f'key("{keys}")')
        shown = player.wait_for(lambda shown: "New" in shown.window_title and len(shown.elements) > 8)
        assert not shows(shown, ["Order now"])
        assert sum(element.role == "entry" and not element.in_content for element in shown.elements) <= 1
    player.do('key("ctrl+shift+p")')
    wait_for(player, "Printer", without=["Order now"])


def test_browser_of_web_tasks_shows_its_lists_and_dialogs_in_pixels(player: Player) -> None:
    player.start(BROWSER[0], SetupStep("web_file", {"path": "p.html"}))
    wait_for(player, "Order now", "Combo")
    player.do('click("Combo")')
    wait_for(player, "One", "Two")
    player.do('click("Two")')
    wait_for(player, "Combo", without=["One"])
    player.do('click("Upload: No file chosen")')
    wait_for(player, "Cancel", "Home", without=["Order now"])
    player.do('click("Cancel")')
    wait_for(player, "Order now")


LAYERS = """<title>Layers</title><style>.layer {position: absolute; left: 0; width: 300px} button {position: absolute}</style>
<script>addEventListener('click', event => { window.result = event.target.textContent; document.title = 'Met ' + result; }, true)
</script><body style="margin: 0; height: 3000px; font-size: 12px">
<button style="left: 5px; top: 5px">Free</button>
<button style="left: 5px; top: 25px">Under</button><p class=layer style="top: 13px; height: 21px; background: white">Over</p>
<button style="left: 90px; top: 25px; opacity: 0">Unseen</button>
<button style="left: 5px; top: 45px; clip-path: inset(50%)">Clipped</button>
<button style="left: 90px; top: 45px; pointer-events: none">Let through</button>
<div class=layer style="top: 65px; height: 24px; overflow: hidden">
<button style="top: 10px; left: 5px; height: 30px">Cut</button></div>
<label class=layer style="top: 95px"><input type=checkbox style="opacity: 0">
<span class=layer style="background: white">Tick</span></label>
<div class=layer style="top: 120px; height: 15px">Card<a href="#card" class=layer style="inset: 0"></a></div>
<p class=layer style="top: 130px; width: 80px">some words <a href="#wrap">and a link</a> here</p>
<button style="left: 5px; top: 175px" onclick="banner.hidden = false">Banner</button>
<div id=banner hidden style="position: fixed; inset: 92px 0 0 0; background: yellow">
<button style="left: 5px; top: 5px">Accept</button></div>"""


def is_titled(title: str, shown: Observation) -> bool:
    return title in shown.window_title


@pytest.mark.parametrize("open_page", ["open", "web_file"])
def test_of_a_page_s_layers_only_the_upper_one_can_be_clicked(player: Player, open_page: SetupKind) -> None:
    player.start(SetupStep("write_file", {"path": "p.html", "text": LAYERS}), SetupStep(open_page, {"path": "p.html"}))
    wait_for(player, "Free", "Over", "Card", "Tick", "Cut", "Banner", without=["Under", "Clipped", "Let through"])
    for name in ("Free", "Unseen", "Cut", "and a link"):
        player.do(f"click({name!r})")
        player.wait_for(functools.partial(is_titled, f"Met {name}"))
    player.do('click("Banner")')
    wait_for(player, "Accept", "Free", without=["Card", "Tick", "and a link", "Banner"])
    player.do('click("Accept")')
    player.wait_for(functools.partial(is_titled, "Met Accept"))


# --- the editor, the file manager, the sheet ---


def test_open_menu_of_the_editor_covers_the_text(player: Player) -> None:
    wait = functools.partial(wait_for, player)
    player.start(*EDITOR)
    wait("hello", "File")
    player.do('click("Document")')
    wait("Line Ending", "File")
    player.do('click("Line Ending")')
    wait("Line Ending", "Unix (LF)")
    player.do('key("esc")')
    player.do('key("esc")')
    player.do('click(300, 200, button="right")')
    wait("Paste", without=["hello"])
    player.do('key("esc")')
    player.do('key("ctrl+o")')
    wait("Cancel", without=["hello", "File"])


def test_menu_of_the_file_manager_covers_files(player: Player) -> None:
    player.start(*FOLDER)
    wait_for(player, "a.txt", "View")
    player.do('click("View")')
    wait_for(player, "Show Hidden Files", "View", without=["a.txt", "Home"])
    player.do('key("esc")')
    wait_for(player, "a.txt", "Home")


@pytest.mark.parametrize(("x", "y", "inside"), [(302, 83, "10.5 pt"), (148, 122, "Manage Names..."), (483, 83, "Dark Gray 4")])
def test_lists_of_the_sheet_s_tool_bars_show_their_items(player: Player, x: int, y: int, inside: str) -> None:
    player.start(*SHEET)
    wait_for(player, "name", "Ann")
    player.do(f"click({x}, {y})")
    wait_for(player, inside)


def test_filter_of_a_sheet_shows_its_values(player: Player) -> None:
    player.start(*SHEET)
    wait_for(player, "name", "Ann")
    player.do('key("ctrl+shift+l")')
    player.do("click(115, 172)")
    wait_for(player, "Sort Ascending", "Ann", "Bob", "OK", without=["31"])


# --- programs without accessible objects ---


def test_window_of_an_unknown_program_is_told_with_its_title(player: Player) -> None:
    player.start(*EDITOR)
    wait_for(player, "hello")
    show_windows(player, ("Mystery", (100, 100, 500, 300), "DIALOG", False, True))
    shown = wait_for(player, "Mystery (window without elements)", without=["hello"])
    assert shown.app == "" and shown.window_title == "Mystery"
    row = next(element for element in shown.elements if element.text.startswith("Mystery"))
    assert row.width >= 500 and row.height >= 300
    player.do(f"click({row.x}, {row.y})")


def test_application_that_does_not_answer_shows_no_elements_of_another(player: Player) -> None:
    player.start(*EDITOR, *FOLDER)
    wait_for(player, "a.txt")

    def signal(name: str) -> None:
        player.desktop.get("osworld", call="run", command=f"kill -{name} $(pidof mousepad)", timeout_s=10.0)

    signal("STOP")
    try:
        shown = player.do('apps.switch("editor")')
        assert [element.text for element in shown.elements] == ["notes.txt - Mousepad (window without elements)"]
    finally:
        signal("CONT")
    wait_for(player, "hello", "File")


def test_popup_of_an_unknown_program_covers_and_is_told(player: Player) -> None:
    player.start(*EDITOR)
    wait_for(player, "hello", "File", "Help")
    show_windows(player, ("Pop", (0, 0, 100, 200), "POPUP_MENU", True, True))
    shown = wait_for(player, "Pop (window without elements)", "hello", "Help", without=["File"])
    assert shown.app == "editor"
    player.do('click("Help")')


@pytest.mark.parametrize(("kind", "takes_clicks"), [("TOOLTIP", True), ("DND", True), ("NOTIFICATION", False)])
def test_window_that_takes_no_clicks_covers_nothing(player: Player, kind: str, takes_clicks: bool) -> None:
    player.start(*EDITOR)
    wait_for(player, "hello", "File")
    marker = ("Marker", (700, 500, 60, 60), "POPUP_MENU", True, True)
    show_windows(player, ("Tip", (0, 0, 800, 480), kind, True, takes_clicks), marker)
    shown = wait_for(player, "Marker (window without elements)")
    assert shows(shown, ["hello", "File"], without=["Tip (window without elements)"])
