"""VLC by the agent's API, read back from VLC itself and from its settings file."""

from __future__ import annotations

import io
import math
import struct
import wave

import pytest

from computerrl.env_server.driver import SetupStep
from tests.support.desktops import Player, SharedDesktops


def sound(seconds: int) -> bytes:
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(b"".join(struct.pack("<h", int(9000 * math.sin(i / 4))) for i in range(8000)) * seconds)
    return data.getvalue()


def video(seconds: int) -> bytes:
    width, height = 64, 48
    frame = b"FRAME\n" + bytes([80]) * (width * height) + bytes([128]) * (width * height // 2)
    return b"YUV4MPEG2 W64 H48 F10:1 Ip A1:1 C420jpeg\n" + frame * (10 * seconds)


SOUNDS = (
    SetupStep("put_file", {"path": "a.wav", "data": sound(30)}),
    SetupStep("put_file", {"path": "music/b c.wav", "data": sound(20)}),
)
FILES = SetupStep("files_open", {"folder": "."})
PLAYING = (*SOUNDS, SetupStep("open", {"path": "a.wav"}))


@pytest.fixture(scope="module")
def player(shared_desktops: SharedDesktops) -> Player:
    return Player(shared_desktops.get("full").driver)


def test_file_opened_for_a_task_plays_and_its_window_is_read(player: Player) -> None:
    shown = player.start(*PLAYING)
    assert shown.app == "vlc" and len(shown.elements) > 5
    assert player.ask("vlc.env_info()").startswith("playing: a.wav,")
    assert player.ask("vlc.get_media_duration()") == "30.0"
    assert 0.0 <= float(player.ask("vlc.get_current_time()")) < 30.0


def test_playlist_play_pause_next_previous(player: Player) -> None:
    player.start(*PLAYING)
    assert player.ask('vlc.add_to_playlist("music/b c.wav")') == "music/b c.wav is number 2 of the playlist"
    assert player.ask("vlc.get_playlist()") == "1. a.wav (00:30)\n2. b c.wav (00:20)\nnow: a.wav"
    assert player.ask("vlc.pause()").startswith("paused: a.wav")
    held = player.ask("vlc.get_current_time()")
    assert player.ask("vlc.get_current_time()") == held
    assert player.ask("vlc.get_playlist()") == "1. a.wav (00:30)\n2. b c.wav (00:20)\nnow: a.wav"
    assert player.ask("vlc.play()").startswith("playing: a.wav")
    assert player.ask("vlc.next()").startswith("playing: music/b c.wav")
    assert player.ask("vlc.previous()").startswith("playing: a.wav")


def test_it_starts_with_the_first_call_and_is_gone_after_the_task(player: Player) -> None:
    player.start(*SOUNDS, FILES)
    assert player.ask('vlc.add_to_playlist("a.wav")') == "a.wav is number 1 of the playlist"
    assert player.do("vlc.play()").app == "vlc"
    assert player.start(*SOUNDS, FILES).app == "files"
    assert player.ask("vlc.get_playlist()") == "the playlist is empty"


def test_full_screen_of_a_video(player: Player) -> None:
    player.start(SetupStep("put_file", {"path": "v.y4m", "data": video(60)}), FILES)
    player.do('vlc.add_to_playlist("v.y4m")')
    player.do("vlc.play()")
    player.wait_for(lambda _: float(player.ask("vlc.get_current_time()")) > 0)
    assert player.ask("vlc.toggle_fullscreen(True)") == "full screen on"
    assert "full screen" in player.ask("vlc.env_info()")
    assert player.ask("vlc.toggle_fullscreen()") == "full screen off"


def test_settings_are_in_vlc_s_own_file(player: Player) -> None:
    player.start(SetupStep("make_folder", {"path": "music"}), FILES)
    player.do('vlc.set_settings("input-record-path", "music")')
    player.do('vlc.set_settings("qt-max-volume", 150)')
    player.do('vlc.set_settings("qt-minimal-view", True)')
    settings = player.ask("vlc.get_settings()")
    assert "qt-max-volume = 150" in settings and "qt-minimal-view = 1" in settings and "/music" in settings
    player.do('apps.open("vlc")')
    assert player.ask('vlc.set_settings("qt-bgcone", False)') == "qt-bgcone = 0 from the next start of VLC on"
    assert "qt-bgcone = 0" in player.ask("vlc.get_settings()") and "qt-max-volume = 150" in player.ask("vlc.get_settings()")
    player.start(FILES)
    assert "qt-max-volume = 125" in player.ask("vlc.get_settings()")


def test_media_files_are_listed_by_ending(player: Player) -> None:
    player.start(*SOUNDS, SetupStep("write_file", {"path": "x.txt", "text": ""}), FILES)
    assert player.ask('vlc.get_media_files(".")') == "a.wav"
    assert player.ask('vlc.get_media_files("music", "mp3")') == "no media files in music"


def test_vlc_that_died_is_started_again(player: Player) -> None:
    player.start(*PLAYING)
    player.do('key("ctrl+q")')
    player.wait_for(lambda shown: shown.app != "vlc")
    assert player.ask("vlc.get_playlist()") == "the playlist is empty"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vlc.play()", "playlist is empty"),
        ("vlc.pause()", "nothing is playing"),
        ("vlc.next()", "nothing is playing"),
        ("vlc.get_current_time()", "nothing is playing"),
        ("vlc.get_media_duration()", "nothing is playing"),
        ('vlc.add_to_playlist("none.mp3")', "there is no"),
        ('vlc.add_to_playlist("../x")', "outside"),
        ('vlc.add_to_playlist("http://example.invalid/x.mp3")', "there is no"),
        ('vlc.get_media_files("none")', "there is no"),
        ('vlc.set_settings("qt-max-volume", "loud")', "whole number"),
        ('vlc.set_settings("qt-bgcone", 7)', "True or False"),
        ('vlc.set_settings("input-record-path", "..")', "outside"),
        ("vlc.toggle_fullscreen(True)", "video"),
    ],
)
def test_bad_arguments_are_refused_with_the_reason(player: Player, text: str, words: str) -> None:
    if player.desktop.observe().app != "vlc" or player.ask("vlc.get_playlist()") != "the playlist is empty":
        player.start(SetupStep("open_app", {"app": "vlc"}))
    assert words in player.refusal(text)


def test_player_confirms_that_it_has_taken_its_input(player: Player) -> None:
    player.start(FILES)
    player.do('apps.open("vlc")')
    player.wait_for(lambda shown: shown.settled_by == "quiet")
    assert {player.do("wait()").settled_by for _ in range(3)} == {"quiet"}
