"""Commands, set-up steps, and the call protocol, on an imitation desktop."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from computerrl.common.errors import DesktopBroken, TaskFailed
from computerrl.env_server.tasks.osworld import Assets
from computerrl.env_server.tasks.osworld.commands import (
    Pause,
    Untranslatable,
    converted_files,
    fill_placeholders,
    input_script,
    normalise,
)
from computerrl.env_server.tasks.osworld.desktop import (
    CalledDesktop,
    Command,
    InputEvent,
    Obstructed,
    Playing,
    RunResult,
    Tab,
    Window,
)
from computerrl.env_server.tasks.osworld.format import SetupStep
from computerrl.env_server.tasks.osworld.steps import Carrier
from tests.support.osworld_fake import FakeDesktop

SIZE = (1280, 720)


def _python(code: str) -> list[str]:
    return ["python", "-c", code]


@pytest.mark.parametrize(
    ("command", "script"),
    [
        (_python("import pyautogui; pyautogui.hotkey('ctrl', 's')"), [InputEvent("key", "ctrl+s")]),
        (_python('import pyautogui; pyautogui.hotkey(["shift", "ctrl", "e"]);'), [InputEvent("key", "shift+ctrl+e")]),
        (_python("import pyautogui\npyautogui.press('pgdn', presses=2)"), [InputEvent("key", "pagedown")] * 2),
        (_python("import time, pyautogui; time.sleep(0.5); pyautogui.write('a b')"), [Pause(0.5), InputEvent("type", "a b")]),
        (_python("import pyautogui; pyautogui.click(960, 540)"), [InputEvent("click", "left", 640, 360)]),
        (_python("import pyautogui; pyautogui.click({SCREEN_WIDTH_HALF}, 10)"), [InputEvent("click", "left", 640, 10)]),
        (_python("import pyautogui; pyautogui.doubleClick(x=0, y=0)"), [InputEvent("click", "left", 0, 0, 2)]),
        (
            _python("import pyautogui; pyautogui.keyDown('Alt'); pyautogui.keyUp('Alt')"),
            [InputEvent("key_down", "alt"), InputEvent("key_up", "alt")],
        ),
        (
            _python(
                "pyautogui.moveTo(30, 60, 0.7, pyautogui.easeInQuad); pyautogui.dragTo((60, 30), duration=1.0, button='left')"
            ),
            [InputEvent("move", x=20, y=40), InputEvent("drag", x=40, y=20)],
        ),
        (
            _python("import pyautogui; pyautogui.mouseDown(x=30, y=60, button='secondary'); pyautogui.mouseUp(button='right')"),
            [InputEvent("move", x=20, y=40), InputEvent("button_down", "right"), InputEvent("button_up", "right")],
        ),
        (
            _python("import pyautogui; pyautogui.scroll(-3, 30, 60); pyautogui.hscroll(clicks=2)"),
            [InputEvent("scroll", x=20, y=40, count=-3), InputEvent("scroll", "sideways", count=2)],
        ),
        (["xdotool", "key", "--clearmodifiers", "Control+Return"], [InputEvent("key", "ctrl+enter")]),
        (
            ["xdotool", "mousemove", "1920", "1080", "click", "1"],
            [InputEvent("move", "", 1280, 720), InputEvent("click", "left")],
        ),
        ("xdotool type 'a b'", [InputEvent("type", "a b")]),
        ("python -c \"import pyautogui; pyautogui.press('a')\"", [InputEvent("key", "a")]),
        (["ls", "-l"], None),
        ("python3 -c 'print(1)' | wc", None),
    ],
)
def test_input_script_automation_becomes_events(command: Any, script: Any) -> None:
    assert input_script(command, SIZE) == script


def test_pixels_of_an_agent_are_those_of_this_desktop() -> None:
    clicked = [InputEvent("click", "left", 960, 540)]
    assert input_script(_python("import pyautogui; pyautogui.click(960, 540)"), None) == clicked
    moved = [InputEvent("move", x=960, y=540), InputEvent("click", "left")]
    assert input_script(["xdotool", "mousemove", "960", "540", "click", "1"], None) == moved


@pytest.mark.parametrize(
    "command",
    [
        _python("import pyautogui\nfor _ in range(3): pyautogui.press('a')"),
        _python("import pyautogui; pyautogui.screenshot('x.png')"),
        _python("import pyautogui; pyautogui.write(open('/etc/passwd').read())"),
        _python("import pyautogui; pyautogui.hotkey("),
        _python("import pyautogui; pyautogui.press(" + "-" * 5000 + "1)"),
        _python("import pyautogui; pyautogui.press('a\0b')"),
        _python("import pyautogui; pyautogui.click(1, 2, button='none')"),
        _python("import pyautogui; pyautogui.click(1, 2, clicks=10**9)"),
        _python("import pyautogui; pyautogui.press('a', presses=1000)"),
        _python("import pyautogui; pyautogui.dragTo(1, 2, button='right')"),
        _python("import pyautogui; pyautogui.scroll()"),
        _python("import pyautogui, time; time.sleep(-1)"),
        _python("import pyautogui, time; time.sleep(float('inf'))"),
        "sleep 1; python -c \"import pyautogui; pyautogui.press('a')\"",
        "xdotool key a; ls",
        ["xdotool", "search", "--name", "x"],
    ],
)
def test_input_script_anything_else_is_refused(command: Any) -> None:
    with pytest.raises(Untranslatable):
        input_script(command, SIZE)


def test_normalise_shell_and_list_forms() -> None:
    assert normalise("python -c 'a b'", shell=False) == ["python3", "-c", "a b"]
    assert normalise(["ls", "|", "wc"], shell=True) == "ls | wc"
    assert normalise(["pkill", "chrome"], shell=False) == ["pkill", "chromium"]
    with pytest.raises(Untranslatable):
        normalise("a 'b", shell=False)


@pytest.mark.parametrize(
    "script", ["{} ~/a.py", "cd /tmp && {} a.py; ls", "x=$({} a.py)", "ls | {} -c 'import python'", "cd b\n  {} a.py"]
)
def test_normalise_python_of_a_shell_script_is_the_one_that_is_there(script: str) -> None:
    asked, there = script.format("python"), script.format("python3")
    assert normalise(asked, shell=True) == there
    assert normalise(["bash", "-c", asked], shell=False) == ["bash", "-c", there]
    for command in ("ls python a-python", "python3 a.py", "b/python c", "pythonx d"):
        assert normalise(command, shell=True) == command


_TO_CSV = ["libreoffice", "--convert-to", "csv:Text - txt - csv (StarCalc):44,34,UTF-8", "--outdir", "/home/user/Desktop"]


@pytest.mark.parametrize(
    ("command", "files"),
    [
        ([*_TO_CSV, "/home/user/a b.xlsx"], ["/home/user/Desktop/a b.csv"]),
        ([*_TO_CSV, "a.xlsx", "/tmp/b.ods"], ["/home/user/Desktop/a.csv", "/home/user/Desktop/b.csv"]),
        (["soffice", "--headless", "--convert-to", "pdf", "x/report.final.docx"], ["./report.final.pdf"]),
        ("libreoffice --headless --convert-to pdf --outdir 'my files' a.docx", ["my files/a.pdf"]),
        (["libreoffice", "--calc", "a.xlsx"], []),
        (["libreoffice", "--convert-to"], []),
        (["cat", "--convert-to", "a", "b"], []),
        ("cd x && libreoffice --convert-to csv a.xlsx", []),
        ([], []),
    ],
)
def test_files_that_a_conversion_makes(command: Any, files: list[str]) -> None:
    assert converted_files(command) == files


def test_conversion_of_the_judge_does_not_take_what_the_agent_has_made() -> None:
    for strict in (True, False):
        desktop = FakeDesktop(files={"/home/user/Desktop/a.csv": b"the agent's"})
        _do(desktop, "execute", carrier=_carrier(desktop, strict=strict), command=[*_TO_CSV, "/home/user/a.xlsx"])
        assert desktop.files["/home/user/Desktop/a.csv"] == (b"the agent's" if strict else b"")


def test_fill_placeholders_screen_size() -> None:
    assert fill_placeholders(["{SCREEN_WIDTH}x{SCREEN_HEIGHT}", "{x}"], SIZE) == ["1280x720", "{x}"]


# --- steps -----------------------------------------------------------------------------------------------------------


class _Clock:
    """Time that passes by sleeping only."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def now(self) -> float:
        return self.now_s


def _carrier(desktop: FakeDesktop, assets: Path | None = None, *, strict: bool = True) -> Carrier:
    clock = _Clock()
    return Carrier(desktop, Assets(assets), strict=strict, sleep=clock.sleep, now=clock.now)


def _do(desktop: FakeDesktop, kind: str, *, carrier: Carrier | None = None, **parameters: Any) -> Carrier:
    carrier = carrier or _carrier(desktop)
    carrier.carry_out(SetupStep.model_validate({"type": kind, "parameters": parameters}))
    return carrier


def test_download_file_from_the_assets_lands_on_the_desktop(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"hello")
    desktop = FakeDesktop()
    carrier = _carrier(desktop, tmp_path)
    _do(desktop, "download", carrier=carrier, files=[{"url": "https://h.invalid/a.txt", "path": "/home/user/Desktop/b.txt"}])
    _do(desktop, "upload_file", carrier=carrier, files=[{"local_path": "a.txt", "path": "/home/user/c.txt"}])
    assert desktop.files == {"/home/user/Desktop/b.txt": b"hello", "/home/user/c.txt": b"hello"}
    with pytest.raises(TaskFailed, match="lacks"):
        _do(desktop, "download", carrier=carrier, files=[{"url": "https://h.invalid/none", "path": "/home/user/x"}])


def test_execute_program_that_is_not_there_fails_a_set_up_but_no_judgement() -> None:
    for command in (["./setup.sh"], ["bash", "-c", "./setup.sh"]):
        desktop = FakeDesktop(answers={"setup.sh": RunResult(127, "", "setup.sh: line 1: gio: command not found\n")})
        with pytest.raises(TaskFailed, match="gio: command not found"):
            _do(desktop, "execute", command=command)
        _do(desktop, "execute", carrier=_carrier(desktop, strict=False), command=command)


@pytest.mark.parametrize(
    ("wanted", "there"),
    [
        ("lecture.pdf — 6.006 Introduction", "6.006 Introduction - Chromium"),
        ("Band - Song - VLC media player", "song.mp4 - VLC media player"),
        ("Terminal", "Terminal"),
    ],
)
def test_activate_window_of_another_viewer_is_known_by_a_part_of_its_title(wanted: str, there: str) -> None:
    desktop = FakeDesktop(titles=["Files", there])
    _do(desktop, "activate_window", window_name=wanted, strict=True)
    with pytest.raises(TaskFailed, match="no window"):
        _do(FakeDesktop(titles=["Files"]), "activate_window", window_name=wanted, strict=True)


@pytest.mark.parametrize(
    ("wanted", "there"),
    [
        ("Google Chrome", "about:blank - Chromium"),
        ("New Tab - Google Chrome", "New Tab - Chromium"),
        ("a.txt (~/Desktop) - gedit", "a.txt - Mousepad"),
    ],
)
def test_windows_of_a_program_in_place_of_another_are_known_by_the_other_s_name(wanted: str, there: str) -> None:
    desktop = FakeDesktop(titles=["Files", there])
    _do(desktop, "activate_window", window_name=wanted, strict=False)
    _do(desktop, "close_window", window_name=wanted.split(" - ")[-1])
    assert desktop.titles == ["Files"]


def test_launch_and_execute_what_the_desktop_is_told() -> None:
    desktop = FakeDesktop()
    _do(desktop, "launch", command=["socat", "tcp-listen:9222,fork", "tcp:localhost:1337"])
    _do(desktop, "launch", command="A=1 vlc", shell=True)
    _do(desktop, "execute", command=["python", "-c", "print({SCREEN_WIDTH})"])
    _do(desktop, "command", command=_python("import pyautogui; pyautogui.press('a')"))
    assert desktop.calls == [
        ("launch", "A=1 vlc"),
        ("run", ["python3", "-c", "print(1280)"]),
        ("input", InputEvent("key", "a")),
    ]


def test_execute_output_is_kept_under_its_name() -> None:
    desktop = FakeDesktop(answers={"date": RunResult(0, "today", "warn")})
    assert _do(desktop, "execute", command="date", stdout="out.txt", stderr="err.txt").outputs == {
        "out.txt": "today",
        "err.txt": "warn",
    }


def test_execute_until_repeats_and_gives_up() -> None:
    desktop = FakeDesktop(answers={"poll": RunResult(1, "", "")})
    _do(desktop, "execute", command="poll", until={"returncode": 0})
    assert 100 < len(desktop.calls) < 200


def test_execute_with_verification_waits_for_the_window() -> None:
    _do(FakeDesktop(titles=["Files - x"]), "execute_with_verification", command="x", verification={"window_exists": "Files"})
    with pytest.raises(TaskFailed, match="did not come"):
        _do(FakeDesktop(), "execute_with_verification", command="x", verification={"window_exists": "Files"}, max_wait_time=1)


def test_windows_missing_one_fails_the_setup_but_not_the_evaluation() -> None:
    desktop = FakeDesktop(titles=["a.docx - LibreOffice Writer"])
    _do(desktop, "activate_window", window_name="libreoffice")
    with pytest.raises(TaskFailed, match="Terminal"):
        _do(desktop, "activate_window", window_name="Terminal")
    _do(desktop, "activate_window", window_name="Terminal", carrier=_carrier(desktop, strict=False))
    _do(desktop, "close_window", window_name="LibreOffice")
    assert desktop.titles == []


def test_open_without_a_window_fails_the_setup() -> None:
    _do(FakeDesktop(files={"/home/user/a": b""}), "open", path="/home/user/a")
    with pytest.raises(TaskFailed, match="did not open"):
        _do(FakeDesktop(), "open", path="/home/user/a")


class _Broken(FakeDesktop):
    """Carries out nothing."""

    def put_file(self, path: str, data: bytes) -> None:
        raise TaskFailed("no space left")

    def launch(self, command: Command) -> None:
        raise TaskFailed("browser has no window")

    def open_tabs(self, urls: Sequence[str]) -> None:
        raise TaskFailed("browser has no window")


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [("launch", {"command": "google-chrome"}), ("chrome_open_tabs", {"urls_to_open": ["about:blank"]})],
)
def test_step_that_cannot_be_carried_out_fails_the_setup_and_is_left_out_of_the_evaluation(
    kind: str, parameters: dict[str, Any]
) -> None:
    with pytest.raises(TaskFailed, match="has no window"):
        _do(_Broken(), kind, **parameters)
    _do(_Broken(), kind, carrier=_carrier(_Broken(), strict=False), **parameters)


def test_file_of_the_judge_that_cannot_be_written_ends_the_evaluation(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_bytes(b"echo yes")
    files = [{"url": "https://h.invalid/a.sh", "path": "/home/user/a.sh"}]
    with pytest.raises(TaskFailed, match="no space left"):
        _do(_Broken(), "download", carrier=_carrier(_Broken(), tmp_path), files=files)
    with pytest.raises(Obstructed, match="no space left"):
        _do(_Broken(), "download", carrier=_carrier(_Broken(), tmp_path, strict=False), files=files)


def test_tabs_are_opened_and_closed() -> None:
    desktop = FakeDesktop()
    _do(desktop, "chrome_open_tabs", urls_to_open=["about:blank", "chrome://settings"])
    _do(desktop, "chrome_close_tabs", urls_to_close=["about:blank"])
    assert [tab.url for tab in desktop.pages] == ["chrome://settings"]


def test_sleep_passes_time() -> None:
    clock = _Clock()
    carrier = Carrier(FakeDesktop(), Assets(), sleep=clock.sleep, now=clock.now)
    _do(FakeDesktop(), "sleep", carrier=carrier, seconds=2)
    assert clock.now_s == 2


def test_update_browse_history_adds_visits(tmp_path: Path) -> None:
    place = tmp_path / "History"
    with sqlite3.connect(place) as connection:
        connection.execute(
            "CREATE TABLE urls (id INTEGER PRIMARY KEY, url, title, visit_count, typed_count, last_visit_time, hidden)"
        )
        connection.execute("CREATE TABLE visits (url, visit_time, from_visit, transition, segment_id, visit_duration)")
    path = "/home/user/.config/chromium/Default/History"
    desktop = FakeDesktop(files={path: place.read_bytes()})
    _do(
        desktop,
        "update_browse_history",
        history=[{"url": "https://a.invalid", "title": "A", "visit_time_from_now_in_seconds": 60}],
    )
    place.write_bytes(desktop.files[path])
    with sqlite3.connect(place) as connection:
        assert connection.execute("SELECT urls.url FROM urls JOIN visits ON visits.url = urls.id").fetchall() == [
            ("https://a.invalid",)
        ]


def test_update_browse_history_before_the_browser_has_run_runs_it_once() -> None:
    desktop = FakeDesktop()
    with pytest.raises(TaskFailed, match="has written no history"):
        _do(desktop, "update_browse_history", history=[])
    assert [tab.url for tab in desktop.pages] == ["about:blank"] and desktop.calls == [("launch", ["pkill", "chrome"])]


# --- the protocol as calls -------------------------------------------------------------------------------------------


def test_called_desktop_every_call_survives_json() -> None:
    import json

    fake = FakeDesktop(
        titles=["Files"],
        pages=[Tab("about:blank", "t", "h")],
        players=[Playing("playing", "file:///a")],
        answers={"ls": RunResult(3, "o", "e")},
        files={"/home/user/a": b"\x00\xff"},
    )

    def get(kind: str, **args: Any) -> Any:
        return json.loads(json.dumps(fake.answer(kind, **json.loads(json.dumps(args)))))

    desktop = CalledDesktop(get)
    desktop.put_file("/home/user/b", b"\x01\xfe")
    assert fake.files["/home/user/b"] == b"\x01\xfe"
    assert desktop.read_file("/home/user/a") == b"\x00\xff" and desktop.read_file("/home/user/c") is None
    assert desktop.run(["ls"], timeout_s=1) == RunResult(3, "o", "e")
    desktop.launch("vlc")
    desktop.input([InputEvent("click", "left", 1, 2)])
    assert fake.calls[-2:] == [("launch", "vlc"), ("input", InputEvent("click", "left", 1, 2))]
    assert desktop.windows() == [Window("Files", "files", 0, 0, 1280, 720)]
    assert desktop.tabs() == [Tab("about:blank", "t", "h")]
    assert desktop.playing() == [Playing("playing", "file:///a")]
    desktop.bring_own_files()
    assert fake.calls[-1][0] == "bring_own_files"
    assert desktop.screen_size() == SIZE and desktop.tree() == "<desktop-frame/>"
    assert desktop.open("/home/user/a") and not desktop.open("/none")
    assert desktop.activate_window("files", strict=False, by_class=False)
    assert desktop.close_window("Files", strict=True, by_class=False)
    desktop.open_tabs(["chrome://x"])
    desktop.close_tabs(["about:blank"])
    assert [tab.url for tab in desktop.tabs()] == ["chrome://x"]


@pytest.mark.parametrize(("answer", "call"), [("nothing", "run"), ({"title": 1}, "run"), ("***", "read_file")])
def test_called_desktop_nonsense_breaks_the_desktop(answer: Any, call: str) -> None:
    desktop = CalledDesktop(lambda kind, **args: answer)
    with pytest.raises(DesktopBroken):
        getattr(desktop, call)("x")
