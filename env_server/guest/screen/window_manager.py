"""Requests to the window manager and to windows' programs, by the messages of EWMH, and waiting for their answers."""

from __future__ import annotations

import time
from typing import Any

from Xlib import X
from Xlib.error import BadMatch, BadWindow
from Xlib.protocol import event as xevent

from .connection import Connection


class WindowManager:
    """The window manager, as its clients speak to it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._helper = connection.root.create_window(0, 0, 1, 1, 0, X.CopyFromParent, event_mask=X.PropertyChangeMask)
        """A window that never shows; `sync` asks about its frame."""
        self._num_extents = 0
        """Number of answers about that frame."""
        self._ping_serial = 0
        self._awaited = 0
        """Number of the last ping, until it is answered: one is out at a time, and programs may answer what nobody asked."""
        connection.listen(self._take)

    def _take(self, event: Any) -> bool:
        if event.type == X.PropertyNotify and event.window.id == self._helper.id:
            self._num_extents += 1
        elif event.type == X.ClientMessage and event.client_type == self._connection.atom("WM_PROTOCOLS"):
            if event.data[1][1] == self._awaited:
                self._awaited = 0
        return False

    def activate(self, xid: int) -> None:
        """Request that a window is raised and focused."""
        self._connection.send_to_manager(xid, "_NET_ACTIVE_WINDOW", [2, X.CurrentTime, 0, 0, 0])

    def close(self, xid: int) -> None:
        """Request that a window closes, as its close button would."""
        self._connection.send_to_manager(xid, "_NET_CLOSE_WINDOW", [X.CurrentTime, 2, 0, 0, 0])

    def sync(self, timeout_s: float) -> bool:
        """Wait until the window manager has dealt with all that happened before; False when it has not in time.

        It answers requests in their order. Only one request may come from any window and changes nothing on the screen: the one
        for the size of a frame (EWMH, _NET_REQUEST_FRAME_EXTENTS).
        """
        deadline = time.monotonic() + timeout_s
        before = self._num_extents
        self._connection.send_to_manager(self._helper.id, "_NET_REQUEST_FRAME_EXTENTS", [0] * 5)
        while self._num_extents == before and time.monotonic() < deadline:
            self._connection.wait_for_event(deadline - time.monotonic())
        return self._num_extents != before

    def ping(self, xid: int) -> int | None:
        """Request an answer of the window's program once it has taken all input before this (EWMH, _NET_WM_PING).

        Returns the number that `answered` takes until the next ping; None for a program that never answers.
        """
        connection = self._connection
        window = connection.window(xid)
        try:
            protocols = window.get_wm_protocols()
        except (BadWindow, BadMatch):
            return None
        if connection.atom("_NET_WM_PING") not in protocols:
            return None
        self._ping_serial += 1
        self._awaited = self._ping_serial
        message = xevent.ClientMessage(
            window=window,
            client_type=connection.atom("WM_PROTOCOLS"),
            data=(32, [connection.atom("_NET_WM_PING"), self._ping_serial, xid, 0, 0]),
        )
        window.send_event(message, event_mask=0)
        connection.display.flush()
        return self._ping_serial

    def answered(self, ping: int) -> bool:
        """Has the program answered this ping?"""
        return ping != self._awaited
