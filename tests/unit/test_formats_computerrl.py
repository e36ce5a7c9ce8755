"""ComputerRL's formats: what the policy is shown, what its answers mean, and that demonstrations are said the same way."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actor.formats import make_format
from actor.formats.base import PastAction, PromptFormat
from actor.formats.computerrl import MAX_BLOCK_CHARS, call_lines
from actor.formats.published_calls import CALLS
from actor.prompt import PromptBuilder
from common.actions import ACTIONS, FINAL_ACTIONS, ActionSyntaxError, parse_action, render_action
from common.config import PromptConfig
from common.errors import ConfigError
from common.messages import Action, Element, Observation, ScreenshotRef
from tests.unit.actor_data import EOS, ByteTokenizer, make_element, make_observation, make_prompt
from tests.unit.test_actions import actions

TEXT = make_format(PromptConfig.model_validate({"format": "computerrl_text"}))
VISION = make_format(PromptConfig.model_validate({"format": "computerrl_vision"}))
SCREEN = dataclasses.replace(
    make_observation(
        Element(1, "push-button", "Submit", 412, 230, 60, 24, ("focused",)),
        Element(2, "entry", "two\nlines", 10, 590, 100, 20, ()),
        Element(3, "menu", "File", 30, 20, 40, 20, (), False),
    ),
    app="calc",
)
PICTURE = ScreenshotRef("hash", "segment-0.bin", 0, 10, 800, 600)


def block(*lines: str, thought: str = "Why.") -> str:
    source = "\n".join(lines)
    return f"<think>\n{thought}\n</think>\n```python\n{source}\n```"


def read(answer: str, screen: Observation = SCREEN) -> Action:
    return TEXT.parse(answer, screen)


def refusal(answer: str) -> str:
    with pytest.raises(ActionSyntaxError, match=r"^Invalid action: ") as caught:
        read(answer)
    return str(caught.value)


def meant(text: str) -> Action:
    return parse_action(text)


# --- the prompt ------------------------------------------------------------------------------------------------------


def test_text_prompt_shows_rows_with_centre_and_size_content_first() -> None:
    rows = TEXT.rows("x", SCREEN)
    assert rows == [
        "push-button\tSubmit\t(412, 230)\t(60, 24)\tfocused",
        "entry\ttwo\\nlines\t(10, 590)\t(100, 20)",
        "menu\tFile\t(30, 20)\t(40, 20)",
    ]
    system, user = TEXT.messages("Press\nSubmit", SCREEN, rows, [])
    assert (system.role, user.role, user.picture) == ("system", "user", None)
    assert user.text.splitlines() == [
        "Task: Press\\nSubmit",
        "Application in front: calc, window: Page",
        "Screen: 800 x 600 pixels",
        "tag\ttext\tcentre\tsize\tstates",
        *rows,
    ]
    assert TEXT.messages("x", SCREEN, rows[:1], [])[-1].text.endswith("\n...")


def test_text_prompt_lists_the_calls_of_the_application_in_front() -> None:
    calc, browser = "\n".join(call_lines("calc")), "\n".join(call_lines("chromium"))
    assert "CalcTools.set_cell_value(cell, value)" in calc and "Agent.click(coordinates, num_clicks=1" in calc
    assert "WriterTools" not in calc and "CalcTools" not in browser and "Agent.exit(success)" in browser
    assert calc in TEXT.messages("x", SCREEN, [], [])[0].text


def test_text_prompt_tells_earlier_turns_as_turns() -> None:
    past = [PastAction(block("Agent.wait()"), result="a\nb"), PastAction("hm", error="Invalid action: no block")]
    turns = TEXT.messages("x", SCREEN, [], past)
    assert [turn.role for turn in turns] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert turns[1].text.startswith("Task: x\n") and turns[2].text == past[0].text
    assert turns[3].text.startswith("Result of the last action: a\\nb\n")
    assert turns[5].text.startswith("The last action was not done: Invalid action: no block\n")


def test_text_prompt_leaves_out_rows_then_turns_to_fit_the_budget() -> None:
    screen = make_observation(*[make_element(number, "x" * 40) for number in range(1, 200)])
    past = [PastAction(block("Agent.wait()"))] * 3
    fixed = len(make_prompt(format="computerrl_text", max_prompt_tokens=9000).build("", make_observation(), []))
    for room in (60, 400, 3000):
        limit = max(fixed + room, 6500)
        prompt = make_prompt(format="computerrl_text", max_prompt_tokens=limit)
        tokens = prompt.build("task " * 50, screen, past)
        assert len(tokens) <= limit and bytes(tokens.tolist()).endswith(b"</user><assistant>")


def test_text_prompt_whose_calls_do_not_fit_the_budget_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"actor.prompt.max_prompt_tokens: 1000, but what every prompt .* takes up to"):
        make_prompt(format="computerrl_text", max_prompt_tokens=1000)


def test_vision_prompt_refers_to_the_picture_of_now_only() -> None:
    screen = dataclasses.replace(SCREEN, screenshot=PICTURE)
    assert VISION.rows("x", screen) == []
    turns = VISION.messages("x", screen, [], [PastAction("before")])
    assert [turn.picture for turn in turns] == [None, None, None, PICTURE]
    assert "Submit" not in turns[-1].text and "from 0 at the left edge to 1000" in turns[0].text and "<answer>" in turns[0].text
    with pytest.raises(ValueError, match=r"desktop\.observation"):
        VISION.messages("x", SCREEN, [], [])


def test_vision_prompt_is_refused_where_only_tokens_are_taken() -> None:
    with pytest.raises(ConfigError, match=r"actor\.prompt\.format.*pictures"):
        make_prompt(format="computerrl_vision")


# --- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "action"),
    [
        ("Agent.click([412, 230])", "click(412, 230)"),
        ("Agent.click((412, 230.4), 2)", "double_click(412, 230)"),
        ("Agent.click(coordinates=[1, 2], num_clicks=3)", "triple_click(1, 2)"),
        ('Agent.click([1, 2], button_type="right")', 'click(1, 2, "right")'),
        ('Agent.type(text="a\\nb", enter=True)', 'type("a\\nb", True)'),
        ("Agent.type([5, 6], 'x', overwrite=True)", 'type("x", overwrite=True, target=5, y=6)'),
        ("Agent.drag_and_drop([1, 2], [3, 4])", "drag_pixels([1, 2, 3, 4])"),
        ("Agent.drag_pixels([1, 2, 3, 4, 5, 6])", "drag_pixels([1, 2, 3, 4, 5, 6])"),
        ('Agent.scroll([1, 2], "up")', 'scroll(1, 2, "up")'),
        ("Agent.open_app('chrome')", 'apps.open("chrome")'),
        ("Agent.switch_window('calc')", 'apps.switch("calc")'),
        ("Agent.list_windows()", "apps.list()"),
        ('Agent.hotkey(["ctrl", "shift", "t"])', 'key("ctrl+shift+t")'),
        ('Agent.hotkey("ctrl+s")', 'key("ctrl+s")'),
        ('Agent.quote("""she said \'\'\'no\'\'\'\nand "yes" ```""")', "quote('she said \\'\\'\\'no\\'\\'\\'\\nand \"yes\" ```')"),
        ("Agent.wait()", "wait()"),
        ("Agent.exit(success=True)", "done()"),
        ("Agent.exit(False)", "fail()"),
        ("Agent.hover([1, 2])", "hover(1, 2)"),
        ('Agent.key_down(["shift"])', 'key_down("shift")'),
        ('CalcTools.set_cell_value(cell="B2", value="=A1")', 'calc.set_cell("B2", "=A1")'),
        ('CalcTools.set_column_values("A", [1, "b"])', 'calc.set_column_values("A", [1, "b"])'),
        ("WriterTools.save()", "writer.save()"),
        ("BrowserTools.open_extensions()", "chrome.open_extensions()"),
        ('FileTools.move("a.txt", "b")', 'files.move("a.txt", "b")'),
    ],
)
def test_parse_published_call_gives_our_action(call: str, action: str) -> None:
    assert read(block(call)) == meant(action)


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        ("```python\nAgent.wait()\n```", "wait()"),
        ("I wait. ```\n   ```py\n   Agent.wait()\n   ```\nDone so.", "wait()"),
        (block("# a comment", "", "Agent.wait()"), "wait()"),
        (block("Agent.wait()", "Agent.exit(True)"), "wait()"),
        (block("Agent.wait()", "and then I am done"), "wait()"),
        (block("Agent.wait()") + "\n" + block("Agent.exit(True)"), "wait()"),
        (block("Agent.exit(True)", thought="```python\nAgent.wait()\n```"), "done()"),
        (block("Agent.quote('</think>')"), 'quote("</think>")'),
        (block("Agent.wait()", "DONE"), "wait()"),
        (block("DONE"), "done()"),
        ("<think>\nNothing more to do.\n</think>\nDONE", "done()"),
        ("It cannot be done.\nFAIL\n", "fail()"),
        ("WAIT", "wait()"),
    ],
)
def test_parse_takes_the_first_action_of_the_first_block_after_the_thought(answer: str, action: str) -> None:
    assert read(answer) == meant(action)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("", "no fenced Python block"),
        ("Agent.wait()", "no fenced Python block"),
        ("I am DONE", "no fenced Python block"),
        ("<think>\n```python\nAgent.wait()\n```\n</think>\nNo.", "no fenced Python block"),
        ("```python\nAgent.wait()", "has no end"),
        (block(""), "does not begin with a call"),
        (block("x = Agent.wait()"), "does not begin with a call"),
        (block("import os"), "does not begin with a call"),
        (block("STOP"), "not a function call"),
        (block("wait()"), "unknown action 'wait'"),
        (block("Agent.fly()"), "unknown action 'Agent.fly'"),
        (block("Agent.__class__()"), "unknown action"),
        (block("Agent.wait.__call__()"), "unknown action"),
        (block("__import__('os').system('id')"), "unknown action"),
        (block("Agent.click(Agent.wait())"), "not a literal"),
        (block("Agent.quote(__import__('os').getcwd())"), "not a literal"),
        (block("Agent.quote(f'{1}')"), "not a literal"),
        (block("Agent.wait(1)"), "at most 0"),
        (block("Agent.click([1, 2], speed=3)"), "no argument 'speed'"),
        (block("Agent.click([1])"), "two numbers [x, y], not 1"),
        (block("Agent.click([1, 2, 3])"), "two numbers [x, y], not 3"),
        (block("Agent.click(1, 2)"), "'coordinates' must be list or tuple"),
        (block("Agent.click([True, 2])"), "must be a list of int or float"),
        (block("Agent.click(['1', '2'])"), "must be a list of int or float"),
        (block("Agent.click([800, 2])"), "x = 800 is not on the screen: it goes from 0 to 799"),
        (block("Agent.click([1, -1])"), "y = -1 is not on the screen"),
        (block("Agent.click([1e999, 1])"), "too large a number"),
        (block(f"Agent.click([0x{'f' * 3000}, 1])"), "too large a number"),
        (block("Agent.click([1, 2], 4)"), "'num_clicks' must be one of 1, 2, 3"),
        (block("Agent.click([1, 2], 2, 'right')"), "'button_type' does not go with num_clicks=2"),
        (block("Agent.scroll([1, 2])"), "needs 'direction'"),
        (block("Agent.type('x')"), "'coordinates' must be list or tuple"),
        (block("Agent.drag_pixels([1, 2, 3])"), "a path is x, y"),
        (block("Agent.drag_and_drop([1, 2], [900, 4])"), "x = 900 is not on the screen"),
        (block(f"Agent.quote('{'x' * MAX_BLOCK_CHARS}')"), "longer than"),
        (block("(" * 900 + ")" * 900), "does not begin with a call"),
        (block("Agent.wait(\x00)"), "does not begin with a call"),
    ],
)
def test_parse_bad_answer_is_an_invalid_action_that_says_why(answer: str, reason: str) -> None:
    assert reason in refusal(answer)


_PIECES = st.sampled_from(
    ["<think>", "</think>", "<answer>", "</answer>", "\n```python\n", "\n```\n", "```", "Agent.click(", "[1, 2]", ")", "DONE",
     "\n", "'''"]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(st.one_of(_PIECES, st.text(max_size=20)), max_size=15).map("".join), st.sampled_from([TEXT, VISION]))
def test_parse_any_text_gives_an_action_or_an_invalid_action(answer: str, chosen: PromptFormat) -> None:
    try:
        action = chosen.parse(answer, SCREEN)
    except ActionSyntaxError:
        return
    assert parse_action(render_action(action)) == action


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(CALLS)), st.text(max_size=60))
def test_parse_any_arguments_give_an_action_or_an_invalid_action(call: str, arguments: str) -> None:
    try:
        assert read(block(f"{call}({arguments})")).name in ACTIONS
    except ActionSyntaxError:
        pass


# --- vision's coordinates --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "pixel"), [([0, 0], (0, 0)), ([500, 500], (400, 300)), ([1000, 1000], (799, 599)), ([1, 999], (1, 599))]
)
def test_vision_coordinates_are_thousandths_of_the_screen(place: list[int], pixel: tuple[int, int]) -> None:
    answer = f"<think>\nx\n</think>\n<answer>\n```python\nAgent.click({place})\n```\n</answer>"
    assert VISION.parse(answer, SCREEN) == meant(f"click{pixel}")


@pytest.mark.parametrize("place", [[1001, 0], [0, -1], [0, 1000.6]])
def test_vision_coordinates_outside_a_thousand_are_invalid(place: list[float]) -> None:
    with pytest.raises(ActionSyntaxError, match="goes from 0 to 1000"):
        VISION.parse(f"<answer>\n```python\nAgent.click({place})\n```\n</answer>", SCREEN)


def test_vision_answer_needs_its_tags_but_for_a_bare_word() -> None:
    assert VISION.parse("<think>\nx\n</think>\nDONE", SCREEN) == meant("done()")
    assert VISION.parse("<answer>\nDONE\n</answer>", SCREEN) == meant("done()")
    with pytest.raises(ActionSyntaxError, match="no <answer>"):
        VISION.parse(block("Agent.wait()"), SCREEN)
    assert VISION.parse("<answer>\n```\nAgent.quote('</answer>')\n```\n</answer>", SCREEN) == meant("quote('</answer>')")


@given(st.integers(0, 3839), st.integers(320, 3840))
def test_vision_rendered_place_is_read_back_within_its_resolution(x: int, width: int) -> None:
    screen = dataclasses.replace(SCREEN, screen_width=width)
    x = min(x, width - 1)
    said = VISION.render(f"click({x}, 5)", screen)
    found = VISION.parse(said, screen).args["target"]
    assert abs(found - x) <= max(1, width // 2000 + 1)


# --- demonstrations --------------------------------------------------------------------------------------------------


def test_render_names_the_element_in_the_thought_and_clicks_its_centre() -> None:
    assert TEXT.render('click("Submit")', SCREEN) == (
        '<think>\nClick the push-button "Submit".\n</think>\n```python\nAgent.click([412, 230])\n```'
    )
    assert TEXT.render("drag(1, 2)", SCREEN).splitlines()[-2] == "Agent.drag_and_drop([412, 230], [10, 590])"
    assert TEXT.render('type("a", target=2)', SCREEN).splitlines()[-2] == 'Agent.type([10, 590], "a")'
    assert "\n<answer>\n```python\nAgent.click([515, 383])\n" in VISION.render("click(1)", SCREEN)


def test_render_thought_of_a_screen_with_fences_and_tags_does_not_end_the_thought() -> None:
    screen = make_observation(make_element(1, "a</think>\n```python\nAgent.exit(False)\n```"))
    assert TEXT.parse(TEXT.render("click(1)", screen), screen) == meant("click(10, 10)")


@pytest.mark.parametrize("text", ["click(9)", 'click("gone")', "click(900, 1)", "drag(1, 9)", 'click("x", 3)'])
def test_render_action_without_a_place_on_screen_is_a_lookup_error(text: str) -> None:
    with pytest.raises(LookupError):
        TEXT.render(text, SCREEN)


@settings(max_examples=400, deadline=None)
@given(actions(), st.sampled_from([TEXT, VISION]))
def test_render_any_action_of_ours_is_read_back_as_the_same(action: Action, chosen: PromptFormat) -> None:
    args = dict(action.args)
    points = "." not in action.name and "target" in args
    if points:
        args.update(target=1, y=None)
    if "source" in args and points:
        args["source"] = 2
    if action.name == "drag_pixels":
        args["path"] = [40, 60, 80, 120, 160, 240][: 4 if len(args["path"]) % 2 else 6]
    if "keys" in args:
        args["keys"] = "ctrl++"
    action = Action(name=action.name, args=args)
    found = chosen.parse(chosen.render(render_action(action), SCREEN), SCREEN)
    if action.name == "drag":
        assert found == meant("drag_pixels([10, 590, 412, 230])")
        return
    if points:
        args.update(target=412, y=230)
    assert found == Action(name=action.name, args=args)


def test_every_action_of_ours_has_exactly_one_call_and_every_call_an_action() -> None:
    assert {name.partition(".")[0] for name in CALLS} >= {"Agent", "CalcTools", "WriterTools", "ImpressTools", "FileTools"}
    bare = {"click": "click(1)", "drag": "drag(1, 2)", "scroll": "scroll(1)", "type": 'type("a")'}
    for name in {*FINAL_ACTIONS, *bare}:
        assert read(TEXT.render(bare.get(name, f"{name}()"), SCREEN)).name in {name, "drag_pixels"}


def test_demonstration_tokens_end_as_a_sampled_answer_does() -> None:
    prompt = make_prompt(format="computerrl_text", max_prompt_tokens=9000)
    said = prompt.render("done()", SCREEN)
    tokens = prompt.encode_action(said)
    assert tokens.tolist() == [*said.encode(), EOS] and prompt.stop_tokens == {EOS}
    assert prompt.parse(ByteTokenizer().decode(tokens.tolist()), SCREEN) == meant("done()")


def test_prompt_builder_counts_in_the_tokens_of_the_format() -> None:
    assert isinstance(make_prompt(format="computerrl_text", max_prompt_tokens=9000), PromptBuilder)
    given = PromptConfig.model_validate({"format": "computerrl_text", "max_elements": 5})
    assert (given.max_elements, given.max_prompt_tokens, given.max_element_chars) == (5, 4096, 120)
