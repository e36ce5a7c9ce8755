"""ComputerRL's formats: what the policy is shown, and how it fits the token budget."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from computerrl.actor.prompts.formats import make_format
from computerrl.actor.prompts.formats.base import PastAction
from computerrl.actor.prompts.formats.computerrl import call_lines
from computerrl.common.config import PromptConfig
from computerrl.common.errors import ConfigError
from tests.support.data.actor_data import make_element, make_observation, make_prompt
from tests.support.data.format_data import PICTURE, SCREEN, TEXT, VISION, block


def test_text_prompt_shows_rows_with_centre_and_size_content_first() -> None:
    rows = TEXT.rows("x", SCREEN)
    assert rows == [
        "push-button\tSubmit\t(412, 230)\t(60, 24)\tfocused",
        "entry\ttwo\\nlines\t(10, 590)\t(100, 20)",
        "menu\tFile\t(30, 20)\t(40, 20)",
    ]
    system, user = TEXT.messages("Press\nSubmit", SCREEN, rows, [])
    assert (system.role, user.role, user.image) == ("system", "user", None)
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


def test_prompt_tells_of_no_calls_that_would_be_refused() -> None:
    made = make_format(PromptConfig.model_validate({"format": "computerrl_text"}), actions="gui")
    said, with_calls = made.messages("x", SCREEN, [], [])[0].text, TEXT.messages("x", SCREEN, [], [])[0].text
    assert "CalcTools" in with_calls and "Agent.open_app" in with_calls and "prefer it to many clicks" in with_calls
    assert "Tools" not in said and "Agent.open_app" not in said and "prefer it" not in said
    assert [line for line in with_calls.splitlines() if line.startswith(("Agent.click", "Agent.exit", "Agent.hotkey"))] == [
        line for line in said.splitlines() if line.startswith(("Agent.click", "Agent.exit", "Agent.hotkey"))
    ]


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
    fixed = len(make_prompt(format="computerrl_text", max_prompt_tokens=9000).build("", make_observation(), []).tokens)
    for room in (60, 400, 3000):
        limit = max(fixed + room, 6500)
        prompt = make_prompt(format="computerrl_text", max_prompt_tokens=limit)
        tokens = prompt.build("task " * 50, screen, past).tokens
        assert len(tokens) <= limit and bytes(tokens.tolist()).endswith(b"</user><assistant>")


def test_text_prompt_whose_calls_do_not_fit_the_budget_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"actor.prompt.max_prompt_tokens: 1000, but what every prompt .* takes up to"):
        make_prompt(format="computerrl_text", max_prompt_tokens=1000)


def test_vision_prompt_refers_to_the_picture_of_now_only() -> None:
    screen = replace(SCREEN, screenshot=PICTURE)
    assert VISION.rows("x", screen) == []
    turns = VISION.messages("x", screen, [], [PastAction("before")])
    assert [turn.image for turn in turns] == [None, None, None, PICTURE]
    assert "Submit" not in turns[-1].text and "from 0 at the left edge to 1000" in turns[0].text and "<answer>" in turns[0].text
    with pytest.raises(ValueError, match=r"desktop\.observation"):
        VISION.messages("x", SCREEN, [], [])


def test_vision_prompt_is_refused_where_only_tokens_are_taken() -> None:
    with pytest.raises(ConfigError, match=r"actor\.prompt\.format.*images"):
        make_prompt(format="computerrl_vision")
