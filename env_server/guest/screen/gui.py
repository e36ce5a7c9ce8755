"""The agent's mouse and keyboard: each GUI action as events on the screen.

The browser of the web tasks is locked: its own shortcuts are refused here, also where held keys would make one. The host has
found the place of each target; `guest.api` carries out API actions.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..faults import Refused
from ..web.chromium import Chromium, refused_keys
from .chords import chord_keys, is_terminal_shortcut

if TYPE_CHECKING:
    from .display import Screen
    from .settle import Settler
    from .windows import Windows

_MOVE_LIMIT_S = 0.1
"""Time for one move of a drag. Toolkits follow a drag only when they see it move; none needs longer to do so."""
_DRAG_LIMIT_S = 3.0
"""Time for all moves of one drag together."""
_MOVES_PER_DRAG = 8
"""Minimum number of motions: toolkits start a drag only after several."""
_BATCH_LIMIT_S = 1.0
"""Time for an application to take the characters typed so far, before their key codes get other characters."""


class Gui:
    """The agent's mouse and keyboard."""

    def __init__(
        self, screen: Screen, windows: Windows, settler: Settler, *, locked: Chromium, open_terminal: Callable[[], bool]
    ) -> None:
        """``locked``: the browser of the web tasks. ``open_terminal`` returns False where there is no terminal to open."""
        self._input, self._early_s = screen.input, screen.windows.early_s
        self._windows, self._settler, self._locked, self._open_terminal = windows, settler, locked, open_terminal
        self._held: dict[str, int] = {}
        """Keys that the agent holds down, by name, in pressing order -> key code."""
        self._buttons: list[str] = []
        """Mouse buttons that are held down."""
        self._actions: dict[str, Callable[[Mapping[str, Any]], str | None]] = {
            "click": self._click,
            "double_click": functools.partial(self._click, num_clicks=2),
            "triple_click": functools.partial(self._click, num_clicks=3),
            "hover": lambda args: self._input.move(args["x"], args["y"]),
            "scroll": self._scroll,
            "drag": lambda args: self._drag(((args["x"], args["y"]), (args["to_x"], args["to_y"]))),
            "drag_pixels": lambda args: self._drag(list(zip(args["path"][::2], args["path"][1::2], strict=True))),
            "type": self._type,
            "key": self._key,
            "key_down": self._key_down,
            "key_up": self._key_up,
            "quote": lambda args: str(args["content"]),
            "wait": lambda args: None,
        }

    def act(self, name: str, args: Mapping[str, Any]) -> str:
        """Do one action; returns its result text. Raises `Refused`, and `UnknownKey` before the first key of a text or chord."""
        action = self._actions.get(name)
        if action is None:
            raise Refused(f"unknown action {name!r}")
        return action(args) or ""

    def let_go(self) -> None:
        """Release all keys and buttons that the agent holds: its episode is over."""
        while self._held:
            self._input.release_key(self._held.popitem()[1])
        while self._buttons:
            self._input.release(button=self._buttons.pop())

    def press_button(self, button: str) -> None:
        """Hold a mouse button down where the pointer is."""
        if button not in self._buttons:
            self._input.press(button=button)
            self._buttons.append(button)

    def release_button(self, button: str) -> None:
        """Release a button that `press_button` holds; any other is up already."""
        if button in self._buttons:
            self._buttons.remove(button)
            self._input.release(button=button)

    def _click(self, args: Mapping[str, Any], *, num_clicks: int = 1) -> None:
        button = args.get("button", "left")
        if button != "left" and self._is_locked():
            raise Refused("only the left button works in the browser")
        time.sleep(self._early_s(args["x"], args["y"]))
        self._input.click(args["x"], args["y"], button=button, num_clicks=num_clicks, hold=args.get("hold", ""))

    def _scroll(self, args: Mapping[str, Any]) -> None:
        if set(self._held) - {"shift"} and self._is_locked():
            raise Refused("the browser's own shortcuts are locked: with a key held down, the wheel would zoom the page for good")
        self._input.scroll(args["x"], args["y"], args["direction"], num_clicks=args.get("clicks", 5))

    def _drag(self, points: Sequence[tuple[int, int]]) -> None:
        """``points``: a single one is dragged to from where the pointer is."""
        path = _with_steps(points if len(points) > 1 else [self._input.pointer(), *points])
        limit_s = min(_MOVE_LIMIT_S, _DRAG_LIMIT_S / len(path))
        self._input.move(*path[0])
        self._input.press()
        for place in path[1:]:
            self._input.move(*place)
            self._settler.settle(limit_s=limit_s)
        self._input.release()

    def _type(self, args: Mapping[str, Any]) -> None:
        text = args["text"] + ("\n" if args["enter"] else "")
        held = [name for name in self._held if name != "shift"]
        if held and self._is_locked():
            raise Refused(f"the browser's own shortcuts are locked; held: {', '.join(held)}")
        batches = self._input.batches(text)
        if args["x"] is not None:
            self._input.click(args["x"], args["y"])
            self._settler.settle(limit_s=_BATCH_LIMIT_S)
        if args["overwrite"]:
            self._select_content()
        for batch in batches[:-1]:
            self._input.type_text(batch)
            self._settler.settle(limit_s=_BATCH_LIMIT_S)
        self._input.type_text(batches[-1])

    def _select_content(self) -> None:
        """Select the field's content, so that typing replaces it. In a sheet, typing replaces the cell's content anyway."""
        front = self._windows.front_app()
        if front is None or front.name != "calc":
            self._input.press_chord("ctrl+a")

    def _key(self, args: Mapping[str, Any]) -> None:
        self._refuse_shortcut(args["keys"])
        for _ in range(args.get("times", 1)):
            if not self._opens_terminal(args["keys"]):
                self._input.press_chord(args["keys"])

    def _key_down(self, args: Mapping[str, Any]) -> None:
        self._refuse_shortcut(args["keys"])
        if self._opens_terminal(args["keys"]):
            return
        for name, code in zip(_names(args["keys"]), self._input.key_codes(args["keys"]), strict=True):
            if name not in self._held:
                self._held[name] = code
                self._input.press_key(code)

    def _key_up(self, args: Mapping[str, Any]) -> None:
        names = _names(args["keys"])
        missing = [name for name in names if name not in self._held]
        if missing:
            held = ", ".join(self._held) or "no key"
            raise Refused(f"{', '.join(missing)} is not held down; held: {held}")
        for name in names:
            self._input.release_key(self._held.pop(name))

    def _refuse_shortcut(self, keys: str) -> None:
        if self._is_locked() and refused_keys("+".join([*self._held, keys])):
            raise Refused("the browser's own shortcuts are locked")

    def _opens_terminal(self, keys: str) -> bool:
        """Was this the desktop's own shortcut? No application gets its last key then. False where there is no terminal."""
        return is_terminal_shortcut([*self._held, *_names(keys)]) and self._open_terminal()

    def _is_locked(self) -> bool:
        return self._windows.front_app() is self._locked


def _names(keys: str) -> list[str]:
    return [name.lower() for name in chord_keys(keys)]


def _with_steps(points: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The path through ``points`` with enough places between them for a drag to start."""
    steps = max(1, _MOVES_PER_DRAG // max(1, len(points) - 1))
    path = [points[0]]
    for (x, y), (to_x, to_y) in itertools.pairwise(points):
        path += [(x + (to_x - x) * step // steps, y + (to_y - y) * step // steps) for step in range(1, steps + 1)]
    return path
