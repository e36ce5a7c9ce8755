"""Requests to the window manager and to windows' programs, by the messages of EWMH, and waiting for their answers."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from Xlib import X
from Xlib.error import BadMatch, BadWindow
from Xlib.protocol import event as xevent

from .connection import Connection


class WindowManager:
    """The window manager, as its clients speak to it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._questions = deque([self._question()])
        """Windows that `sync` asked about, the one of the last answer first; those after it wait for theirs."""
        self._ping_serial = 0
        self._awaited = 0
        """Number of the last ping, until it is answered: one is out at a time, and programs may answer what nobody asked."""
        connection.listen(self._take)

    def _take(self, event: Any) -> bool:
        if event.type == X.PropertyNotify:
            is_answer = event.atom == self._connection.atom("_NET_FRAME_EXTENTS")
            if is_answer and event.window.id in [question.id for question in self._questions]:
                while self._questions[0].id != event.window.id:
                    self._questions.popleft().destroy()
        elif event.type == X.ClientMessage and event.client_type == self._connection.atom("WM_PROTOCOLS"):
            if event.data[1][1] == self._awaited:
                self._awaited = 0
        return False

    def _question(self) -> Any:
        """A window that never shows."""
        return self._connection.root.create_window(0, 0, 1, 1, 0, X.CopyFromParent, event_mask=X.PropertyChangeMask)

    def activate(self, xid: int) -> None:
        """Request that a window is raised and focused."""
        self._connection.send_to_manager(xid, "_NET_ACTIVE_WINDOW", [2, X.CurrentTime, 0, 0, 0])

    def close(self, xid: int) -> None:
        """Request that a window closes, as its close button would."""
        self._connection.send_to_manager(xid, "_NET_CLOSE_WINDOW", [X.CurrentTime, 2, 0, 0, 0])

    def sync(self, timeout_s: float) -> bool:
        """Wait until the window manager has dealt with all that happened before; False when it has not in time.

        It answers requests in their order. Only one request may come from any window and changes nothing on the screen: the one
        for the size of a frame (EWMH, _NET_REQUEST_FRAME_EXTENTS). Openbox answers each several times, and what was too late for
        one wait must not end the next one: so each question is about a window of its own.
        """
        deadline = time.monotonic() + timeout_s
        question = self._question()
        self._questions.append(question)
        self._connection.send_to_manager(question.id, "_NET_REQUEST_FRAME_EXTENTS", [0] * 5)
        while self._questions[0] is not question and time.monotonic() < deadline:
            self._connection.wait_for_event(deadline - time.monotonic())
        return self._questions[0] is question

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
