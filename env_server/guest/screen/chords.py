"""Key chords as text: ``ctrl+shift+s`` is three keys. Knows no key codes (`keyboard` does)."""

from __future__ import annotations

from collections.abc import Collection

_ALIASES = {"control": "ctrl", "ctrlleft": "ctrl", "altleft": "alt"}


class UnknownKey(ValueError):
    """No such key; the message is for the agent."""


def is_terminal_shortcut(names: Collection[str]) -> bool:
    """Do these keys together open a terminal, as on the desktops that task files were written for?"""
    return {_ALIASES.get(name.lower(), name.lower()) for name in names} == {"ctrl", "alt", "t"}


def chord_keys(keys: str) -> list[str]:
    """Names of a chord's keys in pressing order. Raises `UnknownKey` when there is none."""
    text = keys.strip()
    if not text:
        raise UnknownKey("no key given")
    names = [part.strip() for part in text.split("+")]
    if text.endswith("+"):  # "ctrl++" and "+": the last key is plus itself
        names = [*filter(None, names), "+"]
    if not all(names):
        raise UnknownKey(f"{keys!r:.40} names a key without a name: one + stands between keys, and the key + itself comes last")
    return names
