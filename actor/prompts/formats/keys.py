"""Chords as published formats write them: lists of key names. Ours are one text, `ctrl+s`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from computerrl.common.actions import ActionSyntaxError

OTHER_NAMES: Mapping[str, str] = {
    **{f"arrow{way}": way for way in ("up", "down", "left", "right")},
    "pgup": "pageup",
    "pgdn": "pagedown",
    "spacebar": "space",
    "ctrlleft": "ctrl",
    "shiftleft": "shift",
    "altleft": "alt",
    "winleft": "win",
    "windows": "win",
    "command": "cmd",
}
"""Names of keys in published answers -> names that the desktops know."""


def joined_keys(keys: Iterable[str], *, names: Mapping[str, str] | None = None) -> str:
    """``keys`` as one text; a part may be a chord itself. ``names``: other names of keys. Raises `ActionSyntaxError` for none."""
    pressed = [(names or {}).get(key.lower(), key) for part in keys for key in split_keys(part)]
    if not pressed:
        raise ActionSyntaxError("the action names no key")
    # Keys are pressed together, and where they are one text plus can only be the last.
    return "+".join(sorted(pressed, key="+".__eq__))


def split_keys(keys: str) -> list[str]:
    """``ctrl+s`` as names. "ctrl++" and "+": the last key is plus itself."""
    return [*filter(None, map(str.strip, keys.split("+"))), *(["+"] if keys.strip().endswith("+") else [])]
