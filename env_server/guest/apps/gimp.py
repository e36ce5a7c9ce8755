"""GIMP's process, and how it is asked: Scheme expressions go to it through one named pipe, their values come back by another.

GIMP starts a Scheme interpreter for every expression that it gets over the session bus, which takes half a second. So one such
expression is sent, once: it reads the others from a pipe, one after another, for as long as GIMP runs. Only this process holds
the pipes' other ends, and there is no port. The agent's API is `gimp_tools`.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ..faults import DesktopError, Refused
from ..reading.dbus import Bus, Call
from .on_demand import OnDemandApp, Surroundings

if TYPE_CHECKING:
    from .gimp_tools import GimpTools

_NAME, _OBJECT = "org.gimp.GIMP.UI", "/org/gimp/GIMP/UI"
_ASK_LIMIT_S = 7.0
_KNOWN_PLUG_INS = Path("/opt/computerrl/gimp/pluginrc")
"""What the image knows of GIMP's plug-ins (full.def); without it, each start asks all of them."""
_DONE, _FAILED = "-- computerrl done --", "-- computerrl failed --"
_WORKER = """(let ((questions (open-input-file %(questions)s)))
  (let loop ()
    (let* ((question (read questions))
           (lines (catch '(%(failed)s) (let ((value (eval question))) (if (list? value) value (list value)))))
           (answers (open-output-file %(answers)s)))
      (for-each (lambda (line) (display line answers) (newline answers)) lines)
      (display %(done)s answers)
      (newline answers)
      (close-output-port answers)
      (loop))))"""
"""The worker. It opens the pipe anew for every answer: closing is this Scheme's only way to have it written."""
_SETTINGS = """(check-updates no)
(color-profile-policy keep)
(import-promote-float no)
(undo-levels 20)
(num-processors 2)
(tile-cache-size 256M)
(save-document-history no)
(default-show-all no)
(toolbox-wilber no)
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
        self._questions = self._answers = -1
        self._is_asked = self._has_answered = False

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
        }

    def launch(self) -> None:
        """Start it, with the pipes in place."""
        # Open for both, so that neither a missing reader nor a missing writer ever blocks anybody or ends the stream.
        self._questions = os.open(_made(self.private / "questions"), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._answers = os.open(_made(self.private / "answers"), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._is_asked = self._has_answered = False
        self.program.start()

    def connect(self, *, timeout_s: float) -> None:
        """Wait until it carries out expressions, as it does once all is loaded. May be called again after a time-out."""
        deadline = time.monotonic() + timeout_s
        if not self._is_asked:
            bus = Bus(self.around.env["DBUS_SESSION_BUS_ADDRESS"])
            try:
                self.around.wait(lambda: bus.has_owner(_NAME), deadline, "GIMP on the session bus")
                bus.call(Call(_NAME, _OBJECT, _NAME, "BatchRun", "ss", ("plug-in-script-fu-eval", self._worker())))
            finally:
                bus.close()
            self._is_asked = True
            os.write(self._questions, b"1\n")
        if not self._has_answered:
            self._answer(deadline)
            self._has_answered = True

    def open(self, place: Path, *, timeout_s: float) -> None:
        """Open an image."""
        self.tools.open_place(place)

    def close(self) -> None:
        """See `OnDemandApp`."""
        super().close()
        for pipe in (self._questions, self._answers):
            if pipe >= 0:
                os.close(pipe)
        self._questions = self._answers = -1

    def ask(self, expression: str, *, timeout_s: float = _ASK_LIMIT_S) -> list[str]:
        """The values of a Scheme expression (a list), as text. Raises `Refused` when GIMP cannot carry it out."""
        if not self._has_answered:
            raise DesktopError("GIMP is not connected")
        os.write(self._questions, f"{expression}\n".encode())
        lines = self._answer(time.monotonic() + timeout_s)
        if lines == [_FAILED]:
            raise Refused("GIMP could not do it")
        return lines

    def _worker(self) -> str:
        parts = {
            "questions": str(self.private / "questions"),
            "answers": str(self.private / "answers"),
            "done": _DONE,
            "failed": _FAILED,
        }
        return _WORKER % {name: scheme_text(text) for name, text in parts.items()}

    def _answer(self, deadline: float) -> list[str]:
        said = b""
        while not said.endswith(f"{_DONE}\n".encode()):
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not select.select([self._answers], [], [], remaining)[0]:
                raise DesktopError("GIMP did not answer in time")
            said += os.read(self._answers, 1 << 16)
        return said.decode("utf-8", "replace").removesuffix(f"{_DONE}\n").splitlines()


def _made(pipe: Path) -> Path:
    os.mkfifo(pipe)
    return pipe


def scheme_text(text: str) -> str:
    """``text`` as a string literal of Scheme: whatever it holds stays text."""
    return '"' + "".join(f"\\{char}" if char in '"\\' else char for char in text if char not in "\0\r") + '"'
