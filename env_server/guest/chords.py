"""Key chords as text: ``ctrl+shift+s`` is three keys. Knows no key codes (`guest.keyboard` does)."""

from __future__ import annotations


class UnknownKey(ValueError):
    """No such key; the message is for the agent."""


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
