"""Tasks about settings, on a real desktop: untouched pays nothing, solved where applications keep them pays all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from computerrl.env_server.tasks.osworld import load_task
from computerrl.env_server.tasks.osworld.abilities import ABSENT_PROGRAMS, TOOLS
from computerrl.env_server.tasks.osworld.desktop import CalledDesktop
from tests.support.desktops import Player, SharedDesktops
from tests.support.tasks.osworld import Case, judged, require_right_verdicts, rule, says_whether, shell, typed

_MAIL = "/home/user/.thunderbird/abc.default-release"
_OFFICE = "/home/user/.config/libreoffice/4/user/registrymodifications.xcu"
_PLAYERS = "for k in mp4 x-matroska webm x-msvideo quicktime mpeg; do xdg-mime default vlc.desktop video/$k; done"
_CLOSE_MAIL = {"type": "close_window", "parameters": {"window_name": "Mail.thunderbird", "strict": True, "by_class": True}}
_VLC_AGAIN = (
    {"type": "launch", "parameters": {"command": ["pkill", "vlc"]}},
    {"type": "launch", "parameters": {"command": "vlc --no-audio", "shell": True}},
)
_VIDEO = (
    "header, frame = b'YUV4MPEG2 W64 H48 F10:1 Ip A1:1 C420jpeg\\n', b'FRAME\\n' + bytes([80]) * 3072 + bytes([128]) * 1536; "
    "open('/home/user/v.y4m', 'wb').write(header + frame * 600)"
)
_SOUND = (
    "import wave; file = wave.open('/home/user/a b.wav', 'wb'); file.setparams((1, 2, 8000, 0, 'NONE', '')); "
    "file.writeframes(bytes(960000))"
)
_EXPORT = """
from pyautogui import *; from time import sleep
hotkey('shift', 'ctrl', 'e'); write('small'); press('enter'); sleep(3); press('enter'); sleep(2)
"""


def launch(*command: str) -> dict[str, Any]:
    return {"type": "launch", "parameters": {"command": list(command)}}


def python(code: str) -> dict[str, Any]:
    return {"type": "execute", "parameters": {"command": ["python", "-c", code]}}


def keys(*names: str) -> dict[str, Any]:
    code = f"import pyautogui; import time; time.sleep(1); pyautogui.hotkey({json.dumps(list(names))}); time.sleep(1)"
    return {"type": "execute", "parameters": {"command": ["python3", "-c", code]}}


CASES = {
    "setting of VLC, which is started again": Case(
        {
            "postconfig": _VLC_AGAIN,
            "func": "check_qt_max_volume",
            "result": {"type": "vlc_config", "dest": "vlcrc"},
            "expected": rule(expected_qt_max_volume=180),
        },
        ('vlc.set_settings("qt-max-volume", 180)',),
        (launch("vlc"),),
    ),
    "full screen of VLC, whose window fills the screen anyway": Case(
        {
            "func": "is_vlc_fullscreen",
            "result": {"type": "vm_screen_size"},
            "expected": {"type": "vm_window_size", "app_class_name": "vlc"},
        },
        ("vlc.toggle_fullscreen(True)",),
        (python(_VIDEO), launch("vlc", "/home/user/v.y4m")),
    ),
    "file that VLC plays": Case(
        {
            "func": "is_vlc_playing",
            "result": {"type": "vlc_playing_info", "dest": "status.xml"},
            "expected": rule(type="file_name", file_name="a b.wav"),
        },
        ('files.open("a b.wav")',),
        (python(_SOUND), launch("vlc")),
    ),
    "picture that a task's own keys export, which name it in a dialog that they have just opened": Case(
        {
            "postconfig": [python(_EXPORT)],
            "func": "check_image_size",
            "expected": rule(height=15),
            "result": {"type": "vm_file", "path": "/home/user/small.png", "dest": "small.png"},
        },
        ("gimp.scale(20, 15)",),
        (
            python("open('/home/user/a.ppm', 'wb').write(b'P6 40 30 255 ' + bytes(3600))"),
            launch("gimp", "/home/user/a.ppm"),
        ),
    ),
    "folder of VLC's recordings": Case(
        {
            "func": "is_vlc_recordings_folder",
            "result": {"type": "vlc_config", "dest": "vlcrc"},
            "expected": rule(recording_file_path="/home/user/Videos"),
        },
        ('vlc.set_settings("input-record-path", "Videos")',),
        (launch("vlc"),),
    ),
    "docks of GIMP": Case(
        {
            "postconfig": [keys("ctrl", "q")],
            "func": "check_config_status",
            "result": {"type": "gimp_config_file", "file_name": "sessionrc", "dest": "sessionrc"},
            "expected": rule(key="hide-docks", value="yes"),
        },
        ('key("tab")',),
        (launch("gimp"),),
    ),
    "file that a VLC plays which a terminal has started": Case(
        {
            "func": "is_vlc_playing",
            "result": {"type": "vlc_playing_info", "dest": "status.xml"},
            "expected": rule(type="file_name", file_name="a b.wav"),
        },
        ('apps.open("terminal")', typed("vlc --no-qt-privacy-ask --aout=adummy 'a b.wav' &"), *["wait()"] * 40),
        (python(_SOUND),),
    ),
    "autosave of the office": Case(
        {
            "func": "check_auto_saving_time",
            "expected": rule(minutes=7),
            "result": {"type": "vm_file", "path": _OFFICE, "dest": "r.xcu"},
        },
        ("impress.configure_auto_save(True, 7)",),
        (launch("libreoffice", "--impress"),),
    ),
    "history of a terminal that is closed": Case(
        {
            "postconfig": [{"type": "execute", "parameters": {"command": ["bash", "-c", "killall gnome-terminal-server"]}}],
            "func": "check_include_exclude",
            "expected": rule(include=["yes"], exclude=["no"]),
            "result": says_whether("grep -q 'echo moon' ~/.bash_history"),
        },
        (typed("echo moon"),),
        (shell("export A=b\ngnome-terminal --maximize --working-directory=/home/user/Desktop"),),
    ),
    "settings of the shell, seen in a new terminal": Case(
        {
            "postconfig": [keys("ctrl", "alt", "t"), keys("enter")],
            "func": "check_include_exclude",
            "result": {"type": "vm_terminal_output"},
            "expected": rule(include=["good evening"], exclude=[]),
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
            "func": "check_thunderbird_prefs",
            "result": {"type": "vm_file", "path": f"{_MAIL}/prefs.js", "dest": "prefs.js"},
            "expected": rule(
                expect={
                    "mailnews.headers.showUserAgent": {"method": "eq", "ref": True},
                    "mail.rights.version": {"method": "eq", "ref": 1},
                }
            ),
        },
        (
            'key("ctrl+q")',
            'apps.open("terminal")',
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
    "mode of the browser, which the task has set before the browser ran": Case(
        {
            "func": ["match_in_list", "is_expected_url_pattern_match"],
            "result": [{"type": "chrome_appearance_mode_ui"}, {"type": "active_url_from_accessTree", "goto_prefix": ""}],
            "expected": [rule(expected=["light", "system"]), rule(expected=["^chrome://settings/appearance/?$"])],
        },
        ("chrome.open_appearance_settings()", *["wait()"] * 5, 'click("Mode")', 'key("up")', 'key("enter")'),
        (
            shell(
                "mkdir -p ~/.config/google-chrome/Default && "
                """echo '{"browser": {"theme": {"color_scheme2": 2}}}' > ~/.config/google-chrome/Default/Preferences"""
            ),
            launch("google-chrome"),
            {"type": "activate_window", "parameters": {"window_name": "Google Chrome"}},
        ),
    ),
    "end of VLC after a film, switched on while VLC runs": Case(
        {
            "func": "check_play_and_exit",
            "result": {"type": "vlc_config", "dest": "vlcrc"},
            "expected": rule(expected_play_and_exit=0),
        },
        ('key("ctrl+p")', *["wait()"] * 5, 'key("enter")', *["wait()"] * 5),
        (launch("vlc"), python("open('/home/user/.config/vlc/vlcrc', 'a').write('play-and-exit=1\\n')")),
    ),
    "bookmark of the browser, whose settings have two names": Case(
        {
            "postconfig": [launch("pkill", "chrome")],
            "func": "check_include_exclude",
            "expected": rule(include=["yes"], exclude=["no"]),
            "result": says_whether("grep -q pears.html ~/.config/google-chrome/Default/Bookmarks"),
        },
        ("chrome.bookmark_page()", 'key("enter")'),
        (
            shell("echo '<title>Pears</title>' > /home/user/pears.html"),
            {"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["file:///home/user/pears.html"]}},
        ),
    ),
}


@pytest.fixture(scope="module")
def player(shared_desktops: SharedDesktops) -> Player:
    return Player(shared_desktops.get("full").driver)


@pytest.mark.parametrize("name", CASES)
def test_untouched_pays_nothing_and_solved_pays_all(player: Player, tmp_path: Path, name: str) -> None:
    require_right_verdicts(player, CASES[name], tmp_path, image="full")


def test_program_that_cannot_read_its_file_begins_all_the_same(player: Player) -> None:
    player.start()
    desktop = CalledDesktop(player.desktop.get)
    desktop.put_file("/home/user/a.raw", bytes(range(256)))
    desktop.launch(["gimp", "/home/user/a.raw"])
    assert player.do("wait()").app == "gimp"


def test_programs_for_which_tasks_are_refused_are_not_there(player: Player) -> None:
    player.start()
    found = CalledDesktop(player.desktop.get).run(f"command -v python {' '.join(sorted(ABSENT_PROGRAMS | TOOLS))}")
    assert found.stdout == ""


_LIES = """
import http.server, threading
class Lies(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<root><state>playing</state><information><category name='meta'>"
                         b"<info name='filename'>a b.wav</info></category></information></root>")
    def log_message(self, *args):
        pass
http.server.HTTPServer(("127.0.0.1", 8080), Lies).serve_forever()
"""


_NAMESAKE = """
from gi.repository import Gio, GLib
info = Gio.DBusNodeInfo.new_for_xml('<node><interface name="org.mpris.MediaPlayer2.Player">'
    '<property name="PlaybackStatus" type="s" access="read"/><property name="Metadata" type="a{sv}" access="read"/>'
    '</interface></node>')
facts = {"PlaybackStatus": GLib.Variant("s", "Playing"),
         "Metadata": GLib.Variant("a{sv}", {"xesam:url": GLib.Variant("s", "file:///home/user/a%20b.wav")})}
bus = Gio.bus_get_sync(Gio.BusType.SESSION)
bus.register_object("/org/mpris/MediaPlayer2", info.interfaces[0], None, lambda *args: facts[args[4]], None)
Gio.bus_own_name_on_connection(bus, "org.mpris.MediaPlayer2.vlc", Gio.BusNameOwnerFlags.NONE, None, None)
GLib.MainLoop().run()
"""


def test_program_with_the_player_s_name_on_the_bus_says_nothing_to_a_judge(player: Player, tmp_path: Path) -> None:
    case = CASES["file that VLC plays"]
    task = {"id": "song", "instruction": "Play it.", "config": case.config[:1], "evaluator": case.evaluator}
    (tmp_path / "song.json").write_text(json.dumps(task))
    instance = load_task(tmp_path / "song.json", None).as_instance()
    player.desktop.reset(instance)
    desktop = CalledDesktop(player.desktop.get)
    desktop.launch(["python3", "-c", _NAMESAKE])
    ask = (
        "dbus-send --session --print-reply --dest=org.mpris.MediaPlayer2.vlc /org/mpris/MediaPlayer2 "
        "org.freedesktop.DBus.Properties.Get string:org.mpris.MediaPlayer2.Player string:PlaybackStatus"
    )
    assert "Playing" in desktop.run(f"for _ in $(seq 50); do {ask} && break; sleep 0.1; done").stdout
    assert judged(player, instance).reward == 0.0


def test_program_at_the_player_s_port_says_nothing_to_a_judge(player: Player, tmp_path: Path) -> None:
    case = CASES["file that VLC plays"]
    task = {"id": "song", "instruction": "Play it.", "config": case.config, "evaluator": case.evaluator}
    (tmp_path / "song.json").write_text(json.dumps(task))
    instance = load_task(tmp_path / "song.json", None).as_instance()
    player.desktop.reset(instance)
    desktop = CalledDesktop(player.desktop.get)
    desktop.run("cp 'a b.wav' other.wav")
    desktop.launch(["python3", "-c", _LIES])
    ask = "python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:8080').read().decode())\""
    assert "a b.wav" in desktop.run(f"for _ in $(seq 50); do {ask} && break; sleep 0.1; done").stdout
    player.do('files.open("other.wav")')
    assert judged(player, instance).reward == 0.0
    player.do('files.open("a b.wav")')
    assert judged(player, instance).reward == 1.0
