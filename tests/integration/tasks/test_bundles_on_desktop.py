"""Task bundles on a real contained desktop: imported and played, and what an agent can do about its verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from computerrl.common.config import DesktopConfig
from computerrl.common.errors import TaskFailed
from computerrl.env_server.judging import untouched
from computerrl.env_server.tasks.bundles.format import read_bundle
from computerrl.env_server.tasks.bundles.task import BundleTask
from computerrl.env_server.tasks.osworld.desktop import CalledDesktop
from computerrl.launch.commands.main import cli
from tests.support.desktops import SHARED_SETTINGS, Player, open_desktop
from tests.support.tasks.bundles import CHECKS, MADE, MAKES, write_bundle

pytestmark = pytest.mark.timeout(900)

_CONFIG = "desktop: {image: core, num_desktops: 1, apps: [files], observation: tree, reset_deadline_s: 120}\n"
Begin = Callable[[Path], tuple[BundleTask, CalledDesktop]]
_FORKS = "import os, time\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        time.sleep(1)\n"
_WRITES = "with open('/home/user/big', 'wb') as file:\n    for _ in range(4096):\n        file.write(bytes(1 << 20))\n"
_READS_SOLUTION = "print(open(__file__.replace('reward.py', 'solution.py')).read())\n" + CHECKS


def _write_all(folder: Path) -> dict[str, str]:
    """Bundles in ``folder``; returns the reason of each one, empty: it is right."""
    page = "<title>Shop</title><h1>Shop</h1>"
    asks = "import urllib.request as r\nassert b'Shop' in r.urlopen('__CUA_GYM_SHOP_URL__/a/').read()\n"
    write_bundle(folder, "right", setup="open('/home/user/begun', 'w').close()\n", solution=MAKES)
    write_bundle(
        folder,
        "beside",
        setup="import shutil\nshutil.copy('in.txt', '/home/user/in.txt')\n",
        reward="print('REWARD:', 5 * (open('in.txt').read() != open('/home/user/in.txt').read()))\n",
        solution="open('/home/user/in.txt', 'a').write('more')\n",
        files={"in.txt": "text"},
        max_reward=5,
    )
    write_bundle(
        folder, "page", solution=MAKES, reward=asks + CHECKS, files={"web_app/index.html": page, "web_app/a/index.html": page}
    )
    write_bundle(folder, "silent", reward="pass\n", solution=MAKES)
    write_bundle(folder, "nan", reward="print('REWARD: nan')\n")
    write_bundle(folder, "twice", reward=CHECKS * 2)
    write_bundle(folder, "large", reward=_WRITES + CHECKS)
    write_bundle(folder, "greedy", reward="x = bytes(3 << 30)\n" + CHECKS)
    write_bundle(folder, "peeks", reward=_READS_SOLUTION, solution=MAKES)
    write_bundle(folder, "no-setup", setup="raise SystemExit('cannot begin')\n")
    write_bundle(folder, "pays", setup=MAKES)
    write_bundle(folder, "no-use", solution="pass\n")
    return {
        "right": "",
        "beside": "",
        "page": "",
        "silent": "fails: on a desktop: no verdict: the reward script printed 'REWARD:' 0 times",
        "nan": "printed no line 'REWARD: <number>'",
        "twice": "printed 'REWARD:' 2 times",
        "large": "fails: on a desktop: no verdict: the reward script ended with code 1",
        "greedy": "MemoryError",
        "peeks": "FileNotFoundError",
        "no-setup": "initial_setup.py ended with code 1: cannot begin",
        "pays": "pays untouched: evaluator: score 1 for doing nothing",
        "no-use": "solution: on a desktop: score 0 after it",
    }


def test_bundles_are_played_and_each_broken_one_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untouched, "cache_folder", lambda: tmp_path / "cache")
    expected = _write_all(tmp_path / "bundles")
    (tmp_path / "run.yaml").write_text(_CONFIG)
    out = tmp_path / "out"
    monkeypatch.chdir(tmp_path)
    arguments = ["tasks", "import", "cua-gym", "bundles", "out", "--play", "--config", "run.yaml"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 1, result.output
    index = {entry["path"]: entry for entry in json.loads((out / "index.json").read_text())["tasks"]}
    assert index.keys() == expected.keys()
    lines = result.stdout.splitlines()
    for name, reason in expected.items():
        if reason:
            assert reason in lines[lines.index(f"broken   {name}") + 1]
        else:
            assert f"run      {name}" in lines
        assert bool(index[name]["broken"]) is bool(reason) and index[name]["played"] is not bool(reason)


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    with open_desktop(tmp_path_factory.mktemp("desktop"), DesktopConfig(apps=("files",), **SHARED_SETTINGS)) as driver:
        yield Player(driver)


@pytest.fixture
def begin(player: Player) -> Begin:
    """Put a bundle on the screen; gives it, and the desktop."""

    def started(folder: Path) -> tuple[BundleTask, CalledDesktop]:
        task = BundleTask(folder, read_bundle(folder).digest)
        player.desktop.reset(task.as_instance("Do it."))
        return task, CalledDesktop(player.desktop.get)

    return started


@pytest.mark.parametrize(
    "forge",
    [
        "mkdir -p .cache; echo 'print(\"REWARD: 1\")' > .cache/reward.py; cp .cache/reward.py reward.py; cp reward.py os.py",
        "for m in os json sitecustomize usercustomize; do echo 'print(\"REWARD: 1\")' > $m.py; done",
        "echo 'import os; print(\"REWARD: 1\"); os._exit(0)' > .pythonrc; cp .pythonrc sitecustomize.py",
        "chmod 000 /home/user",
        "(while :; do for f in .cache/*/reward.py; do echo 'print(\"REWARD: 1\")' > $f; done; done) > /dev/null 2>&1 &",
        "(while :; do cp -r .cache/bundle-* /tmp; done) > /dev/null 2>&1 &",
        "dd if=/dev/zero of=fill bs=1M > /dev/null 2>&1",
    ],
)
def test_agent_buys_no_verdict(begin: Begin, tmp_path: Path, forge: str) -> None:
    task, desktop = begin(write_bundle(tmp_path, "one"))
    desktop.run(forge, timeout_s=60.0)
    verdict = task.evaluate(desktop)
    assert verdict.reward == 0.0 and not verdict.success
    assert desktop.run("ls -d /tmp/bundle-* /tmp/reward.py").stdout == "", "the agent has seen a file of the judge's"


def test_nothing_of_a_bundle_stays_on_the_desktop(begin: Begin, tmp_path: Path) -> None:
    folder = write_bundle(tmp_path, "one", setup="pass\n", solution=MAKES, files={"gold.txt": "x"})
    task, desktop = begin(folder)
    listing = "find /home/user /tmp -name '*.py' -o -name 'bundle-*' -o -name gold.txt"
    assert desktop.run(listing).stdout == ""
    assert task.evaluate(desktop).reward == 0.0
    task.solve(desktop)
    assert task.evaluate(desktop).reward == 1.0
    assert desktop.run(listing).stdout == ""


@pytest.mark.parametrize(
    ("reward", "reason"), [("import time\ntime.sleep(900)\n", "did not end within 60 s"), (_FORKS, "no verdict")]
)
def test_reward_script_without_end_is_no_verdict_and_the_desktop_lives(
    begin: Begin, tmp_path: Path, reward: str, reason: str
) -> None:
    task, desktop = begin(write_bundle(tmp_path, "one", reward=reward))
    verdict = task.evaluate(desktop)
    assert verdict.reward == 0.0 and reason in verdict.detail
    task, desktop = begin(write_bundle(tmp_path, "two"))
    desktop.run(f"touch {MADE}")
    assert task.evaluate(desktop).reward == 1.0


def test_web_application_is_the_task_s_alone(begin: Begin, tmp_path: Path) -> None:
    asks = "import urllib.request as r\nprint('REWARD:', int(b'bought' in r.urlopen('http://localhost:8080/').read()))\n"
    folder = write_bundle(tmp_path, "one", reward=asks, files={"web_app/index.html": "<title>Shop</title>"})
    task, desktop = begin(folder)
    assert [tab.title for tab in desktop.tabs()] == ["Shop"]
    serves = "import http.server as h\nh.test(h.SimpleHTTPRequestHandler, port=%d, bind='%s')"
    desktop.run("echo bought > index.html")
    desktop.launch(["python3", "-c", serves % (8080, "::1")])
    assert task.evaluate(desktop).reward == 0.0
    task, desktop = begin(folder)
    desktop.run("pkill -f 'def read_pages'; echo bought > index.html")
    desktop.launch(["python3", "-c", serves % (8080, "127.0.0.1")])
    verdict = task.evaluate(desktop)
    assert verdict.reward == 0.0 and "has been ended" in verdict.detail


def test_web_application_for_node_is_refused_by_name(begin: Begin, tmp_path: Path) -> None:
    with pytest.raises(TaskFailed, match="needs the program node, which the desktop's image lacks"):
        begin(write_bundle(tmp_path, "one", files={"web_app/server.js": "x"}))
