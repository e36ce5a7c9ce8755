"""Pointer and key actions that web pages need: drags by pixel, held keys, repeats; and what they must not reach."""

from __future__ import annotations

import pytest

from computerrl.common.actions import parse_action
from computerrl.common.messages import Evaluation, Observation
from computerrl.env_server.driver import SetupStep, TaskInstance
from computerrl.env_server.drivers.guest_driver import GuestDriver
from tests.support.desktops import SharedDesktops


@pytest.fixture(scope="module")
def desktop(shared_desktops: SharedDesktops) -> GuestDriver:
    return shared_desktops.get("core").driver


def open_page(desktop: GuestDriver, page: str, seed: int = 1) -> Observation:
    step = SetupStep("web_page", {"page": page, "seed": seed})
    return desktop.reset(TaskInstance("x", (step,), lambda get: Evaluation(0.0, False, ""), lambda *_: parse_action("done()")))[1]


def act(desktop: GuestDriver, text: str) -> Observation:
    result = desktop.step(parse_action(text))
    assert result.action_error == "", (text, result.action_error)
    return result.observation


def shape(desktop: GuestDriver, **wanted: str) -> dict[str, float]:
    return next(found for found in desktop.get("web_shapes") if all(found[name] == value for name, value in wanted.items()))


def test_drag_between_pixels_moves_what_no_element_names(desktop: GuestDriver) -> None:
    open_page(desktop, "drag-box")
    before = shape(desktop, id="draggableSmall")
    act(desktop, f"drag_pixels([{before['x']:.0f}, {before['y']:.0f}, {before['x'] + 40:.0f}, {before['y'] + 10:.0f}])")
    after = shape(desktop, id="draggableSmall")
    assert after["x"] - before["x"] == pytest.approx(40, abs=4) and after["y"] - before["y"] == pytest.approx(10, abs=4)


def test_click_with_control_held_adds_to_a_selection(desktop: GuestDriver) -> None:
    items = [e for e in open_page(desktop, "click-scroll-list").elements if e.role == "list-item"]
    act(desktop, f"click({items[0].number})")
    shown = act(desktop, f'click({items[2].number}, hold="ctrl")')
    assert [e.text for e in shown.elements if "selected" in e.states] == [items[0].text, items[2].text]
    shown = act(desktop, f"click({items[1].number})")
    assert [e.text for e in shown.elements if "selected" in e.states] == [items[1].text]


def test_key_repeats_and_wheel_turns_as_often_as_asked(desktop: GuestDriver) -> None:
    open_page(desktop, "use-spinner")
    field = shape(desktop, id="spinner")
    act(desktop, f"click({field['x']:.0f}, {field['y']:.0f})")
    shown = act(desktop, 'key("up", 7)')
    assert "7" in [e.text for e in shown.elements]
    open_page(desktop, "daily-calendar")
    top = shape(desktop, id="hh-0")["y"]
    act(desktop, "scroll(192, 358, clicks=1)")
    once = top - shape(desktop, id="hh-0")["y"]
    act(desktop, "scroll(192, 358, clicks=2)")
    assert once > 0 and top - shape(desktop, id="hh-0")["y"] == pytest.approx(3 * once, abs=3)


def test_drag_along_a_path_draws_it_and_lets_go(desktop: GuestDriver) -> None:
    open_page(desktop, "draw-line")
    act(desktop, "drag_pixels([200, 250, 230, 260, 260, 250])")
    width = shape(desktop, tag="path")["width"]
    act(desktop, "hover(320, 250)")
    assert shape(desktop, tag="path")["width"] == width > 0


@pytest.mark.parametrize("hold", ["ctrl", "shift", "ctrl+shift"])
def test_modified_click_on_a_link_opens_no_window(desktop: GuestDriver, hold: str) -> None:
    before = open_page(desktop, "phone-book")
    link = next(element for element in before.elements if element.text == ">")
    shown = act(desktop, f'click({link.number}, hold="{hold}")')
    assert (shown.app, shown.window_title) == ("chromium", before.window_title)
    assert not any(element.role == "entry" for element in shown.elements)


def test_second_click_after_the_end_does_not_wipe_out_the_verdict(desktop: GuestDriver) -> None:
    button = next(element for element in open_page(desktop, "click-test").elements if element.role == "button")
    result = desktop.step(parse_action(f"double_click({button.number})"))
    assert result.finished
    act(desktop, f"click({button.x}, {button.y})")  # a cover lies above it
    state = desktop.get("web_page")
    assert (state["done"], state["raw_reward"], state["episode_id"]) == (True, 1.0, 1)


def test_page_s_clock_stands_at_one_day(desktop: GuestDriver) -> None:
    shown = open_page(desktop, "terminal")
    assert "Last login: Mon Jan 02 2017" in [element.text for element in shown.elements]
