"""Actions as the pyautogui code of AgentNet (OpenCUA, arXiv 2508.09123), whose coordinates are shares of the screen. Pure.

Calls of applications and notes have no such code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from computerrl.common.actions import calls_application
from computerrl.common.messages import Action

_POINTED = {
    ("click", "left"): "pyautogui.click",
    ("click", "right"): "pyautogui.rightClick",
    ("click", "middle"): "pyautogui.middleClick",
    ("double_click", None): "pyautogui.doubleClick",
    ("triple_click", None): "computer.triple_click",
    ("hover", None): "pyautogui.moveTo",
}
"""Action and button -> function that takes a place."""
_STATUS = {"done": "success", "fail": "failure"}
_DIGITS = 4
"""Digits of a share: a ten-thousandth of a screen is less than a pixel."""


class NoCode(ValueError):
    """An action that AgentNet has no code for; the text is the reason."""


def code_of(action: Action, places: Sequence[int], *, width: int, height: int) -> str:
    """Python statements, one a line, that mean ``action`` at ``places``: pixels of a screen of ``width`` x ``height``, as in
    `common.messages.Step.places`. Raises `NoCode`."""
    points = [
        f"x={round(x / width, _DIGITS)}, y={round(y / height, _DIGITS)}" for x, y in zip(places[::2], places[1::2], strict=True)
    ]
    return "\n".join(_lines(action, points))


def _lines(action: Action, points: Sequence[str]) -> list[str]:
    args = action.args
    function = _POINTED.get((action.name, args.get("button")))
    if function is not None:
        return _held(args.get("hold") or "", f"{function}({_one(action, points)})")
    match action.name:
        case "type":
            return _typed(args, points)
        case "key":
            return [_pressed(_keys(args["keys"]))] * args["times"]
        case "key_down" | "key_up":
            way = "keyDown" if action.name == "key_down" else "keyUp"
            return [f"pyautogui.{way}({_text(key)})" for key in _keys(args["keys"])]
        case "scroll":
            function = "scroll" if args["direction"] in ("up", "down") else "hscroll"
            clicks = args["clicks"] if args["direction"] in ("up", "right") else -args["clicks"]
            return [f"pyautogui.{function}({clicks}, {_one(action, points)})"]
        case "drag" | "drag_pixels" if points:
            start = [f"pyautogui.moveTo({points[0]})"] if len(points) > 1 else []
            return [*start, *(f"pyautogui.dragTo({point}, button='left')" for point in points[len(start) :])]
        case "wait":
            return ["computer.wait()"]
        case "done" | "fail":
            return [f"computer.terminate(status='{_STATUS[action.name]}')"]
    raise NoCode("call of an application" if calls_application(action.name) else f"action {action.name}")


def _typed(args: dict[str, Any], points: Sequence[str]) -> list[str]:
    lines = [f"pyautogui.click({points[0]})"] if points else []
    if args["target"] is not None and not points:
        raise NoCode("place not recorded")
    lines += ["pyautogui.hotkey('ctrl', 'a')"] if args["overwrite"] else []
    lines.append(f"pyautogui.write(message={_text(args['text'])})")
    return [*lines, *(["pyautogui.press('enter')"] if args["enter"] else [])]


def _one(action: Action, points: Sequence[str]) -> str:
    if len(points) != 1:
        raise NoCode("place not recorded")
    return points[0]


def _held(keys: str, line: str) -> list[str]:
    names = _keys(keys) if keys else []
    down = [f"pyautogui.keyDown({_text(name)})" for name in names]
    return [*down, line, *(f"pyautogui.keyUp({_text(name)})" for name in reversed(names))]


def _pressed(keys: Sequence[str]) -> str:
    if len(keys) == 1:
        return f"pyautogui.press({_text(keys[0])})"
    return f"pyautogui.hotkey({', '.join(map(_text, keys))})"


def _keys(keys: str) -> list[str]:
    """Names of a chord's keys; plus itself can only be the last."""
    names = [name.strip().lower() for name in keys.split("+")]
    return [*filter(None, names), *(["+"] if keys.strip().endswith("+") else [])]


def _text(text: str) -> str:
    """``text`` as a literal of Python on one line."""
    return repr(text)
