"""Judging a whole task: getters, and/or, infeasible tasks, and whose fault a broken file is."""

from __future__ import annotations

import datetime
import io
import json
import shlex
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from computerrl.common.errors import TaskFailed
from computerrl.common.messages import Action
from computerrl.env_server.tasks.forge.book_facts import book_facts
from computerrl.env_server.tasks.osworld import Assets, OsworldTask, TaskFile
from computerrl.env_server.tasks.osworld.desktop import Command, Playing, RunResult, Tab
from computerrl.env_server.tasks.osworld.getters import GETTERS, Context
from computerrl.env_server.tasks.osworld.getters.values import parse_date
from computerrl.env_server.tasks.osworld.home import HOME_STEPS, home_steps
from computerrl.env_server.tasks.osworld.metrics import sheet_facts
from computerrl.env_server.tasks.reading import limits
from tests.support.data.extreme_files import book
from tests.support.osworld_fake import FakeDesktop

PROFILE = "/home/user/.config/chromium"


def _task(evaluator: dict[str, Any], assets: Path | None = None, config: list[Any] | None = None) -> OsworldTask:
    content = {"id": "t", "instruction": "Do it.", "config": config or [], "evaluator": evaluator}
    return OsworldTask(TaskFile.model_validate(content), Assets(assets))


def _score(task: OsworldTask, desktop: FakeDesktop, final_action: str = "done") -> float:
    return task.evaluate(desktop, final_action=final_action, sleep=lambda seconds: None).reward


def _book(value: str) -> bytes:
    book, data = openpyxl.Workbook(), io.BytesIO()
    book.active["A1"] = value
    book.save(data)
    return data.getvalue()


def _rule(expected: Any) -> dict[str, Any]:
    return {"type": "rule", "rules": {"expected": expected}}


def _said(text: str) -> dict[str, Any]:
    return {"type": "vm_command_line", "command": ["echo", text]}


TABLE = {
    "func": "compare_table",
    "result": {"type": "vm_file", "path": "/home/user/a.xlsx", "dest": "a.xlsx"},
    "expected": {"type": "cloud_file", "path": "https://h.invalid/x/a.xlsx", "dest": "a.xlsx"},
    "options": {"rules": [{"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "EI0"}]},
}


def _gold(folder: Path, data: bytes) -> Path:
    (folder / "x").mkdir(exist_ok=True)
    (folder / "x/a.xlsx").write_bytes(data)
    return folder


def test_evaluate_file_right_wrong_missing_and_broken(tmp_path: Path) -> None:
    task = _task(TABLE, _gold(tmp_path, _book("yes")))
    assert _score(task, FakeDesktop(files={"/home/user/a.xlsx": _book("yes")})) == 1.0
    assert _score(task, FakeDesktop(files={"/home/user/a.xlsx": _book("no")})) == 0.0
    assert _score(task, FakeDesktop()) == 0.0
    assert _score(task, FakeDesktop(files={"/home/user/a.xlsx": b"no workbook"})) == 0.0


def test_evaluate_broken_or_missing_gold_is_never_a_reward(tmp_path: Path) -> None:
    desktop = FakeDesktop(files={"/home/user/a.xlsx": _book("yes")})
    with pytest.raises(TaskFailed, match="own file is broken"):
        _score(_task(TABLE, _gold(tmp_path, b"no workbook")), desktop)
    with pytest.raises(TaskFailed, match="no asset folder"):
        _score(_task(TABLE), desktop)


def test_evaluate_expected_file_beyond_a_limit_is_no_verdict_whatever_the_answer_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A right answer is like the expected file, so that it would be refused for the same reason."""
    plain, large = _book("yes"), book(after="<x/>" * (limits.MAX_TAGS + 1))
    with pytest.raises(TaskFailed, match=r"own file is broken: a\.xlsx: tags of XML"):
        _score(_task(TABLE, _gold(tmp_path, large)), FakeDesktop(files={"/home/user/a.xlsx": large}))
    assert _score(_task(TABLE, _gold(tmp_path, plain)), FakeDesktop(files={"/home/user/a.xlsx": large})) == 0.0
    # A limit of the comparison, which is of no file.
    monkeypatch.setattr(sheet_facts, "MAX_RANGE_WORK", 0)
    columns = book(before='<cols><col min="1" max="3" width="12" customWidth="1"/></cols>')
    rule = {"type": "col_props", "sheet_idx0": 0, "sheet_idx1": "EI0", "props": ["width"]}
    widths = {**TABLE, "options": {"rules": [rule]}}
    for answer in (plain, columns):
        with pytest.raises(TaskFailed, match="own file is broken: columns with properties"):
            _score(_task(widths, _gold(tmp_path, columns)), FakeDesktop(files={"/home/user/a.xlsx": answer}))
    assert _score(_task(widths, _gold(tmp_path, plain)), FakeDesktop(files={"/home/user/a.xlsx": columns})) == 0.0


def test_evaluate_rule_that_means_nothing_is_no_verdict_on_the_agents_file(tmp_path: Path) -> None:
    task = _task({**TABLE, "options": {"rules": [{"type": "no such rule"}]}}, _gold(tmp_path, _book("yes")))
    with pytest.raises(TaskFailed, match=r"compare_table: the task's rule means nothing: .*no such rule"):
        _score(task, FakeDesktop(files={"/home/user/a.xlsx": _book("yes")}))


def _asks(name: str, func: str, rules: Any = None, **options: Any) -> Any:
    expected = {} if rules is None else {"expected": {"type": "rule", "rules": rules}}
    file = {"type": "vm_file", "path": f"/home/user/{name}", "dest": name}
    return pytest.param({"func": func, "result": file, **expected, "options": options}, id=f"{func} {rules} {options}")


_CELL = {"type": "check_cell", "sheet_idx": 0, "coordinate": "A1"}
BAD_RULES = [
    _asks("a.txt", "check_list", {"expect": ["(hello"]}),
    _asks("a.txt", "check_list", {"expect": ["hello"], "unexpect": ["[z-a]"]}),
    _asks("a.txt", "file_contains", {}),
    _asks("a.txt", "file_contains"),
    _asks("a.txt", "compare_text_file"),
    _asks("a.txt", "file_contains", {"expected": ["hello"]}, ignore_case=True),
    _asks("a.txt", "check_line_number", {"expected": "some"}),
    _asks("a.json", "check_json", {"expect": [{"key": ["a"], "ref": 1}]}),
    _asks("a.json", "check_json", {"expect": [{"key": ["a"], "method": "eq"}]}),
    _asks("a.json", "check_json", {"expect": [{"method": "eq", "ref": 1}]}),
    _asks("a.txt", "check_qt_max_volume", {}),
    _asks("a.txt", "check_qt_slider_colours", {"expected": "1"}),
    _asks("a.xlsx", "compare_table"),
    _asks("a.xlsx", "compare_table", rules=[{"type": "zoom", "sheet_idx": 0, "ref": 1}]),
    _asks("a.xlsx", "compare_table", rules=[{"type": "zoom", "method": "eq", "ref": 1}]),
    _asks("a.xlsx", "compare_table", rules=[{**_CELL, "props": {"value": {"ref": 1}}}]),
    _asks("a.xlsx", "compare_table", rules=[{"sheet_idx0": 0}]),
]


@pytest.mark.parametrize("evaluator", BAD_RULES)
def test_evaluate_rule_that_lacks_something_is_the_tasks_fault_for_every_answer(evaluator: dict[str, Any]) -> None:
    """Without this, each answer would get 0 as though the agent had left what cannot be judged."""
    files = {"/home/user/a.txt": b"hello\n", "/home/user/a.json": b'{"a": 1}', "/home/user/a.xlsx": _book("yes")}
    with pytest.raises(TaskFailed, match="the task's rule means nothing"):
        _score(_task(evaluator), FakeDesktop(files=files))


def test_evaluate_end_of_memory_is_blamed_on_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's file may have used all of it up when the task's is opened. The process that judges reports the limit."""

    def no_room(*args: Any, **options: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("computerrl.env_server.tasks.reading.workbooks.open_workbook", no_room)
    with pytest.raises(MemoryError):
        _score(_task(TABLE, _gold(tmp_path, _book("yes"))), FakeDesktop(files={"/home/user/a.xlsx": _book("yes")}))
    with pytest.raises(MemoryError):
        book_facts(_book("yes"))


ADDRESSES = [
    "data:text/html,hello",
    "data://[,hello",
    "javascript:1",
    "blob:https://a:b/",
    "https://a:99999/",
    "",
    "view-source:[",
    "\0",
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_evaluate_page_with_any_address_is_a_verdict(address: str) -> None:
    """Whatever an agent opens in the browser, it has not opened the expected page."""
    page = {"type": "url", "url": "https://shop.com/a", "urls": ["https://shop.com/a"], "expected": ["^https://shop.com"]}
    ways = {
        "is_expected_active_tab": {"type": "active_tab_info"},
        "is_expected_active_tab_approximate": {"type": "active_url_from_accessTree"},
        "is_expected_tabs": {"type": "open_tabs_info"},
        "is_expected_url_pattern_match": {"type": "active_tab_info"},
    }
    desktop = FakeDesktop(pages=[Tab(address, "x", "<p>")])
    for metric, result in ways.items():
        assert _score(_task({"func": metric, "result": result, "expected": {"type": "rule", "rules": page}}), desktop) == 0.0
    for result in (
        {"type": "active_tab_url_parse", "parse_keys": ["q"]},
        {"type": "url_dashPart", "partIndex": 3, "returnType": "json", "key": "q"},
    ):
        task = _task({"func": "check_direct_json_object", "result": result, "expected": _rule({"q": "1"})})
        assert _score(task, desktop) == 0.0


def test_evaluate_tree_beyond_a_limit_is_the_agents_doing() -> None:
    """A page of the agent's may nest and repeat what it likes."""
    rule = {"type": "rule", "rules": [{"xpath": "//frame"}]}
    tree = _task({"func": "check_accessibility_tree", "result": {"type": "accessibility_tree"}, "expected": rule})
    said = _task({"func": "exact_match", "result": {"type": "vm_terminal_output"}, "expected": _rule("a")})
    for xml in ("<a>" * 300 + "</a>" * 300, "<a>" + "<b/>" * (limits.MAX_TAGS + 1) + "</a>"):
        assert _score(tree, FakeDesktop(xml=xml)) == _score(said, FakeDesktop(xml=xml)) == 0.0


def test_evaluate_broken_tree_of_the_guest_is_never_a_reward() -> None:
    rule = {"type": "rule", "rules": [{"xpath": "//frame"}]}
    task = _task({"func": "check_accessibility_tree", "result": {"type": "accessibility_tree"}, "expected": rule})
    assert _score(task, FakeDesktop(xml="<desktop-frame><frame/></desktop-frame>")) == 1.0
    with pytest.raises(TaskFailed, match="check_accessibility_tree failed"):
        _score(task, FakeDesktop(xml="<desktop-frame>"))


def test_evaluate_metric_that_fails_is_never_a_reward() -> None:
    task = _task({"func": "check_include_exclude", "result": _said("x"), "expected": {"type": "rule", "rules": 3}})
    with pytest.raises(TaskFailed, match="check_include_exclude failed"):
        _score(task, FakeDesktop())


@pytest.mark.parametrize(
    ("conj", "answers", "wanted"),
    [("and", "ab", 1.0), ("and", "ax", 0.0), ("and", "xb", 0.0), ("or", "ax", 1.0), ("or", "xb", 1.0), ("or", "xx", 0.0)],
)
def test_evaluate_conjunction_of_two(conj: str, answers: str, wanted: float) -> None:
    result = [{"type": "vm_command_line", "command": ["first"]}, {"type": "vm_command_line", "command": ["second"]}]
    task = _task({"func": ["exact_match"] * 2, "conj": conj, "result": result, "expected": [_rule("a"), _rule("b")]})
    desktop = FakeDesktop(answers={"first": RunResult(0, answers[0], ""), "second": RunResult(0, answers[1], "")})
    assert _score(task, desktop) == wanted


def test_evaluate_infeasible_only_saying_so_counts() -> None:
    task = _task({"func": "infeasible"})
    assert _score(task, FakeDesktop(), "fail") == 1.0
    assert _score(task, FakeDesktop(), "done") == 0.0
    feasible = _task({"func": "exact_match", "result": _said("x"), "expected": _rule("")})
    assert _score(feasible, FakeDesktop(), "done") == 1.0
    assert _score(feasible, FakeDesktop(), "fail") == 0.0


def test_evaluate_postconfig_runs_before_and_tolerates_closed_windows() -> None:
    steps = [
        {"type": "activate_window", "parameters": {"window_name": "gone"}},
        {"type": "execute", "parameters": {"command": ["python", "-c", "import pyautogui; pyautogui.hotkey('ctrl','s')"]}},
    ]
    desktop = FakeDesktop()
    assert (
        _score(_task({"func": "exact_match", "result": _said("x"), "expected": _rule(""), "postconfig": steps}), desktop) == 1.0
    )
    assert [call[0] for call in desktop.calls] == ["activate_window", "input", "run"]


def test_as_instance_everything_goes_through_the_getter() -> None:
    config = [{"type": "execute", "parameters": {"command": "hello", "stdout": "said.txt"}}]
    evaluator = {
        "func": "file_contains",
        "result": {"type": "cache_file", "path": "said.txt"},
        "expected": {"type": "rule", "rules": {"expected": ["hi"]}},
    }
    instance = _task(evaluator, config=config).as_instance()
    fake = FakeDesktop(answers={"hello": RunResult(0, "hi there", "")})
    assert instance.instruction == "Do it." and instance.prepare is not None and instance.setup == HOME_STEPS
    instance.prepare(fake.answer)
    assert instance.outputs == {"said.txt": "hi there"}
    verdict = instance.evaluate(lambda kind, **args: instance.outputs if kind == "outputs" else fake.answer(kind, **args))
    assert verdict.success and verdict.reward == 1.0 and "file_contains" in verdict.detail
    with pytest.raises(TaskFailed):
        instance.demonstrate("", None, [Action(name="wait", args={})], fake.answer)  # type: ignore[arg-type]


def test_folder_of_vs_codes_settings_is_there_for_a_set_up_that_writes_them() -> None:
    assert len(home_steps("echo {} > ~/.config/Code/User/settings.json")) == len(HOME_STEPS) + 1


def test_browser_has_settings_for_a_set_up_that_changes_them() -> None:
    for command, num_more in (
        ("cd /home/user/.config/google-chrome/Default && jq . Preferences > temp", 1),
        ("rm -rf /home/user/.config/google-chrome/Default", 0),
        ("echo Preferences", 0),
    ):
        assert len(home_steps(command)) == len(HOME_STEPS) + num_more


# --- getters ---------------------------------------------------------------------------------------------------------


def _get(name: str, desktop: FakeDesktop, folder: Path, **args: Any) -> Any:
    return GETTERS[name].read(Context(desktop, Assets(folder), folder / "work"), args)


PREFERENCES = {
    "enable_do_not_track": True,
    "safebrowsing": {"enhanced": True, "enabled": True},
    "profile": {"name": "Thomas", "default_content_setting_values": {"cookies": 4}},
    "session": {"restore_on_startup": 5},
    "webkit": {"webprefs": {"default_font_size": 20}},
    "default_search_provider_data": {"template_url_data": {"short_name": "Seeker"}},
    "extensions": {"settings": {"abc": {"path": "/home/user/ext", "manifest": {"name": "Ext"}}}},
}


@pytest.mark.parametrize(
    ("name", "wanted", "default"),
    [
        ("enable_do_not_track", "true", "false"),
        ("enable_enhanced_safety_browsing", "true", "false"),
        ("enable_safe_browsing", "true", "true"),
        ("data_delete_automacally", "true", "false"),
        ("new_startup_page", "true", "true"),
        ("profile_name", "Thomas", None),
        (
            "chrome_font_size",
            {"default_font_size": 20},
            {"default_fixed_font_size": 13, "default_font_size": 16, "minimum_font_size": 13},
        ),
        ("default_search_engine", "Seeker", "Google"),
        ("find_unpacked_extension_path", ["/home/user/ext"], []),
        ("find_installed_extension_name", ["Ext"], []),
    ],
)
def test_browser_preferences_set_and_default(name: str, wanted: Any, default: Any, tmp_path: Path) -> None:
    path = f"{PROFILE}/Default/Preferences"
    assert _get(name, FakeDesktop(files={path: json.dumps(PREFERENCES).encode()}), tmp_path) == wanted
    assert _get(name, FakeDesktop(files={path: b"{}"}), tmp_path) == default
    assert _get(name, FakeDesktop(files={path: b"{brok"}), tmp_path) in (None, [])


@pytest.mark.parametrize(
    ("theme", "wanted"),
    [
        ({}, "system"),
        ({"color_scheme": 1}, "light"),
        ({"color_scheme": 2}, "dark"),
        ({"color_scheme": 2, "color_scheme2": 2}, "dark"),
        ({"color_scheme": 2, "color_scheme2": 1}, "light"),
        ({"color_scheme": 2, "color_scheme2": 0}, "system"),
        ({"color_scheme": 1, "color_scheme2": 2}, "dark"),
        (None, None),
    ],
)
def test_browser_appearance_of_its_written_settings_and_its_page_in_front(theme: Any, wanted: Any, tmp_path: Path) -> None:
    preferences = {"browser": {"theme": theme}, "extensions": {"theme": {"system_theme": 0}}}
    files = {f"{PROFILE}/Default/Preferences": json.dumps(preferences).encode()}
    desktop = FakeDesktop(files=files, pages=[Tab("https://a.invalid", "A")])
    assert _get("chrome_appearance_mode_ui", desktop, tmp_path) == wanted
    assert desktop.calls == [("launch", ["pkill", "chrome"])]
    assert _get("active_url_from_accessTree", desktop, tmp_path) == "chrome://settings/appearance"


def test_browser_appearance_of_a_browser_that_does_not_start_is_judged_all_the_same(tmp_path: Path) -> None:
    class Broken(FakeDesktop):
        def launch(self, command: Command) -> None:
            raise TaskFailed("browser: it has ended")

        def open_tabs(self, urls: Sequence[str]) -> None:
            raise TaskFailed("browser: it has ended")

    files = {f"{PROFILE}/Default/Preferences": b'{"browser": {"theme": {"color_scheme": 2}}}'}
    assert _get("chrome_appearance_mode_ui", Broken(files=files), tmp_path) == "dark"
    assert _get("chrome_appearance_mode_ui", Broken(), tmp_path) is None


def test_browser_other_files_of_the_profile(tmp_path: Path) -> None:
    state = {"browser": {"enabled_labs_experiments": ["x@1"]}, "intl": {"app_locale": "ko"}}
    database = tmp_path / "db"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE urls (url, title, last_visit_time)")
        connection.execute("INSERT INTO urls VALUES ('u', 't', 1)")
        connection.execute("CREATE TABLE cookies (creation_utc, host_key, name)")
        connection.execute("INSERT INTO cookies VALUES (1, '.h', 'n')")
    roots = {"bookmark_bar": {"children": []}}
    desktop = FakeDesktop(
        files={
            f"{PROFILE}/Local State": json.dumps(state).encode(),
            f"{PROFILE}/Default/Bookmarks": json.dumps({"roots": roots}).encode(),
            f"{PROFILE}/Default/History": database.read_bytes(),
            f"{PROFILE}/Default/Cookies": database.read_bytes(),
            "/home/user/Desktop/a.desktop": b"Name=A",
        },
        answers={"*.desktop": RunResult(0, "a.desktop\0", "")},
    )
    assert _get("enabled_experiments", desktop, tmp_path) == ["x@1"]
    assert _get("chrome_language", desktop, tmp_path) == "ko"
    assert _get("bookmarks", desktop, tmp_path) == roots
    assert _get("history", desktop, tmp_path) == [("u", "t", 1)]
    assert _get("cookie_data", desktop, tmp_path) == [(1, ".h", "n")]
    assert _get("shortcuts_on_desktop", desktop, tmp_path) == {"a.desktop": "Name=A"}
    assert _get("history", FakeDesktop(files={f"{PROFILE}/Default/History": b"no database at all, really"}), tmp_path) is None


def test_browser_pages(tmp_path: Path) -> None:
    desktop = FakeDesktop(pages=[Tab("https://a.invalid/x-y/z?q=1", "A", "<p>"), Tab("about:blank", "B")])
    assert _get("open_tabs_info", desktop, tmp_path)[1] == {"url": "about:blank", "title": "B"}
    assert _get("active_tab_info", desktop, tmp_path)["content"] == "<p>"
    assert _get("active_url_from_accessTree", desktop, tmp_path) == "https://a.invalid/x-y/z?q=1"
    assert _get("active_tab_url_parse", desktop, tmp_path, parse_keys=["q", "r"], replace={"q": "query"}) == {
        "query": "1",
        "r": "",
    }
    listed = FakeDesktop(pages=[Tab("https://a.invalid/?q=1,2&r=3", "A", "<p>")])
    assert _get("active_tab_url_parse", listed, tmp_path, parse_keys=["q"], split_list=True) == {"q": ["1", "2"]}
    assert _get("url_dashPart", desktop, tmp_path, partIndex=-1, needDeleteId=True) == "z"
    assert _get("url_dashPart", desktop, tmp_path, partIndex=3, returnType="json", key="k") == {"k": "x-y"}
    assert _get("page_info", desktop, tmp_path, url="about:blank")["title"] == "B"
    for name in ("active_tab_info", "active_url_from_accessTree"):
        assert _get(name, FakeDesktop(), tmp_path) is None


def test_files_several_at_once_and_only_some_given(tmp_path: Path) -> None:
    desktop = FakeDesktop(files={"/home/user/a": b"1", "/home/user/b": b"2"})
    both = {"multi": True, "path": ["/home/user/a", "/home/user/b"], "dest": ["x", "y"]}
    assert Path(_get("vm_file", desktop, tmp_path, **both)).read_bytes() == b"1"
    assert [Path(place).name for place in _get("vm_file", desktop, tmp_path, **both, gives=[1, 0])] == ["y", "x"]
    assert _get("vm_file", desktop, tmp_path, multi=True, path=["/home/user/a", "/none"], dest=["x", "y"], gives=[0, 1]) is None
    assert Path(_get("vm_file", desktop, tmp_path, path="/home/user/a", dest="../../evil")).parent == tmp_path / "work/product"


def test_application_settings_come_from_their_places(tmp_path: Path) -> None:
    files = {"/home/user/.config/vlc/vlcrc": b"v", "/home/user/.config/GIMP/2.10/gimprc": b"g"}
    desktop = FakeDesktop(files=files)
    assert Path(_get("vlc_config", desktop, tmp_path)).read_bytes() == b"v"
    assert Path(_get("gimp_config_file", desktop, tmp_path, file_name="gimprc")).read_bytes() == b"g"
    desktop.files["/home/user/x.json"] = b"{}"
    assert (
        Path(_get("vscode_config", desktop, tmp_path, vscode_extension_command="Export", path="/home/user/x.json")).read_text()
        == "{}"
    )
    commands = [shlex.join(args) for name, args in desktop.calls if name == "run"]
    assert commands[0] == "rm -f -- /home/user/x.json" and "until" in commands[1]


@pytest.mark.parametrize(
    ("players", "reward"),
    [
        ([], 0.0),
        ([Playing("playing", "file:///home/user/a%20b.mp3")], 1.0),
        ([Playing("stopped", ""), Playing("playing", "file:///home/user/a%20b.mp3")], 1.0),
        ([Playing("paused", "file:///home/user/a%20b.mp3")], 0.0),
        ([Playing("playing", "file:///home/user/other.mp3")], 0.0),
        ([Playing("playing", "")], 0.0),
        ([Playing("playing", "http://[")], 0.0),
        ([Playing("playing", "http://a\u2100b/a%20b.mp4")], 0.0),
        ([Playing("playing", "file:///home/user/\x01\ud800")], 0.0),
    ],
)
def test_player_is_judged_by_what_it_plays(players: list[Playing], reward: float) -> None:
    rules = {"type": "rule", "rules": {"type": "file_name", "file_name": "a b.mp3"}}
    task = _task({"func": "is_vlc_playing", "result": {"type": "vlc_playing_info"}, "expected": rules})
    # Whoever listens at the port of its web interface.
    desktop = FakeDesktop(players=players, answers={"8080": RunResult(0, "<root><state>playing</state></root>", "")})
    assert _score(task, desktop) == reward


def test_rule_that_means_nothing_is_the_task_s_fault_whatever_the_agent_left() -> None:
    rules = {"type": "rule", "rules": {"type": "colour"}}
    task = _task({"func": "is_vlc_playing", "result": {"type": "vlc_playing_info"}, "expected": rules})
    with pytest.raises(TaskFailed, match="colour"):
        _score(task, FakeDesktop(players=[Playing("playing", "file:///a.mp3")]))


def _with_script(folder: Path, **changes: Any) -> OsworldTask:
    (folder / "eval.sh").write_bytes(b"echo yes")
    upload = {"type": "upload_file", "parameters": {"files": [{"local_path": "eval.sh", "path": "/home/user/eval.sh"}]}}
    expected = {"type": "rule", "rules": {"include": ["yes"], "exclude": []}}
    result = {"type": "vm_command_line", "command": "bash eval.sh", "shell": True}
    evaluator = {"func": "check_include_exclude", "result": result, "expected": expected, "postconfig": [upload], **changes}
    return _task(evaluator, folder)


def test_script_of_the_judge_is_brought_once_the_agent_s_programs_have_ended(tmp_path: Path) -> None:
    desktop = FakeDesktop(answers={"eval.sh": RunResult(0, "yes", "")})
    assert _score(_with_script(tmp_path), desktop) == 1.0
    assert [call[0] for call in desktop.calls] == ["bring_own_files", "put_file", "run"]
    desktop.calls.clear()
    assert _score(_with_script(tmp_path, postconfig=[]), desktop) == 1.0
    assert [call[0] for call in desktop.calls] == ["run"]


@pytest.mark.parametrize(
    ("path", "command", "instruction", "is_judges"),
    [
        ("eval.sh", "bash eval.sh", "Do it.", True),
        ("/home/user/Desktop/check_it.py", "python /home/user/Desktop/check_it.py", "Do it.", True),
        ("/home/user/eval.sh", ["bash", "-c", "./eval.sh | wc"], "Do it.", True),
        ("eval.sh", "bash eval.sh", "Correct the script eval.sh.", False),
        ("eval.sh", "cat a.txt", "Do it.", False),
        ("/home/user/tool.py", "python /home/user/tool.py", "Correct the program on my desktop.", False),
        ("/home/user/evaluation.xlsx", "cat /home/user/evaluation.xlsx", "Fill the table.", False),
    ],
)
def test_script_that_the_setup_left_for_the_judge_is_brought_anew(
    tmp_path: Path, path: str, command: Any, instruction: str, is_judges: bool
) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / Path(path).name).write_bytes(b"the judge's")
    url = f"https://h.invalid/x/{Path(path).name}"
    result = {"type": "vm_command_line", "command": command, "shell": isinstance(command, str)}
    expected = {"type": "rule", "rules": {"include": ["yes"], "exclude": []}}
    download = {"type": "download", "parameters": {"files": [{"url": url, "path": path}]}}
    content = {
        "id": "t",
        "instruction": instruction,
        "config": [download],
        "evaluator": {"func": "check_include_exclude", "result": result, "expected": expected},
    }
    desktop = FakeDesktop(files={path: b"the agent's"}, answers={"": RunResult(0, "yes", "")})
    assert _score(OsworldTask(TaskFile.model_validate(content), Assets(tmp_path)), desktop) == 1.0
    assert desktop.files[path] == (b"the judge's" if is_judges else b"the agent's")
    assert (("bring_own_files", None) in desktop.calls) is is_judges


def test_script_of_the_judge_that_cannot_be_brought_is_never_the_agent_s(tmp_path: Path) -> None:
    class Full(FakeDesktop):
        def put_file(self, path: str, data: bytes) -> None:
            raise TaskFailed("no space left")

    desktop = Full(answers={"eval.sh": RunResult(0, "yes", "")})
    assert _score(_with_script(tmp_path), desktop) == 0.0
    task = _with_script(tmp_path)
    (tmp_path / "eval.sh").unlink()
    with pytest.raises(TaskFailed, match="lacks eval"):
        _score(task, FakeDesktop(answers={"eval.sh": RunResult(0, "yes", "")}))


def test_values_of_the_screen_and_folders(tmp_path: Path) -> None:
    listing = "d\tsub\0f\tsub/a.jpg\0f\tb.jpg\0"
    desktop = FakeDesktop(
        titles=["x vlc"],
        xml="<desktop-frame><terminal name='t'>$ ls \n</terminal></desktop-frame>",
        answers={
            "find": RunResult(0, listing, ""),
            "xdg-mime": RunResult(0, "vlc.desktop\n", ""),
            "bad": RunResult(1, "", "oops"),
        },
    )
    assert _get("vm_terminal_output", desktop, tmp_path) == "$ ls"
    assert _get("vm_terminal_output", FakeDesktop(), tmp_path) is None
    assert _get("accessibility_tree", desktop, tmp_path) == desktop.xml
    size = _get("vm_screen_size", desktop, tmp_path)
    assert _get("vm_window_size", desktop, tmp_path, app_class_name="vlc")["height"] < size["height"]  # it is only maximised
    desktop.is_fullscreen = True
    assert _get("vm_window_size", desktop, tmp_path, app_class_name="vlc") == size
    assert _get("vm_window_size", desktop, tmp_path, app_class_name="gimp") is None
    assert _get("default_video_player", desktop, tmp_path) == "vlc.desktop\n"
    assert _get("vm_command_error", desktop, tmp_path, command=["bad"]) == "oops"
    tree = _get("list_directory", desktop, tmp_path, path="/home/user/pictures")
    assert tree["name"] == "pictures"
    assert [child["name"] for child in tree["children"]] == ["b.jpg", "sub"]
    assert tree["children"][1]["children"] == [{"type": "file", "name": "a.jpg"}]
    # A guest cuts what a command says, at any letter.
    for cut in range(len(listing)):
        assert _get("list_directory", FakeDesktop(answers={"find": RunResult(0, listing[:cut], "")}), tmp_path, path="/home")


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("tomorrow", (2024, 2, 15)),
        ("this month", (2024, 2, 14)),
        ("5th next month", (2024, 3, 5)),
        ("next Wednesday", (2024, 2, 21)),
        ("next Monday split", (2024, 2, 19)),
        ("this Saturday", (2024, 2, 17)),
        ("next week Friday", (2024, 2, 23)),
        ("first monday next month", (2024, 3, 4)),
        ("first monday eleven months later", None),
        ("first monday eight months later", (2024, 10, 7)),
        ("10th 11 months later", (2025, 1, 10)),
        ("30th this month", None),
        ("some day", None),
    ],
)
def test_parse_date_relative_to_a_wednesday(said: str, wanted: tuple[int, int, int] | None) -> None:
    today = datetime.date(2024, 2, 14)
    if wanted is not None:
        assert parse_date(said, today) == datetime.date(*wanted)
        return
    with pytest.raises(TaskFailed):
        parse_date(said, today)


@pytest.mark.parametrize("said", ["tomorrow", "5th next month"])
def test_rule_relative_time_marks_are_filled(said: str, tmp_path: Path) -> None:
    rules = {"relativeTime": {"from": said}, "expected": {"date": "{DoW}, {Month} {DayD} {Year}", "list": ["{Month0D}"]}}
    filled = _get("rule_relativeTime", FakeDesktop(), tmp_path, rules=rules)
    assert "{" not in json.dumps(filled["expected"]["date"]) and len(filled["expected"]["list"][0]) == 2
    with pytest.raises(TaskFailed, match="unknown date"):
        _get("rule_relativeTime", FakeDesktop(), tmp_path, rules={"relativeTime": {"from": "some day"}})


def test_documents_parts_are_taken_out(tmp_path: Path) -> None:
    import pptx
    from PIL import Image

    data = io.BytesIO()
    Image.new("RGB", (4, 4), "red").save(data, "PNG")
    deck, saved = pptx.Presentation(), io.BytesIO()
    slide = deck.slides.add_slide(deck.slide_layouts[6])
    image_part, relation = slide.part.get_or_add_image_part(io.BytesIO(data.getvalue()))
    from lxml import etree

    a, p, r = (
        f"http://schemas.openxmlformats.org/{name}"
        for name in ("drawingml/2006/main", "presentationml/2006/main", "officeDocument/2006/relationships")
    )
    picture = f'<a:blipFill><a:blip r:embed="{relation}"/></a:blipFill>'
    text = f'<p:bg xmlns:p="{p}" xmlns:a="{a}" xmlns:r="{r}"><p:bgPr>{picture}</p:bgPr></p:bg>'
    slide._element.find(f"{{{p}}}cSld").insert(0, etree.fromstring(text))
    deck.save(saved)
    desktop = FakeDesktop(files={"/home/user/a.pptx": saved.getvalue(), "/home/user/a.xlsx": _book("last")})
    place = _get("background_image_in_slide", desktop, tmp_path, ppt_file_path="/home/user/a.pptx", slide_index=0, dest="b.png")
    assert Path(place).read_bytes() == image_part.blob
    assert _get("audio_in_slide", desktop, tmp_path, ppt_file_path="/home/user/a.pptx", slide_index=0, dest="b.mp3") is None
    assert _get("background_image_in_slide", desktop, tmp_path, ppt_file_path="/home/user/a.pptx", slide_index=5) is None
    row = _get("content_from_vm_file", desktop, tmp_path, path="/home/user/a.xlsx", file_type="xlsx", file_content="last_row")
    assert row == ["last"]
