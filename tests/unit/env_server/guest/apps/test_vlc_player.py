"""VLC's playlist: read over the command socket, and remembered while VLC is paused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from computerrl.env_server.guest.apps.vlc_player import Player, path_of

ANSWER = ("+----[ Playlist - a ]", "| 1 - Playlist", "|   - a.mp3", "|   - b.mp3", "| 2 - Media Library", "|   - c.mp3")


class Recorded(Player):
    """Answers as VLC does: over its command socket nothing while it is paused."""

    def __init__(self) -> None:
        super().__init__(bus_address="", socket_path=Path("/nowhere"))
        self.now = "Playing"

    def _get(self, interface: str, name: str) -> Any:
        return self.now

    def _call(self, interface: str, member: str, signature: str = "", args: tuple[Any, ...] = ()) -> list[Any]:
        return []

    def _command(self, line: str) -> list[str]:
        assert self.now != "Paused"
        return list(ANSWER)


@pytest.fixture
def player() -> Recorded:
    return Recorded()


def test_playlist_ends_before_the_media_library(player: Recorded) -> None:
    assert player.playlist() == ["a.mp3", "b.mp3"]


def test_playlist_of_a_paused_player_is_the_last_one_with_what_was_added_since(player: Recorded) -> None:
    player.playlist()
    player.now = "Paused"
    player.add(Path("/home/user/new.mp3"))
    assert player.playlist() == ["a.mp3", "b.mp3", "new.mp3"]


def test_player_that_was_closed_remembers_no_playlist(player: Recorded) -> None:
    player.playlist()
    player.close()
    player.now = "Paused"
    assert player.playlist() == []


def test_path_of_a_medium_is_its_file_and_empty_without_one() -> None:
    assert path_of({"xesam:url": "file:///home/user/a%20b.mp3"}) == "/home/user/a b.mp3"
    assert path_of({}) == ""
