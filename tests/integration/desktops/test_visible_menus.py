"""Menus of the applications of the image full: each toolkit shows them to accessibility in a way of its own."""

from __future__ import annotations

import functools
from collections.abc import Collection

import pytest

from computerrl.common.messages import Observation
from computerrl.env_server.driver import SetupStep
from tests.support.desktops import Player, SharedDesktops


@pytest.fixture(scope="module")
def player(shared_desktops: SharedDesktops) -> Player:
    return Player(shared_desktops.get("full").driver)


def shows(shown: Observation, names: Collection[str], without: Collection[str]) -> bool:
    found = {element.text for element in shown.elements}
    return set(names) <= found and not found & set(without)


def wait_for(player: Player, *names: str, without: Collection[str] = ()) -> None:
    player.wait_for(functools.partial(shows, names=names, without=without))


def start(player: Player, app: str, *names: str) -> None:
    player.start(SetupStep("open_app", {"app": app}))
    player.wait_for(lambda shown: shown.app == app)
    wait_for(player, *names)


def test_menus_of_gimp_show_their_items_and_closed_ones_do_not(player: Player) -> None:
    start(player, "gimp", "File", "Colors")
    player.do('click("File")')
    wait_for(player, "New...", "Save As...", without=["From Clipboard"])
    player.do('click("Create")')
    wait_for(player, "New...", "From Clipboard")
    for _ in range(3):
        player.do('key("esc")')
    wait_for(player, "File", without=["New...", "From Clipboard"])
    player.do('click("Edit")')
    wait_for(player, "Undo History", without=["New...", "Save As...", "From Clipboard"])
    player.do('key("esc")')


def test_dialog_and_context_menu_of_gimp_show_their_elements(player: Player) -> None:
    start(player, "gimp", "File")
    player.do('key("ctrl+n")')
    wait_for(player, "Template:", "OK")
    player.do('click("OK")')
    player.wait_for(lambda shown: "Untitled" in shown.window_title)
    player.do('click(450, 300, button="right")')
    player.wait_for(lambda shown: sum(element.text == "Colors" for element in shown.elements) == 2)
    player.do('key("esc")')


def test_menus_of_vlc_show_their_items(player: Player) -> None:
    start(player, "vlc", "Media", "Playback")
    player.do('click("Media")')
    wait_for(player, "Open File...", "Quit", "Playback")
    player.do('key("esc")')
    wait_for(player, "Media", without=["Open File..."])
    player.do('click(400, 300, button="right")')
    wait_for(player, "Open Media", "Media")
    player.do('key("esc")')


def test_menus_of_writer_and_the_mail_program_show_their_items(player: Player) -> None:
    start(player, "writer", "Format")
    player.do('click("Format")')
    wait_for(player, "Character...", "Spacing", without=["Line Spacing: 1.5"])
    player.do('click("Spacing")')
    wait_for(player, "Line Spacing: 1.5", "Character...")
    player.do('key("esc")')
    player.do('key("esc")')
    start(player, "thunderbird", "New Message")
    player.do('key("f10")')
    wait_for(player, "Send Unsent Messages", "Quit")


def test_context_menu_and_dialog_of_the_terminal_cover_it(player: Player) -> None:
    start(player, "terminal")
    player.wait_for(lambda shown: any(element.role == "terminal" for element in shown.elements))
    player.do('click(300, 300, button="right")')
    wait_for(player, "Paste", "Preferences...")
    player.do('key("esc")')
    player.do('key("ctrl+shift+f")')
    player.wait_for(lambda shown: shows(shown, ["Next"], []) and all(element.role != "terminal" for element in shown.elements))
