"""Mouse and keyboard actions on an imitation screen: what is pressed, held, refused."""

from __future__ import annotations

from typing import Any

import pytest

from computerrl.env_server.guest.faults import Refused
from computerrl.env_server.guest.screen.chords import UnknownKey, chord_keys
from computerrl.env_server.guest.screen.gui import Gui, _with_steps


class FakeScreen:
    """Writes down what is done to it."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: self.done.append((name, *args, *options.values()))

    def early_s(self, x: int, y: int) -> float:
        return 0.0

    @property
    def input(self) -> FakeScreen:
        return self

    @property
    def windows(self) -> FakeScreen:
        return self

    def key_codes(self, keys: str) -> list[int]:
        return [len(part) for part in keys.split("+")]

    def batches(self, text: str) -> list[str]:
        return [text[:3], text[3:]] if len(text) > 3 else [text]


class FakeWindows:
    front: object = None

    def front_app(self) -> object:
        return self.front

    def settle(self, *, limit_s: float) -> None:
        pass


LOCKED = object()


@pytest.fixture
def screen() -> FakeScreen:
    return FakeScreen()


def gui(screen: FakeScreen, *, locked: bool = False, has_terminal: bool = False) -> Gui:
    windows = FakeWindows()
    windows.front = LOCKED if locked else None

    def open_terminal() -> bool:
        if has_terminal:
            screen.done.append(("terminal",))
        return has_terminal

    return Gui(screen, windows, windows, locked=LOCKED, open_terminal=open_terminal)  # type: ignore[arg-type]


def test_quote_comes_back_as_the_result(screen: FakeScreen) -> None:
    assert gui(screen).act("quote", {"content": 'a """ b'}) == 'a """ b' and screen.done == []


def test_held_keys_are_released_by_name_or_at_the_end(screen: FakeScreen) -> None:
    hand = gui(screen)
    hand.act("key_down", {"keys": "ctrl+shift"})
    hand.act("key_down", {"keys": "ctrl"})
    hand.act("key_up", {"keys": "shift"})
    hand.let_go()
    hand.let_go()
    assert screen.done == [("press_key", 4), ("press_key", 5), ("release_key", 5), ("release_key", 4)]


def test_key_up_of_a_key_that_is_not_held_is_refused_by_name(screen: FakeScreen) -> None:
    hand = gui(screen)
    with pytest.raises(Refused, match="alt is not held down; held: no key"):
        hand.act("key_up", {"keys": "alt"})
    hand.act("key_down", {"keys": "ctrl"})
    with pytest.raises(Refused, match="held: ctrl"):
        hand.act("key_up", {"keys": "ctrl+alt"})


def test_unknown_keys_and_actions_are_refused(screen: FakeScreen) -> None:
    with pytest.raises(UnknownKey):
        gui(screen).act("key_down", {"keys": ""})
    with pytest.raises(Refused, match="unknown action 'dance'"):
        gui(screen).act("dance", {})


def test_locked_browser_refuses_shortcuts_made_of_held_keys(screen: FakeScreen) -> None:
    hand = gui(screen, locked=True)
    hand.act("key_down", {"keys": "ctrl"})
    with pytest.raises(Refused, match="locked"):
        hand.act("key", {"keys": "t"})
    with pytest.raises(Refused, match="locked"):
        hand.act("type", {"text": "t", "enter": False, "overwrite": False, "x": None})
    hand.act("key", {"keys": "a"})
    assert [done for done in screen.done if done[0] == "press_chord"] == [("press_chord", "a")]


def test_locked_browser_is_not_zoomed_by_the_wheel(screen: FakeScreen) -> None:
    wheel = {"x": 1, "y": 2, "direction": "down"}
    hand = gui(screen, locked=True)
    hand.act("scroll", wheel)
    hand.act("key_down", {"keys": "ctrl"})
    with pytest.raises(Refused, match="zoom"):
        hand.act("scroll", wheel)
    free = gui(screen)
    free.act("key_down", {"keys": "ctrl"})
    free.act("scroll", wheel)
    assert [done[0] for done in screen.done] == ["scroll", "press_key", "press_key", "scroll"]


def test_locked_browser_takes_only_the_left_button(screen: FakeScreen) -> None:
    with pytest.raises(Refused, match="left button"):
        gui(screen, locked=True).act("click", {"x": 1, "y": 1, "button": "right"})


def test_text_is_typed_in_batches(screen: FakeScreen) -> None:
    gui(screen).act("type", {"text": "abcd", "enter": True, "overwrite": False, "x": None})
    assert screen.done == [("type_text", "abc"), ("type_text", "d\n")]


def test_triple_click_clicks_three_times(screen: FakeScreen) -> None:
    gui(screen).act("triple_click", {"x": 3, "y": 4, "button": "left"})
    assert screen.done == [("click", 3, 4, "left", 3, "")]


def test_drag_goes_through_all_points_with_enough_steps(screen: FakeScreen) -> None:
    gui(screen).act("drag_pixels", {"path": [0, 0, 80, 0, 80, 40]})
    names = [done[0] for done in screen.done]
    assert names[:2] == ["move", "press"] and names[-1] == "release" and screen.done[-2] == ("move", 80, 40)
    assert ("move", 80, 0) in screen.done


@pytest.mark.parametrize("points", [[(0, 0), (8, 8)], [(0, 0), (1, 0), (2, 0)], [(0, 0)] * 50])
def test_with_steps_keeps_every_point(points: list[tuple[int, int]]) -> None:
    path = _with_steps(points)
    assert path[0] == points[0] and path[-1] == points[-1] and set(points) <= set(path)
    assert len(path) >= 9 or len(points) > 8


@pytest.mark.parametrize(
    ("keys", "names"), [("ctrl+s", ["ctrl", "s"]), ("+", ["+"]), ("ctrl++", ["ctrl", "+"]), (" Shift + a ", ["Shift", "a"])]
)
def test_chord_keys_are_names_in_pressing_order(keys: str, names: list[str]) -> None:
    assert chord_keys(keys) == names


def test_chord_without_a_key_is_refused() -> None:
    with pytest.raises(UnknownKey, match="no key given"):
        chord_keys(" ")
    for keys in ("++ctrl", "+ctrl", "ctrl++s"):
        with pytest.raises(UnknownKey, match="a key without a name"):
            chord_keys(keys)


@pytest.mark.parametrize("keys", ["ctrl+alt+t", "Alt+Control+T"])
def test_desktop_s_own_shortcut_opens_a_terminal_and_reaches_no_application(screen: FakeScreen, keys: str) -> None:
    gui(screen, has_terminal=True).act("key", {"keys": keys})
    assert screen.done == [("terminal",)]


def test_shortcut_made_of_held_keys_opens_a_terminal(screen: FakeScreen) -> None:
    hand = gui(screen, has_terminal=True)
    hand.act("key_down", {"keys": "ctrl"})
    hand.act("key_down", {"keys": "alt"})
    hand.act("key", {"keys": "t"})
    assert screen.done == [("press_key", 4), ("press_key", 3), ("terminal",)]


def test_shortcut_is_the_application_s_where_there_is_no_terminal(screen: FakeScreen) -> None:
    gui(screen).act("key", {"keys": "ctrl+alt+t"})
    assert screen.done == [("press_chord", "ctrl+alt+t")]
