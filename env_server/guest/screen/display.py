"""The X server of one desktop: starting Xvfb, and one connection to it with all that is done over it.

The screen knows no application and no accessibility.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping
from pathlib import Path

from ..faults import DesktopError
from ..processes import GIVES_MEMORY_BACK, Program
from .connection import Connection
from .input import Input
from .keyboard import Keyboard
from .window_list import WindowList
from .window_manager import WindowManager
from .x_state import XState

_END_LIMIT_S = 1.0
"""Time from the end of an X server's output to the end of its process."""


def start_xvfb(
    *, width: int, height: int, frame_folder: Path, log_folder: Path, env: Mapping[str, str], deadline: float
) -> tuple[Program, str]:
    """Start the X server with its frame buffer in ``frame_folder``; gives the program and the display's name. Raises
    `DesktopError` when it is not there by the (monotonic) deadline.

    The abstract socket is off: it would be shared by all containers of a host without network namespaces.
    """
    read_end, write_end = os.pipe()
    xvfb = Program(
        "xvfb",
        [
            "Xvfb",
            "-displayfd",
            str(write_end),
            "-screen",
            "0",
            f"{width}x{height}x24",
            "-fbdir",
            str(frame_folder),
            "-nolisten",
            "tcp",
            "-nolisten",
            "local",
            "-noreset",
            "-nocursor",
            "-s",
            "0",
            "-dpms",
            "-accessx",
            "-br",
        ],
        env={**env, **GIVES_MEMORY_BACK},
        log_folder=log_folder,
        sends_files=True,
    )
    xvfb.start(pass_fds=(write_end,))
    os.close(write_end)
    poller = select.poll()
    poller.register(read_end, select.POLLIN | select.POLLHUP)
    said = b""
    # Number and newline come in two writes.
    while not said.endswith(b"\n") and poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
        chunk = os.read(read_end, 32)
        if not chunk:
            break
        said += chunk
    os.close(read_end)
    number = said.decode().strip()
    if not number.isdigit():
        raise DesktopError(f"the X server did not start{xvfb.how_it_ended(wait_s=_END_LIMIT_S) or ' in time'}")
    return xvfb, f":{number}"


class Screen:
    """The parts of one screen, all on one connection to its X server."""

    def __init__(self, name: str) -> None:
        """``name``: the display's, such as ``:1``."""
        self.connection = Connection(name)
        self.windows = WindowList(self.connection)
        self.manager = WindowManager(self.connection)
        keyboard = Keyboard(self.connection.display)
        self.input = Input(self.connection, keyboard, self.manager)
        self.state = XState(self.connection.display, keyboard)

    def describe(self) -> dict[str, str]:
        """All that the server remembers for programs in common, and the state of every window."""
        return self.state.describe() | self.windows.describe()
