"""The desktop page's pure parts: pointing, recording, pictures, commands."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from computerrl.common.actions import ACTIONS, parse_action, render_action
from computerrl.common.messages import Element, TaskRef
from computerrl.common.run_files.recordings import RecordedTarget
from computerrl.env_server.live import commands, picture, pointing
from computerrl.env_server.live.hub import signature
from computerrl.env_server.live.recorder import PerformedAction, joined, to_recording
from tests.support.data.actor_data import make_observation


def element(number: int, text: str, x: int, y: int, *, size: tuple[int, int] = (40, 20), role: str = "button") -> Element:
    return Element(number, role, text, x, y, size[0], size[1], ())


# --- pointing --------------------------------------------------------------------------------------------------------

MENU = element(1, "Paste", 100, 100, size=(120, 26), role="menu-item")
ROW = element(3, "row", 300, 300, size=(400, 40), role="table-row-item")
BUTTON = element(4, "Go", 310, 300)
CANVAS = element(5, "drawing", 600, 500, size=(100, 100), role="canvas")
ALL = (MENU, ROW, BUTTON, CANVAS)


@pytest.mark.parametrize(
    ("x", "y", "text"),
    [
        (310, 300, 'click("Go")'),  # the innermost
        (200, 300, 'click("row")'),
        (700, 20, "click(700, 20)"),  # nothing there
        (590, 470, "click(590, 470)"),  # a canvas: the place counts
    ],
)
def test_click_names_what_an_agent_would_name(x: int, y: int, text: str) -> None:
    assert render_action(pointing.click(ALL, x, y)) == text


def test_click_below_an_open_menu_meets_the_menu_only_where_it_is() -> None:
    wide = element(2, "moon", 160, 102, size=(120, 18), role="table-cell")
    assert pointing.element_at((MENU, wide), 150, 102) is MENU
    assert pointing.element_at((MENU, wide), 200, 102) is wide


def test_other_gestures_read_like_actions() -> None:
    assert render_action(pointing.click(ALL, 310, 300, exact=True)) == "click(310, 300)"
    assert render_action(pointing.click(ALL, 310, 300, button="right")) == 'click("Go", button="right")'
    assert render_action(pointing.click(ALL, 310, 300, count=2)) == 'double_click("Go")'
    assert render_action(pointing.hover(ALL, 10, 10)) == "hover(10, 10)"
    assert render_action(pointing.scroll(ALL, 310, 300, direction="up")) == 'scroll("Go", direction="up")'
    assert render_action(pointing.scroll(ALL, 5, 6, direction="down")) == "scroll(5, 6)"
    assert render_action(pointing.drag(ALL, (310, 300), (600, 500))) == 'drag("Go", "drawing")'
    assert render_action(pointing.drag(ALL, (1, 2), (600, 500), exact=True)) == "drag_pixels([1, 2, 600, 500])"


@pytest.mark.parametrize(("end", "word"), [((10, 10), "end"), ((310, 300), "start")])
def test_drag_without_an_element_says_where(end: tuple[int, int], word: str) -> None:
    start = (310, 300) if word == "end" else (10, 10)
    with pytest.raises(pointing.NothingThere, match=word):
        pointing.drag(ALL, start, end)


@given(x=st.integers(0, 799), y=st.integers(0, 599), exact=st.booleans(), count=st.sampled_from([1, 2]))
def test_every_click_is_a_well_formed_action(x: int, y: int, *, exact: bool, count: int) -> None:
    text = render_action(pointing.click(ALL, x, y, exact=exact, count=count))
    assert render_action(parse_action(text)) == text


# --- recording -------------------------------------------------------------------------------------------------------

TASK = TaskRef("calc-set-cell", 3, "demonstration")


def done(text: str, *elements: Element, picture_bytes: bytes = b"") -> PerformedAction:
    return PerformedAction(parse_action(text), make_observation(*elements), picture_bytes)


def record(*performed: PerformedAction, finished_itself: bool = False) -> list[str]:
    made = to_recording(TASK, "do it", performed, last=make_observation(), finished_itself=finished_itself, desktop="x")
    return [step.action_text for step in made.steps]


def test_recording_ends_with_done_unless_the_task_ends_itself() -> None:
    assert record(done("wait()")) == ["wait()", "done()"]
    assert record(done("wait()"), done("done()")) == ["wait()", "done()"]
    assert record(done("wait()"), finished_itself=True) == ["wait()"]
    with pytest.raises(ValueError, match="given up"):
        record(done("fail()"))


def test_recording_joins_what_was_typed_with_pauses() -> None:
    typed = [done('type("he")'), done('type("llo", enter=True)'), done('type("x")'), done('key("tab")'), done('type("y")')]
    assert [render_action(one.action) for one in joined(typed)] == ['type("hello", True)', 'type("x")', 'key("tab")', 'type("y")']


def test_recording_keeps_elements_and_picture() -> None:
    shown = done('click("Go")', BUTTON, picture_bytes=b"webp")
    pixels, dragged = done("click(1, 2)", BUTTON), done('drag("Go", 3)', BUTTON, ROW)
    copied = done('files.copy("Go", "row")', BUTTON, ROW)
    steps = to_recording(
        TASK, "do it", [shown, pixels, dragged, copied], last=make_observation(), finished_itself=False, desktop="x"
    ).steps
    go, row = RecordedTarget("button", "Go", 310, 300), RecordedTarget("table-row-item", "row", 300, 300)
    assert [step.targets for step in steps] == [{"target": go}, {}, {"target": row, "source": go}, {}, {}]
    assert steps[0].observation.elements == (BUTTON,) and base64.b64decode(steps[0].picture) == b"webp"


# --- pictures --------------------------------------------------------------------------------------------------------


def test_changed_box_is_the_smallest_around_all_changes() -> None:
    before = np.zeros((60, 80, 3), np.uint8)
    after = before.copy()
    assert picture.changed_box(before, after) is None
    assert picture.changed_box(None, after) == (0, 0, 80, 60)
    assert picture.changed_box(np.zeros((10, 10, 3), np.uint8), after) == (0, 0, 80, 60)
    after[20, 30, 1] = 1
    after[50, 10, 2] = 1
    assert picture.changed_box(before, after) == (10, 20, 21, 31)


def test_part_is_a_header_and_a_picture_of_that_size() -> None:
    frame = np.full((60, 80, 3), 200, np.uint8)
    data = picture.encode_part(frame, (5, 6, 20, 10))
    assert picture.HEADER.unpack(data[:8]) == (5, 6, 20, 10)
    assert Image.open(io.BytesIO(data[8:])).size == (20, 10)


# --- commands --------------------------------------------------------------------------------------------------------


def test_commands_are_read_as_they_are_written() -> None:
    assert commands.parse_command('{"do": "score"}') == commands.Score(do="score")
    click = commands.parse_command('{"do": "click", "x": 3, "y": 4, "count": 2, "exact": true}')
    assert click == commands.Click(do="click", x=3, y=4, count=2, exact=True)


@pytest.mark.parametrize(
    "message",
    [
        "",
        "[]",
        "{}",
        '{"do": "eval", "text": "1"}',
        '{"do": "click", "x": -1, "y": 2}',
        '{"do": "click", "x": "3", "y": 2}',
        '{"do": "score", "more": 1}',
        '{"do": "act"}',
        '{"do": "choose", "family": "x", "seed": 1.5}',
        json.dumps({"do": "act", "text": "x" * 5000}),
        '{"do": "click", "x": 1, "y": 1, "button": "fourth"}',
    ],
)
def test_commands_of_another_shape_are_refused_with_a_reason(message: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        commands.parse_command(message)


@given(st.text(max_size=200))
def test_commands_garbage_is_never_anything_but_refused(message: str) -> None:
    with pytest.raises(ValueError):
        commands.parse_command(message)


def test_signatures_show_how_actions_are_written() -> None:
    assert signature(ACTIONS["calc.set_cell"]) == "calc.set_cell(cell, value)"
    assert signature(ACTIONS["click"]) == 'click(target, y=None, button="left", hold="")'
