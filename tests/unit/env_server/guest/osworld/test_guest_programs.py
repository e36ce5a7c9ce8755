"""Which commands of task files mean an application of the desktop."""

from __future__ import annotations

import pytest

from computerrl.env_server.guest.osworld import programs


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        (["google-chrome", "--remote-debugging-port=1337"], ("browser", [])),
        ("/usr/bin/google-chrome file:///home/user/a.html", ("browser", ["file:///home/user/a.html"])),
        ("VLC_VERBOSE=-1 vlc --no-audio --no-video-title-show", ("vlc", [])),
        (["libreoffice", "--impress"], ("impress", [])),
        ("soffice --norestore '/home/user/my table.xlsx'", ("", ["/home/user/my table.xlsx"])),
        (["nautilus", "/home/user/Desktop"], ("files", ["/home/user/Desktop"])),
        ("gedit", ("editor", [])),
        (["code"], ("code", [])),
        ("code -n /home/user/project/", ("code", ["/home/user/project/"])),
        ("code --list-extensions | grep a.b", None),
        (["code", "--install-extension", "a.vsix"], None),
        (["code", "--diff", "a", "b"], None),
        ("libreoffice --headless --convert-to pdf a.docx", None),
        ("soffice", None),
        ("cat a.txt | gedit", None),
        ("export DBUS_SESSION_BUS_ADDRESS='unix:path=/run/user/1000/bus'\ngnome-terminal --maximize", ("terminal", [])),
        ("export A=1\nxdg-open /home/user/project", ("", ["/home/user/project"])),
        ("export A=1; rm x\ngedit", None),
        (["bash", "-c", "vlc a.mp4"], ("vlc", ["a.mp4"])),
        ("gedit $(ls)", None),
        ("gedit 'unfinished", None),
        (["socat", "tcp-listen:9222,fork", "tcp:localhost:1337"], None),
        ([], None),
        ("", None),
    ],
)
def test_command_that_starts_an_application_is_known(command: str | list[str], meant: tuple[str, list[str]] | None) -> None:
    assert programs.opens(command) == meant


@pytest.mark.parametrize(
    ("command", "ended"),
    [
        (["pkill", "chrome"], "browser"),
        ("killall google-chrome", "browser"),
        ("pkill -f chromium", "browser"),
        (["pkill", "vlc"], "vlc"),
        (["/bin/bash", "-c", "killall gnome-terminal-server"], "terminal"),
        ("pkill -9 gimp-2.10", "gimp"),
        ("killall thunderbird", "thunderbird"),
        ("pkill soffice", None),
        ("echo chrome", None),
        ("pkill chrome; echo", None),
    ],
)
def test_command_that_ends_an_application_is_known(command: str | list[str], ended: str | None) -> None:
    assert programs.ends(command) == ended


def test_folder_of_a_terminal_is_the_one_that_its_command_names() -> None:
    assert programs.folder_of("gnome-terminal --maximize --working-directory=/home/user/Desktop") == "/home/user/Desktop"
    assert programs.folder_of(["gnome-terminal"]) == ""


@pytest.mark.parametrize(
    ("command", "needs"),
    [
        (["code", "-g", "/home/user/a.py:3"], True),
        ("code --diff a b", True),
        ("code --list-extensions", False),
        (["code", "a"], False),
        ("grep -g a code", False),
        ("", False),
    ],
)
def test_command_that_opens_something_otherwise_needs_the_window_of_code(command: str | list[str], needs: bool) -> None:
    assert programs.needs_code(command) is needs
