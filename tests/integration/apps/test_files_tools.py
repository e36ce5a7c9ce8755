"""Files, applications and windows by the agent's API, and the GUI actions that need a real desktop to mean something."""

from __future__ import annotations

import io
import tarfile
import zipfile

import pytest

from computerrl.env_server.driver import SetupStep
from tests.support.desktops import Player, SharedDesktops

NOTE = SetupStep("write_file", {"path": "note.txt", "text": "alpha beta\ngamma delta\n"})
FOLDER = SetupStep("make_folder", {"path": "sub"})
FILES = SetupStep("files_open", {"folder": "."})
EDITOR = SetupStep("editor_open", {"path": "note.txt", "text": "one two\nthree four\n"})
PAGE = SetupStep("web_page", {"page": "enter-text", "seed": 3})


@pytest.fixture(scope="module")
def player(shared_desktops: SharedDesktops) -> Player:
    return Player(shared_desktops.get("full").driver)


# --- files -----------------------------------------------------------------------------------------------------------


def test_append_find_search_info_and_permissions(player: Player) -> None:
    player.start(NOTE, FOLDER, FILES)
    player.do('files.append("note.txt", "epsilon")')
    assert player.desktop.get("file_text", path="note.txt") == "alpha beta\ngamma delta\nepsilon"
    player.do('files.copy("note.txt", "sub")')
    assert player.ask('files.find("*.TXT")') == "note.txt\nsub/note.txt"
    assert player.ask('files.search("Gamma", "sub")') == "sub/note.txt:2: gamma delta"
    assert player.ask('files.set_permissions("note.txt", "u-w,go=")') == "note.txt: -r-------- (400)"
    assert "-r-------- (400)" in player.ask('files.info("note.txt")')
    assert player.refusal('files.append("note.txt", "x")') == "Permission denied"


def test_compress_and_extract(player: Player) -> None:
    player.start(NOTE, FOLDER, FILES)
    for archive in ("a.zip", "a.tar.gz"):
        player.do(f'files.compress("note.txt", "{archive}")')
        player.do(f'files.extract("{archive}", "out-{archive}")')
        assert player.desktop.get("file_text", path=f"out-{archive}/note.txt") == "alpha beta\ngamma delta\n"
    with zipfile.ZipFile(io.BytesIO(player.desktop.get("file_bytes", path="a.zip"))) as packed:
        assert packed.namelist() == ["note.txt"]
    with tarfile.open(fileobj=io.BytesIO(player.desktop.get("file_bytes", path="a.tar.gz"))) as tar:
        assert tar.getnames() == ["note.txt"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('files.append("../x", "y")', "outside"),
        ('files.find("*", "none")', "there is no"),
        ('files.search("")', "words"),
        ('files.info("none")', "there is no"),
        ('files.set_permissions("note.txt", "all")', "is no mode"),
        ('files.compress("note.txt", "x.rar")', "no archive"),
        ('files.extract("note.txt")', "no archive"),
        ('files.open("none.txt")', "there is no"),
        ('files.open("../..")', "outside"),
        ('apps.open("winword")', "there is no"),
        ('apps.switch("gimp")', "is not open"),
        ('key_up("ctrl")', "not held"),
        ('key_down("nokey")', "unknown key"),
        ("drag_pixels([1, 2, 3])", "x, y"),
        ("drag_pixels([1, 2, 3, 4000])", "not on the screen"),
        ("triple_click(900, 3)", "not on the screen"),
    ],
)
def test_bad_arguments_are_refused_with_the_reason(player: Player, text: str, words: str) -> None:
    player.start(NOTE, FILES)
    assert words in player.refusal(text)
    assert player.desktop.get("folder_listing") == ["note.txt"]


@pytest.mark.parametrize(("path", "app"), [("note.txt", "editor"), ("sub", "files"), ("table.csv", "calc")])
def test_open_uses_the_file_s_application(player: Player, path: str, app: str) -> None:
    player.start(NOTE, FOLDER, SetupStep("write_file", {"path": "table.csv", "text": "a,b\n1,2\n"}), FILES)
    shown = player.do(f'files.open("{path}")')
    assert shown.app == app and path.partition(".")[0] in shown.window_title and shown.result == f"opened with {app}"


# --- applications ----------------------------------------------------------------------------------------------------


def test_applications_are_opened_listed_and_switched(player: Player) -> None:
    player.start(NOTE, FILES)
    assert player.do('apps.open("text editor")').app == "editor"
    assert player.do('apps.open("calc")').app == "calc"
    lines = player.ask("apps.list()").splitlines()
    assert [line.partition(":")[0] for line in lines] == ["files", "editor", "calc"] and lines[2].endswith("(in front)")
    assert player.do('apps.switch("files")').app == "files"
    assert player.do('apps.open("editor")').app == "editor"


def test_terminal_starts_on_demand_and_leaves_nothing(player: Player) -> None:
    shown = player.start(NOTE, SetupStep("open_app", {"app": "terminal"}))
    assert shown.app == "terminal"
    player.do('type("cp note.txt made.txt; setsid sleep 4321 & cd sub 2>/dev/null; pwd", enter=True)')
    player.wait_for(lambda _: player.desktop.get("file_text", path="made.txt") is not None)
    player.do('type("pgrep -f 4321 > found.txt; echo done >> found.txt", enter=True)')
    player.wait_for(lambda _: str(player.desktop.get("file_text", path="found.txt")).endswith("done\n"))
    assert player.desktop.get("file_text", path="found.txt")[0].isdigit()
    assert player.start(FILES).app == "files"
    assert "terminal" not in player.ask("apps.list()")
    player.do('apps.open("terminal")')
    player.do('type("pgrep -x sleep > found.txt; echo done >> found.txt", enter=True)')
    player.wait_for(lambda _: str(player.desktop.get("file_text", path="found.txt")).endswith("done\n"))
    assert player.desktop.get("file_text", path="found.txt") == "done\n"


def test_what_the_image_lacks_is_refused_by_name(player: Player) -> None:
    player.start(FILES)
    assert player.refusal('code.launch_vscode("x")') == "Visual Studio Code (the command `code`) is not installed on this desktop"
    assert "is not installed" in player.refusal('apps.open("VS Code")')


def test_beside_a_web_page_nothing_is_opened_that_could_reach_it(player: Player) -> None:
    player.start(PAGE)
    for app in ("terminal", "chrome"):
        assert "web task" in player.refusal(f'apps.open("{app}")')


# --- mouse and keyboard ----------------------------------------------------------------------------------------------


def test_triple_click_selects_the_line(player: Player) -> None:
    player.start(EDITOR)
    player.do("triple_click(20, 35)")
    player.do('type("new")')
    assert player.desktop.get("editor_text").rstrip("\n") == "new\nthree four"


def test_held_keys_reach_the_application_and_end_with_the_task(player: Player) -> None:
    player.start(EDITOR)
    player.do('key("ctrl+home")')
    player.do('key_down("shift")')
    for _ in range(3):
        player.do('key("right")')
    player.do('key_up("shift")')
    player.do('type("1")')
    assert player.desktop.get("editor_text").startswith("1 two")
    player.do('key_down("shift")')
    player.start(EDITOR)
    player.do('type("x")')
    assert "x" in player.desktop.get("editor_text")
    player.do('key_down("shift")')
    assert player.desktop.get("editor_text")
    assert "not held" in player.refusal('key_up("shift")')


def test_quote_is_the_next_result(player: Player) -> None:
    player.start(FILES)
    assert player.ask("quote(\"seen: 3 ''' files\")") == "seen: 3 ''' files"


def test_drag_along_pixels_selects_text(player: Player) -> None:
    player.start(EDITOR)
    player.do("drag_pixels([2, 35, 200, 35, 200, 36])")
    player.do('type("gone")')
    assert player.desktop.get("editor_text").rstrip("\n") == "gone\nthree four"
