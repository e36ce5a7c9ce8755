"""pyautogui code of AgentNet as actions of ours: a table, the way back from our own export, and any code."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computerrl.common.actions import parse_action, render_action
from computerrl.launch.export.agentnet import code_of
from computerrl.launch.imports.agentnet import NoAction, Pointer, action_of, read_line
from tests.support.tiers import one_in

WIDTH, HEIGHT = 800, 600


def read(code: str, pointer: Pointer | None = None) -> str:
    return render_action(action_of(code, pointer, width=WIDTH, height=HEIGHT)[0])


@pytest.mark.parametrize(
    ("code", "action"),
    [
        ("pyautogui.click(x=0.5, y=0.25)", "click(400, 150)"),
        ("pyautogui.click(0.5, 0.25)", "click(400, 150)"),
        ("pyautogui.click(x=1, y=1.0)", "click(799, 599)"),
        ("pyautogui.click(x=0.5, y=0.25, button='right')", 'click(400, 150, button="right")'),
        ("pyautogui.click(x=0.5, y=0.25, clicks=2)", "double_click(400, 150)"),
        ("pyautogui.rightClick(x=0.5, y=0.25)", 'click(400, 150, button="right")'),
        ("pyautogui.middleClick(x=0.5, y=0.25)", 'click(400, 150, button="middle")'),
        ("pyautogui.doubleClick(x=0.5, y=0.25)", "double_click(400, 150)"),
        ("computer.triple_click(x=0.5, y=0.25)", "triple_click(400, 150)"),
        ("computer.tripleClick(x=0.5, y=0.25)", "triple_click(400, 150)"),
        ("pyautogui.moveTo(x=0.5, y=0.25)", "hover(400, 150)"),
        ("pyautogui.moveTo(x=0.5, y=0.25)\npyautogui.dragTo(x=1, y=0, button='left')", "drag_pixels([400, 150, 799, 0])"),
        ("pyautogui.dragTo(x=0.5, y=0.25)", "drag_pixels([400, 150])"),
        ("pyautogui.moveTo(x=0.5, y=0.25)\npyautogui.click()", "click(400, 150)"),
        ("pyautogui.scroll(-3)", "scroll(400, 300, clicks=3)"),
        ("pyautogui.scroll(500, x=0.5, y=0.25)", 'scroll(400, 150, direction="up", clicks=30)'),
        ("pyautogui.hscroll(-2, x=0.5, y=0.25)", 'scroll(400, 150, direction="left", clicks=2)'),
        ("pyautogui.moveTo(x=0.5, y=0.25)\npyautogui.scroll(-5)", "scroll(400, 150)"),
        ("pyautogui.write(message='naïve \"text\"')", 'type("naïve \\"text\\"")'),
        ("pyautogui.typewrite('ls\\n')", 'type("ls", enter=True)'),
        ("pyautogui.press(keys='enter')", 'key("enter")'),
        ("pyautogui.press('down', presses=4)", 'key("down", 4)'),
        ("pyautogui.press(['pgdn'])", 'key("pagedown")'),
        ("pyautogui.press('tab')\npyautogui.press('tab')", 'key("tab", 2)'),
        ("pyautogui.hotkey(['ctrl', 'c'])", 'key("ctrl+c")'),
        ("pyautogui.hotkey('ctrl', 'shift', 't')", 'key("ctrl+shift+t")'),
        ("pyautogui.hotkey('ctrl', '+', interval=0.1)", 'key("ctrl++")'),
        ("pyautogui.keyDown('shift')", 'key_down("shift")'),
        ("pyautogui.keyUp(key='shift')", 'key_up("shift")'),
        ("pyautogui.keyDown('ctrl')\npyautogui.click(x=0.5, y=0.25)\npyautogui.keyUp('ctrl')", 'click(400, 150, hold="ctrl")'),
        ("computer.wait()", "wait()"),
        ("computer.wait(3)\npyautogui.press('a')", 'key("a")'),
        ("computer.terminate(status='success')", "done()"),
        ("computer.terminate(status='failure', answer='no')", "fail()"),
        (
            "pyautogui.click(x=0.5, y=0.25)\npyautogui.hotkey('ctrl', 'a')\npyautogui.write('a')\npyautogui.press('enter')",
            'type("a", enter=True, overwrite=True, target=400, y=150)',
        ),
    ],
)
def test_code_is_read_as_the_action_it_means(code: str, action: str) -> None:
    assert read(code) == render_action(parse_action(action))


def test_call_without_a_place_acts_where_the_pointer_was_left() -> None:
    _, pointer = action_of("pyautogui.moveTo(x=0.5, y=0.25)", None, width=WIDTH, height=HEIGHT)
    assert read("pyautogui.click()", pointer) == "click(400, 150)"
    assert read("pyautogui.scroll(-5)", pointer) == "scroll(400, 150)"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("", "no code"),
        ("click(", "no Python"),
        ("x = 1", "more than calls"),
        ("import os", "more than calls"),
        ("__import__('os').system('true')", "no action for __import__('os').system"),
        ("pyautogui.mouseDown()", "no action for pyautogui.mouseDown"),
        ("browser.select_option(x=0.5, y=0.5, value='a')", "no action for browser.select_option"),
        ("pyautogui.click(x=512, y=300)", "outside the screen"),
        ("pyautogui.click(x=-0.1, y=0.5)", "outside the screen"),
        ("pyautogui.click(x=0.5)", "outside the screen"),
        ("pyautogui.click(x=1e400, y=0.5)", "other arguments"),
        ("pyautogui.click()", "without a place"),
        ("pyautogui.click(x=a, y=0.5)", "other arguments of pyautogui.click"),
        ("pyautogui.click(x=0.5, y=0.5, logScreenshot=True)", "other arguments of pyautogui.click"),
        ("pyautogui.click(x=0.5, y=0.5, clicks=2, button='right')", "2 clicks with the right button"),
        ("pyautogui.scroll(0)", "not turned"),
        ("pyautogui.hotkey(*keys)", "other arguments of pyautogui.hotkey"),
        ("pyautogui.hotkey()", "no key"),
        ("pyautogui.press('a', presses=1000)", "argument that no action takes"),
        ("pyautogui.press(['a', 'b'])", "several actions on one screen: key, key"),
        ("pyautogui.click(x=0.5, y=0.5)\npyautogui.click(x=0.1, y=0.1)", "several actions on one screen: click, click"),
        ("computer.terminate(status='success')\npyautogui.press('a')", "several actions on one screen: done, key"),
        ("pyautogui.keyDown('a')\npyautogui.click(x=0.5, y=0.5)\npyautogui.keyUp('a')", "argument that no action takes"),
    ],
)
def test_code_that_is_no_action_is_refused_by_name(code: str, reason: str) -> None:
    with pytest.raises(NoAction, match=reason.replace("(", r"\(").replace(")", r"\)")):
        read(code)


_COLUMN, _ROW = st.integers(0, WIDTH - 1), st.integers(0, HEIGHT - 1)
_PLACES = st.tuples(_COLUMN, _ROW)
_KEY = st.sampled_from(["enter", "ctrl+s", "ctrl++", "alt+f4", "shift+tab"])
_WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30).filter(lambda text: not text.endswith("\n"))
_EXPORTED = st.one_of(
    st.builds(lambda at, button: f'click({at[0]}, {at[1]}, "{button}")', _PLACES, st.sampled_from(["left", "right", "middle"])),
    st.builds(lambda at, hold: f'click({at[0]}, {at[1]}, hold="{hold}")', _PLACES, st.sampled_from(["ctrl", "shift"])),
    st.builds(lambda name, at: f"{name}({at[0]}, {at[1]})", st.sampled_from(["double_click", "triple_click", "hover"]), _PLACES),
    st.builds(
        lambda at, way, clicks: f'scroll({at[0]}, {at[1]}, "{way}", {clicks})',
        _PLACES,
        st.sampled_from(["up", "down", "left", "right"]),
        st.integers(1, 30),
    ),
    st.builds(lambda keys, times: f'key("{keys}", {times})', _KEY, st.integers(1, 5)),
    st.builds(
        lambda path: f"drag_pixels({[number for place in path for number in place]})", st.lists(_PLACES, min_size=1, max_size=4)
    ),
    st.builds(
        lambda text, at, enter, overwrite: render_action(
            parse_action(f"type({text!r}, {enter}, {overwrite}" + (f", {at[0]}, {at[1]})" if at else ")"))
        ),
        _WORDS,
        st.none() | _PLACES,
        st.booleans(),
        st.booleans(),
    ),
    st.sampled_from(["wait()", "done()", "fail()", 'key_down("shift")', 'key_up("shift")']),
)


@given(text=_EXPORTED)
def test_what_we_export_is_read_as_the_same_action(text: str) -> None:
    action = parse_action(text)
    target, y = action.args.get("target"), action.args.get("y")
    places = action.args.get("path") or ([target, y] if y is not None else [])
    code = code_of(action, places, width=WIDTH, height=HEIGHT)
    found, pointer = action_of(code, None, width=WIDTH, height=HEIGHT)
    assert render_action(found) == render_action(action)
    assert (pointer is None) == (not places)


_PIECES = one_in(
    1, ["pyautogui.", "computer.", "click(", "x=0.5", ", y=0.5", ")", "'", "\n", "[", "hotkey(", "**", "lambda", "0x", "\x00"]
)


@given(code=st.one_of(st.text(max_size=80), st.lists(st.sampled_from(_PIECES), max_size=12).map("".join)))
def test_any_code_is_an_action_or_refused(code: str) -> None:
    try:
        action, _ = action_of(code, None, width=WIDTH, height=HEIGHT)
    except NoAction:
        return
    assert parse_action(render_action(action)) == action


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"{}",
        b'{"task_id": "a", "instruction": "b", "traj": []}',
        b'{"task_id": "a", "instruction": " ", "traj": [{"image": "a.png", "value": {"code": "computer.wait()"}}]}',
        b'{"task_id": "a", "instruction": "b", "traj": [{"image": 5, "value": {"code": "computer.wait()"}}]}',
        b'{"task_id": "a", "instruction": "b", "traj": [{"image": "a.png", "value": {}}]}',
        b'{"task_id": "a", "instruction": "b", "traj": [{"image": "a.png"',
        b"\xff\xfe",
    ],
)
def test_line_that_is_no_trajectory_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_line(line)
