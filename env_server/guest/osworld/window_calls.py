"""Windows and input, as OSWorld's set-up steps and judges use them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import processes
from ..faults import TaskError
from ..screen.chords import chord_keys, is_terminal_shortcut
from ..screen.display import Screen
from ..screen.gui import Gui
from ..screen.settle import Settler
from ..screen.window_list import Window

_WINDOW_LIMIT_S = 10.0
_TAKEN_LIMIT_S = 5.0
"""Time for applications to take the events of one call; on a screen that never rests they take all of it."""
_SHOWN_LIMIT_S = 3.0
"""Time for them to carry out earlier requests, such as one for full screen."""
_CALM = 5.0
"""How many times as long as usual the screen has to be quiet."""
_DIRECTIONS = {(False, True): "up", (False, False): "down", (True, True): "right", (True, False): "left"}
_MOST_STEPS = 100
"""Steps of the wheel in one event."""


class WindowCalls:
    """The calls about windows and input."""

    def __init__(self, screen: Screen, settler: Settler, gui: Gui, *, open_terminal: Callable[[], object]) -> None:
        """``open_terminal`` does as the desktop's own shortcut."""
        self._screen, self._list, self._settler, self._open_terminal = screen, screen.windows, settler, open_terminal
        self._gui = gui

    def windows(self) -> list[dict[str, Any]]:
        """Open windows, the focused one first, once its program has taken all input."""
        self._settler.settle(limit_s=_SHOWN_LIMIT_S, calm=_CALM)
        active = self._list.active()
        ordered = sorted(reversed(self._list.managed()), key=lambda window: window.xid != active)
        return [self._describe(window) for window in ordered]

    def activate_window(self, title: str, strict: bool, by_class: bool) -> bool:
        """Bring the first match to the front."""
        found = self._matching(title, strict=strict, by_class=by_class)
        if not found:
            return False
        self._screen.manager.activate(found[0].xid)
        return self._wait(lambda: self._list.active() == found[0].xid)

    def close_window(self, title: str, strict: bool, by_class: bool) -> bool:
        """Request every match to close and wait for it: many programs write their settings when their last window has gone."""
        found = self._matching(title, strict=strict, by_class=by_class)
        for window in found:
            self._screen.manager.close(window.xid)
        if found and self._wait(lambda: not self._matching(title, strict=strict, by_class=by_class)):
            ending = {window.pid for window in found} - {window.pid for window in self._list.managed()}
            self._wait(lambda: not any(processes.is_running(pid) for pid in ending))
        return bool(found)

    def input(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Carry out events of mouse and keyboard in order, each once the one before has had its effect.

        An event may be meant for a dialog that the one before opens. A task's own pauses suit a machine that does nothing else.
        """
        deadline = time.monotonic() + _TAKEN_LIMIT_S
        for event in events:
            self._do(**event)
            self._settler.settle(limit_s=max(0.0, deadline - time.monotonic()), calm=_CALM)

    def _do(self, kind: str, text: str = "", x: int | None = None, y: int | None = None, count: int = 1) -> None:
        hand = self._screen.input
        place = hand.pointer() if x is None or y is None else (x, y)
        match kind:
            case "key" if is_terminal_shortcut(chord_keys(text)):
                self._open_terminal()
            case "key":
                hand.press_chord(text)
            case "key_down" | "key_up":
                self._gui.act(kind, {"keys": text})
            case "type":
                hand.type_text(text)
            case "move":
                hand.move(*place)
            case "click":
                hand.click(*place, button=text or "left", num_clicks=count)
            case "drag":
                self._gui.act("drag_pixels", {"path": place})
            case "button_down":
                self._gui.press_button(text or "left")
            case "button_up":
                self._gui.release_button(text or "left")
            case "scroll":
                direction = _DIRECTIONS[text == "sideways", count > 0]
                hand.scroll(*place, direction, num_clicks=min(abs(count), _MOST_STEPS))
            case _:
                raise TaskError(f"input {kind!r} is not known here")

    def _matching(self, title: str, *, strict: bool, by_class: bool) -> list[Window]:
        def fits(window: Window) -> bool:
            shown = (window.window_class, window.kind) if by_class else (window.title,)
            return title in shown if strict else title.lower() in shown[0].lower()

        return [window for window in reversed(self._list.managed()) if fits(window)]

    def _describe(self, window: Window) -> dict[str, Any]:
        x, y, width, height = self._list.geometry(window.xid)
        return {
            "title": window.title,
            "window_class": window.window_class,
            "x": x,
            "y": y,
            "width": width,
            "height": height,
            "is_fullscreen": self._list.is_fullscreen(window.xid),
        }

    def _wait(self, condition: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + _WINDOW_LIMIT_S
        while not condition():
            if time.monotonic() > deadline:
                return False
            self._screen.connection.wait_for_event(0.05)
        return True
