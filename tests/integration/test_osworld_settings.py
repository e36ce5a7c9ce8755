"""Tasks about settings, on a real desktop: untouched pays nothing, solved where applications keep them pays all."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from common.messages import Evaluation
from env_server.driver import TaskInstance
from env_server.tasks.osworld import load_task
from tests.desktops import Player, SharedDesktops

_MAIL = "/home/user/.thunderbird/abc.default-release"
_OFFICE = "/home/user/.config/libreoffice/4/user/registrymodifications.xcu"
_PLAYERS = "for k in mp4 x-matroska webm x-msvideo quicktime mpeg; do xdg-mime default vlc.desktop video/$k; done"
_CLOSE_MAIL = {"type": "close_window", "parameters": {"window_name": "Mail.thunderbird", "strict": True, "by_class": True}}
_VLC_AGAIN = (
    {"type": "launch", "parameters": {"command": ["pkill", "vlc"]}},
    {"type": "launch", "parameters": {"command": "vlc --no-audio", "shell": True}},
)


def rule(**rules: Any) -> dict[str, Any]:
    return {"type": "rule", "rules": rules}


def launch(*command: str) -> dict[str, Any]:
    return {"type": "launch", "parameters": {"command": list(command)}}


def shell(command: str) -> dict[str, Any]:
    return {"type": "execute", "parameters": {"command": command, "shell": True}}


def says_whether(command: str) -> dict[str, Any]:
    return {"type": "vm_command_line", "command": f"{command} && echo yes || echo no", "shell": True}


def keys(*names: str) -> dict[str, Any]:
    code = f"import pyautogui; import time; time.sleep(1); pyautogui.hotkey({json.dumps(list(names))}); time.sleep(1)"
    return {"type": "execute", "parameters": {"command": ["python3", "-c", code]}}


def typed(text: str) -> str:
    """In a terminal, by an agent."""
    return f"type({text!r}, enter=True)"


@dataclass(frozen=True)
class Case:
    """One kind of task: its file's parts, and what an agent does to solve it."""

    evaluator: Mapping[str, Any]
    solve: tuple[str, ...]
    config: tuple[Mapping[str, Any], ...] = field(default=())


CASES = {
    "setting of VLC, which is started again": Case(
        {
            "postconfig": _VLC_AGAIN, "func": "check_qt_max_volume", "result": {"type": "vlc_config", "dest": "vlcrc"},
            "expected": rule(expected_qt_max_volume=180),
        },
        ('vlc.set_settings("qt-max-volume", 180)',),
        (launch("vlc"),),
    ),
    "folder of VLC's recordings": Case(
        {
            "func": "is_vlc_recordings_folder", "result": {"type": "vlc_config", "dest": "vlcrc"},
            "expected": rule(recording_file_path="/home/user/Videos"),
        },
        ('vlc.set_settings("input-record-path", "Videos")',),
        (launch("vlc"),),
    ),
    "docks of GIMP": Case(
        {
            "postconfig": [keys("ctrl", "q")], "func": "check_config_status",
            "result": {"type": "gimp_config_file", "file_name": "sessionrc", "dest": "sessionrc"},
            "expected": rule(key="hide-docks", value="yes"),
        },
        ('key("tab")',),
        (launch("gimp"),),
    ),
    "autosave of the office": Case(
        {
            "func": "check_auto_saving_time", "expected": rule(minutes=7),
            "result": {"type": "vm_file", "path": _OFFICE, "dest": "r.xcu"},
        },
        ("impress.configure_auto_save(True, 7)",),
        (launch("libreoffice", "--impress"),),
    ),
    "history of a terminal that is closed": Case(
        {
            "postconfig": [{"type": "execute", "parameters": {"command": ["bash", "-c", "killall gnome-terminal-server"]}}],
            "func": "check_include_exclude", "expected": rule(include=["yes"], exclude=["no"]),
            "result": says_whether("grep -q 'echo moon' ~/.bash_history"),
        },
        (typed("echo moon"),),
        (shell("export A=b\ngnome-terminal --maximize --working-directory=/home/user/Desktop"),),
    ),
    "settings of the shell, seen in a new terminal": Case(
        {
            "postconfig": [keys("ctrl", "alt", "t"), keys("enter")], "func": "check_include_exclude",
            "result": {"type": "vm_terminal_output"}, "expected": rule(include=["good evening"], exclude=[]),
        },
        ('key("ctrl+alt+t")', typed("echo echo good evening >> ~/.bashrc")),
    ),
    "default player": Case(
        {"func": "check_include_exclude", "result": {"type": "default_video_player"}, "expected": rule(include=["vlc.desktop"])},
        ('apps.open("terminal")', typed(_PLAYERS)),
    ),
    "profile of the mail program that a task brings": Case(
        {
            "postconfig": [_CLOSE_MAIL, {"type": "sleep", "parameters": {"seconds": 3}}],
            "func": "check_thunderbird_prefs", "result": {"type": "vm_file", "path": f"{_MAIL}/prefs.js", "dest": "prefs.js"},
            "expected": rule(expect={"mailnews.headers.showUserAgent": {"method": "eq", "ref": True},
                                     "mail.rights.version": {"method": "eq", "ref": 1}}),
        },
        (
            'key("ctrl+q")', 'apps.open("terminal")',
            typed(f"""echo 'user_pref("mailnews.headers.showUserAgent", true);' >> {_MAIL}/prefs.js"""),
            'apps.open("thunderbird")',
        ),
        (
            shell(
                f"mkdir -p {_MAIL}; touch {_MAIL}/prefs.js; printf '[Profile0]\\nName=a\\nIsRelative=1\\n"
                "Path=abc.default-release\\nDefault=1\\n' > /home/user/.thunderbird/profiles.ini"
            ),
            launch("/usr/bin/thunderbird"),
        ),
    ),
    "bookmark of the browser, whose settings have two names": Case(
        {
            "postconfig": [launch("pkill", "chrome")],
            "func": "check_include_exclude", "expected": rule(include=["yes"], exclude=["no"]),
            "result": says_whether("grep -q pears.html ~/.config/google-chrome/Default/Bookmarks"),
        },
        ("chrome.bookmark_page()", 'key("enter")'),
        (
            shell("echo '<title>Pears</title>' > /home/user/pears.html"),
            {"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["file:///home/user/pears.html"]}},
        ),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def player(shared_desktops: SharedDesktops) -> Player:
    return Player(shared_desktops.get("full").driver)


@pytest.mark.parametrize("name", CASES)
def test_untouched_pays_nothing_and_solved_pays_all(player: Player, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    task = {
        "id": "settings", "instruction": "Set it.", "related_apps": ["os"], "config": case.config, "evaluator": case.evaluator
    }  # fmt: skip
    (tmp_path / "settings.json").write_text(json.dumps(task))
    for actions in ((), case.solve, ()):
        instance = load_task(tmp_path / "settings.json", None).as_instance()
        player.desktop.reset(instance)
        for action in actions:
            player.do(action)
        verdict = judged(player, instance)
        assert verdict.success is bool(actions), (actions, verdict.detail)


def judged(player: Player, instance: TaskInstance) -> Evaluation:
    def get(kind: str, **args: Any) -> Any:
        if kind == "pause":
            return time.sleep(args["seconds"])
        if kind == "osworld":
            return player.desktop.get(kind, **args)
        return {"final_action": "done", "outputs": instance.outputs}[kind]

    return instance.evaluate(get)  # type: ignore[arg-type]
