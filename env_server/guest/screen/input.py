"""Mouse and keyboard of one screen, by XTEST: programs cannot tell these events from a person's."""

from __future__ import annotations

import time

from Xlib import X
from Xlib.ext import xtest

from ..faults import DesktopError
from .connection import Connection
from .keyboard import Keyboard, keysym_of, parse_chord
from .window_manager import WindowManager

_BUTTONS = {"left": 1, "middle": 2, "right": 3}
_WHEEL = {"up": 4, "down": 5, "left": 6, "right": 7}
_CLICK_LIMIT_S = 5.0
"""Time for a click to arrive before the next key of the same action."""


class Input:
    """The pointer and the keys of one screen."""

    def __init__(self, connection: Connection, keyboard: Keyboard, manager: WindowManager) -> None:
        self._display, self._root = connection.display, connection.root
        self._keyboard, self._manager = keyboard, manager
        self._num_held_back = 0
        """Presses that may not have arrived. Each goes to the window manager first, which focuses the window and passes it on."""

    def pointer(self) -> tuple[int, int]:
        """Place of the pointer."""
        found = self._root.query_pointer()
        return found.root_x, found.root_y

    def move(self, x: int, y: int) -> None:
        """Move the pointer."""
        self._fake(X.MotionNotify, x=x, y=y)
        self._display.sync()

    def click(self, x: int, y: int, *, button: str = "left", num_clicks: int = 1, hold: str = "") -> None:
        """Move there and click, with the keys of the chord ``hold`` down."""
        held = self.key_codes(hold) if hold else []
        self._fake(X.MotionNotify, x=x, y=y)
        for code in held:
            self._fake(X.KeyPress, code)
        for _ in range(num_clicks):
            self._fake(X.ButtonPress, _BUTTONS[button])
            self._fake(X.ButtonRelease, _BUTTONS[button])
        self._num_held_back += num_clicks
        for code in reversed(held):
            self._fake(X.KeyRelease, code)
        self._display.sync()

    def scroll(self, x: int, y: int, direction: str, *, num_clicks: int = 5) -> None:
        """Move there and turn the wheel."""
        self._fake(X.MotionNotify, x=x, y=y)
        for _ in range(num_clicks):
            self._fake(X.ButtonPress, _WHEEL[direction])
            self._fake(X.ButtonRelease, _WHEEL[direction])
        self._display.sync()

    def press(self, *, button: str = "left") -> None:
        """Press a mouse button and hold it."""
        self._fake(X.ButtonPress, _BUTTONS[button])
        self._num_held_back += 1
        self._display.sync()

    def release(self, *, button: str = "left") -> None:
        """Release a mouse button."""
        self._fake(X.ButtonRelease, _BUTTONS[button])
        self._display.sync()

    def batches(self, text: str) -> list[str]:
        """``text`` in parts that `type_text` can type, see `Keyboard.batches`."""
        return self._keyboard.batches(text)

    def key_codes(self, keys: str) -> list[int]:
        """Key codes of a chord in pressing order. Raises `UnknownKey`."""
        return [code for code, _ in self._keyboard.codes(parse_chord(keys))]

    def press_key(self, code: int) -> None:
        """Press a key and hold it."""
        self._fake(X.KeyPress, code)
        self._display.sync()

    def release_key(self, code: int) -> None:
        """Release a key."""
        self._fake(X.KeyRelease, code)
        self._display.sync()

    def type_text(self, text: str) -> None:
        """Type any text; raises `UnknownKey` before the first key when a character cannot be typed."""
        shift = self.key_codes("shift")[0]
        for code, shifted in self._keyboard.codes([keysym_of(char) for char in text]):
            if shifted:
                self._fake(X.KeyPress, shift)
            self._fake(X.KeyPress, code)
            self._fake(X.KeyRelease, code)
            if shifted:
                self._fake(X.KeyRelease, shift)
        self._display.sync()

    def press_chord(self, keys: str) -> None:
        """Press keys together, like ``ctrl+s``. Raises `UnknownKey`."""
        codes = self._keyboard.codes(parse_chord(keys))
        shift = self.key_codes("shift")[0]
        held = [code for code, _ in codes]
        if codes[-1][1] and shift not in held:
            held.insert(len(held) - 1, shift)
        for code in held:
            self._fake(X.KeyPress, code)
        for code in reversed(held):
            self._fake(X.KeyRelease, code)
        self._display.sync()

    @property
    def holds_clicks(self) -> bool:
        """Whether clicks may not have arrived yet."""
        return self._num_held_back > 0

    def sync_clicks(self, timeout_s: float) -> bool:
        """Wait until the window manager has passed on every click; False when it has not in time.

        Before, everything sent to the application overtakes the click: a key, a ping, a call. The server holds back all clicks
        until the first is passed on, so the window manager receives one at a time.
        """
        deadline = time.monotonic() + timeout_s
        while self._num_held_back and self._manager.sync(deadline - time.monotonic()):
            self._num_held_back -= 1
        return not self._num_held_back

    def require_clicks(self, timeout_s: float) -> None:
        """`sync_clicks` before something that must not overtake them. Raises `DesktopError`."""
        if not self.sync_clicks(timeout_s):
            raise DesktopError("the window manager does not pass on clicks")

    def _fake(self, kind: int, detail: int = 0, **position: int) -> None:
        if kind in (X.KeyPress, X.KeyRelease):
            self.require_clicks(_CLICK_LIMIT_S)
        xtest.fake_input(self._display, kind, detail, **position)
