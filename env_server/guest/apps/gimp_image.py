"""The image in front of a running GIMP, asked about and changed by Scheme expressions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..faults import Refused

NO_IMAGE = "no image is open: open one with gimp.open"
_NEWEST = "(vector-ref (cadr (gimp-image-list)) 0)"
"""The image opened last is the one in front."""
_MODES = {"rgb": 0, "gray": 1, "indexed": 2}


def scheme_text(text: str) -> str:
    """``text`` as a string literal of Scheme: whatever it holds stays text."""
    return '"' + "".join(f"\\{char}" if char in '"\\' else char for char in text if char not in "\0\r") + '"'


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """An image as it is now."""

    width: int
    height: int
    """Pixels."""
    mode: str
    path: str
    """Its file; empty: none."""
    layers: list[str]
    """Names, top first."""


class FrontImage:
    """The image in front, whichever that is at each call."""

    def __init__(self, ask: Callable[[str], list[str]]) -> None:
        """``ask`` evaluates an expression; see `Gimp.ask`."""
        self._ask = ask

    def exists(self) -> bool:
        """Is any image open?"""
        return int(self._ask("(car (gimp-image-list))")[0]) > 0

    def require(self) -> None:
        """Raise `Refused` when no image is open."""
        if not self.exists():
            raise Refused(NO_IMAGE)

    def require_mode(self, mode: str | None, message: str) -> None:
        """Raise `Refused` with ``message`` when the image has another mode; None: when it is indexed."""
        self.require()
        found = self.mode()
        if found == "indexed" or mode not in (None, found):
            raise Refused(message)

    def mode(self) -> str:
        """``rgb``, ``gray`` or ``indexed``."""
        return _mode(self._ask(f"(car (gimp-image-base-type {_NEWEST}))")[0])

    def size(self) -> tuple[int, int]:
        """Width and height, pixels."""
        size = f"(let ((image {_NEWEST})) (list (car (gimp-image-width image)) (car (gimp-image-height image))))"
        width, height = (int(value) for value in self._ask(size))
        return width, height

    def facts(self) -> ImageFacts:
        """All that the agent is shown of it."""
        width, height, mode, path, *layers = self._ask(
            f"(let* ((image {_NEWEST}) (layers (vector->list (cadr (gimp-image-get-layers image)))))"
            " (append (list (car (gimp-image-width image)) (car (gimp-image-height image)) (car (gimp-image-base-type image))"
            " (car (gimp-image-get-filename image))) (map (lambda (layer) (car (gimp-item-get-name layer))) layers)))"
        )
        return ImageFacts(int(width), int(height), _mode(mode), path, layers)

    def change(self, commands: str) -> None:
        """Carry out commands on ``image`` and its active ``drawable``, as one step of GIMP's own undo. Raises `Refused`."""
        self.require()
        self._ask(
            f"(let* ((image {_NEWEST}) (drawable (car (gimp-image-get-active-drawable image))))"
            " (gimp-context-push) (gimp-image-undo-group-start image)"
            f" (let ((done (catch #f {commands} #t)))"
            " (gimp-image-undo-group-end image) (gimp-context-pop) (gimp-displays-flush)"
            ' (if done 1 (error "refused"))))'
        )

    def save_copy(self, path: str, prepare: str) -> None:
        """Write a copy of the image. ``prepare``: expression that makes ``copy`` fit for the format and gives its drawable."""
        file = scheme_text(path)
        self._ask(
            f"(let* ((image {_NEWEST}) (copy (car (gimp-image-duplicate image))) (drawable {prepare}))"
            f" (gimp-file-save 1 copy drawable {file} {file}) (gimp-image-delete copy) (gimp-image-clean-all image) 1)"
        )


def _mode(number: str) -> str:
    return next(name for name, known in _MODES.items() if known == int(number))
