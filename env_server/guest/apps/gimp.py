"""GIMP's process and the agent's API. Scheme expressions go to GIMP through one named pipe, their values come back by another.

GIMP starts a Scheme interpreter for every expression that it gets over the session bus, which takes half a second. So one such
expression is sent, once: it reads the others from a pipe, one after another, for as long as GIMP runs. Only this process holds
the pipes' other ends, and there is no port.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ..faults import DesktopError, Refused
from ..office.uno_values import colour
from ..reading.dbus import Bus, Call
from .gimp_image import NO_IMAGE, FrontImage, scheme_text
from .on_demand import OnDemandApp, Surroundings, Tools

_NAME, _OBJECT = "org.gimp.GIMP.UI", "/org/gimp/GIMP/UI"
_ASK_LIMIT_S = 7.0
_KNOWN_PLUG_INS = Path("/opt/computerrl/gimp/pluginrc")
"""The image's list of GIMP's plug-ins (full.def); without it, each start queries all of them."""
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
_ROTATIONS = {90: 0, 180: 1, 270: 2}
_FLAT = (".jpg", ".jpeg", ".bmp", ".ppm")
"""Formats without transparency and layers."""
_SHOW_LIMIT_S = 7.0
_MAX_PIXELS = 40_000_000
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
        # Open for both, so that neither a missing reader nor a missing writer ever blocks a process or ends the stream.
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

    def open(self, place: Path, *, timeout_s: float = _SHOW_LIMIT_S) -> None:
        """Open an image and wait for the window that shows it. Raises `Refused`."""
        file = scheme_text(str(place))
        # Messages go to GIMP's error console meanwhile: the agent gets the reason as this action's result, not as a dialog.
        (opened,) = self.ask(
            "(begin (gimp-message-set-handler 2)"
            f" (let ((opened (catch 0 (let ((image (car (gimp-file-load 1 {file} {file}))))"
            " (gimp-display-new image) (gimp-image-clean-all image) image))))"
            " (gimp-message-set-handler 0) opened))"
        )
        if opened == "0":
            raise Refused(f"GIMP cannot read {place.relative_to(self.home)} as an image")
        # The window takes the image, and its number into the title ("[a] (imported)-2.0 (RGB ...)"), when GIMP has time for it.
        shown = f"-{opened}.0 ("
        self.around.wait(
            lambda: any(shown in title for title in self.around.titles(self.name)),
            time.monotonic() + _SHOW_LIMIT_S,
            f"GIMP's window with {place.name}",
        )

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


class GimpTools(Tools):
    """The agent's API of GIMP, one method per action; see `common.actions.tables.apps`. Each change is one step of GIMP's own
    undo."""

    def __init__(self, gimp: Gimp) -> None:
        super().__init__(gimp.around.folder)
        self._gimp, self._image = gimp, FrontImage(gimp.ask)

    def check(self, method: str, args: Mapping[str, Any]) -> None:
        """The file to open; without GIMP there is no image."""
        if method == "open":
            self.existing_file(args["path"])
        elif not self._gimp.program.running:
            raise Refused(NO_IMAGE)

    def env_info(self) -> str:
        """Size, mode, layers and file of the open image."""
        if not self._image.exists():
            return "no image is open"
        image = self._image.facts()
        shown = self.shown(Path(image.path)) if image.path else "no file"
        layers = ", ".join(image.layers)
        return f"{shown}: {image.width} x {image.height} pixels, {image.mode}; layers, top first: {layers}"

    def open(self, path: str) -> str:
        """Open an image of the agent's folder."""
        self._gimp.open(self.existing_file(path))
        return self.env_info()

    def export(self, path: str) -> str:
        """Write the image as it looks; an .xcf keeps its layers."""
        self._image.require()
        place = self.folder.resolve(path)
        ending = place.suffix.lower()
        if ending not in IMAGE_ENDINGS:
            raise Refused(f"{path!r} has no image format's ending: use one of {', '.join(IMAGE_ENDINGS)}")
        if not place.parent.is_dir():
            raise Refused(f"there is no folder {Path(path).parent}")
        if place.is_dir():
            raise Refused(f"{path} is a folder")
        prepare = (
            "(car (gimp-image-get-active-drawable copy))"
            if ending == ".xcf"
            else "(begin (if (= (car (gimp-image-base-type copy)) 2) (gimp-image-convert-rgb copy))"
            f" (car ({'gimp-image-flatten copy' if ending in _FLAT else 'gimp-image-merge-visible-layers copy 1'})))"
        )
        self._image.save_copy(str(place), prepare)
        if not place.is_file():
            raise Refused(f"GIMP wrote no {path}")
        return f"exported {self.shown(place)}"

    def scale(self, width: int, height: int) -> str:
        """To a new size in pixels."""
        if width < 1 or height < 1 or width * height > _MAX_PIXELS:
            raise Refused(f"{width} x {height} is no size: each at least 1, together at most {_MAX_PIXELS} pixels")
        return self._change(f"(gimp-image-scale image {width} {height})")

    def crop(self, x: int, y: int, width: int, height: int) -> str:
        """To a rectangle inside the image."""
        self._image.require()
        full_width, full_height = self._image.size()
        if x < 0 or y < 0 or width < 1 or height < 1 or x + width > full_width or y + height > full_height:
            raise Refused(f"the rectangle is not inside the image of {full_width} x {full_height} pixels")
        return self._change(f"(gimp-image-crop image {width} {height} {x} {y})")

    def rotate(self, degrees: int) -> str:
        """Clockwise."""
        if degrees not in _ROTATIONS:
            raise Refused("rotate by 90, 180 or 270 degrees")
        return self._change(f"(gimp-image-rotate image {_ROTATIONS[degrees]})")

    def flip(self, direction: str) -> str:
        """Mirror the whole image."""
        return self._change(f"(gimp-image-flip image {0 if direction == 'horizontal' else 1})")

    def brightness_contrast(self, brightness: float, contrast: float) -> str:
        """Of the active layer."""
        for name, value in (("brightness", brightness), ("contrast", contrast)):
            if not -100 <= value <= 100:
                raise Refused(f"{name} is a number from -100 to 100")
        return self._change(f"(gimp-drawable-brightness-contrast drawable {brightness / 100:.4f} {contrast / 100:.4f})")

    def saturation(self, amount: float) -> str:
        """Of the active layer."""
        if not -100 <= amount <= 100:
            raise Refused("amount is a number from -100 to 100")
        self._image.require_mode("rgb", 'saturation needs a colour image: gimp.set_mode("rgb") first')
        return self._change(f"(gimp-drawable-hue-saturation drawable 0 0 0 {amount:.2f} 0)")

    def set_mode(self, mode: str) -> str:
        """Convert the image."""
        self._image.require()
        if self._image.mode() == mode:
            return f"it is {mode} already"
        commands = {
            "rgb": "(gimp-image-convert-rgb image)",
            "gray": "(gimp-image-convert-grayscale image)",
            "indexed": '(gimp-image-convert-indexed image 0 0 256 0 0 "")',
        }
        return self._change(commands[mode])

    def blur(self, radius: float) -> str:
        """Gaussian, the active layer."""
        if not 0 < radius <= 500:
            raise Refused("radius is a number of pixels above 0, at most 500")
        self._image.require_mode(None, 'an indexed image cannot be blurred: gimp.set_mode("rgb") first')
        return self._change(f"(plug-in-gauss 1 image drawable {radius:.2f} {radius:.2f} 0)")

    def fill(self, color: str) -> str:
        """The whole active layer."""
        return self._change(f"(gimp-context-set-foreground '{_rgb(color)}) (gimp-drawable-fill drawable 0)")

    def add_text(self, text: str, x: int, y: int, size: float, color: str) -> str:
        """On a new layer above the others."""
        if not text.strip():
            raise Refused("give the text")
        if not 1 <= size <= 2000:
            raise Refused("size is a number of pixels from 1 to 2000")
        return self._change(
            f"(gimp-context-set-foreground '{_rgb(color)})"
            f' (gimp-text-fontname image -1 {x} {y} {scheme_text(text)} 0 TRUE {size:.2f} 0 "Sans")'
        )

    def undo(self) -> str:
        """Take the last change back. GIMP's procedures have no undo: it is pressed in the window."""
        self._image.require()
        self._gimp.around.press("gimp", "ctrl+z")
        return self.env_info()

    def _change(self, commands: str) -> str:
        self._image.change(commands)
        return self.env_info()


def _rgb(color: str) -> str:
    value = colour(color)
    return f"({value >> 16} {value >> 8 & 255} {value & 255})"
