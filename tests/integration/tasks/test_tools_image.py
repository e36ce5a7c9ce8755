"""Image `osworld`: the programs that foreign tasks expect, tasks that use them, and bundles as collections publish them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from computerrl.env_server.tasks.bundles import imported
from computerrl.env_server.tasks.bundles.hub import Hub
from computerrl.env_server.tasks.osworld.abilities import ABSENT_PROGRAMS, TOOLS, TOOLS_IMAGE
from computerrl.env_server.tasks.osworld.desktop import CalledDesktop
from tests.support.desktops import Player, SharedDesktops
from tests.support.tasks.bundles import write_bundle, write_hub
from tests.support.tasks.osworld import Case, judged, require_right_verdicts, rule, says_whether, shell, typed

pytestmark = [pytest.mark.release, pytest.mark.timeout(900)]

TERMINAL = 'apps.open("terminal")'
ASK = "echo {CLIENT_PASSWORD} | sudo -S"


@pytest.fixture(scope="module")
def player(shared_desktops: SharedDesktops) -> Player:
    return Player(shared_desktops.get(TOOLS_IMAGE).driver)


def printed(command: str, expected: str) -> dict[str, Any]:
    result = {"type": "vm_command_line", "command": command, "shell": True}
    return {"func": "exact_match", "result": result, "expected": rule(expected=expected)}


def yes(command: str) -> dict[str, Any]:
    return {"func": "exact_match", "result": says_whether(command), "expected": rule(expected="yes\n")}


CASES = {
    "program that the set-up installs": Case(
        yes("jq -e '.a == 2' a.json > /dev/null"),
        ('files.write("a.json", \'{"a": 2}\')',),
        (shell(f"{ASK} apt update -y && {ASK} apt-get install jq -y && echo '{{}}' | jq '. + {{a: 1}}' > a.json"),),
    ),
    "volume, which begins below the full one": Case(
        printed(
            "pulseaudio --start\npactl list sinks | grep '^[[:space:]]Volume:' | head -n 1 | awk '{print $5}' | sed 's/%//g'",
            "100\n",
        ),
        (TERMINAL, typed("pactl set-sink-volume @DEFAULT_SINK@ 100%"), *["wait()"] * 5),
    ),
    "command as root, by an agent in a terminal": Case(
        yes("[ -d made ]"), (TERMINAL, typed("sudo mkdir made"), "wait()", typed("password"), "wait()")
    ),
    "archives that a set-up unpacks": Case(
        yes("[ -f out/in/a ] && [ -f in.tar.xz ] && [ -f out/c.txt ]"),
        ('files.write("out/c.txt", "x")',),
        (shell("mkdir in; echo a > in/a; zip -qr in.zip in && unzip -q in.zip -d out && tar cJf in.tar.xz in"),),
    ),
    "commit that is pushed": Case(
        yes("git -C far log --oneline main | grep -q update"),
        (TERMINAL, typed("cd near; git commit -qam update; git push -q origin main"), "wait()"),
        (
            shell("git config --global user.name a; git config --global user.email a@b; git init -q --bare far"),
            shell("git init -q -b main near; cd near; git remote add origin ../far; echo a > a; git add a; git commit -qm first"),
            shell("echo b > near/a"),
        ),
    ),
    "file in the trash": Case(
        yes("[ -f poster.txt ]"),
        (TERMINAL, typed("mv ~/.local/share/Trash/files/poster.txt ."), "wait()"),
        (shell("echo x > poster.txt; gio trash poster.txt"),),
    ),
    "setting of GNOME": Case(
        printed("gsettings get org.gnome.desktop.screensaver lock-enabled", "true\n"),
        (TERMINAL, typed("gsettings set org.gnome.desktop.screensaver lock-enabled true"), "wait()"),
        (shell("gsettings set org.gnome.desktop.screensaver lock-enabled false"),),
    ),
    "favorites of GNOME's shell": Case(
        {
            "func": "check_gnome_favorite_apps",
            "result": {"type": "vm_command_line", "command": "gsettings get org.gnome.shell favorite-apps", "shell": True},
            "expected": rule(expected=["a.desktop"]),
        },
        (TERMINAL, typed("gsettings set org.gnome.shell favorite-apps \"['a.desktop']\""), "wait()"),
        (shell("gsettings set org.gnome.shell favorite-apps \"['a.desktop', 'vim.desktop']\""),),
    ),
    "wallpaper": Case(
        {"func": "file_contains", "result": {"type": "vm_wallpaper", "dest": "w"}, "expected": rule(expected=["sea"])},
        (
            'files.write("a b.txt", "the sea")',
            TERMINAL,
            typed("gsettings set org.gnome.desktop.background picture-uri 'file:///home/user/a%20b.txt'"),
            "wait()",
        ),
        ({"type": "change_wallpaper", "parameters": {"path": "/home/user/other.txt"}}, shell("echo hills > other.txt")),
    ),
    "time zone": Case(
        {"func": "is_utc_0", "result": {"type": "vm_command_line", "command": "timedatectl status", "shell": True}},
        (TERMINAL, typed("timedatectl set-timezone Etc/UTC"), "wait()"),
    ),
    "text in the clipboard": Case(
        {
            "func": "is_in_vm_clickboard",
            "expected": {"type": "vm_command_line", "command": "xsel --clipboard --output", "shell": True},
            "result": rule(expected="found it"),
        },
        ('apps.open("editor")', 'type("found it")', 'key("ctrl+a")', 'key("ctrl+c")'),
        (shell("xsel -bc"),),
    ),
    "report of a program": Case(
        {
            "func": "file_contains",
            "result": {"type": "vm_file", "path": "/home/user/report.txt", "dest": "report.txt"},
            "expected": rule(expected=["CPU", "%idle"]),
        },
        (TERMINAL, typed("sar 1 1 > report.txt"), *["wait()"] * 30),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_untouched_pays_nothing_and_solved_pays_all(player: Player, tmp_path: Path, name: str) -> None:
    require_right_verdicts(player, CASES[name], tmp_path, image=TOOLS_IMAGE)


def test_programs_are_there_that_tasks_may_use_and_no_others(player: Player) -> None:
    player.start()
    run = CalledDesktop(player.desktop.get).run
    named = sorted((TOOLS - {"sysstat"}) | {"sar", "sudo", "gsettings", "timedatectl"})
    assert run(f"for one in {' '.join(named)}; do command -v $one > /dev/null || echo $one; done").stdout == ""
    assert run(f"command -v python {' '.join(sorted(ABSENT_PROGRAMS))}").stdout == ""


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        ("echo wrong | sudo -S true", 1, "Sorry, try again"),
        ("sudo -n true", 1, "a password is required"),
        ("sudo true", 1, "a terminal is required"),
        ("echo password | sudo -S -u root -E -- id -u", 0, ""),
        ("echo password | sudo -Sp '' A=b sh -c 'echo $A'", 0, "b"),
        ("echo password | sudo -S true; sudo -n echo again", 0, "again"),
        ("echo password | sudo -S -s echo a '&&' echo b", 0, "a\nb"),
        ("echo password | sudo -S no-such-program", 127, "no-such-program"),
        ("echo password | sudo -S apt install -y jq unzip", 0, "jq is already the newest version"),
        ("echo password | sudo -S apt-get -y install nginx", 100, "Unable to locate package nginx"),
        ("apt install nginx", 100, "Unable to locate package nginx"),
        ("mkdir n; cd n; touch b A c; ls; ls | sort -r | tail -n 1", 0, "A\nb\nc\nA\n"),
        ("timedatectl set-timezone Nowhere/City", 1, "Invalid or not installed"),
        ("timedatectl set-timezone Europe/Berlin; timedatectl", 0, "Europe/Berlin (CE"),
        ("timedatectl list-timezones | grep -c Berlin", 0, "1"),
    ],
)
def test_stand_ins_for_a_system_s_programs_answer_as_those_do(player: Player, command: str, code: int, says: str) -> None:
    player.start()
    ended = CalledDesktop(player.desktop.get).run(["bash", "-c", command])
    assert ended.returncode == code and says in ended.stdout + ended.stderr, ended


_WRITES_DOCUMENT = """
import os, shlex, subprocess, time
from docx import Document
PATH = '/home/user/letter.docx'

def launch_gui(command, delay_sec=1.0):
    env = os.environ.copy()
    env['DISPLAY'] = ':0'
    subprocess.Popen(shlex.split(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    time.sleep(delay_sec)

document = Document()
document.add_paragraph('Dear Ann')
document.save(PATH)
launch_gui(f'libreoffice --writer "{PATH}"', delay_sec=0.5)
"""
_READS_DOCUMENT = """
from docx import Document
text = [one.text for one in Document('/home/user/letter.docx').paragraphs]
print('REWARD:', float(any('Bob' in line for line in text)))
"""
_SOLVES_DOCUMENT = """
from docx import Document
document = Document('/home/user/letter.docx')
document.add_paragraph('Dear Bob')
document.save('/home/user/letter.docx')
"""
_WRITES_STATE = """
import os, shlex, subprocess, time, uuid
import requests
BASE_URL = '__CUA_GYM_SHOP_URL__'
sid = str(uuid.uuid4())
with open('/tmp/task_web_sid', 'w') as file:
    file.write(sid)
answer = requests.post(f'{BASE_URL}/post?sid={sid}', json={'action': 'set', 'state': {'offer': 'pears'}}, timeout=30)
assert answer.status_code == 200, answer.text
assert requests.get(f'{BASE_URL}/go?sid={sid}', timeout=10).json()['initial_state'] == {'offer': 'pears'}
subprocess.Popen(shlex.split(f'google-chrome "{BASE_URL}/?sid={sid}"'), env={**os.environ, 'DISPLAY': ':0'})
time.sleep(1)
"""
_READS_STATE = """
import json, urllib.request
sid = open('/tmp/task_web_sid').read().strip()
with urllib.request.urlopen(f'__CUA_GYM_SHOP_URL__/go?sid={sid}', timeout=30) as answer:
    found = json.load(answer)
print('REWARD:', float(found['state_diff'] == {'bought': 'pears'}))
"""
_SOLVES_STATE = """
import requests
sid = open('/tmp/task_web_sid').read().strip()
state = {'offer': 'pears', 'bought': 'pears'}
requests.post(f'__CUA_GYM_SHOP_URL__/post?sid={sid}', json={'action': 'set_current', 'state': state}, timeout=30)
"""


def begun(player: Player, out: Path, name: str) -> tuple[Any, CalledDesktop]:
    """The imported bundle ``name``, on the screen."""
    instance = imported.families(out)[f"cua-gym-{name}"].make(0)
    player.desktop.reset(instance)
    return instance, CalledDesktop(player.desktop.get)


def test_bundle_whose_set_up_starts_an_application_begins_with_its_document(player: Player, tmp_path: Path) -> None:
    write_bundle(tmp_path / "in", "letter", setup=_WRITES_DOCUMENT, reward=_READS_DOCUMENT, solution=_SOLVES_DOCUMENT)
    assert not imported.import_bundles(tmp_path / "in", tmp_path / "out", image=TOOLS_IMAGE).tasks[0].broken
    instance, _ = begun(player, tmp_path / "out", "letter")
    assert player.do("wait()").app == "writer"
    assert judged(player, instance).reward == 0.0
    player.do('key("ctrl+end")')
    player.do('type("and Bob")')
    player.do('key("ctrl+s")')
    player.do('key("enter")')  # keeps the format
    assert judged(player, instance).reward == 1.0


def test_bundle_with_a_web_application_of_a_hub_is_played_with_its_own_interface(player: Player, tmp_path: Path) -> None:
    write_bundle(
        tmp_path / "in",
        "pears",
        setup=_WRITES_STATE,
        reward=_READS_STATE,
        solution=_SOLVES_STATE,
        app_type="mock_websites",
    )
    hub = write_hub(tmp_path / "hub")
    index = imported.import_bundles(tmp_path / "in", tmp_path / "out", image=TOOLS_IMAGE, web_apps=hub)
    assert not index.tasks[0].broken and Hub(tmp_path / "out/web_apps").lacks("shop") == ""
    instance, desktop = begun(player, tmp_path / "out", "pears")
    shown = player.wait_for(lambda seen: any(one.text == "pears for you" for one in seen.elements))
    assert shown.app == "browser"
    assert judged(player, instance).reward == 0.0
    player.do('click("Buy it")')
    player.wait_for(lambda _: [tab.title for tab in desktop.tabs()] == ["Bought"])
    assert judged(player, instance).reward == 1.0
    instance, desktop = begun(player, tmp_path / "out", "pears")
    desktop.run("pkill node")
    verdict = judged(player, instance)
    assert verdict.reward == 0.0 and "has been ended" in verdict.detail
