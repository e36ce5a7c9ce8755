"""One connection to the X server: its events and damage, atoms, properties of windows, messages to the window manager."""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any

from Xlib import X
from Xlib.display import Display as XDisplay
from Xlib.error import ConnectionClosedError
from Xlib.ext import damage, res
from Xlib.protocol import event as xevent

DisplayGone = (ConnectionClosedError, BrokenPipeError, ConnectionResetError)
"""Errors of a connection whose X server has ended."""

_MAX_EVENTS = 10_000
"""Number of events taken in one go: a program may draw, or change its windows, faster than its events are taken."""
_WHOLE = 65536
"""Words requested of a property, more than any has: a request for the rest of one that has shrunk meanwhile is an error."""


class Connection:
    """One connection to the X server. Every event goes to all listeners, in the order of the events."""

    def __init__(self, name: str) -> None:
        """``name``: the display's, such as ``:1``."""
        self.display = XDisplay(name)
        self.root = self.display.screen().root
        self.num_damages = 0
        """Number of times that something was drawn. It is right for pictures taken after `pump` has returned."""
        self._atoms: dict[str, int] = {}
        self._listeners: list[Callable[[Any], bool]] = []
        self._has_changed = False
        """Has the screen changed, or have the windows, since `pump` returned last?"""
        # Answers to pings are sent to the window manager, by Qt's programs so that StructureNotify brings them here as well.
        self.root.change_attributes(event_mask=X.PropertyChangeMask | X.SubstructureNotifyMask | X.StructureNotifyMask)
        self.display.damage_query_version()
        self._damage = self.root.damage_create(damage.DamageReportNonEmpty)
        self.display.sync()

    def fileno(self) -> int:
        """The connection's descriptor, for poll."""
        return int(self.display.fileno())

    # --- events ---

    def listen(self, listener: Callable[[Any], bool]) -> None:
        """Pass every event but damage to ``listener``, which returns True when the screen or the windows changed."""
        self._listeners.append(listener)

    def pump(self) -> bool:
        """Take pending events without waiting; True when the screen or the windows changed since the last call.

        Every drawing after its return raises `num_damages`.
        """
        self.take_pending()
        changed, self._has_changed = self._has_changed, False
        return changed

    def take_pending(self) -> None:
        """Take pending events without waiting; the next `pump` reports their changes."""
        num_before = self.num_damages
        for _ in range(_MAX_EVENTS):
            if self.display.pending_events():
                self._take(self.display.next_event())
            elif self.num_damages == num_before:
                break
            else:
                num_before = self.num_damages
                # The server reports no drawing before it has subtracted. Waiting for that takes in whatever else has come,
                # which the descriptor does not show any more: so look again.
                self.display.sync()

    def _take(self, event: Any) -> None:
        if event.type == self.display.extension_event.DamageNotify:
            self.display.damage_subtract(self._damage, X.NONE, X.NONE)
            self.num_damages += 1
            self._has_changed = True
            return
        for listener in self._listeners:
            self._has_changed = listener(event) or self._has_changed

    def wait_for_event(self, timeout_s: float) -> None:
        """Wait for an event, at most ``timeout_s``, and take all that are pending."""
        if not self.display.pending_events():
            select.select([self.fileno()], [], [], timeout_s)
        self.pump()

    # --- windows ---

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the screen, pixels."""
        screen = self.display.screen()
        return screen.width_in_pixels, screen.height_in_pixels

    def window(self, xid: int) -> Any:
        """Xlib's object for the window ``xid``."""
        return self.display.create_resource_object("window", xid)

    def atom(self, name: str) -> int:
        """The server's number for ``name``."""
        if name not in self._atoms:
            self._atoms[name] = self.display.intern_atom(name)
        return self._atoms[name]

    def numbers(self, window: Any, name: str, kind: int = X.AnyPropertyType) -> list[int]:
        """The numbers in a window's property; none where a program has put something else there."""
        found = window.get_full_property(self.atom(name), kind, _WHOLE)
        return [int(value) for value in found.value] if found is not None and found.format == 32 else []

    def bytes_of(self, window: Any, name: str, kind: int) -> bytes:
        """The text in a window's property; none where a program has put something else there."""
        found = window.get_full_property(self.atom(name), kind, _WHOLE)
        return found.value if found is not None and isinstance(found.value, bytes) else b""

    def send_to_manager(self, xid: int, name: str, data: list[int]) -> None:
        """Send the window manager the message ``name`` (EWMH) about the window ``xid``; does not wait."""
        message = xevent.ClientMessage(window=self.window(xid), client_type=self.atom(name), data=(32, data))
        self.root.send_event(message, event_mask=X.SubstructureRedirectMask | X.SubstructureNotifyMask)
        self.display.flush()

    def clipboard_owner(self) -> int:
        """Process id of the program that the clipboard's content comes from, 0 when there is none."""
        owner = self.display.get_selection_owner(self.atom("CLIPBOARD"))
        if not owner:
            return 0
        found = self.display.res_query_client_ids([{"client": owner.id, "mask": res.LocalClientPIDMask}]).ids
        return int(found[0].value[0]) if found and found[0].value else 0
