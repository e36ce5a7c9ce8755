"""ComputerRL's formats: what an answer means, whatever text it is."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from computerrl.actor.prompts.formats.base import PromptFormat
from computerrl.actor.prompts.formats.computerrl import MAX_BLOCK_CHARS
from computerrl.actor.prompts.formats.published_calls import CALLS
from computerrl.common.actions import ACTIONS, ActionSyntaxError, parse_action, render_action
from tests.support.data.format_data import COMPACT, QWEN, SCREEN, TEXT, UI_TARS, VISION, block, meant, read


def refusal(answer: str) -> str:
    with pytest.raises(ActionSyntaxError, match=r"^Invalid action: ") as caught:
        read(answer)
    return str(caught.value)


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
        ("Action: ```python\nAgent.wait()\n```", "wait()"),
        ("<think>x</think>Action:```python\nAgent.wait()\n```", "wait()"),
        ("Use ```Agent.exit(True)``` later.\n```python\nAgent.wait()\n```", "wait()"),
        ("```python\r\nAgent.wait()\r\n```\r\n", "wait()"),
        ('  ```python\n  Agent.quote("""a\n  \n   b""")\n  ```', 'quote("a\\n\\n b")'),
        ('```python\nAgent.quote("""a\n   \n b""")\n```', 'quote("a\\n   \\n b")'),
        (block("Agent.hotkey(['+', 'ctrl'])"), 'key("ctrl++")'),
        (block("Agent.hotkey(['ctrl++', 'shift'])"), 'key("ctrl+shift++")'),
        (block("Agent.hotkey(['+'])"), 'key("+")'),
        (block("Agent.hotkey([' ctrl ', 's'])"), 'key("ctrl+s")'),
        (block("Agent.click([0, 0])"), "click(0, 0)"),
        (block("Agent.click([0.0, 0.0])"), "click(0, 0)"),
        (block("Agent.click([1, 0])"), "click(1, 0)"),
        (block("Agent.drag_and_drop([0, 0], [0, 5])"), "drag_pixels([0, 0, 0, 5])"),
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
        ("```python Agent.wait()```", "lines of their own"),
        (block("Agent.click([0.41, 0.23])"), "[0.41, 0.23] are fractions of the screen: coordinates go from 0 to 799"),
        (block("Agent.click([0.41, 230])"), "are fractions"),
        (block("Agent.click([0.0, 1.0])"), "are fractions"),
        (block("Agent.click([1.0, 1.0])"), "are fractions"),
        (block("Agent.scroll([0.5, 0.5], 'up')"), "are fractions"),
        (block("Agent.drag_and_drop([1, 2], [0.9, 0.9])"), "are fractions"),
        (block("Agent.type([0.5, 0.5], 'x')"), "are fractions"),
        (block("Agent.drag_pixels([0.1, 0.2, 30, 40])"), "must be a list of int"),
        (block("Agent.click([-0.4, 2])"), "x = -0.4 is not on the screen"),
        (block("Agent.click([10, 20, 30, 40])"), "two numbers [x, y], not 4"),
        (block("Agent.click([[10, 20], [30, 40]])"), "must be a list of int or float"),
        (block("Agent.click('[10, 20]')"), "must be a list of int or float"),
        (block("Agent.click([412; 230])"), "the call is not valid Python"),
        (block("Agent.click([412 230])"), "the call is not valid Python"),
        (block("Agent.click([412\uff0c230])"), "the call is not valid Python"),
        (block("Agent.click(<point>412 230</point>)"), "the call is not valid Python"),
        (block("Agent.click(412:230)"), "the call is not valid Python"),
        (block("Agent.click(start_box='(10,20)')"), "no argument 'start_box'"),
        (block("Agent.hotkey([])"), "names no key"),
        (block("Agent.hotkey([' '])"), "names no key"),
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
        (block("Agent.click(1, 2)"), "'coordinates' must be a list of int or float"),
        (block("Agent.click([True, 2])"), "must be a list of int or float"),
        (block("Agent.click(['1', '2'])"), "must be a list of int or float"),
        (block("Agent.click([800, 2])"), "x = 800 is not on the screen: it goes from 0 to 799"),
        (block("Agent.click([1, -1])"), "y = -1 is not on the screen"),
        (block("Agent.click([1e999, 1])"), "too large a number"),
        (block(f"Agent.click([0x{'f' * 3000}, 1])"), "too large a number"),
        (block("Agent.click([1, 2], 4)"), "'num_clicks' must be one of 1, 2, 3"),
        (block("Agent.click([1, 2], 2, 'right')"), "'button_type' does not go with num_clicks=2"),
        (block("Agent.scroll([1, 2])"), "needs 'direction'"),
        (block("Agent.type('x')"), "'coordinates' must be a list of int or float"),
        (block("Agent.drag_pixels([1, 2, 3])"), "a path is x, y"),
        (block("Agent.drag_and_drop([1, 2], [900, 4])"), "x = 900 is not on the screen"),
        (block(f"Agent.quote('{'x' * MAX_BLOCK_CHARS}')"), "longer than"),
        (block("(" * 900 + ")" * 900), "does not begin with a call"),
        (block("Agent.wait(\x00)"), "is not valid Python"),
    ],
)
def test_parse_bad_answer_is_an_invalid_action_that_says_why(answer: str, reason: str) -> None:
    assert reason in refusal(answer)


_TAGS = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<Thought>", "</Thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("◁think▷", "◁/think▷"),
    ("< think >", "</ think >"),
]
_CALL = "```python\nAgent.click([1, 2])\n```"
_OTHER = "```python\nAgent.exit(True)\n```"


@pytest.mark.parametrize(("begin", "end"), _TAGS)
def test_parse_call_in_a_thought_is_no_call(begin: str, end: str) -> None:
    assert "thought has no end" in refusal(f"{begin}\nI could do\n{_CALL}\nbut that would delete")
    assert "thought has no end" in refusal(f"{begin}I could do: {_CALL}\nbut that would delete")
    assert "thought has no end" in refusal(f"{begin}{_CALL}")
    assert "thought has no end" in refusal(f"{begin}x{end}\nWait. {begin}\n{_CALL}")
    assert "thought has no end" in refusal(f"{begin}\nDONE")
    assert "no fenced Python block" in refusal(f"I could do\n{_CALL}\nor not.\n{end}\nNothing.")
    for answer in (
        f"{begin}\n{_CALL}\n{end}\n{_OTHER}",
        f"{_CALL}\n{end}\n{_OTHER}",
        f"{begin}a{begin}b{end}\n{_CALL}\n{end}\n{_OTHER}",
        f"{begin}a{end} and {begin}\n{_CALL}\n{end}\n{_OTHER}",
        f"{begin}\n```python\nAgent.click(\n{end}\n{_OTHER}",
        f"So:\n{begin}\n{_CALL}{end}\n{_OTHER}\n{begin}later\n{_CALL}{end}",
        f"{begin}I could do: {_CALL}\nbut no.{end}\n{_OTHER}",
        f"{begin}{_CALL}{end}{_OTHER}",
    ):
        assert read(answer) == meant("done()"), answer


@pytest.mark.parametrize(("begin", "end"), _TAGS)
def test_parse_compact_takes_the_action_after_a_thought(begin: str, end: str) -> None:
    assert COMPACT.parse(f"{begin}\nclick(1)\n{end}\n\nclick(3)", SCREEN) == meant("click(3)")
    said = f'type("{begin} and {end}")'
    assert COMPACT.parse(said, SCREEN) == meant(said)
    with pytest.raises(ActionSyntaxError, match="thought has no end"):
        COMPACT.parse(f"{begin}\nclick(3)", SCREEN)


_CALLS = {
    "ui_tars": (UI_TARS, "Thought: x\nAction: wait()", "Thought: x\nAction: finished()"),
    "qwen": (
        QWEN,
        '<tool_call>\n{"name": "computer_use", "arguments": {"action": "wait"}}\n</tool_call>',
        '<tool_call>\n{"name": "computer_use", "arguments": {"action": "terminate", "status": "success"}}\n</tool_call>',
    ),
    "text": (TEXT, "```python\nAgent.wait()\n```", _OTHER),
    "vision": (VISION, "<answer>\n```python\nAgent.wait()\n```\n</answer>", f"<answer>\n{_OTHER}\n</answer>"),
}


@pytest.mark.parametrize("name", sorted(_CALLS))
@pytest.mark.parametrize(("begin", "end"), _TAGS)
def test_parse_call_in_any_thought_is_no_call_wherever_the_thought_begins(begin: str, end: str, name: str) -> None:
    form, call, other = _CALLS[name]
    for before in ("", f"{begin}a{end}\n", f"{begin}a{end} and {begin}b{end}\n", "So it is.\n", "Thought: x\n"):
        with pytest.raises(ActionSyntaxError, match="thought has no end"):
            form.parse(f"{before}{begin}\n{call}\n", SCREEN)
        assert form.parse(f"{before}{begin}\n{call}\n{end}\n{other}", SCREEN) == meant("done()")
        assert form.parse(f"{before}{call}", SCREEN) == meant("wait()")


_BREAKS = "".join(map(chr, (0x0B, 0x0C, 0x1C, 0x1D, 0x1E, 0x85, 0x2028, 0x2029)))


@given(st.text(st.sampled_from(f"ab `<>\\\"'{_BREAKS}é日😀"), max_size=40).filter(lambda text: "```" not in text))
def test_parse_text_with_any_character_is_kept(text: str) -> None:
    literal = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    assert read(block(f"Agent.quote({literal})")).args["content"] == text
    assert COMPACT.parse(f"quote({literal})", SCREEN).args["content"] == text


_PIECES = st.sampled_from(
    ["<think>", "</think>", "<thinking>", "Action: ", "[0.5, 0]", "\u2028", "\r\n",
     "<answer>", "</answer>", "\n```python\n", "\n```\n", "```", "Agent.click(", "[1, 2]", ")", "DONE",
     "\n", "'''", "Thought: x\n", "\nAction: click(start_box='", "(1,2)')", "wait()", "<tool_call>", "</tool_call>",
     '{"name": "computer_use", "arguments": {"action": "', 'wait"}}', 'key", "keys": ["a"]}}']
)  # fmt: skip


@given(
    st.lists(st.one_of(_PIECES, st.text(max_size=20)), max_size=15).map("".join),
    st.sampled_from([TEXT, VISION, COMPACT, UI_TARS, QWEN]),
)
def test_parse_any_text_gives_an_action_or_an_invalid_action(answer: str, chosen: PromptFormat) -> None:
    try:
        action = chosen.parse(answer, SCREEN)
    except ActionSyntaxError:
        return
    assert parse_action(render_action(action)) == action


@given(st.sampled_from(sorted(CALLS)), st.text(max_size=60))
def test_parse_any_arguments_give_an_action_or_an_invalid_action(call: str, arguments: str) -> None:
    try:
        assert read(block(f"{call}({arguments})")).name in ACTIONS
    except ActionSyntaxError:
        pass


_LONG = [
    "```\nx\n```\n</think>\n",
    "<think></think>",
    "<think>",
    "</think>",
    "<think>\n```\nx\n```\n",
    "a ```python\n",
    "```\n</think>\n",
    "x ``` <think></think>",
    "<answer>",
    "```",
    "< ",
    "<a:",
    "\n",
    "(",
    "\\\n",
    "\x00",
    "[THINK]</think>\n```\n```\n",
    "'" * 3,
    "\nAction: ",
    "<tool_call>{",
    "<tool_call>[",
    '{"a":',
]


@pytest.mark.parametrize("piece", _LONG)
@pytest.mark.parametrize("chosen", [TEXT, VISION, COMPACT, UI_TARS, QWEN], ids=["text", "vision", "compact", "ui_tars", "qwen"])
def test_parse_takes_steps_in_proportion_to_the_answer(piece: str, chosen: PromptFormat) -> None:
    assert _num_steps(chosen, piece * 800) <= 2 * _num_steps(chosen, piece * 400) + 100


def _num_steps(chosen: PromptFormat, answer: str) -> int:
    """Lines of Python that parsing ``answer`` runs."""
    num_steps = 0

    def count(_frame: FrameType, _event: str, _value: object) -> Callable[..., Any]:
        nonlocal num_steps
        num_steps += 1
        return count

    with suppress(ActionSyntaxError):
        chosen.parse(answer, SCREEN)  # Patterns that are compiled at first use would be counted.
    before = sys.gettrace()
    gc.collect()
    gc.disable()  # Finalizers of other objects would run, and be counted, while the completion is parsed.
    sys.settrace(count)
    try:
        chosen.parse(answer, SCREEN)
    except ActionSyntaxError:
        pass
    finally:
        sys.settrace(before)
        gc.enable()
    return num_steps


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
    screen = replace(SCREEN, screen_width=width)
    x = min(x, width - 1)
    said = VISION.render(f"click({x}, 5)", screen)
    found = VISION.parse(said, screen).args["target"]
    assert abs(found - x) <= max(1, width // 2000 + 1)
