"""Whatever an agent leaves in its home, the judge's own programs, modules and files decide, and no mess makes a verdict fail."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from computerrl.common.config import DesktopConfig
from computerrl.common.messages import Evaluation
from computerrl.env_server.driver import SetupStep
from computerrl.env_server.guest import confinement
from computerrl.env_server.tasks.osworld import Assets, load_task
from computerrl.env_server.tasks.osworld.desktop import CalledDesktop
from computerrl.env_server.tasks.osworld.getters import GETTERS, Context
from computerrl.env_server.tasks.osworld.on_desktop import check_python_file_by_test_suite
from tests.support.desktops import SHARED_SETTINGS, Player, open_desktop

pytestmark = pytest.mark.timeout(300)

_MADE = "test -e /home/user/made && echo yes || echo no"
_CHECK = "import json, os\nprint(json.loads(json.dumps('yes' if os.path.exists('/home/user/made') else 'no')))\n"
_LIES = "print('yes'); import os; os._exit(0)"


def upload(name: str) -> dict[str, Any]:
    place = {"local_path": Path(name).name, "path": f"/home/user/{name}"}
    return {"type": "upload_file", "parameters": {"files": [place]}}


SCRIPT = {"postconfig": [upload("eval.sh")], "command": "bash eval.sh"}
PYTHON = {"postconfig": [upload("Desktop/check.py")], "command": "python /home/user/Desktop/check.py"}
PYTHON_TEXT = {"command": ["python", "-c", _CHECK]}
PYTHON_IN_SHELL = {"command": "python -c 'import json; print(json.dumps(1))' > /dev/null && " + _MADE}
_DOWNLOADS = [{"url": "https://h.invalid/eval.sh", "path": "eval.sh"}]
SCRIPT_OF_THE_SETUP = {"config": [{"type": "download", "parameters": {"files": _DOWNLOADS}}], "command": "./eval.sh"}
SHELL = {"command": f"cat /dev/null; {_MADE}"}

FORGERIES: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "module beside the judge's script": (PYTHON, f'mkdir -p Desktop; echo "{_LIES}" > Desktop/json.py'),
    "module in the home": (PYTHON_TEXT, f'echo "{_LIES}" > json.py; cp json.py os.py'),
    "module in the home, for a shell": (PYTHON_IN_SHELL, f'echo "{_LIES.replace("yes", "no")}" > json.py; touch ran'),
    "module of the user's own": (
        PYTHON_TEXT,
        "d=$(python3 -c 'import site; print(site.getusersitepackages())'); mkdir -p $d; "
        f'for m in usercustomize sitecustomize json; do echo "{_LIES}" > $d/$m.py; done; '
        "echo 'import usercustomize' > $d/a.pth; cp $d/json.py .pythonrc; cp $d/json.py .pythonstartup",
    ),
    "programs in folders of the home": (
        SHELL,
        "for d in bin .local/bin .bin Desktop .; do mkdir -p $d; for p in cat test bash; do "
        "printf '#!/bin/sh\\necho yes\\n' > $d/$p; chmod +x $d/$p; done; done; "
        "for f in .bashrc .profile .bash_profile .bash_login .zshrc; do echo 'PATH=$HOME/bin:$PATH' >> $f; done",
    ),
    "shell's settings": (
        SHELL,
        "for f in .bashrc .profile .bash_profile .bash_login .bash_env .inputrc; do "
        "echo 'test() { echo yes; exit; }; alias cat=\"echo yes\"; cat() { echo yes; exit; }' > $f; done",
    ),
    "variables of a session": (
        SHELL,
        "mkdir -p .config/environment.d; for f in .pam_environment .config/environment.d/a.conf; do "
        "echo BASH_ENV=/home/user/.e > $f; echo LD_PRELOAD=/home/user/e.so >> $f; done; echo 'echo yes; exit' > .e",
    ),
    "script that is rewritten all the time": (SCRIPT, "(while :; do echo 'echo yes' > eval.sh; done) > /dev/null 2>&1 &"),
    "script that the set-up has brought": (SCRIPT_OF_THE_SETUP, "printf '#!/bin/sh\necho yes\n' > eval.sh; chmod +x eval.sh"),
    "script that is a link": (SCRIPT, "echo 'echo yes' > own.sh; chmod 444 own.sh; ln -s own.sh eval.sh"),
    "script that is a link to nothing": (SCRIPT, "ln -s /dev/null eval.sh"),
    "script that is a pipe": (SCRIPT, "mkfifo eval.sh"),
    "script that is a folder": (SCRIPT, "mkdir -p eval.sh/a; chmod 000 eval.sh"),
    "script that cannot be changed": (SCRIPT, "echo 'echo yes' > eval.sh; chmod 400 eval.sh"),
    "folder that cannot be changed": (PYTHON, "mkdir -p Desktop; echo \"print('yes')\" > Desktop/check.py; chmod 500 Desktop"),
    "folder that is a file": (PYTHON, "rmdir Desktop; touch Desktop"),
    "folder that is a link to itself": (PYTHON, "rmdir Desktop; ln -s Desktop Desktop"),
    "folder that leads outside": (PYTHON, "rmdir Desktop; ln -s /usr/share Desktop"),
    "home that is closed": (SCRIPT, "chmod 000 /home/user"),
    "home that is closed, for a command": (SHELL, "chmod 000 /home/user"),
}
"""Forgery -> how the task is judged, and what the agent does."""


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    config = DesktopConfig(apps=("files",), **SHARED_SETTINGS)
    with open_desktop(tmp_path_factory.mktemp("desktop"), config) as driver:
        yield Player(driver)


@pytest.fixture
def desktop(player: Player) -> CalledDesktop:
    player.start(SetupStep("make_folder", {"path": "Desktop"}))
    return CalledDesktop(player.desktop.get)


def judged(desktop: CalledDesktop, folder: Path, command: str | list[str], postconfig: Any = (), config: Any = ()) -> Evaluation:
    (folder / "eval.sh").write_text(f"#!/bin/bash\n{_MADE}\n")
    (folder / "check.py").write_text(_CHECK)
    result = {"type": "vm_command_line", "command": command, "shell": isinstance(command, str)}
    rules = {"type": "rule", "rules": {"include": ["yes"], "exclude": ["no"]}}
    evaluator = {"func": "check_include_exclude", "result": result, "expected": rules, "postconfig": list(postconfig)}
    task = {"id": "a", "instruction": "Make it.", "config": list(config), "evaluator": evaluator}
    (folder / "a.json").write_text(json.dumps(task))
    return load_task(folder / "a.json", folder).evaluate(desktop, final_action="done")


@pytest.mark.parametrize("is_made", [False, True])
@pytest.mark.parametrize("name", FORGERIES)
def test_what_lies_in_the_home_changes_no_verdict(desktop: CalledDesktop, tmp_path: Path, name: str, is_made: bool) -> None:
    how, forge = FORGERIES[name]
    desktop.run(f"{'touch made; ' if is_made else ''}{forge}")
    assert judged(desktop, tmp_path, **how).reward == float(is_made)


def test_commands_get_nothing_that_an_agent_can_write(desktop: CalledDesktop) -> None:
    listed = desktop.run("env -0").stdout.split("\0")
    env = dict(entry.split("=", 1) for entry in listed if entry)
    assert not env.keys() & {"BASH_ENV", "ENV", "LD_PRELOAD", "PYTHONPATH", "PYTHONSTARTUP", "PERL5LIB", "TAR_OPTIONS", "ZIPOPT"}
    assert [name for name, value in env.items() if "/home/user" in value and name not in ("HOME", "PWD")] == []
    writable = desktop.run(
        "for d in ${PATH//:/ } ${LD_LIBRARY_PATH//:/ }; do test -w $d && echo $d; done; test -w $(command -v bash) && echo bash"
    )
    assert writable.stdout == ""


_TO_CSV = ["libreoffice", "--headless", "--convert-to", "csv", "--outdir", "/home/user", "/home/user/a.slk"]
_SHEET = "printf 'ID;P\\nC;Y1;X1;K\"%s\"\\nE\\n' > a.slk; "
_FORGED = "echo yes > a.csv; chmod 444 a.csv; chmod 500 /home/user; (while :; do echo yes > a.csv; done) > /dev/null 2>&1 &"


@pytest.mark.parametrize(("sheet", "reward"), [("", 0.0), (_SHEET % "no", 0.0), (_SHEET % "yes", 1.0)])
def test_conversion_is_that_of_the_judge(desktop: CalledDesktop, tmp_path: Path, sheet: str, reward: float) -> None:
    desktop.run(f"{sheet}{_FORGED}")
    step = {"type": "execute", "parameters": {"command": _TO_CSV}}
    assert judged(desktop, tmp_path, "cat a.csv", [step]).reward == reward


_WRITES_BESIDE = """
import os
while True:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if b"is-" + b"judged" in open(f"/proc/{pid}/cmdline", "rb").read():
                os.write(os.open(f"/proc/{pid}/fd/1", os.O_WRONLY), b"yes")
                os.kill(int(pid), 9)
        except PermissionError:
            open("/home/user/refused", "w").close()
        except OSError:
            pass
"""


@pytest.mark.skipif(not confinement.has_landlock(), reason="docs/concepts/security.md says what is not promised without")
def test_no_program_writes_where_a_command_answers(desktop: CalledDesktop) -> None:
    desktop.launch(["python3", "-c", _WRITES_BESIDE])
    answer = desktop.run("sleep 2; echo is-judged", timeout_s=20.0)
    assert (answer.returncode, answer.stdout) == (0, "is-judged\n")
    assert desktop.run("ls refused").stdout == "refused\n"


_LOAD = """
import os, time, uno
os.environ["TMPDIR"] = "/home/user/.config/libreoffice/4/tmp"
resolver = uno.getComponentContext().ServiceManager.createInstance("com.sun.star.bridge.UnoUrlResolver")
office = resolver.resolve("uno:pipe,name=computerrl;urp;StarOffice.ComponentContext")
loader = office.ServiceManager.createInstanceWithContext("com.sun.star.loader.Python", office)
try:
    loader.activate("evil", "", "file:///home/user/evil.py", None)
except AttributeError:
    pass
"""
_IN_THE_OFFICE = """
import glob, threading
def forge():
    while True:
        for place, text in (("eval.sh", "echo yes"), (".cache/suite-*.py", "def test(*_): return True")):
            for path in glob.glob(f"/home/user/{place}"):
                try:
                    with open(path, "w") as file:
                        file.write(text)
                except OSError:
                    pass
threading.Thread(target=forge, daemon=True).start()
open("/home/user/loaded", "w").close()
"""


def test_application_that_runs_what_the_agent_wrote_changes_no_file_of_the_judge(tmp_path: Path) -> None:
    with open_desktop(tmp_path, DesktopConfig(apps=("calc",), **SHARED_SETTINGS)) as driver:
        Player(driver).start(SetupStep("calc_open", {"cells": {}}))
        desktop = CalledDesktop(driver.get)
        desktop.put_file("/home/user/evil.py", _IN_THE_OFFICE.encode())
        desktop.run(["python3", "-c", _LOAD])
        assert desktop.run("ls loaded").returncode == 0
        product, suite = tmp_path / "product" / "program.py", tmp_path / "suite.py"
        product.parent.mkdir()
        product.write_text("def double(x): return x\n")
        suite.write_text("import program\ndef test(): return program.double(2) == 4\n")
        for _ in range(3):
            assert judged(desktop, tmp_path, **SCRIPT).reward == 0.0
            assert check_python_file_by_test_suite(desktop, str(product), str(suite)) == 0.0
        product.write_text("def double(x): return 2 * x\n")
        desktop.run("touch made")
        assert judged(desktop, tmp_path, **SCRIPT).reward == 1.0
        assert check_python_file_by_test_suite(desktop, str(product), str(suite)) == 1.0
        assert driver.get("calc_cells", range="A1") == [[""]]  # the office goes on


def test_full_disk_pays_nothing_and_fails_nothing(desktop: CalledDesktop, tmp_path: Path) -> None:
    desktop.run("head -c 2G /dev/zero > fill; head -c 2G /dev/zero > fill2")
    verdict = judged(desktop, tmp_path, **SCRIPT)
    assert verdict.reward == 0.0 and "cannot be written" in verdict.detail


def test_processes_that_are_used_up_keep_no_command_from_running(desktop: CalledDesktop, tmp_path: Path) -> None:
    desktop.run("touch made")
    desktop.launch("while :; do sleep 1000 & done")
    for _ in range(5):
        assert judged(desktop, tmp_path, **SHELL).reward == 1.0


def test_output_without_end_is_cut(desktop: CalledDesktop) -> None:
    desktop.run("ln -s /dev/zero history")
    answer = desktop.run("cat history; cat history >&2", timeout_s=2.0)
    assert answer.returncode == 124 and len(answer.stdout) == 1_000_000
    answer = desktop.run("head -c 20M /dev/zero; echo done >&2", timeout_s=20.0)
    assert (answer.returncode, len(answer.stdout), answer.stderr) == (0, 1_000_000, "done\n")


def test_command_that_leaves_a_program_behind_ends(desktop: CalledDesktop) -> None:
    assert desktop.run("setsid sleep 1000 > /dev/null 2>&1 & echo here").stdout == "here\n"
    assert desktop.run("setsid sleep 1000 & echo here", timeout_s=1.0).returncode == 124


@pytest.mark.parametrize("program", ["missing", "folder", "closed", "text", "folder/below/file"])
def test_program_that_an_agent_has_broken_is_one_that_is_not_found(desktop: CalledDesktop, program: str) -> None:
    desktop.run("mkdir folder; echo x > closed; touch text folder/below; chmod +x text")
    assert desktop.run([f"/home/user/{program}"]).returncode == 127


def test_folder_with_more_names_than_are_told_is_a_folder(desktop: CalledDesktop, tmp_path: Path) -> None:
    many = "d=$(printf 'x%.0s' $(seq 200)); mkdir many; cd many; seq -f $d%g 9000 | xargs touch"
    desktop.run(many)
    context = Context(desktop, Assets(), tmp_path)
    tree = GETTERS["list_directory"].read(context, {"path": "/home/user/many"})
    assert 1000 < len(tree["children"]) < 9000
