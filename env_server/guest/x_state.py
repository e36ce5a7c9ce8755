"""What the X server remembers for everybody: locks, selections, settings of keyboard and pointer. A reset puts it back.

No application owns it, so no application's end takes it away. What cannot be put back is an error: the desktop is started anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from Xlib import XK, X, Xatom
from Xlib.display import Display as XDisplay
from Xlib.protocol import request

from .faults import DesktopError

if TYPE_CHECKING:
    from .keyboard import Keyboard

_SELECTIONS = ("PRIMARY", "SECONDARY", "CLIPBOARD")
_LOCKS = {X.LockMask: "Caps_Lock", X.Mod2Mask: "Num_Lock"}
"""Modifier that stays down -> the key that changes it."""
_LEFT_BEHIND = (Xatom.RESOURCE_MANAGER, *range(Xatom.CUT_BUFFER0, Xatom.CUT_BUFFER7 + 1))
"""Properties of the root window that programs leave for later ones (`xrdb`, `xcutsel`)."""
_KEYBOARD = ("key_click_percent", "bell_percent", "bell_pitch", "bell_duration")


class XState:
    """As it was when the desktop began."""

    def __init__(self, display: XDisplay, keyboard: Keyboard, *, tap: Callable[[int], None]) -> None:
        """``tap`` presses the key of this code and lets it go."""
        self._display, self._keyboard, self._tap = display, keyboard, tap
        self._root = display.screen().root
        self._first = self._settings()

    def put_back(self) -> None:
        """Make it so again. Raises `DesktopError` naming what stays different."""
        display = self._display
        for name in _SELECTIONS:
            request.SetSelectionOwner(
                display=display.display, window=X.NONE, selection=display.get_atom(name), time=X.CurrentTime
            )
        for atom in _LEFT_BEHIND:
            self._root.delete_property(atom)
        now = self._settings()
        if now == self._first:
            return
        first = self._first
        for mask, key in _LOCKS.items():
            if now["locks"] & mask != first["locks"] & mask:
                self._tap(display.keysym_to_keycode(XK.string_to_keysym(key)))
        if now["keyboard"] != first["keyboard"] or now["repeat"] != first["repeat"]:
            display.change_keyboard_control(**first["keyboard"], auto_repeat_mode=first["repeat"])
        if now["pointer"] != first["pointer"]:
            numerator, denominator, threshold = first["pointer"]
            display.change_pointer_control(accel=(numerator, denominator), threshold=threshold)
        if now["buttons"] != first["buttons"]:
            display.set_pointer_mapping(first["buttons"])
        if now["saver"] != first["saver"]:
            display.set_screen_saver(*first["saver"])
        left = self._settings()
        different = [name for name in first if left[name] != first[name]]
        if different:
            raise DesktopError(f"the X server does not take back: {', '.join(different)}")

    def _settings(self) -> Mapping[str, Any]:
        display = self._display
        size = self._root.get_geometry()
        keyboard, pointer, saver = display.get_keyboard_control(), display.get_pointer_control(), display.get_screen_saver()
        return {
            "locks": self._root.query_pointer().mask & sum(_LOCKS),
            "keyboard": {name: getattr(keyboard, name) for name in _KEYBOARD},
            "repeat": keyboard.global_auto_repeat,
            "pointer": (pointer.accel_num, pointer.accel_denom, pointer.threshold),
            "buttons": list(display.get_pointer_mapping()),
            "saver": (saver.timeout, saver.interval, saver.prefer_blanking, saver.allow_exposures),
            "size": (size.width, size.height),
            "keys": self._keyboard.fixed_codes(),
            "modifiers": [list(row) for row in display.get_modifier_mapping()],
        }
