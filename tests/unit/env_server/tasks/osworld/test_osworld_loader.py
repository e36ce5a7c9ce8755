"""Task files: what is read, what is refused and why, and the command that says so."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from click.testing import CliRunner

from computerrl.common.errors import ConfigError
from computerrl.env_server.tasks.osworld import Abilities, Assets, load_task, read_task_file, refusals
from computerrl.env_server.tasks.osworld.abilities import TOOLS_IMAGE, abilities_of, programs
from computerrl.env_server.tasks.osworld.check import check_folder
from computerrl.env_server.tasks.osworld.format import STEPS
from computerrl.env_server.tasks.osworld.getters import GETTERS
from computerrl.env_server.tasks.osworld.metrics import METRICS, ON_DESKTOP, REFUSED
from computerrl.env_server.tasks.osworld.network.sites import is_remote
from computerrl.launch.commands.main import cli
from tests.support.osworld_fake import FakeDesktop

HOST = "https://files.invalid/data/sets/main"
PLAIN: dict[str, Any] = {
    "id": "one",
    "instruction": "Do it.",
    "related_apps": ["libreoffice_calc"],
    "config": [{"type": "download", "parameters": {"files": [{"url": f"{HOST}/one/in.xlsx", "path": "/home/user/in.xlsx"}]}}],
    "evaluator": {
        "func": "compare_table",
        "result": {"type": "vm_file", "path": "/home/user/in.xlsx", "dest": "in.xlsx"},
        "expected": {"type": "cloud_file", "path": f"{HOST}/one/gold.xlsx", "dest": "gold.xlsx"},
        "options": {"rules": [{"type": "sheet_name"}]},
    },
}


def _task(**changes: Any) -> dict[str, Any]:
    task = json.loads(json.dumps(PLAIN))
    task["evaluator"].update(changes.pop("evaluator", {}))
    return {**task, **changes}


def _write(folder: Path, task: Any, name: str = "task.json") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(task))
    return folder / name


def _assets(folder: Path) -> Path:
    place = folder / "data/sets/main/one"
    place.mkdir(parents=True)
    for name in ("in.xlsx", "gold.xlsx"):
        openpyxl.Workbook().save(place / name)
    return folder


def _kinds(folder: Path, **changes: Any) -> list[str]:
    task = read_task_file(_write(folder, _task(**changes)))
    return [refusal.kind for refusal in refusals(task, assets=Assets(_assets(folder / "assets")))]


def _step(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"config": [{"type": kind, "parameters": parameters}]}


def _result(**source: Any) -> dict[str, Any]:
    rule = {"type": "rule", "rules": {"expected": "x"}}
    return {"evaluator": {"func": "exact_match", "result": source, "expected": rule, "options": {}}}


# --- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"instruction": None}, "instruction"),
        ({"evaluator": {"func": ["a", "b"], "result": [{"type": "rule"}]}}, "evaluator"),
        ({"evaluator": {"conj": "xor"}}, "evaluator.conj"),
        ({"config": [{"type": "sleep", "parameters": {"seconds": -1}}]}, "config.0.parameters"),
        ({"config": [{"type": "download", "parameters": {"files": [{"url": "x"}]}}]}, "config.0.parameters"),
        ({"evaluator": {"result": {"path": "x"}}}, "evaluator.result"),
    ],
)
def test_read_task_file_broken_field_is_named_with_the_file(changes: dict[str, Any], field: str, tmp_path: Path) -> None:
    path = _write(tmp_path, _task(**changes))
    with pytest.raises(ConfigError) as error:
        read_task_file(path)
    assert any(problem.field.startswith(f"{path}: {field}") and problem.next_step for problem in error.value.problems)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe\x00", b"[]", b"[" * 100_000])
def test_read_task_file_no_task_at_all_is_a_config_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "task.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"task\.json"):
        read_task_file(tmp_path / "task.json")


def test_unknown_fields_of_a_task_and_remarks_do_not_matter(tmp_path: Path) -> None:
    assert _kinds(tmp_path, hint="x", evaluator={"_note": 1}) == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"evaluator": {"weights": [1, 2]}}, "unsupported: evaluator: unknown field weights"),
        ({"config": [{"type": "sleep", "parameters": {"seconds": 1, "unit": "min"}}]}, "config.0 (sleep): unknown field unit"),
        (
            {"evaluator": {"postconfig": [{"type": "open", "parameters": {"path": "/home/user/a", "page": 3}}]}},
            "evaluator.postconfig.0 (open): unknown field page",
        ),
    ],
)
def test_unknown_field_that_may_change_the_verdict_is_refused_by_name(changes: Any, named: str, tmp_path: Path) -> None:
    task = read_task_file(_write(tmp_path, _task(**changes)))
    (found,) = refusals(task, assets=Assets(_assets(tmp_path / "assets")))
    assert named in str(found)


def test_judges_lists_are_matched_one_by_one(tmp_path: Path) -> None:
    rule = {"type": "rule", "rules": {"expected": "1"}}
    evaluator = {
        "func": ["exact_match", "is_utc_0"],
        "result": [rule, rule],
        "expected": [rule, {}],
        "options": [{}, None],
        "conj": "or",
    }
    judges = read_task_file(_write(tmp_path, _task(evaluator=evaluator))).evaluator.judges()
    assert [(judge.func, judge.expected is None, judge.options) for judge in judges] == [
        ("exact_match", False, {}),
        ("is_utc_0", True, {}),
    ]


# --- refusing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"proxy": True}, "network"),
        ({"fixed_ip": True}, "network"),
        (_step("execute", command=["unzip", "-q", "a.zip"]), "app"),
        (_step("execute", command="cd a && git init", shell=True), "app"),
        (_step("command", command=["tar", "-xJvf", "a.tar.xz"]), "app"),
        ({"evaluator": {"postconfig": _step("execute", command=["bash", "-c", "cd a && zip -qr b.zip *"])["config"]}}, "app"),
        ({"related_apps": ["vs_code"]}, "app"),
        (_step("chrome_open_tabs", urls_to_open=["https://site.invalid"]), "network"),
        (_step("login", settings_file="x"), "account"),
        (_step("googledrive"), "account"),
        (_step("change_wallpaper", path="x"), "gnome"),
        (_step("tidy_desktop"), "unsupported"),
        (_step("no_such_step"), "unsupported"),
        (_step("execute", command="echo x | sudo -S ls", shell=True), "root"),
        (_step("execute", command=["gsettings", "set", "a"]), "gnome"),
        (_step("launch", command="pactl list", shell=True), "sound"),
        (_step("command", command="timedatectl"), "session"),
        (_step("execute", command="cd x && wget y", shell=True), "network"),
        (_step("execute", command=["pip", "install", "x"]), "network"),
        (_step("execute", command=["pip", "install", "/home/user/x.whl"]), "unsupported"),
        (_step("launch", command=["code", "-g", "x"]), "app"),
        (_step("execute", command="FOO=1 code x; ls", shell=True), "app"),
        (_step("execute", command=["bash", "-c", "cd x && code y"]), "app"),
        (_step("execute", command=["python", "-c", "import pyautogui; pyautogui.locateOnScreen('x')"]), "unsupported"),
        (_step("download", files=[{"url": f"{HOST}/one/none.xlsx", "path": "/home/user/x"}]), "asset"),
        ({"evaluator": {"func": "compare_image_text"}}, "unsupported"),
        ({"evaluator": {"func": "no_such_metric"}}, "unsupported"),
        (_result(type="no_such_getter"), "unsupported"),
        (_result(type="googledrive_file"), "account"),
        (_result(type="active_tab_html_parse"), "network"),
        (_result(type="vm_wallpaper"), "gnome"),
        (_result(type="vm_command_line", command="which player", shell="true"), "network"),
        (_result(type="vm_file"), "broken"),
        (_result(type="rule_relativeTime", rules={"relativeTime": {"from": "some day"}}), "unsupported"),
        (_result(type="vm_command_line", command="gsettings get x", shell=True), "gnome"),
        ({"evaluator": {"expected": {"type": "cloud_file", "path": f"{HOST}/one/none.xlsx"}}}, "asset"),
        ({"evaluator": {"postconfig": [{"type": "proxy", "parameters": {}}]}}, "network"),
    ],
)
def test_refusals_each_reason_is_found_by_itself(changes: dict[str, Any], kind: str, tmp_path: Path) -> None:
    assert _kinds(tmp_path, **changes) == [kind]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"evaluator": {"func": "infeasible", "result": None, "expected": None}},
        {"related_apps": ["libreoffice calc", "os"]},
        _step("chrome_open_tabs", urls_to_open=["chrome://settings", "file:///home/user/x.html", "http://localhost:8000/"]),
        _step("execute", command=["python", "-c", "import pyautogui; import time; pyautogui.hotkey('ctrl', 's'); time.sleep(1)"]),
        _step("execute", command="curl -s http://localhost:8080/ && ls", shell=True),
        _result(type="vm_command_line", command="ls | wc -l", shell=True),
    ],
)
def test_refusals_what_works_is_not_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    assert _kinds(tmp_path, **changes) == []


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        (_step("execute", command="echo {CLIENT_PASSWORD} | sudo -S apt install -y jq unzip && unzip a.zip", shell=True), []),
        (_step("execute", command="echo {CLIENT_PASSWORD} | sudo -S apt-get install nginx", shell=True), ["network"]),
        (_step("execute", command="sudo useradd x", shell=True), ["root"]),
        (_step("execute", command=["gsettings", "set", "a"]), []),
        (_step("execute", command="dconf write /a 1", shell=True), ["gnome"]),
        (_step("command", command="timedatectl"), []),
        (_step("command", command="systemctl status"), ["session"]),
        (_step("launch", command="pulseaudio --start; pactl list", shell=True), []),
        (_step("execute", command=["amixer", "set", "Master", "100%"]), ["sound"]),
        (_step("execute", command=["git", "init"]), []),
        (_step("execute", command=["vim", "x"]), ["app"]),
        (_step("change_wallpaper", path="x"), []),
        (_result(type="vm_wallpaper"), []),
        ({"instruction": "Use sysstat."}, []),
        ({"related_apps": ["vscode"]}, []),
        (_step("launch", command=["code", "/home/user/project"]), []),
        (_result(type="vscode_config", vscode_extension_command="Tell", path="/home/user/x.txt"), []),
        ({"instruction": "Use docker."}, ["app"]),
    ],
)
def test_refusals_image_with_tools_lacks_less(changes: dict[str, Any], kinds: list[str], tmp_path: Path) -> None:
    task = read_task_file(_write(tmp_path, _task(**changes)))
    found = refusals(task, assets=Assets(_assets(tmp_path / "assets")), abilities=abilities_of(TOOLS_IMAGE))
    assert sorted({one.kind for one in found}) == kinds, found


def test_refusals_applications_are_what_the_caller_says(tmp_path: Path) -> None:
    task = read_task_file(_write(tmp_path, _task(related_apps=["vs_code"])))
    assets = Assets(_assets(tmp_path / "assets"))
    assert not refusals(task, assets=assets, abilities=Abilities(frozenset({"vs_code"})))


def test_load_task_every_reason_at_once(tmp_path: Path) -> None:
    path = _write(tmp_path, _task(proxy=True, related_apps=["vs_code"]))
    with pytest.raises(ConfigError) as error:
        load_task(path, None)
    text = str(error.value)
    assert len(error.value.problems) == 4
    assert "proxy" in text and "vs_code" in text and "data/sets/main/one/in.xlsx" in text and "gold.xlsx" in text


def test_format_lists_every_published_name() -> None:
    """The numbers of the published format: a name that disappears here would silently refuse tasks."""
    assert len(STEPS) == 20
    assert len(set(METRICS) | ON_DESKTOP | set(REFUSED) | {"infeasible"}) >= 113
    assert {"compare_spreadsheet", "simple_docx_compare", "simple_pptx_compare"} <= set(METRICS)
    assert len(GETTERS) >= 43


@pytest.mark.parametrize(
    ("url", "remote"),
    [
        ("https://a.invalid/x", True),
        ("a.invalid", True),
        ("chrome://x", False),
        ("file:///x", False),
        ("http://localhost:1/", False),
    ],
)
def test_is_remote_only_what_lies_outside(url: str, remote: bool) -> None:
    assert is_remote(url) is remote


def test_programs_first_words_of_every_part() -> None:
    assert programs("A=1 vlc x | grep y; (cd z && /usr/bin/code .)") == ["vlc", "grep", "cd", "code"]


# --- assets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["data/sets/my file.txt", "files.invalid/data/sets/my file.txt", "sets/my file.txt"])
def test_assets_every_documented_place_is_found(place: str, tmp_path: Path) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    assert Assets(tmp_path).find("https://files.invalid/data/sets/my%20file.txt?download=true") == path


def test_assets_file_whose_address_names_none_lies_in_a_copy_of_osworld_s_cache(tmp_path: Path) -> None:
    address = "https://files.invalid/"
    names = ["gold #1.xlsx", "second.xlsx"]
    gold = {"type": "cloud_file", "multi": True, "path": [address] * 2, "dest": names}
    task = _task(evaluator={"expected": gold})
    task["config"][0]["parameters"]["files"][0]["url"] = address
    path = _write(tmp_path / "tasks", task)
    with pytest.raises(ConfigError, match="the asset folder lacks one"):
        load_task(path, _assets(tmp_path / "assets"))
    kept = f"{uuid.uuid5(uuid.NAMESPACE_URL, address)}_in.xlsx"
    for name in (kept, *names):
        place = tmp_path / "assets/one" / name
        place.parent.mkdir(exist_ok=True)
        place.write_text(name)
    desktop = FakeDesktop()
    load_task(path, tmp_path / "assets").set_up(desktop)
    assert desktop.files["/home/user/in.xlsx"] == kept.encode()


@pytest.mark.parametrize(
    "url", ["https://files.invalid/../../etc/passwd", "https://files.invalid/%2e%2e/x", "https://files.invalid/", ""]
)
def test_assets_nothing_outside_the_folder_is_found(url: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    (tmp_path / "in").mkdir()
    assert Assets(tmp_path / "in").find(url) is None
    assert Assets(tmp_path / "in").missing(url)


# --- the command -----------------------------------------------------------------------------------------------------


def test_tasks_check_prints_each_task_and_counts(tmp_path: Path) -> None:
    _write(tmp_path / "tasks/a", PLAIN, "1.json")
    _write(tmp_path / "tasks/b", _task(proxy=True), "2.json")
    (tmp_path / "tasks/b/3.json").write_text("{")
    assets = _assets(tmp_path / "assets")
    arguments = ["tasks", "check", str(tmp_path / "tasks"), "--assets", str(assets), "--json", str(tmp_path / "out/report.json")]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 1
    assert "run      a/1.json" in result.output and "refused  b/2.json" in result.output
    assert "1 of 3 tasks can be run" in result.output
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["reasons"] == {"broken": 1, "network": 1}
    assert [task["runnable"] for task in report["tasks"]] == [True, False, False]


def test_tasks_check_names_tasks_whose_instruction_does_not_fit_the_prompt(tmp_path: Path) -> None:
    _write(tmp_path / "tasks", PLAIN, "short.json")
    _write(tmp_path / "tasks", _task(id="two", instruction="Fill each cell of the sheet. " * 80), "long.json")
    _write(tmp_path / "tasks", _task(id="three", instruction="Fill each cell of the sheet. " * 32), "blind.json")
    assets, out = _assets(tmp_path / "assets"), tmp_path / "report.json"
    arguments = ["tasks", "check", str(tmp_path / "tasks"), "--assets", str(assets), "--json", str(out)]
    result = CliRunner().invoke(cli, arguments)
    lines = result.output.splitlines()
    assert result.exit_code == 0 and "    2  instructions do not fit" in result.output
    assert "is 256: its end is cut; set it to" in lines[lines.index("run      long.json") + 1]
    assert "is 256: nothing of the screen fits" in lines[lines.index("run      blind.json") + 1]
    assert json.loads(out.read_text())["long_instructions"] == ["blind.json", "long.json"]
    (tmp_path / "wide.yaml").write_text("name: wide\nactor: {prompt: {max_prompt_tokens: 2000}}\n")
    result = CliRunner().invoke(cli, [*arguments, "--config", str(tmp_path / "wide.yaml")])
    assert "instruction" not in result.output


def test_tasks_check_all_runnable_exits_with_zero(tmp_path: Path) -> None:
    _write(tmp_path / "tasks", PLAIN)
    result = CliRunner().invoke(cli, ["tasks", "check", str(tmp_path / "tasks"), "--assets", str(_assets(tmp_path / "assets"))])
    assert result.exit_code == 0


def _formula(place: Path) -> None:
    book = openpyxl.Workbook()
    book.active["A1"] = "=1+1"
    book.save(place)


SHEET_DATA = {"options": {"rules": [{"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "EI0"}]}}
NO_SHEET = {"options": {"rules": [{"type": "freeze", "sheet_idx0": 0, "sheet_idx1": "ENOther"}]}}
POSITION = {"func": "compare_spreadsheet", "options": {"answer_position": "A1"}}


@pytest.mark.parametrize(
    ("evaluator", "spoil", "named"),
    [
        (SHEET_DATA, _formula, "cell Sheet!A1 has a formula but no stored value"),
        (POSITION, _formula, "cell Sheet!A1 has a formula but no stored value"),
        ({}, lambda place: place.write_bytes(b"PK"), "gold.xlsx"),
        (NO_SHEET, lambda place: None, "ENOther"),
        ({**POSITION, "options": {"answer_position": "nothing"}}, lambda place: None, "no list of ranges"),
    ],
)
def test_tasks_check_expected_file_that_no_answer_can_equal(evaluator: Any, spoil: Any, named: str, tmp_path: Path) -> None:
    _write(tmp_path / "tasks", _task(evaluator=evaluator))
    assets = _assets(tmp_path / "assets")
    spoil(assets / "data/sets/main/one/gold.xlsx")
    result = CliRunner().invoke(cli, ["tasks", "check", str(tmp_path / "tasks"), "--assets", str(assets)])
    assert result.exit_code == 1
    assert "broken: evaluator.expected" in result.output and named in result.output


@pytest.mark.parametrize(
    ("folder", "assets", "mirror", "field"),
    [("none", "", "", "DIR"), ("", "", "", "DIR"), ("tasks", "none", "", "--assets"), ("tasks", "", "none", "--mirror")],
)
def test_tasks_check_wrong_folder_is_a_config_error(folder: str, assets: str, mirror: str, field: str, tmp_path: Path) -> None:
    _write(tmp_path / "tasks", PLAIN, "1.txt" if not folder else "1.json")
    with pytest.raises(ConfigError) as error:
        check_folder(tmp_path / folder, assets=tmp_path / assets, mirror=tmp_path / mirror)
    assert [problem.field for problem in error.value.problems] == [field]


def test_check_folder_many_files_in_one_go(tmp_path: Path) -> None:
    for number in range(400):
        _write(tmp_path / "tasks", _task(id=str(number)), f"{number}.json")
    started = time.process_time()
    report = check_folder(tmp_path / "tasks", assets=_assets(tmp_path / "assets"))
    print(f"400 files in {time.process_time() - started:.2f} s")
    assert report.num_runnable == 400
