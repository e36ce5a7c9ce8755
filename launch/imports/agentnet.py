"""Trajectories in the format of AgentNet (OpenCUA, arXiv 2508.09123) as actions of this project. Pure.

A step is one screenshot and some lines of pyautogui code, whose coordinates are shares of the screen. The code is read as a
syntax tree and never evaluated. What a person did in several calls on one screen becomes the one action that means them together
(move and drag, click and write), or is refused by name.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from computerrl.common.actions import ACTIONS, ActionSyntaxError, bind_call, bind_values, complete, is_with
from computerrl.common.actions.spec import ActionSpec, Param, text
from computerrl.common.actions.tables.gui import MAX_KEY_TIMES
from computerrl.common.messages import Action

MAX_LINE_BYTES = 64 * 2**20
"""Of one trajectory. AgentNet's longest take a few MB."""
MAX_CLICKS = 30
"""Maximum number of clicks of the wheel in one action; more are done as so many."""


class Value(msgspec.Struct):
    """What was thought and done at a step."""

    code: str
    thought: str | None = None
    last_step_correct: bool | None = None
    """Whether this step's own action was right, by AgentNet's reflector."""
    last_step_redundant: bool | None = None


class TrajectoryStep(msgspec.Struct):
    """A screenshot and what followed."""

    image: str
    """Name of the file."""
    value: Value


class Trajectory(msgspec.Struct):
    """One line of a file."""

    task_id: str
    instruction: str
    traj: list[TrajectoryStep]
    task_completed: bool | None = None


_DECODER = msgspec.json.Decoder(Trajectory)


def read_line(line: bytes) -> Trajectory:
    """The trajectory in ``line``. Raises `ValueError` with the reason."""
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"line longer than {MAX_LINE_BYTES >> 20} MiB")
    try:
        found = _DECODER.decode(line)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
    if not found.traj or not found.instruction.strip():
        raise ValueError("without steps or instruction")
    return found


class NoAction(ValueError):
    """Code that is no action of this project; the text is the reason, which names the function."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where a trajectory has left the pointer, as shares of the screen."""

    x: float
    y: float


def action_of(code: str, pointer: Pointer | None, *, width: int, height: int) -> tuple[Action, Pointer | None]:
    """(the action that ``code`` means on a screen of ``width`` x ``height`` pixels, where the pointer is after it).

    ``pointer``: where it is before, for calls without a place. Raises `NoAction`.
    """
    reader = _Reader(pointer, width, height)
    actions = [action for call in _calls(code) for action in reader.actions(call)]
    return _together(actions), reader.pointer


# --- code -> calls ---------------------------------------------------------------------------------------------------


def _share(name: str) -> Param:
    return Param(name, (int, float), None)


_X, _Y = _share("x"), _share("y")
_SECONDS = Param("duration", (int, float), 0)
_INTERVAL = Param("interval", (int, float), 0)
_BUTTON = text("button", "left", choices=("left", "middle", "right"))
_KEY_NAMES = Param("keys", (str, list), items=(str,))
_WHEEL = Param("clicks", (int, float))

_CALLS: Mapping[str, ActionSpec] = {
    spec.name: spec
    for spec in (
        ActionSpec("pyautogui.click", (_X, _Y, Param("clicks", (int,), 1, (1, 2, 3)), _INTERVAL, _BUTTON), ""),
        *(
            ActionSpec(name, (_X, _Y, _INTERVAL), "")
            for name in (
                "pyautogui.rightClick",
                "pyautogui.middleClick",
                "pyautogui.doubleClick",
                "pyautogui.tripleClick",
                "computer.triple_click",
                "computer.tripleClick",
            )
        ),
        ActionSpec("pyautogui.moveTo", (_X, _Y, _SECONDS), ""),
        ActionSpec("pyautogui.dragTo", (_X, _Y, _SECONDS, text("button", "left", choices=("left",))), ""),
        *(ActionSpec(f"pyautogui.{name}", (_WHEEL, _X, _Y), "") for name in ("scroll", "vscroll", "hscroll")),
        *(ActionSpec(f"pyautogui.{name}", (text("message"), _INTERVAL), "") for name in ("write", "typewrite")),
        ActionSpec("pyautogui.press", (_KEY_NAMES, Param("presses", (int,), 1), _INTERVAL), ""),
        ActionSpec("pyautogui.hotkey", (_KEY_NAMES, _INTERVAL), ""),
        ActionSpec("pyautogui.keyDown", (text("key"),), ""),
        ActionSpec("pyautogui.keyUp", (text("key"),), ""),
        ActionSpec("computer.wait", (_SECONDS,), ""),
        ActionSpec("computer.terminate", (text("status", choices=("success", "failure")), text("answer", "")), ""),
    )
}
_POINTED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "pyautogui.rightClick": ("click", {"button": "right"}),
    "pyautogui.middleClick": ("click", {"button": "middle"}),
    "pyautogui.doubleClick": ("double_click", {}),
    "pyautogui.tripleClick": ("triple_click", {}),
    "computer.triple_click": ("triple_click", {}),
    "computer.tripleClick": ("triple_click", {}),
    "pyautogui.moveTo": ("hover", {}),
}
"""Call at a place -> ours, and its arguments besides the place."""
_CLICKS = {1: "click", 2: "double_click", 3: "triple_click"}
_WAYS = {"pyautogui.hscroll": ("right", "left")}
"""Directions of the wheel where the number of clicks is above 0, and below."""


def _calls(code: str) -> list[Action]:
    """The calls in ``code``, one a statement, with their arguments. Raises `NoAction`."""
    try:
        statements = ast.parse(code.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise NoAction("code that is no Python") from None
    if not statements:
        raise NoAction("no code")
    return [_bound(statement) for statement in statements]


def _bound(statement: ast.stmt) -> Action:
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        raise NoAction("code that is more than calls")
    call = statement.value
    name = ast.unparse(call.func)[:60]
    if name not in _CALLS:
        raise NoAction(f"no action for {name}")
    if name == "pyautogui.hotkey" and len(call.args) != 1:
        call.args = [ast.List(call.args, ast.Load())]
    try:
        return bind_call(call, _CALLS)
    except ActionSyntaxError:
        raise NoAction(f"other arguments of {name}") from None


# --- calls -> actions ------------------------------------------------------------------------------------------------


@dataclass
class _Reader:
    """Reads the calls of one step."""

    pointer: Pointer | None
    width: int
    height: int

    def actions(self, call: Action) -> list[Action]:
        """The actions that ``call`` is. Raises `NoAction`."""
        args = call.args
        match call.name:
            case "pyautogui.click":
                name = _CLICKS[args["clicks"]]
                if name != "click" and args["button"] != "left":
                    raise NoAction(f"no action for {args['clicks']} clicks with the {args['button']} button")
                return [self._at(call, name, **({"button": args["button"]} if name == "click" else {}))]
            case "pyautogui.dragTo":
                return [complete("drag_pixels", path=self._place(call))]
            case "pyautogui.scroll" | "pyautogui.vscroll" | "pyautogui.hscroll":
                return [self._scroll(call)]
            case "pyautogui.write" | "pyautogui.typewrite":
                said = args["message"]
                return [_checked("type", text=said.removesuffix("\n"), enter=said.endswith("\n"))]
            case "pyautogui.press":
                pressed = [args["keys"]] if isinstance(args["keys"], str) else args["keys"]
                return [_key("key", [key], times=args["presses"]) for key in pressed]
            case "pyautogui.hotkey":
                return [_key("key", [args["keys"]] if isinstance(args["keys"], str) else args["keys"])]
            case "pyautogui.keyDown" | "pyautogui.keyUp":
                return [_key("key_down" if call.name.endswith("Down") else "key_up", [args["key"]])]
            case "computer.wait":
                return [complete("wait")]
            case "computer.terminate":
                return [complete("done" if args["status"] == "success" else "fail")]
        name, fixed = _POINTED[call.name]
        return [self._at(call, name, **fixed)]

    def _at(self, call: Action, name: str, **args: Any) -> Action:
        x, y = self._place(call)
        return complete(name, target=x, y=y, **args)

    def _scroll(self, call: Action) -> Action:
        clicks = round(call.args["clicks"])
        if clicks == 0:
            raise NoAction("a wheel that is not turned")
        x, y = (self.width // 2, self.height // 2) if self._is_unknown(call) else self._place(call)
        direction = _WAYS.get(call.name, ("up", "down"))[clicks < 0]
        return complete("scroll", target=x, y=y, direction=direction, clicks=min(MAX_CLICKS, abs(clicks)))

    def _is_unknown(self, call: Action) -> bool:
        return self.pointer is None and call.args["x"] is None and call.args["y"] is None

    def _place(self, call: Action) -> list[int]:
        """The pixel of ``call``, at which the pointer is afterwards."""
        x, y = call.args["x"], call.args["y"]
        if x is None and y is None:
            if self.pointer is None:
                raise NoAction(f"{call.name} without a place")
            x, y = self.pointer.x, self.pointer.y
        if x is None or y is None or not (0 <= x <= 1 and 0 <= y <= 1):
            raise NoAction("a place outside the screen")
        self.pointer = Pointer(x, y)
        return [min(self.width - 1, round(x * self.width)), min(self.height - 1, round(y * self.height))]


def _key(name: str, keys: Sequence[str], **args: Any) -> Action:
    from computerrl.actor.prompts.formats.keys import OTHER_NAMES, joined_keys

    try:
        return _checked(name, keys=joined_keys(keys, names=OTHER_NAMES), **args)
    except ActionSyntaxError:
        raise NoAction("no key") from None


def _checked(name: str, **args: Any) -> Action:
    """Our action ``name``. Raises `NoAction` for arguments that it does not take."""
    try:
        return bind_values(ACTIONS[name], args)
    except ActionSyntaxError as error:
        raise NoAction(f"an argument that no action takes: {error}") from None


# --- several actions as one ------------------------------------------------------------------------------------------


def _together(actions: list[Action]) -> Action:
    """The one action that means ``actions`` in turn. Raises `NoAction`."""
    left = _without_ways(actions)
    if len(left) > 1:
        left = _times(_held(_typed(_dragged(left))))
    if len(left) > 1:
        raise NoAction("several actions on one screen: " + ", ".join(action.name for action in left[:4]))
    return left[0]


def _without_ways(actions: list[Action]) -> list[Action]:
    """``actions`` without waits beside others, and without moves of the pointer to where the next one acts."""
    left = [action for action in actions if action.name != "wait"] or actions[:1]
    return [
        action
        for number, action in enumerate(left)
        if not (action.name == "hover" and number + 1 < len(left) and _place_of(left[number + 1]) == _place_of(action))
    ]


def _place_of(action: Action) -> tuple[Any, Any]:
    return action.args.get("target"), action.args.get("y")


def _dragged(actions: list[Action]) -> list[Action]:
    """Drags with the move before them, and one after the other, as one along a path."""
    joined: list[Action] = []
    for action in actions:
        before = joined[-1] if joined else None
        if action.name == "drag_pixels" and before is not None and before.name in ("hover", "drag_pixels"):
            start = list(_place_of(before)) if before.name == "hover" else before.args["path"]
            joined[-1] = complete("drag_pixels", path=[*start, *action.args["path"]])
        else:
            joined.append(action)
    return joined


def _typed(actions: list[Action]) -> list[Action]:
    """A click, select all, a text and Enter around a text as one action."""
    rest = list(actions)
    args: dict[str, Any] = {}
    if is_with(rest[0], "click"):
        args |= {"target": rest[0].args["target"], "y": rest[0].args["y"]}
        rest = rest[1:]
    if len(rest) > 1 and is_with(rest[0], "key", keys="ctrl+a", times=1):
        args["overwrite"] = True
        rest = rest[1:]
    if len(rest) == 2 and is_with(rest[1], "key", keys="enter", times=1) and not rest[0].args.get("enter"):
        args["enter"] = True
        rest = rest[:1]
    if len(rest) != 1 or rest[0].name != "type":
        return actions
    return [_checked("type", **{**{name: value for name, value in rest[0].args.items() if value is not None}, **args})]


def _held(actions: list[Action]) -> list[Action]:
    """A click while keys are held."""
    if len(actions) < 3:
        return actions
    middle = [action for action in actions if action.name not in ("key_down", "key_up")]
    number = (len(actions) - 1) // 2
    downs, ups = actions[:number], actions[number + 1 :]
    if len(middle) != 1 or actions[number] is not middle[0] or not is_with(middle[0], "click"):
        return actions
    keys = [action.args["keys"] for action in downs]
    if any(action.name != "key_down" for action in downs) or any(action.name != "key_up" for action in ups):
        return actions
    if sorted(keys) != sorted(action.args["keys"] for action in ups):
        return actions
    return [_checked("click", target=middle[0].args["target"], y=middle[0].args["y"], hold="+".join(sorted(keys)))]


def _times(actions: list[Action]) -> list[Action]:
    """One key again and again."""
    if any(action.name != "key" or action.args["keys"] != actions[0].args["keys"] for action in actions):
        return actions
    times = sum(action.args["times"] for action in actions)
    return [complete("key", keys=actions[0].args["keys"], times=times)] if times <= MAX_KEY_TIMES else actions
