"""Actions as tools that a model may call, and its calls as actions. Pure; nothing of a model is ever evaluated.

For models of every kind each action is a function: `click`, `calc_set_cell` (dots become underscores). Anthropic's models have
mouse and keyboard as one tool of their own (`Computer`, their published actions of `computer_20250124` and later); beside it the
applications' calls, `done` and `fail` are functions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from computerrl.actor.prompts.formats.keys import OTHER_NAMES, joined_keys
from computerrl.actor.prompts.formats.qwen_computer_use import MAX_CLICKS, POINTED
from computerrl.common.actions import (
    ACTIONS,
    FINAL_ACTIONS,
    MAX_ACTION_CHARS,
    ActionSyntaxError,
    bind_values,
    calls_application,
    complete,
    render_call,
)
from computerrl.common.actions.json_schema import Json, arguments_schema
from computerrl.common.actions.spec import ActionSpec, Param, number, text
from computerrl.common.config import Actions
from computerrl.common.messages import Action

COMPUTER = "computer"
"""Name of Anthropic's tool."""
MAX_FUNCTIONS = 128
"""Maximum number of functions in a request of OpenAI's interface."""
_MAX_ARGUMENT_CHARS = 3 * MAX_ACTION_CHARS
"""Three times, since JSON escapes quotes and line breaks."""
_AREAS: Mapping[str, tuple[str, ...]] = {
    "browser": ("chrome",),
    "chromium": (),
    "editor": ("editor", "files"),
}
"""Application -> areas of the tables of actions that are of use there, where that is not its name. The locked browser of the web
tasks (chromium) has none."""
_ALWAYS = ("apps", "files")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as a model's answer holds it."""

    id: str
    """The server's name for it, which the result has to name."""
    name: str
    arguments: object
    """JSON as text, or an object."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function that a model may call."""

    name: str
    help: str
    schema: Json
    """JSON Schema of its arguments."""


def functions(app: str, *, apps: tuple[str, ...], actions: Actions, has_computer: bool) -> tuple[Function, ...]:
    """Functions for a turn in which ``app`` is in front of a desktop with ``apps``.

    Those of all ``apps``, unless they are more than a request may have: then those of ``app``. ``has_computer``: mouse and
    keyboard are a tool of their own.
    """
    specs = [spec for spec in ACTIONS.values() if _is_offered(spec, apps, actions=actions, has_computer=has_computer)]
    if len(specs) > MAX_FUNCTIONS:
        specs = [spec for spec in specs if _is_offered(spec, (app,), actions=actions, has_computer=has_computer)]
    return tuple(Function(_name(spec), spec.help, arguments_schema(spec)) for spec in specs)


def _is_offered(spec: ActionSpec, apps: tuple[str, ...], *, actions: Actions, has_computer: bool) -> bool:
    if not calls_application(spec.name):
        return not has_computer or spec.name in FINAL_ACTIONS
    areas = {area for app in apps for area in _AREAS.get(app, (app,))}
    return actions == "api_gui" and spec.name.partition(".")[0] in areas.union(_ALWAYS)


def _name(spec: ActionSpec) -> str:
    return spec.name.replace(".", "_")


_BY_NAME: Mapping[str, ActionSpec] = {_name(spec): spec for spec in ACTIONS.values()}


def action_of(call: ToolCall) -> Action:
    """The action that a function call means. Raises `ActionSyntaxError`, written for the agent."""
    spec = _BY_NAME.get(call.name)
    if spec is None:
        raise ActionSyntaxError(f"there is no function {call.name!r:.80}")
    return _short(bind_values(spec, _object(call.arguments)))


def _short(action: Action) -> Action:
    if len(render_call(ACTIONS[action.name], action.args)) > MAX_ACTION_CHARS:
        raise ActionSyntaxError(f"action longer than {MAX_ACTION_CHARS} characters")
    return action


def _object(arguments: object) -> dict[str, Any]:
    """Arguments as an object. Raises `ActionSyntaxError`."""
    if isinstance(arguments, str):
        if len(arguments) > _MAX_ARGUMENT_CHARS:
            raise ActionSyntaxError(f"arguments of more than {_MAX_ARGUMENT_CHARS} characters")
        try:
            arguments = json.loads(arguments or "{}", parse_constant=_refuse_constant)
        except (ValueError, RecursionError, MemoryError) as error:
            raise ActionSyntaxError(f"the arguments are no JSON object: {str(error)[:200]}") from error
    if not isinstance(arguments, dict):
        raise ActionSyntaxError("the arguments are no JSON object")
    return arguments


def _refuse_constant(name: str) -> None:
    raise ActionSyntaxError(f"{name} is no number")


# --- Anthropic's tool ------------------------------------------------------------------------------------------------


def _place(name: str, default: object = ...) -> Param:
    return Param(name, (list,), default, items=(int, float))


_HELD = text("text", None)
"""Keys that are held meanwhile."""
_COMPUTER: Mapping[str, ActionSpec] = {
    spec.name: spec
    for spec in (
        ActionSpec("screenshot", (), ""),
        ActionSpec("key", (text("text"),), ""),
        ActionSpec("type", (text("text"),), ""),
        ActionSpec("mouse_move", (_place("coordinate"),), ""),
        ActionSpec("left_click", (_place("coordinate", None), _HELD), ""),
        ActionSpec("right_click", (_place("coordinate", None), _HELD), ""),
        ActionSpec("middle_click", (_place("coordinate", None), _HELD), ""),
        ActionSpec("double_click", (_place("coordinate", None), _HELD), ""),
        ActionSpec("triple_click", (_place("coordinate", None), _HELD), ""),
        ActionSpec("left_click_drag", (_place("start_coordinate", None), _place("coordinate")), ""),
        ActionSpec(
            "scroll",
            (
                _place("coordinate", None),
                text("scroll_direction", choices=("up", "down", "left", "right")),
                number("scroll_amount", 5),
                _HELD,
            ),
            "",
        ),
        ActionSpec("wait", (number("duration", 1),), ""),
    )
}
_KEY_NAMES: Mapping[str, str] = {
    **OTHER_NAMES,
    **{f"{name}_{side}": name for name in ("control", "shift", "alt", "super", "meta") for side in "lr"},
    "kp_enter": "enter",
    "iso_left_tab": "tab",
    "prior": "pageup",
    "next": "pagedown",
    "equal": "=",
    "period": ".",
    "comma": ",",
    "slash": "/",
    "underscore": "_",
}
"""Names of X11 (xdotool), which the tool uses, in small letters -> names that the desktops know."""


class Computer:
    """Calls of Anthropic's tool in one episode: some act where the pointer is."""

    def __init__(self, *, width: int, height: int) -> None:
        """Size of the screen in pixels; coordinates are its pixels."""
        self._size = width, height
        self._pointer = (width // 2, height // 2)

    def action_of(self, call: ToolCall) -> Action | None:
        """The action that a call means; None for one that only looks. Raises `ActionSyntaxError`, written for the agent."""
        values = dict(_object(call.arguments))
        name = values.pop("action", None)
        spec = _COMPUTER.get(name) if isinstance(name, str) else None
        if spec is None:
            raise ActionSyntaxError(f"action {name!r:.80} is not offered: it is one of {', '.join(_COMPUTER)}")
        args = bind_values(spec, values).args
        if spec.name == "screenshot":
            return None
        action = _short(self._action(spec.name, args))
        self._pointer = self._end_of(args)
        return action

    def _action(self, name: str, args: Mapping[str, Any]) -> Action:
        held = self._held(name, args.get("text"))
        if name in POINTED:
            ours, fixed = POINTED[name]
            x, y = self._end_of(args)
            return complete(ours, target=x, y=y, **fixed, **({"hold": held} if held else {}))
        match name:
            case "left_click_drag":
                return complete("drag_pixels", path=[*self._pixel(args["start_coordinate"]), *self._pixel(args["coordinate"])])
            case "scroll":
                amount = args["scroll_amount"]
                if not (math.isfinite(amount) and round(amount) > 0):
                    raise ActionSyntaxError(f"scroll: scroll_amount is {amount}, which turns no wheel")
                x, y = self._end_of(args)
                clicks = min(MAX_CLICKS, round(amount))
                return complete("scroll", target=x, y=y, direction=args["scroll_direction"], clicks=clicks)
            case "key":
                return complete("key", keys=joined_keys([args["text"]], names=_KEY_NAMES))
            case "type":
                return complete("type", text=args["text"].removesuffix("\n"), enter=args["text"].endswith("\n"))
        return complete("wait")

    @staticmethod
    def _held(name: str, keys: str | None) -> str:
        """Keys held during a click, as `click` names them. Raises `ActionSyntaxError` for those that ours cannot hold."""
        if not keys or name in ("key", "type"):
            return ""
        held = joined_keys([keys.lower()], names=_KEY_NAMES).replace("control", "ctrl")
        if name != "left_click" or held not in ("ctrl", "shift", "ctrl+shift"):
            raise ActionSyntaxError(f"{name}: {keys!r:.40} cannot be held meanwhile; left_click takes ctrl, shift or ctrl+shift")
        return held

    def _end_of(self, args: Mapping[str, Any]) -> tuple[int, int]:
        return self._pixel(args.get("coordinate"))

    def _pixel(self, place: Any) -> tuple[int, int]:
        """A place as a pixel of the screen; None: where the pointer is. Raises `ActionSyntaxError`."""
        if place is None:
            return self._pointer
        width, height = self._size
        if len(place) != 2 or not (0 <= place[0] < width and 0 <= place[1] < height):
            raise ActionSyntaxError(f"{place!r:.60} is no place [x, y] on a screen of {width} x {height} pixels")
        return int(place[0]), int(place[1])
