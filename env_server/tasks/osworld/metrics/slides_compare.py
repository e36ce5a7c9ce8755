"""`compare_pptx_files`: two presentations shape by shape, each aspect switched on or off by an option."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from env_server.tasks.osworld.metrics.matching import BadRule
from env_server.tasks.osworld.metrics.slides import A, iterate_shapes, open_presentation

_TOLERANCE = 0.005
"""Positions and sizes may differ by this share of the value: applications round when they save."""


@dataclass(frozen=True, slots=True)
class Aspects:
    """What is compared; names and defaults are the format's (``examine_`` in front)."""

    number_of_slides: bool = True
    shape: bool = True
    """Position and size of every shape."""
    text: bool = True
    indent: bool = True
    font_name: bool = True
    font_size: bool = True
    font_bold: bool = True
    font_italic: bool = True
    color_rgb: bool = True
    font_underline: bool = True
    strike_through: bool = True
    alignment: bool = True
    title_bottom_position: bool = False
    """Titles lie in the lower half of the slide where the expected ones do; also tables, right and upper half."""
    table_bottom_position: bool = False
    right_position: bool = False
    top_position: bool = False
    shape_for_shift_size: bool = False
    """Position and size, whatever `shape` says."""
    image_size: bool = False
    modify_height: bool = False
    bullets: bool = True
    background_color: bool = True
    note: bool = True


def compare_pptx_files(result: str, expected: str, **options: Any) -> float:
    """Both presentations are the same in every aspect that the options leave switched on; see `Aspects`.

    ``approximately_tolerance``: share by which positions and sizes may differ. Options that begin with ``_`` are remarks.
    """
    tolerance = float(options.pop("approximately_tolerance", _TOLERANCE))
    options = {name: value for name, value in options.items() if name != "enable_debug" and not name.startswith("_")}
    known = {f"examine_{field.name}": field.name for field in fields(Aspects)}
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise BadRule(f"compare_pptx_files has no option {', '.join(unknown)}")
    aspects = Aspects(**{known[name]: bool(value) for name, value in options.items()})
    found, wanted = open_presentation(result), open_presentation(expected)
    if aspects.number_of_slides and len(found.slides) != len(wanted.slides):
        return 0.0
    size = (int(wanted.slide_width), int(wanted.slide_height))
    for one, other in zip(found.slides, wanted.slides, strict=False):
        if not _same_slide(one, other, aspects, tolerance, size):
            return 0.0
    return 1.0


def _same_slide(found: Any, wanted: Any, aspects: Aspects, tolerance: float, size: tuple[int, int]) -> bool:
    if aspects.background_color and background_of(found) != background_of(wanted):
        return False
    if aspects.note and _note(found) != _note(wanted):
        return False
    ours, theirs = list(iterate_shapes(found.shapes)), list(iterate_shapes(wanted.shapes))
    if len(ours) != len(theirs):
        return False
    return all(_same_shape(one, other, aspects, tolerance, size) for one, other in zip(ours, theirs, strict=True))


def background_of(slide: Any) -> str | None:
    """The slide's own background as text; None where it has the master's."""
    fill = slide.background.fill
    try:
        return f"{fill.type}:{fill.fore_color.rgb}"
    except (AttributeError, TypeError):
        return None if fill.type in (None, 5) else str(fill.type)


def _note(slide: Any) -> str:
    return slide.notes_slide.notes_text_frame.text.strip() if slide.has_notes_slide and slide.notes_slide.notes_text_frame else ""


# --- shapes ----------------------------------------------------------------------------------------------------------


def _same_shape(found: Any, wanted: Any, aspects: Aspects, tolerance: float, size: tuple[int, int]) -> bool:
    if not _same_place(found, wanted, aspects, tolerance, size):
        return False
    if getattr(found, "has_table", False) != getattr(wanted, "has_table", False):
        return False
    ours, theirs = list(_paragraphs(found)), list(_paragraphs(wanted))
    if len(ours) != len(theirs):
        return not (aspects.text or aspects.bullets)
    return all(_same_paragraph(one, other, aspects) for one, other in zip(ours, theirs, strict=True))


def _box(shape: Any) -> tuple[int, int, int, int]:
    return tuple(int(value or 0) for value in (shape.left, shape.top, shape.width, shape.height))  # type: ignore[return-value]


def _same_place(found: Any, wanted: Any, aspects: Aspects, tolerance: float, size: tuple[int, int]) -> bool:
    one, other = _box(found), _box(wanted)
    close = [_close(a, b, tolerance, limit) for a, b, limit in zip(one, other, (*size, *size), strict=True)]
    is_picture = "picture" in str(getattr(wanted, "shape_type", "")).lower()
    if (aspects.shape or aspects.shape_for_shift_size) and not all(close):
        return False
    if aspects.image_size and is_picture and not (close[2] and close[3]):
        return False
    # A box with text grows and shrinks with it by itself.
    if aspects.modify_height and not (wanted.has_text_frame and wanted.text_frame.text.strip()) and not close[3]:
        return False
    title = wanted.is_placeholder and "TITLE" in str(wanted.placeholder_format.type)
    middle_x, middle_y = size[0] / 2, size[1] / 2
    halves = (
        (aspects.title_bottom_position and title, one[1] + one[3] / 2 > middle_y, other[1] + other[3] / 2 > middle_y),
        (aspects.table_bottom_position and getattr(wanted, "has_table", False), one[1] + one[3] / 2 > middle_y,
         other[1] + other[3] / 2 > middle_y),
        (aspects.right_position and not title, one[0] + one[2] / 2 > middle_x, other[0] + other[2] / 2 > middle_x),
        (aspects.top_position and not title, one[1] + one[3] / 2 < middle_y, other[1] + other[3] / 2 < middle_y),
    )  # fmt: skip
    return not any(examined and there and not here for examined, here, there in halves)


def _close(found: int, wanted: int, tolerance: float, limit: int) -> bool:
    # Near zero a share of the value would allow nothing; a thousandth of the slide cannot be seen.
    return abs(found - wanted) <= max(tolerance * abs(wanted), 0.001 * limit)


def _paragraphs(shape: Any) -> Iterator[Any]:
    if getattr(shape, "has_table", False):
        for row in shape.table.rows:
            for cell in row.cells:
                yield from cell.text_frame.paragraphs
    elif shape.has_text_frame:
        yield from shape.text_frame.paragraphs


def _same_paragraph(found: Any, wanted: Any, aspects: Aspects) -> bool:
    if aspects.text and found.text.strip() != wanted.text.strip():
        return False
    if aspects.alignment and _alignment(found) != _alignment(wanted):
        return False
    if aspects.indent and found.level != wanted.level:
        return False
    if aspects.bullets and wanted.text.strip() and _bullet(found) != _bullet(wanted):
        return False
    return _same_letters(found, wanted, aspects)


def _alignment(paragraph: Any) -> str:
    # No alignment means left in every master that applications write.
    return "LEFT" if paragraph.alignment is None else str(paragraph.alignment).split(" ")[0]


def _bullet(paragraph: Any) -> str:
    properties = paragraph._p.pPr
    if properties is None:
        return ""
    for name in ("buChar", "buAutoNum", "buBlip"):
        node = properties.find(f"{A}{name}")
        if node is not None:
            return f"{name}:{node.get('char') or node.get('type') or ''}"
    return ""


def _same_letters(found: Any, wanted: Any, aspects: Aspects) -> bool:
    """Letter by letter, so that it does not matter how a paragraph is cut into runs."""
    ours, theirs = _letters(found), _letters(wanted)
    if len(ours) != len(theirs):
        return not aspects.text
    checks = [index for index, name in enumerate(_LETTER_ASPECTS) if getattr(aspects, name)]
    return all(one[index] == other[index] for one, other in zip(ours, theirs, strict=True) for index in checks)


_LETTER_ASPECTS = ("font_name", "font_size", "font_bold", "font_italic", "color_rgb", "font_underline", "strike_through")


def _letters(paragraph: Any) -> list[tuple[Any, ...]]:
    letters: list[tuple[Any, ...]] = []
    for run in paragraph.runs:
        font = run.font
        strike = run._r.rPr.get("strike", "noStrike") if run._r.rPr is not None else "noStrike"
        facts = (
            font.name,
            font.size,
            bool(font.bold),
            bool(font.italic),
            colour_of(font),
            str(font.underline) if font.underline else "",
            "" if strike == "noStrike" else strike,
        )
        letters += [facts] * len(run.text.strip())
    return letters


def colour_of(font: Any) -> str | None:
    """A run's own colour; theme colours by name."""
    try:
        colour = font.color
        if colour.type is None:
            return None
        return str(colour.rgb) if "RGB" in str(colour.type) else str(colour.theme_color)
    except AttributeError:
        return None
