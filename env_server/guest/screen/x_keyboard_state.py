"""Two requests of the X keyboard extension (XKB) that no library here knows: what the keyboard does by itself, and its locks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from Xlib.protocol import rq

_NAME = "XKEYBOARD"
_CORE_KEYBOARD = 0x100
_ALL_MODIFIERS = 0xFF
_REPEATING_KEYS = 52
"""Offset of one bit for each key code in the controls."""


class _UseExtension(rq.ReplyRequest):
    _request = rq.Struct(rq.Card8("opcode"), rq.Opcode(0), rq.RequestLength(), rq.Card16("major"), rq.Card16("minor"))
    _reply = rq.Struct(rq.ReplyCode(), rq.Card8("supported"), rq.Card16("sequence_number"), rq.ReplyLength(), rq.Pad(24))


class _LatchLockState(rq.Request):
    _request = rq.Struct(
        rq.Card8("opcode"),
        rq.Opcode(5),
        rq.RequestLength(),
        rq.Card16("device"),
        rq.Card8("affected_locks"),
        rq.Card8("locks"),
        rq.Bool("affects_group"),
        rq.Card8("group"),
        rq.Card8("affected_latches"),
        rq.Card8("latches"),
        rq.Pad(1),
        rq.Bool("latches_group"),
        rq.Card16("latched_group"),
    )


class _GetControls(rq.ReplyRequest):
    _request = rq.Struct(rq.Card8("opcode"), rq.Opcode(6), rq.RequestLength(), rq.Card16("device"), rq.Pad(2))
    _reply = rq.Struct(
        rq.ReplyCode(), rq.Card8("device"), rq.Card16("sequence_number"), rq.ReplyLength(), rq.FixedBinary("controls", 84)
    )


class KeyboardExtension:
    """The extension on one connection."""

    def __init__(self, display: Any) -> None:
        self._display = display.display
        known = display.query_extension(_NAME)
        self._opcode = known.major_opcode
        _UseExtension(display=self._display, opcode=self._opcode, major=1, minor=0)

    def controls(self, *, ignore: Collection[int]) -> bytes:
        """All that can be set of repeat rate, slow, sticky, bounce and mouse keys, and of their time-outs; ``ignore``: key codes
        for which it does not matter whether they repeat."""
        found = bytearray(_GetControls(display=self._display, opcode=self._opcode, device=_CORE_KEYBOARD).controls)
        for code in ignore:
            found[_REPEATING_KEYS + code // 8] &= ~(1 << code % 8)
        return bytes(found)

    def unlock(self, locks: int) -> None:
        """Lock these modifiers and no other, and the first of the layouts; forget modifiers meant for the next key alone."""
        _LatchLockState(
            display=self._display,
            opcode=self._opcode,
            device=_CORE_KEYBOARD,
            affected_locks=_ALL_MODIFIERS,
            locks=locks,
            affects_group=True,
            group=0,
            affected_latches=_ALL_MODIFIERS,
            latches=0,
            latches_group=True,
            latched_group=0,
        )
