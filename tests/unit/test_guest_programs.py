"""Which commands of task files mean an application of the desktop."""

from __future__ import annotations

import pytest

from env_server.guest import programs


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
        ("libreoffice --headless --convert-to pdf a.docx", None),
        ("soffice", None),
        ("cat a.txt | gedit", None),
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
    ("command", "ends"),
    [
        (["pkill", "chrome"], True),
        ("killall google-chrome", True),
        ("pkill -f chromium", True),
        (["pkill", "vlc"], False),
        ("echo chrome", False),
        ("pkill chrome; echo", False),
    ],
)
def test_command_that_ends_the_browser_is_known(command: str | list[str], ends: bool) -> None:
    assert programs.ends_browser(command) is ends
