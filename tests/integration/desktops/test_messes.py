"""After a reset nothing is there of what an agent left, in any application or in the session: the catalogue of `messes`, played.

Each mess is made on a real desktop, a reset follows, every application is shown once, and the fingerprint has to be the first.
What a reset cannot undo is an error of the desktop, which costs a new one; those messes are listed apart.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from computerrl.common.config import DesktopConfig
from computerrl.common.errors import DesktopBroken
from computerrl.env_server.drivers.guest_driver import GuestDriver
from computerrl.env_server.guest.files.fingerprint import Fingerprint, differences
from computerrl.env_server.tasks.osworld.desktop import CalledDesktop
from tests.support.data.messes import ACTIONS, COMMANDS, COSTS_A_DESKTOP, EDITOR, FILES, PAGE, RED, REMEMBERED, RESTYLED, SHEET
from tests.support.desktops import Player, open_desktop
from tests.support.tiers import one_in

LIMITS = {"reset_deadline_s": 120.0, "step_deadline_s": 60.0}
PLANTED = "find /tmp /var/tmp /dev/shm /home/user -name 'planted*'; xfconf-query -c xsettings -lv 2>&1 | grep planted;"
PLANTED += " xprop -root | grep -w planted"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuestDriver]:
    with open_desktop(tmp_path_factory.mktemp("desktop"), DesktopConfig(image="full", observation="tree", **LIMITS)) as desktop:
        yield desktop


@pytest.fixture(scope="module")
def first(driver: GuestDriver) -> Fingerprint:
    return fingerprint(driver)


def fingerprint(driver: GuestDriver) -> Fingerprint:
    """After a reset; each application is shown once, so that it runs."""
    for step in (PAGE, EDITOR, FILES, SHEET):
        Player(driver).start(step)
    found: Fingerprint = driver.get("fingerprint")
    return found


def run(driver: GuestDriver, command: str) -> str:
    ended = CalledDesktop(driver.get).run(command, timeout_s=30.0)
    assert not ended.stderr, ended
    return ended.stdout


@pytest.mark.parametrize("mess", one_in(12, COMMANDS))
def test_reset_leaves_nothing_of_what_programs_did(driver: GuestDriver, first: Fingerprint, mess: str) -> None:
    run(driver, COMMANDS[mess])
    assert differences(first, fingerprint(driver)) == []
    assert run(driver, PLANTED) == ""


@pytest.mark.parametrize("mess", one_in(12, ACTIONS))
def test_reset_leaves_nothing_of_what_an_agent_did(driver: GuestDriver, first: Fingerprint, mess: str) -> None:
    steps, actions = ACTIONS[mess]
    player = Player(driver)
    player.start(*steps)
    for action in actions:
        player.do(action)
    assert differences(first, fingerprint(driver)) == []
    assert run(driver, PLANTED) == ""


@pytest.mark.parametrize("mess", one_in(12, COSTS_A_DESKTOP))
def test_what_cannot_be_undone_costs_a_new_desktop(tmp_path_factory: pytest.TempPathFactory, mess: str) -> None:
    config = DesktopConfig(image="full", apps=("files",), observation="tree", **LIMITS)
    with open_desktop(tmp_path_factory.mktemp("lost"), config) as driver:
        Player(driver).start(FILES)
        run(driver, COSTS_A_DESKTOP[mess])
        with pytest.raises(DesktopBroken):
            Player(driver).start(FILES)


@pytest.mark.parametrize("mess", one_in(12, REMEMBERED))
def test_next_task_sees_nothing_of_what_an_application_remembers(driver: GuestDriver, mess: str) -> None:
    steps, actions, next_steps, looks, nothing = REMEMBERED[mess]
    player = Player(driver)
    player.start(*steps)
    for action in actions:
        player.do(action)
    player.start(*next_steps)
    for action in looks:
        seen = player.do(action)
    assert [element.text for element in seen.elements if nothing in element.text]


@pytest.mark.parametrize("app", one_in(12, RESTYLED))
def test_application_that_was_opened_again_with_other_styles_ends_with_its_task(driver: GuestDriver, app: str) -> None:
    player = Player(driver)
    player.start(RESTYLED[app])
    first = driver.frame().mean(axis=(0, 1))
    player.do(f'files.write(".config/gtk-3.0/gtk.css", "{RED}")')
    player.do('key("ctrl+q")')
    player.do("wait()")
    player.do(f'apps.open("{app}")')
    player.do("wait()")
    assert abs(driver.frame().mean(axis=(0, 1)) - first).max() > 20
    player.start(RESTYLED[app])
    assert abs(driver.frame().mean(axis=(0, 1)) - first).max() < 2


MARKS = {
    "words in the logs": ("for log in /tmp/agent/logs/*.log; do echo planted >> $log; done", "grep -rl planted /tmp/agent/logs"),
    "link in place of a log": ("cd /tmp/agent/logs; echo planted > /tmp/a; ln -sf /tmp/a openbox.log", "grep -rl planted /tmp"),
    "words before the first pixel": (
        "printf planted | dd of=/tmp/agent/frame/Xvfb_screen0 bs=1 seek=100 conv=notrunc status=none",
        "grep -l planted /tmp/agent/frame/*",
    ),
    "words behind the last pixel": ("echo planted >> /tmp/agent/frame/Xvfb_screen0", "grep -l planted /tmp/agent/frame/*"),
    "times": (
        # A program that is left ends the applications, with their profiles.
        "find /tmp /var/tmp /dev/shm $HOME -exec touch -h -d 1999-01-02 {} + 2> /dev/null; (setsid sleep 99 > /dev/null 2>&1 &)",
        "find /tmp /var/tmp /dev/shm $HOME -not -newermt 2000-01-01",
    ),
    "modes": ("chmod 3777 $HOME/.config /tmp/agent/logs; chmod 755 $HOME/.bashrc", "find /tmp/agent $HOME -perm /7011 -type f,d"),
}
"""What an agent's program does to files that stay -> a command that finds it."""


@pytest.mark.parametrize("mark", MARKS)
def test_files_that_stay_tell_the_next_task_nothing(driver: GuestDriver, mark: str) -> None:
    Player(driver).start(FILES)
    make, find = MARKS[mark]
    before = run(driver, find)
    run(driver, make)
    assert run(driver, find) != before
    Player(driver).start(FILES)
    assert run(driver, find) == before


def test_fingerprint_shows_what_lies_in_every_writable_folder(driver: GuestDriver, first: Fingerprint) -> None:
    for name in ("file in /tmp", "trash", "deep folders", "open port", "background process"):
        run(driver, COMMANDS[name])
    found = "\n".join(differences(first, driver.get("fingerprint")))
    for part in ("/tmp/planted", "Trash/files/planted", "/tmp/dddd", "0100007F:1F40", "/usr/bin/dash"):
        assert part in found, (part, found)
    assert differences(first, fingerprint(driver)) == []
