"""GIMP's process, and how it is asked: a Scheme expression goes over the session bus, its values come back through a pipe.

GIMP's D-Bus call answers before the expression has run, so the expression writes its own answer into a named pipe that only
this process reads. No port, no interpreter of its own: the Script-Fu extension inside GIMP runs all the time. The agent's API
is `gimp_tools`.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ..dbus import Bus, Call, DBusError
from ..faults import DesktopError, Refused
from .on_demand import OnDemandApp, Surroundings

if TYPE_CHECKING:
    from .gimp_tools import GimpTools

_NAME, _OBJECT, _UI = "org.gimp.GIMP.UI", "/org/gimp/GIMP/UI", "org.gimp.GIMP.UI"
_KNOWN_PLUG_INS = Path("/opt/computerrl/gimp/pluginrc")
"""What the image knows of GIMP's plug-ins (full.def); without it, each start asks all of them."""
_DONE = "-- computerrl done --"
_SETTINGS = """(check-updates no)
(color-profile-policy keep)
(metadata-rotation-policy rotate)
(import-promote-float no)
(undo-levels 20)
(num-processors 2)
(tile-cache-size 256M)
(save-document-history no)
(default-show-all no)
(toolbox-wilber no)
(single-window-mode yes)
"""
_WINDOW = """(session-info "toplevel"
    (factory-entry "gimp-single-image-window")
    (position 0 0)
    (size 800 600)
    (open-on-exit)
    (aux-info
        (left-docks-width "150")
        (right-docks-position "650")
        (maximized "yes"))
    (gimp-toolbox (side left)))
(hide-docks no)
(single-window-mode yes)
"""
"""Without it GIMP places its window by itself, partly off the screen."""
IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp", ".xcf", ".psd", ".ico", ".ppm", ".tga")


class Gimp(OnDemandApp):
    """The image editor."""

    name = "gimp"
    label = "GIMP"
    program_file = "gimp"

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._bus: Bus | None = None
        self._answer_fd = -1

    @cached_property
    def tools(self) -> GimpTools:
        """See `GimpTools`."""
        from .gimp_tools import GimpTools

        return GimpTools(self)

    def arguments(self) -> Sequence[str]:
        """No splash: it would count as a window."""
        return ["--no-splash"]

    def environment(self) -> Mapping[str, str]:
        """GTK 2 shows itself to the accessibility bus only through modules."""
        return {"GTK_MODULES": "gail:atk-bridge"}

    def settings(self) -> Mapping[str, str]:
        """No questions, no network, a small cache."""
        known = f'(pluginrc-path "{_KNOWN_PLUG_INS}")\n' if _KNOWN_PLUG_INS.is_file() else ""
        return {
            ".config/GIMP/2.10/gimprc": _SETTINGS + known,
            ".config/GIMP/2.10/sessionrc": _WINDOW,
            ".gtkrc-2.0": "gtk-cursor-blink = 0\n",
        }

    def launch(self) -> None:
        """Start it, with the pipe for its answers in place."""
        os.mkfifo(self._pipe)
        # Open for both, so that neither a missing reader nor a missing writer ever blocks anybody or ends the stream.
        self._answer_fd = os.open(self._pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.program.start()

    def connect(self, *, timeout_s: float) -> None:
        """Wait until it carries out expressions, which it does once everything is loaded."""
        deadline = time.monotonic() + timeout_s
        if self._bus is None:
            self._bus = Bus(self.around.env["DBUS_SESSION_BUS_ADDRESS"])
        self.around.wait(self._is_on_bus, deadline, "GIMP on the session bus")
        self.ask("1", timeout_s=deadline - time.monotonic())

    def open(self, place: Path, *, timeout_s: float) -> None:
        """Open an image."""
        self.tools.open_place(place)

    def close(self) -> None:
        """See `OnDemandApp`."""
        super().close()
        if self._answer_fd >= 0:
            os.close(self._answer_fd)
            self._answer_fd = -1
        if self._bus is not None:
            self._bus.close()
            self._bus = None

    def ask(self, expression: str, *, timeout_s: float = 7.0) -> list[str]:
        """The values of a Scheme expression (a list), as text. Raises `Refused` when GIMP cannot carry it out."""
        if self._bus is None or self._answer_fd < 0:
            raise DesktopError("GIMP is not connected")
        self._read()  # what an expression that came too late has left
        program = (
            f"(let* ((lines (catch '(computerrl-error) (let ((value {expression})) (if (list? value) value (list value)))))"
            f" (port (open-output-file {scheme_text(str(self._pipe))})))"
            " (for-each (lambda (value) (display value port) (newline port)) lines)"
            f" (display {scheme_text(_DONE)} port) (newline port) (close-output-port port))"
        )
        self._bus.call(Call(_NAME, _OBJECT, _UI, "BatchRun", "ss", ("plug-in-script-fu-eval", program)), timeout_s=timeout_s)
        lines = self._answer(time.monotonic() + timeout_s)
        if lines[:1] == ["computerrl-error"]:
            raise Refused("GIMP could not do it")
        return lines

    @property
    def _pipe(self) -> Path:
        return self.profile / "answers"

    def _is_on_bus(self) -> bool:
        assert self._bus is not None
        bus = "org.freedesktop.DBus"
        return bool(self._bus.call(Call(bus, "/org/freedesktop/DBus", bus, "NameHasOwner", "s", (_NAME,)))[0])

    def _answer(self, deadline: float) -> list[str]:
        said = ""
        while not said.endswith(f"{_DONE}\n"):
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not select.select([self._answer_fd], [], [], remaining)[0]:
                raise DBusError("GIMP did not answer in time")
            said += self._read()
        return said.removesuffix(f"{_DONE}\n").splitlines()

    def _read(self) -> str:
        try:
            return os.read(self._answer_fd, 1 << 16).decode("utf-8", "replace")
        except BlockingIOError:
            return ""


def scheme_text(text: str) -> str:
    """``text`` as a string literal of Scheme: whatever it holds stays text."""
    return '"' + "".join(f"\\{char}" if char in '"\\' else char for char in text if char not in "\0\r") + '"'
