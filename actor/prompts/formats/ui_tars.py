"""`ui_tars`: the answers of the UI-TARS models (arXiv 2501.12326; the action space of their released code for computers), asked
for in our own words. An answer is a thought and one call:

    Thought: The button Submit ends the form.
    Action: click(start_box='(412,230)')

A place is written ``(x,y)``, with or without ``<|box_start|>`` and ``<|box_end|>`` around it, or as a box ``[x1,y1,x2,y2]`` that
stands for its centre. Later models write ``<point>x y</point>``, and `point`, `start_point` and `end_point` as names. Keys are
separated by blanks. A line break at the end of a typed text presses Enter. The last line that begins with `Action:` counts, and
of it the first call. It is read from its syntax tree, never evaluated.

The action space has no calls of applications, no clicks with keys held, and one speed of the wheel. Demonstrations that need more
are `Unsayable`.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from computerrl.actor.prompts.formats.base import Unsayable
from computerrl.actor.prompts.formats.completions import first_statement, outside_thoughts
from computerrl.actor.prompts.formats.conversation import (
    Conversation,
    as_thought,
    coordinates_in_words,
    demonstrated_thought,
)
from computerrl.actor.prompts.formats.coordinates import Extents, Grid, thousand, written_places
from computerrl.actor.prompts.formats.keys import OTHER_NAMES, joined_keys, split_keys
from computerrl.actor.prompts.formats.points import make_aim
from computerrl.common.actions import MAX_ACTION_CHARS, ActionSyntaxError, bind_call, complete, is_with, parse_action
from computerrl.common.actions.spec import ActionSpec, text
from computerrl.common.config import PromptConfig
from computerrl.common.messages import Action, Observation

MAX_CALL_CHARS = 2 * MAX_ACTION_CHARS
"""Twice, since a call written with our names may come out longer here."""

_DIRECTIONS = ("up", "down", "left", "right")
_CALLS: Mapping[str, ActionSpec] = {
    spec.name: spec
    for spec in (
        ActionSpec("click", (text("start_box"),), "click there"),
        ActionSpec("left_double", (text("start_box"),), "double click there"),
        ActionSpec("right_single", (text("start_box"),), "click there with the right button"),
        ActionSpec("drag", (text("start_box"), text("end_box")), "drag from one place to another"),
        ActionSpec("hotkey", (text("key"),), "press keys together; blanks between them, as in 'ctrl c'"),
        ActionSpec("type", (text("content"),), r"type text; \n at its end presses Enter, and \' and \\ stand for ' and \ "),
        ActionSpec("scroll", (text("start_box"), text("direction", choices=_DIRECTIONS)), "turn the wheel there"),
        ActionSpec("wait", (), "do nothing for one turn"),
        ActionSpec("finished", (text("content", ""),), "the task is done"),
        ActionSpec("call_user", (), "the task cannot be done"),
    )
}
_OTHER_NAMES = {"point": "start_box", "start_point": "start_box", "end_point": "end_box"}
_CLICKS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "click": ("click", {}),
    "left_double": ("double_click", {}),
    "right_single": ("click", {"button": "right"}),
}
"""Call -> our action, and its arguments besides the place."""
_EXAMPLE = "click(start_box='(412,230)')"

_NUMBER = r"(-?\d{1,6}(?:\.\d{1,6})?)"
_BETWEEN = r"(?:\s*,\s*|\s+)"
_PLACE = re.compile(
    rf"\s*(?:<\|box_start\|>|<point>|<bbox>)?\s*[(\[]?\s*{_NUMBER}{_BETWEEN}{_NUMBER}(?:{_BETWEEN}{_NUMBER}{_BETWEEN}{_NUMBER})?"
    r"\s*[)\]]?\s*(?:<\|box_end\|>|</point>|</bbox>)?\s*",
    re.ASCII,
)
_ACTION_LINE = re.compile(r"^[ \t]*Action:", re.MULTILINE)

_SYSTEM = """\
You operate a Linux desktop for a person. At every turn you see a picture of the screen and answer with one action towards the \
task.

{coordinates}

Answer in two lines, like this:
Thought: Why this action is the next one.
Action: {example}

Only the first call after `Action:` is done. The calls:
{calls}"""


class UITars(Conversation):
    """See the module's docstring."""

    def __init__(self, config: PromptConfig, *, extents: Extents = thousand) -> None:
        super().__init__(config, extents=extents)
        self._system = functools.lru_cache(8)(_system)

    def _system_text(self, observation: Observation) -> str:
        return self._system(self._grid(observation))

    def _action(self, completion: str, grid: Grid) -> Action:
        lines = outside_thoughts(completion, [line.end() for line in _ACTION_LINE.finditer(completion)])
        if not lines:
            raise ActionSyntaxError(f"the answer holds no line that begins with `Action:`; write Action: {_EXAMPLE}")
        source = completion[lines[-1] :].strip()
        if len(source) > MAX_CALL_CHARS:
            raise ActionSyntaxError(f"the action is longer than {MAX_CALL_CHARS} characters")
        return _to_action(_bound(source), grid)

    def render(self, action_text: str, observation: Observation, *, seed: str = "", thought: str = "") -> str:
        action, grid, elements = parse_action(action_text), self._grid(observation), observation.elements
        said = as_thought(thought) or demonstrated_thought(action, elements, names_screen=not self.hides_names)
        aim = make_aim(elements, grid, seed=seed)
        places = written_places(action, grid, elements, aim=aim)
        return f"Thought: {said}\nAction: {_rendered(action, places)}"


def _system(grid: Grid) -> str:
    calls = "\n".join(f"{_signature(spec)}  # {spec.help.rstrip()}" for spec in _CALLS.values())
    return _SYSTEM.format(coordinates=coordinates_in_words(grid), example=_EXAMPLE, calls=calls)


def _signature(spec: ActionSpec) -> str:
    values = {"start_box": "(x,y)", "end_box": "(x2,y2)", "direction": " or ".join(_DIRECTIONS)}
    params = ", ".join(f"{param.name}='{values.get(param.name, '...')}'" for param in spec.params)
    return f"{spec.name}({params})"


# --- call -> action --------------------------------------------------------------------------------------------------


def _bound(source: str) -> Action:
    call = first_statement(source, where="the text after `Action:`", example=_EXAMPLE).value
    for keyword in call.keywords if isinstance(call, ast.Call) else ():
        keyword.arg = _OTHER_NAMES.get(keyword.arg or "", keyword.arg)
    return bind_call(call, _CALLS)


def _to_action(call: Action, grid: Grid) -> Action:
    args = call.args
    match call.name:
        case "click" | "left_double" | "right_single":
            name, fixed = _CLICKS[call.name]
            x, y = _pixel(args["start_box"], grid)
            return complete(name, target=x, y=y, **fixed)
        case "drag":
            return complete("drag_pixels", path=[*_pixel(args["start_box"], grid), *_pixel(args["end_box"], grid)])
        case "hotkey":
            return complete("key", keys=joined_keys(args["key"].split(), names=OTHER_NAMES))
        case "type":
            content = args["content"]
            return complete("type", text=content.removesuffix("\n"), enter=content.endswith("\n"))
        case "scroll":
            x, y = _pixel(args["start_box"], grid)
            return complete("scroll", target=x, y=y, direction=args["direction"])
        case "finished":
            return complete("done")
        case "call_user":
            return complete("fail")
    return complete("wait")


def _pixel(place: str, grid: Grid) -> tuple[int, int]:
    found = _PLACE.fullmatch(place) if len(place) <= 120 else None
    if found is None:
        raise ActionSyntaxError(f"{place!r:.80} is no place: write (x,y), coordinates go {grid.words}")
    numbers = [float(number) if "." in number else int(number) for number in found.groups() if number is not None]
    if len(numbers) == 4:
        numbers = [(numbers[0] + numbers[2]) / 2, (numbers[1] + numbers[3]) / 2]
    return grid.pixel(numbers)


# --- action -> call --------------------------------------------------------------------------------------------------


def _rendered(action: Action, places: Sequence[Sequence[int]]) -> str:
    """The call that means ``action``, with its targets at ``places``. Raises `Unsayable`."""
    given, boxes = action.args, [f"({x},{y})" for x, y in places]
    for name, (ours, fixed) in _CLICKS.items():
        if is_with(action, ours, **fixed):
            return _written(name, start_box=boxes[0])
    match action.name:
        case "drag" | "drag_pixels" if len(boxes) == 2:
            return _written("drag", start_box=boxes[0], end_box=boxes[1])
        case "key" if given["times"] == 1:
            return _written("hotkey", key=" ".join(split_keys(given["keys"])))
        case "type" if not boxes and not given["overwrite"]:
            return _written("type", content=given["text"] + ("\n" if given["enter"] else ""))
        case "scroll" if is_with(action, "scroll", direction=given["direction"]):
            return _written("scroll", start_box=boxes[0], direction=given["direction"])
        case "wait":
            return _written("wait")
        case "done":
            return _written("finished", content="")
        case "fail":
            return _written("call_user")
    raise Unsayable("no_form", f"ui_tars has no call for {action.name} with these arguments")


def _written(name: str, **values: str) -> str:
    return f"{name}({', '.join(f'{key}={_literal(value)}' for key, value in values.items())})"


_ESCAPES = {"\\": "\\\\", "'": "\\'"}


def _literal(value: str) -> str:
    """``value`` on one line in the quotes of published answers."""
    return "'" + "".join(_ESCAPES.get(c) or (c if c.isprintable() else ascii(c)[1:-1]) for c in value) + "'"
