"""Applications without an API of their own: the mail program and the terminal."""

from __future__ import annotations

import configparser
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from .. import processes
from ..faults import Refused
from .on_demand import OnDemandApp, Surroundings

_MAIL_SETTINGS = {
    "mail.provider.suppress_dialog_on_startup": "true", "mail.spotlight.firstRunDone": "true",
    "mail.shell.checkDefaultClient": "false", "mail.rights.version": "1", "mailnews.start_page.enabled": "false",
    "mailnews.start_page_override.mstone": '"ignore"', "app.update.enabled": "false", "app.donation.eoy.version.viewed": "999",
    "datareporting.policy.dataSubmissionEnabled": "false", "datareporting.policy.dataSubmissionPolicyBypassNotification": "true",
    "toolkit.telemetry.enabled": "false", "extensions.update.enabled": "false", "toolkit.cosmeticAnimations.enabled": "false",
    "security.dialog_enable_delay": "0", "security.notification_enable_delay": "0",  # their buttons take the first click
    "ui.caretBlinkTime": "0", "ui.prefersReducedMotion": "1", "accessibility.force_disabled": "-1",
    "browser.cache.disk.enable": "false",
}  # fmt: skip
_MAIL_PROFILES = ".thunderbird/profiles.ini"
_NEW_MAIL_PROFILE = """[Profile0]
Name=default-release
IsRelative=1
Path=user.default-release
Default=1

[General]
StartWithLastProfile=1
Version=2
"""
_WINDOW_LIMIT_S, _SHELLS_LIMIT_S = 5.0, 5.0
_CELL = 10, 19
"""Pixels of a character in the terminal's own font."""


class Thunderbird(OnDemandApp):
    """The mail program."""

    name = "thunderbird"
    label = "Thunderbird"
    program_file = "/usr/lib/thunderbird/thunderbird"

    def arguments(self) -> Sequence[str]:
        """Also with a profile that a newer version has used, and with the window class by which task files call it."""
        return ["--no-remote", "--allow-downgrade", "--class=thunderbird"]

    def settings(self) -> Mapping[str, str]:
        """No questions, no network, no blinking; and a profile, where no task has brought one."""
        lines = [f'user_pref("{name}", {value});' for name, value in _MAIL_SETTINGS.items()]
        profile = self._profile().relative_to(self.home)
        return {f"{profile}/user.js": "\n".join([*lines, ""]), _MAIL_PROFILES: _NEW_MAIL_PROFILE}

    def launch(self) -> None:
        """Start it with the default profile. It would ask for one where its record of installations is another machine's."""
        self.program.start(["--profile", str(self._profile())])

    def _profile(self) -> Path:
        """The folder that `profiles.ini` names."""
        text = self.around.folder.text_or_none(_MAIL_PROFILES)
        place = self.home / ".thunderbird" / default_profile(_NEW_MAIL_PROFILE if text is None else text)
        if self.home not in place.parents:
            raise Refused(f"Thunderbird's profile {place} lies outside the home")
        return place


def default_profile(text: str) -> str:
    """Which folder a text of ``profiles.ini`` makes the default: that of an installation, else the marked one, else the first.
    Raises `Refused`."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise Refused(f"Thunderbird's profiles.ini cannot be read: {error}") from error
    profiles = [parser[name] for name in parser.sections() if name.startswith("Profile") and "Path" in parser[name]]
    installs = [parser[name] for name in parser.sections() if name.startswith("Install")]
    installed = [install["Default"] for install in installs if "Default" in install]
    marked = [profile["Path"] for profile in profiles if profile.get("Default") == "1"]
    found = [*installed, *marked, *(profile["Path"] for profile in profiles)]
    if not found:
        raise Refused("Thunderbird's profiles.ini names no profile")
    return found[0]


class Terminal(OnDemandApp):
    """A terminal with the user's shell."""

    name = "terminal"
    label = "the terminal"
    runs_programs = True
    program_file = "xfce4-terminal"

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self.start_folder = self.home
        """Of the next start."""

    def arguments(self) -> Sequence[str]:
        """A shell as everybody has it, in the home."""
        return ["--disable-server", "--title=Terminal"]

    def launch(self) -> None:
        """Start it in the folder that was asked for."""
        self.program.start([f"--working-directory={self.start_folder}"])
        self.start_folder = self.home

    def quit(self) -> None:
        """End it, and wait for its shells: they write what was typed into the history once their terminal is gone."""
        shells = processes.children_of(self.program.pid) if self.program.running else frozenset()
        super().quit()
        processes.wait_for_end(shells, limit_s=_SHELLS_LIMIT_S)

    def open_window(self) -> None:
        """One more window with a shell of its own."""
        before = len(self.around.titles(self.name))
        self.around.press(self.name, "ctrl+shift+n")
        deadline = time.monotonic() + _WINDOW_LIMIT_S
        self.around.wait(lambda: len(self.around.titles(self.name)) > before, deadline, "a new window of the terminal")

    def settings(self) -> Mapping[str, str]:
        """No blinking, no questions."""
        lines = (
            "MiscCursorBlinks=FALSE",
            "MiscShowUnsafePasteDialog=FALSE",
            "MiscConfirmClose=FALSE",
            "MiscMenubarDefault=FALSE",
            "ScrollingBar=TERMINAL_SCROLLBAR_NONE",
            "TitleMode=TERMINAL_TITLE_HIDE",
            # All of the screen from the beginning: made larger afterwards, a terminal forgets what a shell's settings say of it.
            f"MiscDefaultGeometry={self.around.screen_size[0] // _CELL[0]}x{self.around.screen_size[1] // _CELL[1]}",
        )
        return {".config/xfce4/terminal/terminalrc": "\n".join(["[Configuration]", *lines, ""])}
