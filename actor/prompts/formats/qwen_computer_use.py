"""`qwen_computer_use`: calls of the function `computer_use`, as Qwen2.5-VL and Qwen3-VL write them (by their cookbooks), asked
for in our own words. An answer may think aloud before its call:

    <tool_call>
    {"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [412, 230]}}
    </tool_call>

The first call counts. It is read as JSON and checked argument by argument, never evaluated. The published function acts where the
pointer is if a call names no place. Here a click has to name one, a scroll without one is over the middle of the screen, and a
drag without `start_coordinate` (ours) begins where the pointer is. `pixels` of a scroll are clicks of the wheel, at most 30.
`answer` notes its text. A line break at the end of a typed text presses Enter. Demonstrations that need more than these are
`Unsayable`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from computerrl.actor.prompts.formats.base import Unsayable
from computerrl.actor.prompts.formats.completions import after_first_thought, outside_thoughts
from computerrl.actor.prompts.formats.conversation import Conversation, as_thought, coordinates_in_words
from computerrl.actor.prompts.formats.coordinates import Extents, Grid, thousand, written_places
from computerrl.actor.prompts.formats.keys import OTHER_NAMES, joined_keys, split_keys
from computerrl.actor.prompts.formats.points import make_aim
from computerrl.common.actions import (
    MAX_ACTION_CHARS,
    ActionSyntaxError,
    bind_values,
    complete,
    is_with,
    parse_action,
)
from computerrl.common.actions.spec import ActionSpec, Param, number, text
from computerrl.common.config import PromptConfig
from computerrl.common.messages import Action, Observation

FUNCTION = "computer_use"
MAX_CALL_CHARS = 3 * MAX_ACTION_CHARS
"""Three times, since JSON escapes quotes and line breaks."""
_BEGIN, _END = "<tool_call>", "</tool_call>"
MAX_CLICKS = 30
"""Maximum number of clicks of the wheel in one action."""


def _place(name: str, default: object = ...) -> Param:
    return Param(name, (list,), default, items=(int, float))


_ACTIONS: Mapping[str, ActionSpec] = {
    spec.name: spec
    for spec in (
        ActionSpec("key", (Param("keys", (list,), items=(str,)),), "press `keys` together"),
        ActionSpec("type", (text("text"),), "type `text`; a line break at its end presses Enter"),
        ActionSpec("mouse_move", (_place("coordinate"),), "move the pointer to `coordinate`"),
        ActionSpec("left_click", (_place("coordinate"),), "click at `coordinate`"),
        ActionSpec("right_click", (_place("coordinate"),), "click there with the right button"),
        ActionSpec("middle_click", (_place("coordinate"),), "click there with the middle button"),
        ActionSpec("double_click", (_place("coordinate"),), "double click there"),
        ActionSpec("triple_click", (_place("coordinate"),), "click there three times"),
        ActionSpec(
            "left_click_drag",
            (_place("coordinate"), _place("start_coordinate", None)),
            "drag from `start_coordinate`, or from the pointer, to `coordinate`",
        ),
        ActionSpec(
            "scroll",
            (number("pixels"), _place("coordinate", None)),
            "turn the wheel there: up where `pixels` is above 0, else down",
        ),
        ActionSpec("hscroll", (number("pixels"), _place("coordinate", None)), "the same: right where it is above 0, else left"),
        ActionSpec("wait", (number("time", 1),), "do nothing for one turn"),
        ActionSpec("answer", (text("text"),), "note `text`"),
        ActionSpec("terminate", (text("status", choices=("success", "failure")),), "end: `status` says whether the task is done"),
    )
}
POINTED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "left_click": ("click", {}),
    "right_click": ("click", {"button": "right"}),
    "middle_click": ("click", {"button": "middle"}),
    "double_click": ("double_click", {}),
    "triple_click": ("triple_click", {}),
    "mouse_move": ("hover", {}),
}
"""Action at `coordinate` -> ours, and its arguments besides the place."""
_WAYS: Mapping[str, tuple[str, str]] = {"scroll": ("up", "down"), "hscroll": ("right", "left")}
"""Direction of the wheel where `pixels` is above 0, and below."""
_PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "coordinate": {"type": "array", "description": "[x, y]"},
    "start_coordinate": {"type": "array", "description": "[x, y]"},
    "keys": {"type": "array", "description": 'names of keys, such as ["ctrl", "s"]'},
    "text": {"type": "string"},
    "pixels": {"type": "number", "description": f"clicks of the wheel, at most {MAX_CLICKS}"},
    "time": {"type": "number", "description": "seconds"},
    "status": {"type": "string", "enum": ["success", "failure"]},
}

_SYSTEM = """\
You operate a Linux desktop for a person. At every turn you see a picture of the screen and answer with one action towards the \
task.

{coordinates}

# Tools

There is one function:
<tools>
{function}
</tools>

Answer with one call of it, a JSON object with the function's name and its arguments, like this:
{example}
Only the first call is done."""


class QwenComputerUse(Conversation):
    """See the module's docstring."""

    def __init__(self, config: PromptConfig, *, extents: Extents = thousand) -> None:
        super().__init__(config, extents=extents)
        self._system = functools.lru_cache(8)(_system)

    def _system_text(self, observation: Observation) -> str:
        return self._system(self._grid(observation))

    def _action(self, completion: str, grid: Grid) -> Action:
        values = _arguments(_call_in(completion))
        name = values.pop("action", None)
        spec = _ACTIONS.get(name) if isinstance(name, str) else None
        if spec is None:
            raise ActionSyntaxError(f"unknown action {name!r:.80}: it is one of {', '.join(_ACTIONS)}")
        return _to_action(bind_values(spec, values), grid)

    def render(self, action_text: str, observation: Observation, *, seed: str = "", thought: str = "") -> str:
        action, grid, elements = parse_action(action_text), self._grid(observation), observation.elements
        aim = make_aim(elements, grid, seed=seed)
        call = _written(**_rendered(action, written_places(action, grid, elements, aim=aim)))
        return f"{as_thought(thought)}\n{call}" if thought else call


def _system(grid: Grid) -> str:
    lines = "\n".join(f"* `{spec.name}`: {spec.help}." for spec in _ACTIONS.values())
    parameters = {"action": {"type": "string", "enum": list(_ACTIONS), "description": lines}, **_PARAMETERS}
    function = {
        "name": FUNCTION,
        "description": f"Use mouse and keyboard. {coordinates_in_words(grid)}",
        "parameters": {"type": "object", "properties": parameters, "required": ["action"]},
    }
    return _SYSTEM.format(
        coordinates=coordinates_in_words(grid),
        function=json.dumps({"type": "function", "function": function}),
        example=_written(action="left_click", coordinate=[412, 230]),
    )


# --- call -> action --------------------------------------------------------------------------------------------------


def _call_in(completion: str) -> str:
    """The text of the first call after the thoughts, and all that follows."""
    begun = outside_thoughts(completion, [found.start() for found in re.finditer(_BEGIN, completion)])
    # Some tokenizers have the tags as special tokens, which texts lack.
    call = completion[begun[0] + len(_BEGIN) :] if begun else after_first_thought(completion)
    call = call.strip()
    if not begun and not call.startswith("{"):
        raise ActionSyntaxError(f"the answer holds no {_BEGIN} ... {_END}")
    return call[:MAX_CALL_CHARS]


def _arguments(call: str) -> dict[str, Any]:
    decoder = json.JSONDecoder(object_pairs_hook=_without_repeats, parse_constant=_refuse_constant)
    try:
        found, _ = decoder.raw_decode(call)
    except ActionSyntaxError:
        raise
    except (ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "too deep or too large a number"
        raise ActionSyntaxError(f"the call is not one JSON object of at most {MAX_CALL_CHARS} characters: {reason}") from error
    if not isinstance(found, dict) or found.get("name") != FUNCTION or not isinstance(found.get("arguments"), dict):
        raise ActionSyntaxError(f'the call is not {{"name": "{FUNCTION}", "arguments": {{"action": ...}}}}')
    return dict(found["arguments"])


def _without_repeats(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ActionSyntaxError("the call names an argument twice")
    return found


def _refuse_constant(name: str) -> None:
    raise ActionSyntaxError(f"{name} is no number")


def _to_action(call: Action, grid: Grid) -> Action:
    args = call.args
    if call.name in POINTED:
        name, fixed = POINTED[call.name]
        x, y = grid.pixel(args["coordinate"])
        return complete(name, target=x, y=y, **fixed)
    if call.name in _WAYS:
        return _scroll(call, grid)
    match call.name:
        case "left_click_drag":
            start = [] if args["start_coordinate"] is None else grid.pixel(args["start_coordinate"])
            return complete("drag_pixels", path=[*start, *grid.pixel(args["coordinate"])])
        case "key":
            return complete("key", keys=joined_keys(args["keys"], names=OTHER_NAMES))
        case "type":
            return complete("type", text=args["text"].removesuffix("\n"), enter=args["text"].endswith("\n"))
        case "answer":
            return complete("quote", content=args["text"])
        case "terminate":
            return complete("done" if args["status"] == "success" else "fail")
    return complete("wait")


def _scroll(call: Action, grid: Grid) -> Action:
    amount = call.args["pixels"]
    if round(amount) == 0:
        raise ActionSyntaxError(f"{call.name}: 'pixels' is {amount}, which turns no wheel")
    place = call.args["coordinate"]
    x, y = (grid.width // 2, grid.height // 2) if place is None else grid.pixel(place)
    direction = _WAYS[call.name][amount < 0]
    return complete("scroll", target=x, y=y, direction=direction, clicks=min(MAX_CLICKS, abs(round(amount))))


# --- action -> call --------------------------------------------------------------------------------------------------


def _written(**arguments: Any) -> str:
    call = json.dumps({"name": FUNCTION, "arguments": arguments}, ensure_ascii=False)
    return f"{_BEGIN}\n{call}\n{_END}"


def _rendered(action: Action, places: Sequence[list[int]]) -> dict[str, Any]:
    """Arguments of the call that means ``action``, with its targets at ``places``. Raises `Unsayable`."""
    given = action.args
    for name, (ours, fixed) in POINTED.items():
        if is_with(action, ours, **fixed):
            return {"action": name, "coordinate": places[0]}
    match action.name:
        case "drag" | "drag_pixels" if len(places) <= 2:
            start = {"start_coordinate": places[0]} if len(places) == 2 else {}
            return {"action": "left_click_drag", **start, "coordinate": places[-1]}
        case "scroll":
            name = "scroll" if given["direction"] in _WAYS["scroll"] else "hscroll"
            sign = 1 if given["direction"] == _WAYS[name][0] else -1
            return {"action": name, "coordinate": places[0], "pixels": sign * given["clicks"]}
        case "key" if given["times"] == 1:
            return {"action": "key", "keys": split_keys(given["keys"])}
        case "type" if not places and not given["overwrite"]:
            return {"action": "type", "text": given["text"] + ("\n" if given["enter"] else "")}
        case "quote":
            return {"action": "answer", "text": given["content"]}
        case "wait":
            return {"action": "wait", "time": 1}
        case "done" | "fail":
            return {"action": "terminate", "status": "success" if action.name == "done" else "failure"}
    raise Unsayable("no_form", f"qwen_computer_use has no call for {action.name} with these arguments")
