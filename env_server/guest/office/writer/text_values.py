"""Properties of text that Writer and Impress share. Only inside the office's calls."""

from __future__ import annotations

import math
import re
from typing import Any

from ..process import DocumentError

_ALIGNMENTS = {"left": "LEFT", "right": "RIGHT", "center": "CENTER", "justify": "BLOCK"}
_SCRIPTS = ("", "Asian", "Complex")
"""The office keeps weight, slant, size and font three times, by script."""
BOLD, SINGLE = 150.0, 1
"""com.sun.star.awt.FontWeight.BOLD; FontStrikeout.SINGLE and FontUnderline.SINGLE."""
_NORMAL = 100.0
_UNFIT = re.compile("[\x7f-\x9f\ud800-\udfff\ufff9-\uffff]")
_MAX_SIZE_PT = 999


def alignment(name: str) -> Any:
    """com.sun.star.style.ParagraphAdjust of ``left``, ``right``, ``center`` or ``justify``."""
    import uno

    if name not in _ALIGNMENTS:
        raise DocumentError(f"{name!r} is no alignment: use {', '.join(_ALIGNMENTS)}")
    return uno.Enum("com.sun.star.style.ParagraphAdjust", _ALIGNMENTS[name])


def font_size(points: float) -> float:
    """The size, if there can be such a one. Raises `DocumentError`."""
    if not math.isfinite(points) or not 1 <= points <= _MAX_SIZE_PT:
        raise DocumentError(f"a font size is between 1 and {_MAX_SIZE_PT} points, not {points}")
    return float(points)


def font_name(name: str) -> str:
    """The name without blanks around it. Raises `DocumentError` when nothing is left."""
    if not name.strip() or len(name) > 100:
        raise DocumentError("a font name is needed, like 'Liberation Serif'")
    return name.strip()


def set_size(target: Any, points: float) -> None:
    """Set the font size of a text."""
    _set_all(target, "CharHeight", points)


def set_font(target: Any, name: str) -> None:
    """Set the font of a text."""
    _set_all(target, "CharFontName", name)


def set_bold(target: Any, on: bool) -> None:
    """Make a text bold, or not."""
    _set_all(target, "CharWeight", BOLD if on else _NORMAL)


def set_italic(target: Any, on: bool) -> None:
    """Make a text italic, or not."""
    import uno

    _set_all(target, "CharPosture", uno.Enum("com.sun.star.awt.FontSlant", "ITALIC" if on else "NONE"))


def set_written(target: Any, *, bold: bool, italic: bool, size: float | None) -> None:
    """How newly written text looks: what is not asked for is as the paragraph's style says, not as in the text before it."""
    for script in _SCRIPTS:
        if not bold:
            target.setPropertyToDefault(f"CharWeight{script}")
        if not italic:
            target.setPropertyToDefault(f"CharPosture{script}")
    if bold:
        set_bold(target, True)
    if italic:
        set_italic(target, True)
    if size is not None:
        set_size(target, size)


def _set_all(target: Any, name: str, value: Any) -> None:
    names = tuple(name + script for script in _SCRIPTS)
    if hasattr(target, "setPropertyValues"):
        target.setPropertyValues(names, (value,) * len(names))
        return
    for each in names:  # the cursor on the screen knows no other way
        target.setPropertyValue(each, value)


def plain(text: str) -> str:
    """Without what a document cannot hold: control characters, half surrogate pairs, codes that Writer uses for itself.

    Line ends and tabs stay.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(char for char in text if char in "\n\t" or (char >= " " and not _UNFIT.match(char)))
