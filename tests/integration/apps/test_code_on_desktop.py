"""Visual Studio Code on a real desktop: folders, settings, keybindings, extensions, and that the next task sees none of it."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from computerrl.env_server.driver import SetupStep
from computerrl.env_server.guest.files.fingerprint import Fingerprint, differences
from computerrl.env_server.tasks.osworld.abilities import TOOLS_IMAGE
from computerrl.env_server.tasks.osworld.desktop import CalledDesktop
from tests.support.desktops import Player, SharedDesktops
from tests.support.tasks.osworld import Case, require_right_verdicts, rule, shell

pytestmark = [pytest.mark.release, pytest.mark.timeout(1800)]

SETTINGS, KEYS = "/home/user/.config/Code/User/settings.json", "/home/user/.config/Code/User/keybindings.json"
LIST = ["code", "--list-extensions"]
BOX = "editor.formatOnSave"
BINDING = {"key": "ctrl+j", "command": "workbench.action.focusActiveEditorGroup", "when": "terminalFocus"}
MANIFEST = """<?xml version="1.0" encoding="utf-8"?>
<PackageManifest Version="2.0.0" xmlns="http://schemas.microsoft.com/developer/vsx-schema/2011">
  <Metadata><Identity Language="en-US" Id="whale" Version="1.2.3" Publisher="made"/><DisplayName>Whale</DisplayName></Metadata>
  <Installation><InstallationTarget Id="Microsoft.VisualStudio.Code"/></Installation>
  <Assets><Asset Type="Microsoft.VisualStudio.Code.Manifest" Path="extension/package.json" Addressable="true"/></Assets>
</PackageManifest>
"""
PACKAGE = {
    "name": "whale",
    "publisher": "made",
    "version": "1.2.3",
    "engines": {"vscode": "^1.60.0"},
    "main": "./main.js",
    "activationEvents": ["*"],
    "contributes": {"commands": [{"command": "whale.tell", "title": "TellProject"}]},
}
PROGRAM = """
const vscode = require("vscode"), fs = require("fs");
const tell = () => fs.writeFileSync("/home/user/told.txt", vscode.workspace.name || "nothing");
exports.activate = (context) => context.subscriptions.push(vscode.commands.registerCommand("whale.tell", tell));
"""


@pytest.fixture(scope="module")
def player(shared_desktops: SharedDesktops) -> Player:
    return Player(shared_desktops.get(TOOLS_IMAGE).driver)


def extension() -> bytes:
    """An extension whose command TellProject writes the name of the open folder into a file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("extension.vsixmanifest", MANIFEST)
        archive.writestr("extension/package.json", json.dumps(PACKAGE))
        archive.writestr("extension/main.js", PROGRAM)
    return buffer.getvalue()


def fingerprint(player: Player) -> Fingerprint:
    """After a reset; each application is shown once, so that it runs."""
    for kind, args in (("editor_open", {}), ("files_open", {"folder": "."}), ("calc_open", {"cells": {}})):
        player.start(SetupStep(kind, args))
    found: Fingerprint = player.desktop.get("fingerprint")
    return found


def written(path: str, text: str) -> SetupStep:
    return SetupStep("write_file", {"path": path, "text": text})


def palette(command: str, *more: str) -> tuple[str, ...]:
    """A command of the palette; ``more``: actions that choose it among those that are found."""
    return ('key("ctrl+shift+p")', "wait()", f"type({command!r})", "wait()", "wait()", *more, 'key("enter")', "wait()", "wait()")


def typed_over(text: str, end: str) -> tuple[str, ...]:
    """The text in front, written anew and saved; what the editor closes by itself is removed before ``end`` is typed."""
    cleared = ('key("ctrl+a")', 'key("delete")', f"type({text!r})", "wait()", 'key("ctrl+shift+end")', 'key("delete")')
    return (*cleared, f"type({end!r})", "wait()", 'key("ctrl+s")', "wait()", "wait()")


def rows(player: Player, *, role: str, text: str) -> list[int]:
    seen = player.wait_for(lambda shown: any((one.role, one.text) == (role, text) for one in shown.elements))
    return [one.number for one in seen.elements if (one.role, one.text) == (role, text)]


def test_folder_and_its_files_are_seen_and_edited_and_the_next_task_begins_without_them(player: Player) -> None:
    player.start(written("project/a.py", "print(1)\n"), SetupStep("open_app", {"app": "code"}))
    player.do('code.launch_vscode("project")')
    rows(player, role="tree-item", text="a.py")
    player.do('code.goto_file("project/a.py", 1, 7)')
    shown = player.wait_for(lambda shown: any(one.text == "print(1)\n" for one in shown.elements))
    assert shown.app == "code" and "a.py - project - Visual Studio Code" in shown.window_title
    assert not [one.text for one in shown.elements if any("\ue000" <= letter <= "\uf8ff" for letter in one.text)]
    player.do('type("2")')
    player.do('key("ctrl+s")')
    player.wait_for(lambda _: player.desktop.get("file_text", path="project/a.py") == "print(21)\n")
    desktop = CalledDesktop(player.desktop.get)
    player.start()
    assert desktop.run("pgrep -f code-server").stdout == ""
    assert desktop.read_file(SETTINGS) is None
    assert desktop.run("ls -d ~/.config/Code ~/.vscode ~/.local/share/code-server").stdout == ""
    player.do('apps.open("VS Code")')
    shown = player.do("wait()")
    assert not [one.text for one in shown.elements if "a.py" in one.text or "project" in one.text]


def test_reset_leaves_nothing_of_an_editor_with_an_open_folder(player: Player) -> None:
    first = fingerprint(player)
    player.start(written("project/a.py", "x = 1\n"), SetupStep("open_app", {"app": "code"}))
    player.do('code.launch_vscode("project")')
    rows(player, role="tree-item", text="a.py")
    player.do('code.add_folder("project")')
    assert differences(first, fingerprint(player)) == []


def test_setting_and_keybinding_changed_in_the_window_are_where_judges_look(player: Player) -> None:
    desktop = CalledDesktop(player.desktop.get)
    player.start(SetupStep("open_app", {"app": "code"}))
    for action in ('key("ctrl+,")', "wait()", "wait()", f"type({BOX!r})", "wait()"):
        player.do(action)
    player.do(f"click({rows(player, role='check-box', text=BOX)[-1]})")
    player.wait_for(lambda _: json.loads(desktop.read_file(SETTINGS) or b"{}") == {BOX: True})
    player.start(SetupStep("open_app", {"app": "code"}))
    # Above it the list has that of the default ones.
    opened = palette("Preferences: Open Keyboard Shortcuts (JSON)", 'key("down")')
    for action in (*opened, *typed_over(json.dumps([BINDING])[:-2], "}]")):
        player.do(action)
    player.wait_for(lambda _: json.loads(desktop.read_file(KEYS) or b"[]") == [BINDING])
    player.start()
    assert desktop.read_file(SETTINGS) is None and desktop.read_file(KEYS) is None


def test_extension_of_a_file_is_installed_and_listed_and_gone_in_the_next_task(player: Player) -> None:
    desktop = CalledDesktop(player.desktop.get)
    player.start(SetupStep("put_file", {"path": "whale.vsix", "data": extension()}))
    assert desktop.run(LIST).stdout == ""
    assert "was successfully installed" in player.ask('code.install_extension("whale.vsix")')
    assert player.ask("code.list_extensions(True)") == "made.whale@1.2.3"
    assert desktop.run("code --list-extensions | grep made.whale").stdout == "made.whale\n"
    assert "there is no network" in player.refusal('code.install_extension("made.other")')
    assert "is not known here" in player.refusal('code.disable_extension("made.whale")')
    player.start()
    assert desktop.run(LIST).stdout == ""


def launch(*command: str) -> dict[str, Any]:
    return {"type": "launch", "parameters": {"command": list(command)}}


FRONT = {"type": "activate_window", "parameters": {"window_name": "Visual Studio Code"}}
TOLD = {"type": "vscode_config", "vscode_extension_command": "TellProject", "path": "/home/user/told.txt"}
INSTALL = (
    shell(f'python3 -c \'open("whale.vsix", "wb").write(bytes.fromhex("{extension().hex()}"))\''),
    shell("code --install-extension whale.vsix && mkdir project"),
)
CASES = {
    "setting": Case(
        {
            "func": "check_json_settings",
            "expected": rule(expected={"editor.wordWrapColumn": 50}),
            "result": {"type": "vm_file", "path": SETTINGS},
        },
        (*palette("Preferences: Open User Settings (JSON)"), *typed_over('{"editor.wordWrapColumn": 50', "}")),
        (launch("code"), FRONT),
    ),
    "folder, which an extension tells": Case(
        {"postconfig": [FRONT], "func": "compare_config", "expected": rule(expected="project"), "result": TOLD},
        ('code.launch_vscode("project")', *["wait()"] * 20),
        (*INSTALL, launch("code"), FRONT),
    ),
    "folder, opened by a command in a terminal": Case(
        {"postconfig": [FRONT], "func": "compare_config", "expected": rule(expected="project"), "result": TOLD},
        ('apps.open("terminal")', 'type("code ~/project", enter=True)', *["wait()"] * 60),
        (*INSTALL, launch("code", "-g", "/home/user/whale.vsix"), FRONT),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_task_pays_solved_alone(case: Case, player: Player, tmp_path: Path) -> None:
    require_right_verdicts(player, case, tmp_path, image=TOOLS_IMAGE)
