"""An action's arguments for the guest: elements become pixels, and mistakes are messages for the agent."""

from __future__ import annotations

from typing import Any

import pytest

from computerrl.common.actions import parse_action
from computerrl.common.messages import Element
from computerrl.env_server.drivers.action_pixels import ActionResolver

RESOLVER = ActionResolver((Element(1, "button", "ok", 10, 20, 30, 40, ()), Element(2, "entry", "", 50, 60, 8, 8, ())), 800, 600)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("click(1)", {"x": 10, "y": 20, "button": "left"}),
        ("click(70, 80)", {"x": 70, "y": 80}),
        ('type("hi")', {"x": None, "y": None, "enter": False}),
        ('type("hi", target=2)', {"x": 50, "y": 60}),
        ("drag(1, 2)", {"x": 10, "y": 20, "to_x": 50, "to_y": 60}),
    ],
)
def test_targets_become_pixels(text: str, expected: dict[str, Any]) -> None:
    args = RESOLVER.arguments(parse_action(text))
    assert expected.items() <= args.items() and "target" not in args


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("click(9)", "9"),
        ("click(800, 0)", "not on the screen"),
        ("drag_pixels([1, 2, 3])", "a path is"),
        ('click("a", 3)', "no pixel"),
    ],
)
def test_mistake_is_a_message_for_the_agent(text: str, message: str) -> None:
    with pytest.raises(LookupError, match=message):
        RESOLVER.arguments(parse_action(text))
