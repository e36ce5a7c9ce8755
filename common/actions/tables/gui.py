"""Mouse and keyboard, and how an episode ends."""

from __future__ import annotations

from computerrl.common.actions.spec import ActionSpec, Param, flag, many, text, whole

# A target is an element's number, its text where no other element has it, or x followed by y as two numbers.
_TARGET = Param("target", (int, str))
_Y = whole("y", None)
_DIRECTION = text("direction", "down", choices=("up", "down", "left", "right"))
MAX_KEY_TIMES = 50
"""Presses of one `key` action at most: each is a round trip through the application in front."""
_TIMES = Param("times", (int,), 1, tuple(range(1, MAX_KEY_TIMES + 1)))
_CLICKS = Param("clicks", (int,), 5, tuple(range(1, 31)))

TABLE = (
    ActionSpec(
        "click",
        (
            _TARGET,
            _Y,
            text("button", "left", choices=("left", "middle", "right")),
            text("hold", "", choices=("", "ctrl", "shift", "ctrl+shift")),
        ),
        'click element n or "its text", or pixel x, y; hold: keys held meanwhile',
    ),
    ActionSpec("double_click", (_TARGET, _Y), "double click element n, or pixel x, y"),
    ActionSpec("triple_click", (_TARGET, _Y), "click three times: selects a line or paragraph"),
    ActionSpec("hover", (_TARGET, _Y), "move the pointer there"),
    ActionSpec(
        "type",
        (text("text"), flag("enter", False), flag("overwrite", False), Param("target", (int, str), None), _Y),
        "type text where the focus is; target: click there first; overwrite: in place of what the field holds",
    ),
    ActionSpec("key", (text("keys"), _TIMES), 'press keys together, like "ctrl+s", so many times'),
    ActionSpec("key_down", (text("keys"),), "press keys and hold them until key_up"),
    ActionSpec("key_up", (text("keys"),), "release held keys"),
    ActionSpec("scroll", (_TARGET, _Y, _DIRECTION, _CLICKS), "turn the wheel over element n, or pixel x, y"),
    ActionSpec("drag", (Param("source", (int, str)), _TARGET), "drag element source onto element target"),
    ActionSpec(
        "drag_pixels",
        (many("path", (int,)),),
        "press at the first pixel (given one alone: where the pointer is), move along x, y, x, y, ..., release",
    ),
    ActionSpec("quote", (text("content"),), "note something; it comes back as this action's result"),
    ActionSpec("wait", (), "do nothing for one step"),
    ActionSpec("done", (), "the task is finished"),
    ActionSpec("fail", (), "the task cannot be done"),
)
