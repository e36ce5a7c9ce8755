"""The action formats of UI-TARS and of Qwen's computer use: published answers mean our actions, hostile ones are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from computerrl.actor.prompts.formats import make_format
from computerrl.actor.prompts.formats.base import PastAction, PromptFormat, Unsayable
from computerrl.actor.prompts.formats.qwen_computer_use import MAX_CALL_CHARS as MAX_JSON_CHARS
from computerrl.actor.prompts.formats.ui_tars import MAX_CALL_CHARS
from computerrl.common.actions import ActionSyntaxError, render_action
from computerrl.common.actions.targets import element_at, same_action
from computerrl.common.config import PromptConfig
from computerrl.common.messages import Action
from tests.support.data.format_data import PICTURE, QWEN, SCREEN, UI_TARS, meant
from tests.unit.common.test_actions import actions


def refusal(form: PromptFormat, answer: str) -> str:
    with pytest.raises(ActionSyntaxError, match=r"^Invalid action: ") as caught:
        form.parse(answer, SCREEN)
    return str(caught.value)


# --- UI-TARS ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "action"),
    [
        ("click(start_box='(500,500)')", "click(400, 300)"),
        ("click(start_box='<|box_start|>(500,500)<|box_end|>')", "click(400, 300)"),
        ("click(start_box='<|box_start|>(500, 500)<|box_end|>')", "click(400, 300)"),
        ("click(start_box='[400,400,600,600]')", "click(400, 300)"),
        ("click(start_box='500 500')", "click(400, 300)"),
        ("click(point='<point>500 500</point>')", "click(400, 300)"),
        ("click('(500,500)')", "click(400, 300)"),
        ('click(start_box="(0,0)")', "click(0, 0)"),
        ("click(start_box='(1000,1000)')", "click(799, 599)"),
        ("left_double(start_box='(500,500)')", "double_click(400, 300)"),
        ("right_single(start_box='(500,500)')", 'click(400, 300, "right")'),
        ("drag(start_box='(0,0)', end_box='(500,500)')", "drag_pixels([0, 0, 400, 300])"),
        ("drag(start_point='<point>0 0</point>', end_point='<point>500 500</point>')", "drag_pixels([0, 0, 400, 300])"),
        ("hotkey(key='ctrl c')", 'key("ctrl+c")'),
        ("hotkey(key='ctrl+shift+t')", 'key("ctrl+shift+t")'),
        ("hotkey(key='ctrl +')", 'key("ctrl++")'),
        ("hotkey(key='arrowdown')", 'key("down")'),
        ("type(content='hello')", 'type("hello")'),
        ("type(content='hello\\n')", 'type("hello", True)'),
        (r"type(content='it\'s \"so\" \\ a\nb\n')", 'type("it\'s \\"so\\" \\\\ a\\nb", True)'),
        ("type(content='Action: click()')", 'type("Action: click()")'),
        ("scroll(start_box='(500,500)', direction='up')", 'scroll(400, 300, "up")'),
        ("scroll(point='<point>500 500</point>', direction='left')", 'scroll(400, 300, "left")'),
        ("wait()", "wait()"),
        ("finished()", "done()"),
        ("finished(content='It is 7.')", "done()"),
        ("call_user()", "fail()"),
    ],
)
def test_ui_tars_call_gives_our_action(call: str, action: str) -> None:
    assert UI_TARS.parse(f"Thought: So it is.\nAction: {call}", SCREEN) == meant(action)


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        ("Action: wait()", "wait()"),
        ("Action:wait()", "wait()"),
        ("Thought: I could write\nAction: finished()\nbut no.\nAction: wait()", "wait()"),
        ("Thought: x\nAction: wait()\nfinished()", "wait()"),
        ("Thought: x\nAction: wait()\n\nclick(start_box='(1,2)')", "wait()"),
        ("Thought: x\nAction: wait()\nand then I am done", "wait()"),
        ("Thought: x\nAction:\nwait()", "wait()"),
        ("<think>\nAction: finished()\n</think>\nThought: x\nAction: wait()", "wait()"),
    ],
)
def test_ui_tars_answer_counts_by_the_first_call_of_its_last_action_line(answer: str, action: str) -> None:
    assert UI_TARS.parse(answer, SCREEN) == meant(action)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("", "does not begin with a call"),
        ("click", "not a function call"),
        ("click()", "needs 'start_box'"),
        ("click(start_box=(1,2))", "must be str"),
        ("click(start_box='(1,2)', button='right')", "no argument 'button'"),
        ("click(start_box='(1)')", "is no place"),
        ("click(start_box='(1,2,3)')", "is no place"),
        ("click(start_box='(nan,2)')", "is no place"),
        ("click(start_box='(1e3,2)')", "is no place"),
        ("click(start_box='(inf,2)')", "is no place"),
        (f"click(start_box='({'9' * 300},2)')", "is no place"),
        ("click(start_box='(１,２)')", "is no place"),
        ("click(start_box='(__import__(1),2)')", "is no place"),
        ("click(start_box='(1001,2)')", "x = 1001 is not on the screen"),
        ("click(start_box='(-1,2)')", "x = -1 is not on the screen"),
        ("click(start_box='(0.5,0.5)')", "are fractions"),
        ("drag(start_box='(1,2)')", "needs 'end_box'"),
        ("scroll(start_box='(1,2)', direction='sideways')", "must be one of up, down"),
        ("hotkey(key='')", "names no key"),
        ("type(content=1)", "must be str"),
        ("type(content='don't')", "is not valid Python"),
        (r"type(content='\ud800')", "surrogate"),
        ("type(content=open('/etc/passwd').read())", "not a literal"),
        ("type(content=f'{1}')", "not a literal"),
        ("type(content='a' * 9)", "not a literal"),
        (f"type(content='{'a' * MAX_CALL_CHARS}')", "longer than"),
        ("fly()", "unknown action 'fly'"),
        ("os.system('id')", "unknown action 'os.system'"),
        ("__import__('os').system('id')", "unknown action"),
        ("import os", "does not begin with a call"),
        ("x = click(start_box='(1,2)')", "does not begin with a call"),
        ("(" * 900 + ")" * 900, "does not begin with a call"),
        ("wait(\x00)", "is not valid Python"),
        ("wait(1)", "at most 0"),
        ("click(**{'start_box': '(1,2)'})", "no argument '**'"),
    ],
)
def test_ui_tars_bad_call_is_an_invalid_action_that_says_why(call: str, reason: str) -> None:
    assert reason in refusal(UI_TARS, f"Thought: x\nAction: {call}")


@pytest.mark.parametrize("answer", ["", "click(start_box='(1,2)')", "Thought: Action: wait()", "<think>\nAction: wait()"])
def test_ui_tars_answer_without_an_action_is_invalid(answer: str) -> None:
    assert "Action:" in refusal(UI_TARS, answer) or "thought has no end" in refusal(UI_TARS, answer)


# --- Qwen's computer use ---------------------------------------------------------------------------------------------


def call_of(**arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'computer_use', 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        ({"action": "left_click", "coordinate": [500, 500]}, "click(400, 300)"),
        ({"action": "left_click", "coordinate": [500.0, 500.4]}, "click(400, 300)"),
        ({"action": "right_click", "coordinate": [500, 500]}, 'click(400, 300, "right")'),
        ({"action": "middle_click", "coordinate": [500, 500]}, 'click(400, 300, "middle")'),
        ({"action": "double_click", "coordinate": [500, 500]}, "double_click(400, 300)"),
        ({"action": "triple_click", "coordinate": [500, 500]}, "triple_click(400, 300)"),
        ({"action": "mouse_move", "coordinate": [500, 500]}, "hover(400, 300)"),
        ({"action": "left_click_drag", "coordinate": [500, 500]}, "drag_pixels([400, 300])"),
        (
            {"action": "left_click_drag", "start_coordinate": [0, 0], "coordinate": [500, 500]},
            "drag_pixels([0, 0, 400, 300])",
        ),
        ({"action": "key", "keys": ["ctrl", "c"]}, 'key("ctrl+c")'),
        ({"action": "key", "keys": ["ArrowDown"]}, 'key("down")'),
        ({"action": "type", "text": 'a"b\n'}, 'type("a\\"b", True)'),
        ({"action": "scroll", "pixels": -3, "coordinate": [500, 500]}, 'scroll(400, 300, "down", 3)'),
        ({"action": "scroll", "pixels": 900}, 'scroll(400, 300, "up", 30)'),
        ({"action": "hscroll", "pixels": 2.0, "coordinate": [500, 500]}, 'scroll(400, 300, "right", 2)'),
        ({"action": "hscroll", "pixels": -2, "coordinate": [500, 500]}, 'scroll(400, 300, "left", 2)'),
        ({"action": "wait", "time": 2.5}, "wait()"),
        ({"action": "wait"}, "wait()"),
        ({"action": "answer", "text": "It is 7."}, 'quote("It is 7.")'),
        ({"action": "terminate", "status": "success"}, "done()"),
        ({"action": "terminate", "status": "failure"}, "fail()"),
    ],
)
def test_qwen_call_gives_our_action(arguments: dict[str, Any], action: str) -> None:
    assert QWEN.parse(call_of(**arguments), SCREEN) == meant(action)


@pytest.mark.parametrize(
    "answer",
    [
        "I wait.\n" + call_of(action="wait"),
        "<think>\n" + call_of(action="terminate", status="success") + "\n</think>\n" + call_of(action="wait"),
        call_of(action="wait") + "\n" + call_of(action="terminate", status="success"),
        call_of(action="wait").removesuffix("\n</tool_call>"),
        call_of(action="wait").removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"),
    ],
)
def test_qwen_answer_counts_by_its_first_call(answer: str) -> None:
    assert QWEN.parse(answer, SCREEN) == meant("wait()")


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("", "not one JSON object"),
        ("{", "not one JSON object"),
        ('{"name": "computer_use", "arguments": {"action": "wait"}', "not one JSON object"),
        ("{'name': 'computer_use', 'arguments': {'action': 'wait'}}", "not one JSON object"),
        ("wait()", "not one JSON object"),
        ("[1]", "the call is not {"),
        ("null", "the call is not {"),
        ('{"name": "os.system", "arguments": {"action": "wait"}}', "the call is not {"),
        ('{"name": "computer_use"}', "the call is not {"),
        ('{"name": "computer_use", "arguments": "{\\"action\\": \\"wait\\"}"}', "the call is not {"),
        ('{"name": "computer_use", "arguments": {}}', "unknown action None"),
        ('{"name": "computer_use", "arguments": {"action": ["wait"]}}', "unknown action ['wait']"),
        ('{"name": "computer_use", "arguments": {"action": "fly"}}', "unknown action 'fly': it is one of key, type"),
        ('{"name": "computer_use", "arguments": {"action": "wait", "action": "key"}}', "an argument twice"),
        ('{"name": "computer_use", "arguments": {"action": "left_click"}}', "needs 'coordinate'"),
        ('{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [NaN, 1]}}', "NaN is no number"),
        ('{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [Infinity, 1]}}', "is no number"),
        ('{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [1e999, 1]}}', "too large a number"),
        (
            f'{{"name": "computer_use", "arguments": {{"action": "left_click", "coordinate": [{"9" * 40}, 1]}}}}',
            "too large a number",
        ),
        (
            f'{{"name": "computer_use", "arguments": {{"action": "left_click", "coordinate": [{"9" * 5000}, 1]}}}}',
            "not one JSON object",
        ),
        ('{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": ["1", "2"]}}', "a list of int or float"),
        ('{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [true, 2]}}', "a list of int or float"),
        ('{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [[1], 2]}}', "a list of int or float"),
        ('{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": {"x": 1}}}', "a list of int or float"),
        ('{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [1]}}', "two numbers"),
        ('{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [1, 1001]}}', "y = 1001 is not on"),
        ('{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [0.5, 0.5]}}', "are fractions"),
        ('{"name": "computer_use", "arguments": {"action": "wait", "seconds": 3}}', "no argument 'seconds'"),
        ('{"name": "computer_use", "arguments": {"action": "scroll", "pixels": 0}}', "turns no wheel"),
        ('{"name": "computer_use", "arguments": {"action": "scroll", "pixels": "3"}}', "must be int or float"),
        ('{"name": "computer_use", "arguments": {"action": "key", "keys": []}}', "names no key"),
        ('{"name": "computer_use", "arguments": {"action": "key", "keys": "ctrl+c"}}', "a list of str"),
        ('{"name": "computer_use", "arguments": {"action": "type", "text": "\\ud800"}}', "surrogate"),
        ('{"name": "computer_use", "arguments": {"action": "terminate", "status": "maybe"}}', "one of success, failure"),
        ("[" * 2000, "not one JSON object"),
        ('{"a":' * 1000, "not one JSON object"),
        ('{"name": "' + "x" * MAX_JSON_CHARS, "not one JSON object"),
        ("__import__('os').system('id')", "not one JSON object"),
    ],
)
def test_qwen_bad_call_is_an_invalid_action_that_says_why(call: str, reason: str) -> None:
    assert reason in refusal(QWEN, f"<tool_call>\n{call}\n</tool_call>")


@pytest.mark.parametrize("answer", ["", "left_click(1, 2)", "<tools>wait</tools>", "I would call wait."])
def test_qwen_answer_without_a_call_is_invalid(answer: str) -> None:
    assert "no <tool_call>" in refusal(QWEN, answer)


# --- both ------------------------------------------------------------------------------------------------------------

FORMS = {"ui_tars": UI_TARS, "qwen_computer_use": QWEN}
BOTH = (
    *('click("Submit")', "double_click(1)", 'click(1, button="right")', "drag(2, 1)", "drag_pixels([40, 60, 80, 120])"),
    *('type("it\'s\\n \\"so\\" \\u2028 </tool_call> é日😀")', 'type("a", True)', 'key("ctrl++")', 'key("down")'),
    *('scroll(1, direction="up")', 'scroll(400, 300, direction="left")', "wait()", "done()", "fail()"),
)
SAYABLE = {
    "ui_tars": BOTH,
    "qwen_computer_use": (
        *BOTH,
        *(
            'click(1, button="middle")',
            "triple_click(1)",
            "hover(1)",
            "scroll(1, clicks=7)",
            "drag_pixels([40, 60])",
            'quote("7")',
        ),
    ),
}
"""Format -> actions that it says."""
UNSAYABLE = {
    "ui_tars": (*('click(1, button="middle")', "triple_click(1)", "hover(1)", "scroll(1, clicks=7)", "drag_pixels([40, 60])"),),
    "qwen_computer_use": (),
}
NEITHER = (
    *('click(1, hold="ctrl")', 'type("a", overwrite=True)', 'type("a", target=1)', 'key("a", 2)', 'key_down("a")', 'key_up("a")'),
    *("drag_pixels([40, 60, 80, 120, 160, 240])", 'calc.set_cell("B2", 1)', 'apps.open("calc")'),
)


@pytest.mark.parametrize(("name", "said"), [(name, said) for name, said in SAYABLE.items() for said in said])
def test_demonstration_is_said_and_read_back(name: str, said: str) -> None:
    assert _is_same(FORMS[name].parse(FORMS[name].render(said, SCREEN), SCREEN), meant(said))


@pytest.mark.parametrize(("name", "said"), [(name, said) for name, more in UNSAYABLE.items() for said in (*more, *NEITHER)])
def test_demonstration_beyond_the_published_calls_has_no_form(name: str, said: str) -> None:
    with pytest.raises(Unsayable, match=f"{name} has no call for {meant(said).name}") as caught:
        FORMS[name].render(said, SCREEN)
    assert caught.value.reason == "no_form"


@given(actions(), st.sampled_from(sorted(FORMS)))
def test_any_demonstration_is_read_back_as_the_same_or_has_no_form(action: Action, name: str) -> None:
    action, form = _on_screen(action), FORMS[name]
    try:
        said = form.render(render_action(action), SCREEN)
    except Unsayable:
        return
    assert _is_same(form.parse(said, SCREEN), action)


def _is_same(found: Action, action: Action) -> bool:
    if action.name == "drag":
        places = zip(found.args["path"][::2], found.args["path"][1::2], strict=True)
        return [element_at(SCREEN.elements, *place) for place in places] == [SCREEN.elements[1], SCREEN.elements[0]]
    if action.name == "type":
        typed, wanted = (one.args["text"] + "\n" * one.args["enter"] for one in (found, action))
        return found.name == "type" and typed == wanted
    return same_action(SCREEN.elements, found, action)


def _on_screen(action: Action) -> Action:
    """``action`` with targets on SCREEN, at places that 0 to 1000 can write."""
    args = dict(action.args)
    if "." not in action.name and args.get("target") is not None:
        args.update({"target": 1, "y": None} if "y" in args else {"target": 1, "source": 2})
    if action.name == "drag_pixels":
        args["path"] = [40, 60, 80, 120, 160, 240][: 2 + 2 * (len(args["path"]) % 3)]
    if "keys" in args:
        args["keys"] = "ctrl++"
    return Action(name=action.name, args=args)


@pytest.mark.parametrize("form", [UI_TARS, QWEN], ids=["ui_tars", "qwen"])
def test_system_text_names_every_call_and_the_coordinates(form: PromptFormat) -> None:
    screen = replace(SCREEN, screenshot=PICTURE)
    system, *turns = form.messages("Press Submit.", screen, [], [PastAction("before", screenshot=PICTURE)], num_images=2)
    assert system.role == "system" and "to 1000 at the right one" in system.text
    assert [turn.role for turn in turns] == ["user", "assistant", "user"] and turns[0].image == turns[2].image == PICTURE
    assert [name for name in PUBLISHED["ui_tars" if form is UI_TARS else "qwen"] if name not in system.text] == []
    assert form.parse(form.render("click(1)", SCREEN), SCREEN).name == "click"


PUBLISHED = {
    "ui_tars": ("click", "left_double", "right_single", "drag", "hotkey", "type", "scroll", "wait", "finished", "call_user"),
    "qwen": (
        *("key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click", "double_click"),
        *("triple_click", "scroll", "hscroll", "wait", "terminate", "answer"),
    ),
}


@pytest.mark.parametrize("name", ["compact_vision", "computerrl_vision", "ui_tars", "qwen_computer_use"])
def test_format_in_pixels_speaks_of_the_resized_image(name: str) -> None:
    form = make_format(PromptConfig.model_validate({"format": name}), extents=lambda width, height: (1092, 812))
    said = form.render("click(400, 300)", SCREEN)
    assert "546" in said and "406" in said
    assert form.parse(said, SCREEN) == meant("click(400, 300)")
    with pytest.raises(ActionSyntaxError, match="goes from 0 to 1092"):
        form.parse(said.replace("546", "1093"), SCREEN)
    if name != "compact_vision":
        screen = replace(SCREEN, screenshot=PICTURE)
        assert "1092 x 812 pixels" in form.messages("x", screen, [], [], num_images=1)[0].text
