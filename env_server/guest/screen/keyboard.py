"""From text and key names to key codes of the running X server; characters outside the layout get a spare key code.

Pure but for the two calls on the display that read and change the mapping.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any

from Xlib import XK

from .chords import UnknownKey, chord_keys

_NAMES = {
    "ctrl": "Control_L",
    "control": "Control_L",
    "shift": "Shift_L",
    "alt": "Alt_L",
    "super": "Super_L",
    "win": "Super_L",
    "meta": "Super_L",
    "cmd": "Super_L",
    "enter": "Return",
    "return": "Return",
    "esc": "Escape",
    "escape": "Escape",
    "tab": "Tab",
    "space": "space",
    "backspace": "BackSpace",
    "delete": "Delete",
    "del": "Delete",
    "insert": "Insert",
    "home": "Home",
    "end": "End",
    "pageup": "Page_Up",
    "page_up": "Page_Up",
    "pagedown": "Page_Down",
    "page_down": "Page_Down",
    "up": "Up",
    "down": "Down",
    "left": "Left",
    "right": "Right",
    "plus": "plus",
    "minus": "minus",
    "menu": "Menu",
    "capslock": "Caps_Lock",
    **{f"f{number}": f"F{number}" for number in range(1, 13)},
}

_CONTROL_KEYSYMS = {"\n": XK.XK_Return, "\r": XK.XK_Return, "\t": XK.XK_Tab, "\b": XK.XK_BackSpace, "\x1b": XK.XK_Escape}


def keysym_of(char: str) -> int:
    """The X keysym that types ``char``."""
    if char in _CONTROL_KEYSYMS:
        return _CONTROL_KEYSYMS[char]
    code = ord(char)
    if unicodedata.category(char) == "Cc":
        raise UnknownKey(f"character U+{code:04X} cannot be typed")
    # Latin-1 keysyms are the code points themselves; everything else lies in the Unicode block (X11 protocol, appendix A).
    return code if 0x20 <= code <= 0x7E or 0xA0 <= code <= 0xFF else 0x01000000 | code


def parse_chord(keys: str) -> list[int]:
    """Keysyms of a chord such as ``ctrl+shift+s`` in pressing order. Raises `UnknownKey`."""
    names = chord_keys(keys)
    keysyms = []
    for name in names:
        known = _NAMES.get(name.lower())
        if known is not None:
            keysyms.append(XK.string_to_keysym(known))
        elif len(name) == 1:
            keysyms.append(keysym_of(name.lower() if len(names) > 1 else name))
        else:
            raise UnknownKey(f"unknown key {name!r}")
    return keysyms


class Keyboard:
    """The keyboard mapping of one X server."""

    def __init__(self, display: Any) -> None:
        self._display = display
        info = display.display.info
        self._first, self._last = info.min_keycode, info.max_keycode
        self._codes: dict[int, tuple[int, bool]] = {}
        self._spare: list[int] = []
        self._lent: dict[int, int] = {}
        self._read_mapping()

    def codes(self, keysyms: Sequence[int]) -> list[tuple[int, bool]]:
        """(key code, with shift) for each keysym; lends spare key codes to those that have none."""
        missing = [keysym for keysym in dict.fromkeys(keysyms) if keysym not in self._codes]
        if len(missing) > len(self._spare):
            raise UnknownKey(f"more than {len(self._spare)} different unusual characters in one text")
        for keysym in missing:
            self._lend(keysym, busy=set(keysyms))
        if missing:
            self._display.sync()
        return [self._codes[keysym] for keysym in keysyms]

    def batches(self, text: str) -> list[str]:
        """``text`` in parts of which each can be typed at once. Raises `UnknownKey` when a character cannot be typed.

        Spare key codes are few: before the next part is typed, the application must have taken this one.
        """
        parts, unusual = [""], set[int]()
        lent = set(self._lent.values())
        for char in text:
            keysym = keysym_of(char)
            if keysym in lent or keysym not in self._codes:
                if keysym not in unusual and len(unusual) == len(self._spare):
                    parts.append("")
                    unusual = set()
                unusual.add(keysym)
            parts[-1] += char
        return parts

    def fixed_codes(self) -> tuple[tuple[int, ...], ...]:
        """Keysyms of every key code that is not lent to unusual characters, as the server has them now."""
        rows = self._display.get_keyboard_mapping(self._first, self._last - self._first + 1)
        spare = set(self._spare)
        return tuple(tuple(row) for code, row in enumerate(rows, start=self._first) if code not in spare)

    def spare_codes(self) -> frozenset[int]:
        """Key codes that are lent to unusual characters."""
        return frozenset(self._spare)

    def _lend(self, keysym: int, *, busy: set[int]) -> None:
        free = [code for code in self._spare if code not in self._lent]
        if free:
            code = free[0]
        else:
            old = next(held for held in self._lent.values() if held not in busy)
            code = self._codes.pop(old)[0]
            del self._lent[code]
        self._lent[code] = keysym
        self._codes[keysym] = (code, False)
        self._display.change_keyboard_mapping(code, [(keysym, keysym)])

    def _read_mapping(self) -> None:
        rows = self._display.get_keyboard_mapping(self._first, self._last - self._first + 1)
        for offset, row in enumerate(rows):
            code = self._first + offset
            if not any(row):
                self._spare.append(code)
                continue
            for level in (0, 1):
                keysym = row[level] if level < len(row) else 0
                if keysym and keysym not in self._codes:
                    self._codes[keysym] = (code, level == 1)
