"""Applications on demand, the parts that need none: settings files, Scheme texts, command lines, which file belongs to whom."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import pytest

from computerrl.common.actions.tables import apps as tables
from computerrl.env_server.guest.apps import catalog, code
from computerrl.env_server.guest.apps.browser import PAGES, BrowserTools
from computerrl.env_server.guest.apps.code import Code, CodeTools
from computerrl.env_server.guest.apps.gimp import Gimp, GimpTools
from computerrl.env_server.guest.apps.gimp_image import scheme_text
from computerrl.env_server.guest.apps.on_demand import Surroundings, Tools
from computerrl.env_server.guest.apps.vlc import Vlc, VlcTools
from computerrl.env_server.guest.apps.vlc_settings import VlcSettings, changed_settings, read_setting
from computerrl.env_server.guest.faults import Refused
from computerrl.env_server.guest.files.folder import AgentFolder, FileActionError


@pytest.fixture
def around(tmp_path: Path) -> Surroundings:
    (tmp_path / "work" / "sub").mkdir(parents=True)
    (tmp_path / "work" / "a.txt").write_text("x")

    def nothing(*_: object) -> Any:
        raise AssertionError("not in this test")

    env = {"PATH": str(tmp_path / "bin")}
    folder = AgentFolder(tmp_path / "work")
    return Surroundings(
        env, tmp_path, tmp_path / "apps", folder, wait=nothing, titles=nothing, press=nothing, screen_size=(800, 600)
    )


@pytest.mark.parametrize(
    ("table", "tools"),
    [(tables.CHROME, BrowserTools), (tables.VLC, VlcTools), (tables.CODE, CodeTools), (tables.GIMP, GimpTools)],
    ids=["chrome", "vlc", "code", "gimp"],
)
def test_every_action_of_the_table_is_a_method_with_the_same_arguments(table: Any, tools: type[Tools]) -> None:
    for spec in table:
        method = getattr(tools, spec.name.partition(".")[2])
        names = method.__code__.co_varnames[1 : method.__code__.co_argcount]
        assert names == tuple(param.name for param in spec.params), spec.name


def test_every_settings_page_is_an_action() -> None:
    assert set(PAGES) == {spec.name.removeprefix("chrome.") for spec in tables.CHROME if ".open_" in spec.name}


@pytest.mark.parametrize(
    ("path", "app"),
    [
        ("a.mp3", "vlc"),
        ("b/c.MKV", "vlc"),
        ("a.png", "gimp"),
        ("x.xcf", "gimp"),
        ("x.html", "browser"),
        ("x.pdf", "browser"),
        ("x.txt", None),
        ("x", None),
    ],
)
def test_app_for_a_file_goes_by_its_ending(path: str, app: str | None) -> None:
    assert catalog.app_for(path) == app


def test_scheme_text_stays_a_text_whatever_it_holds() -> None:
    assert scheme_text('a" (gimp-quit 1) "\\') == '"a\\" (gimp-quit 1) \\"\\\\"'
    assert scheme_text("\u00e4\n") == '"\u00e4\n"'


def test_image_counts_as_open_only_when_the_window_shows_it(around: Surroundings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same file opened before does not count: the number is the image's own."""
    titles = ["GNU Image Manipulation Program", "[a] (imported)-2.0 (RGB) 40x20", "[a] (imported)-12.0 (RGB) 40x20"]
    seen: list[str] = []

    def wait(condition: Any, *_: object) -> None:
        while not condition():
            seen.append(titles.pop(0))

    slow = dataclasses.replace(around, wait=wait, titles=lambda name: titles[:1] if name == "gimp" else [])
    gimp = Gimp(slow)
    monkeypatch.setattr(gimp, "ask", lambda _expression: ["12"])
    gimp.open(around.folder.root / "a.png")
    assert len(seen) == 2 and len(titles) == 1


# --- VLC's settings --------------------------------------------------------------------------------------------------


def test_changed_settings_replaces_comments_and_keeps_the_rest() -> None:
    text = "[qt] # Qt interface\n#qt-bgcone=1\nvolume=3\n"
    changed = changed_settings(text, {"qt-bgcone": "0", "input-record-path": "/tmp/a\\b"})
    assert changed == "[qt] # Qt interface\nqt-bgcone=0\nvolume=3\ninput-record-path=/tmp/a\\b\n"
    assert changed_settings(changed, {"qt-bgcone": "1"}).count("qt-bgcone") == 1
    assert read_setting(changed, "input-record-path") == "/tmp/a\\b" and read_setting(changed, "x") == ""


def test_settings_set_before_the_start_are_in_the_file_of_the_start(around: Surroundings) -> None:
    player = Vlc(around)
    assert player.tools.set_settings("qt-max-volume", 150) == "qt-max-volume = 150"
    assert "qt-max-volume = 150" in player.tools.get_settings() and "qt-bgcone = 1" in player.tools.get_settings()
    text = (around.folder.root / ".config/vlc/vlcrc").read_text()
    assert "qt-max-volume=150\n" in text and "one-instance=0\n" in text


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("qt-bgcone", False, "0"),
        ("qt-minimal-view", 1, "1"),
        ("qt-minimal-view", "true", "1"),
        ("qt-max-volume", "200", "200"),
        ("global-key-play-pause", " Ctrl+p ", "Ctrl+p"),
    ],
)
def test_setting_text_is_what_the_file_holds(around: Surroundings, field: str, value: Any, text: str) -> None:
    assert VlcSettings(around.folder).text_of(field, value) == text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("qt-bgcone", "maybe"),
        ("qt-bgcone", 2),
        ("qt-max-volume", 1000),
        ("qt-max-volume", "loud"),
        ("qt-max-volume", True),
        ("input-record-path", "none"),
        ("input-record-path", "a.txt"),
        ("input-record-path", ".."),
        ("global-key-play-pause", 3),
    ],
)
def test_setting_text_of_something_else_is_refused(around: Surroundings, field: str, value: Any) -> None:
    with pytest.raises((Refused, FileActionError)):
        VlcSettings(around.folder).text_of(field, value)


def test_record_path_is_the_folder_s_whole_path(around: Surroundings) -> None:
    assert VlcSettings(around.folder).text_of("input-record-path", "sub") == str(around.folder.root / "sub")


def test_media_files_of_a_folder_by_ending(around: Surroundings) -> None:
    for name in ("b.mp3", "a.MP4", "c.jpg"):
        (around.folder.root / name).touch()
    tools = Vlc(around).tools
    assert tools.get_media_files(".", None) == "a.MP4\nb.mp3"
    assert tools.get_media_files(".", "mp3") == tools.get_media_files(".", ".mp3") == "b.mp3"
    assert tools.get_media_files("sub", None) == "no media files in sub"


@pytest.mark.parametrize(
    ("app", "method", "args", "why"),
    [
        ("gimp", "open", {"path": "none.png"}, "there is no none.png"),
        ("gimp", "open", {"path": "../x.png"}, "lies outside"),
        ("gimp", "scale", {"width": 1, "height": 1}, "no image is open"),
        ("gimp", "undo", {}, "no image is open"),
        ("gimp", "env_info", {}, "no image is open"),
        ("vlc", "add_to_playlist", {"uri": "none.mp3"}, "there is no none.mp3"),
        ("vlc", "play", {}, "the playlist is empty"),
        ("vlc", "next", {}, "nothing is playing"),
        ("code", "compare_files", {"file1": "a", "file2": "b"}, "there is no"),
    ],
)
def test_what_is_known_beforehand_is_refused_before_the_application_is_started(
    around: Surroundings, app: str, method: str, args: dict[str, Any], why: str
) -> None:
    tools = {made.name: made for made in catalog.make_apps(around)}[app].tools
    assert tools is not None
    with pytest.raises((Refused, FileActionError), match=why):
        tools.check(method, args)


def test_needs_no_start_names_methods_that_are_there() -> None:
    assert all(callable(getattr(VlcTools, method)) for method in VlcTools.needs_no_start)


# --- Visual Studio Code ----------------------------------------------------------------------------------------------


def test_app_that_is_not_installed_says_so(around: Surroundings) -> None:
    assert not Code(around).is_installed() and "code" in Code(around).label
    assert not Gimp(around).is_installed()


@pytest.mark.parametrize(
    ("method", "args", "tail"),
    [
        ("launch_vscode", ("a.txt",), ["WORK/a.txt"]),
        ("compare_files", ("a.txt", "b.txt"), ["--diff", "WORK/a.txt", "WORK/b.txt"]),
        ("add_folder", ("sub",), ["--add", "WORK/sub"]),
        ("remove_folder", ("sub",), ["--remove", "WORK/sub"]),
        ("goto_file", ("a.txt", 3, 4), ["--goto", "WORK/a.txt:3:4"]),
        (
            "perform_merge",
            ("a.txt", "b.txt", "a.txt", "new.txt"),
            ["--merge", "WORK/a.txt", "WORK/b.txt", "WORK/a.txt", "WORK/new.txt"],
        ),
        ("install_extension", ("some.thing", True), ["--install-extension", "some.thing", "--pre-release"]),
        ("uninstall_extension", ("some.thing",), ["--uninstall-extension", "some.thing"]),
        ("list_extensions", (True, "Themes"), ["--list-extensions", "--show-versions", "--category", "Themes"]),
        ("update_extensions", (), ["--update-extensions"]),
        ("disable_extension", ("some.thing",), ["--new-window", "--disable-extension", "some.thing"]),
        ("toggle_sync", ("off",), ["--new-window", "--sync", "off"]),
    ],
)
def test_code_method_is_a_call_of_the_command(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch, method: str, args: tuple[Any, ...], tail: list[str]
) -> None:
    (around.folder.root / "b.txt").touch()
    calls: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        return subprocess.CompletedProcess(command, 0, stdout="said\n", stderr="")

    monkeypatch.setattr(code.subprocess, "run", run)
    assert getattr(Code(around).tools, method)(*args) == "said"
    (command,) = calls
    assert command[0] == "code" and command[-len(tail) :] == [part.replace("WORK", str(around.folder.root)) for part in tail]


@pytest.mark.parametrize(
    ("name", "given", "called"),
    [
        ("sub", ["WORK/sub"], []),
        ("a.txt", [], ["--reuse-window", "WORK/a.txt"]),
        ("a.code-workspace", ["WORK/a.code-workspace"], []),
    ],
)
def test_code_begins_with_a_folder_and_is_given_a_file_once_it_runs(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch, name: str, given: list[str], called: list[str]
) -> None:
    app, began, calls = Code(dataclasses.replace(around, wait=lambda *_: None)), [], []
    monkeypatch.setattr(app._server, "start", lambda: began.append("server"))
    monkeypatch.setattr(app.program, "start", lambda arguments: began.append(arguments))
    monkeypatch.setattr(app, "run", lambda arguments, *, limit_s: calls.append(arguments))
    app.first = around.folder.root / name
    app.launch()
    app.open(app.first, timeout_s=1.0)
    work = str(around.folder.root)
    assert began == ["server", [part.replace("WORK", work) for part in given]]
    assert calls == ([[part.replace("WORK", work) for part in called]] if called else [])
    app.open(around.folder.root / "sub", timeout_s=1.0)
    assert calls[-1] == ["--reuse-window", f"{work}/sub"]


@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("launch_vscode", ("none",)),
        ("goto_file", ("a.txt", 0, 1)),
        ("install_extension", ("--evil", False)),
        ("uninstall_extension", ("a",)),
        ("add_folder", ("..",)),
        ("disable_extension", ("a.b;c",)),
    ],
)
def test_code_method_with_bad_arguments_is_refused_before_any_call(
    around: Surroundings, method: str, args: tuple[Any, ...]
) -> None:
    with pytest.raises((Refused, FileActionError)):
        getattr(Code(around).tools, method)(*args)
