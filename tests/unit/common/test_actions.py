"""The parser accepts one call with literals, and nothing in model text is ever evaluated."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computerrl.common.actions import ACTIONS, MAX_ACTION_CHARS, ActionSyntaxError, parse_action, render_action
from computerrl.common.messages import Action


@pytest.mark.parametrize(
    ("text", "name", "args"),
    [
        ("click(3)", "click", {"target": 3, "y": None, "button": "left", "hold": ""}),
        (" click(10, 20) ", "click", {"target": 10, "y": 20, "button": "left", "hold": ""}),
        ('type("a\\nb", enter=True)', "type", {"text": "a\nb", "enter": True, "overwrite": False, "target": None, "y": None}),
        (
            'type("a", overwrite=True, target="Name")',
            "type",
            {"text": "a", "enter": False, "overwrite": True, "target": "Name", "y": None},
        ),
        ("key('ctrl+s')", "key", {"keys": "ctrl+s", "times": 1}),
        ('calc.set_cell("B2", -4.5)', "calc.set_cell", {"cell": "B2", "value": -4.5}),
        ('calc.set_cell(value="=A1", cell="AA10")', "calc.set_cell", {"cell": "AA10", "value": "=A1"}),
        ("done()", "done", {}),
    ],
)
def test_parse_action_valid_text_gives_bound_arguments(text: str, name: str, args: dict[str, object]) -> None:
    assert parse_action(text) == Action(name=name, args=args)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not one function call"),
        ("click", "not a function call"),
        ("click(3); click(4)", "not one function call"),
        ("__import__('os').system('id')", "unknown action"),
        ("os.system('id')", "unknown action"),
        ("click(__import__('os'))", "not a literal"),
        ("click(1+1j)", "must be int"),
        ("click(True)", "must be int"),
        ("click()", "needs 'target'"),
        ("click(1, 2, 'left', '', 5)", "at most 4"),
        ("click(1, hold='alt')", "must be one of"),
        ("key('a', 51)", "must be one of 1 to 50"),
        ("scroll(1, clicks=0)", "must be one of 1 to 30"),
        ("click(1, target=2)", "twice"),
        ("click(1, colour='red')", "no argument 'colour'"),
        ("click(*[1])", "not a literal"),
        ("click(**{'target': 1})", "has no argument"),
        ("scroll(1, direction='sideways')", "must be one of"),
        ("type(5)", "must be str"),
        ("a.b.c()", "unknown action"),
        ("(" * 500 + ")" * 500, "not one function call"),
        ("x" * (MAX_ACTION_CHARS + 1), "longer than"),
        ("click(1\x00)", "not one function call"),
        (f"click({'9' * 30})", "too large"),
        ("calc.set_cell('A1', 1e999)", "too large"),
        ("calc.set_column_values('A', [1, -1e999])", "too large"),
        ("click(element=3)", "no argument 'element': it takes target, y, button, hold"),
        ("click('Bella)", "not one function call: unterminated string literal"),
        ("click(\uff13)", "not one function call: invalid character"),
        ("click(50%)", "not one function call: invalid syntax"),
        ("calc.set_column_values('A', 3)", "'data' must be a list of str or int or float"),
        (r"type('\ud800')", "surrogate"),
    ],
)
def test_parse_action_bad_text_raises_syntax_error_naming_it(text: str, message: str) -> None:
    with pytest.raises(ActionSyntaxError, match=message.replace("(", r"\(")):
        parse_action(text)


@given(st.text(max_size=200))
def test_parse_action_any_text_gives_action_or_syntax_error(text: str) -> None:
    try:
        assert parse_action(text).name in ACTIONS
    except ActionSyntaxError:
        pass


@given(st.sampled_from(["click(", "type(", "calc.set_cell(", "drag("]), st.text(max_size=60))
def test_parse_action_garbage_arguments_give_action_or_syntax_error(head: str, tail: str) -> None:
    try:
        parse_action(head + tail + ")")
    except ActionSyntaxError:
        pass


@st.composite
def actions(draw: st.DrawFn) -> Action:
    spec = ACTIONS[draw(st.sampled_from(sorted(ACTIONS)))]
    values: dict[type, st.SearchStrategy[object]] = {
        int: st.integers(-(10**9), 10**9),
        str: st.text(max_size=40),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
    }
    args: dict[str, object] = {}
    for param in spec.params:
        if param.default is not ... and draw(st.booleans()):
            args[param.name] = param.default
        elif param.choices:
            args[param.name] = draw(st.sampled_from(param.choices))
        elif param.items:
            args[param.name] = draw(st.lists(st.one_of([values[kind] for kind in param.items]), max_size=4))
        else:
            args[param.name] = draw(values[draw(st.sampled_from(param.kinds))])
    return Action(name=spec.name, args=args)


@given(actions())
def test_render_action_any_action_is_read_back_the_same(action: Action) -> None:
    text = render_action(action)
    ast.parse(text, mode="eval")
    if len(text) <= MAX_ACTION_CHARS:
        assert parse_action(text) == action
